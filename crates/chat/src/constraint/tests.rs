use engine::{RowPolicy, Verdict};
use proptest::prelude::*;

use super::*;
use crate::generate::tests::{CLOSE, END, OPEN, bytes, text_marks, thinking, tokenizer};

fn policy(spec: ConstraintSpec) -> TextPolicy {
    TextPolicy::new(Arc::new(Constraint::new(spec, tokenizer()).unwrap()))
}

/// The verdicts on tokens, up to the first that is not to go on.
fn until_verdict(policy: &mut TextPolicy, tokens: &[u32]) -> Option<(usize, Verdict)> {
    (1..).zip(tokens).find_map(|(at, &token)| match policy.advance(token) {
        Verdict::GoOn => None,
        verdict => Some((at, verdict)),
    })
}

#[test]
fn the_budget_cuts_exactly() {
    let mut none = policy(thinking(true, Some(0)));
    assert_eq!(none.start(), Verdict::Force(vec![CLOSE]));
    let mut none = policy(thinking(false, Some(0)));
    assert_eq!(none.start(), Verdict::GoOn);
    assert_eq!(none.advance(OPEN), Verdict::Force(vec![CLOSE]));
    assert_eq!(none.advance(CLOSE), Verdict::GoOn);
    for budget in [1, 10] {
        let mut some = policy(thinking(true, Some(budget)));
        assert_eq!(some.start(), Verdict::GoOn);
        let cut = until_verdict(&mut some, &bytes("thinking about it"));
        assert_eq!(cut, Some((budget, Verdict::Force(vec![CLOSE]))));
        assert_eq!(some.advance(CLOSE), Verdict::GoOn);
        assert_eq!(until_verdict(&mut some, &bytes("a long answer")), None);
    }
    let mut natural = policy(thinking(true, Some(3)));
    assert_eq!(until_verdict(&mut natural, &[b'a'.into(), b'b'.into(), CLOSE]), None);
    let mut unlimited = policy(thinking(true, None));
    assert_eq!(until_verdict(&mut unlimited, &bytes(&"x".repeat(5000))), None);
}

#[test]
fn a_close_that_is_under_way_is_completed() {
    // The special token comes whole.
    let mut special = policy(thinking(true, Some(3)));
    assert_eq!(until_verdict(&mut special, &bytes("a</")), Some((3, Verdict::Force(vec![CLOSE]))));
    // A mark of several tokens is not written twice.
    let mut text = policy(text_marks(true, Some(3)));
    assert_eq!(until_verdict(&mut text, &bytes("a[/")), Some((3, Verdict::Force(bytes("think]")))));
    let mut text = policy(text_marks(true, Some(3)));
    assert_eq!(until_verdict(&mut text, &bytes("abc")), Some((3, Verdict::Force(bytes("[/think]")))));
}

#[test]
fn nonsense_is_refused() {
    let check = |spec: ConstraintSpec, expected: &str| {
        assert_eq!(Constraint::new(spec, tokenizer()).unwrap_err().to_string(), expected);
    };
    let stops = |stop_strings| ConstraintSpec { stop_strings, ..ConstraintSpec::default() };
    check(
        stops(vec!["a".into(), String::new()]),
        "stop string 1 is empty: it would end every answer before it begins",
    );
    check(stops(vec!["a".into(); 10_000]), "there are 10000 stop strings: at most 256 are possible");
    check(
        stops(vec!["a".repeat(1 << 20)]),
        "the stop strings have 1048576 bytes together: at most 65536 are possible",
    );
    check(
        ConstraintSpec { stop_tokens: vec![END, 9999], ..ConstraintSpec::default() },
        "`stop_tokens` names token 9999: a token below 260 is needed",
    );
    let mut spec = thinking(true, None);
    spec.thinking.as_mut().unwrap().close.tokens = bytes("</no>");
    check(spec, "the mark `</think>` has tokens that write `</no>`");
}

/// Text of few letters, with marks in it.
fn tokens() -> impl Strategy<Value = Vec<u32>> {
    let token = prop_oneof![
        8 => prop::sample::select(vec![b'a', b'b', b' ', b'[', b'/']).prop_map(u32::from),
        1 => prop::sample::select(vec![OPEN, CLOSE]),
    ];
    prop::collection::vec(token, 0..40)
}

proptest! {
    #[test]
    fn what_is_taken_back_leaves_no_trace(
        tokens in tokens(), others in tokens(), at in 0usize..40, opened in any::<bool>(), budget in 0usize..8,
    ) {
        let mut spec = thinking(opened, Some(budget));
        spec.stop_strings = vec!["aab".into(), "ab b".into()];
        let mut straight = policy(spec.clone());
        let mut detour = policy(spec);
        for (i, &token) in tokens.iter().enumerate() {
            if i == at {
                let mut taken = 0;
                for &other in &others {
                    taken += 1;
                    if matches!(detour.advance(other), Verdict::Stop(_)) {
                        break;
                    }
                }
                detour.roll_back(taken);
            }
            let verdict = straight.advance(token);
            prop_assert_eq!(detour.advance(token), verdict.clone());
            if matches!(verdict, Verdict::Stop(_)) {
                break;
            }
        }
    }
}
