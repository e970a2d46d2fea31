use std::collections::VecDeque;

use engine::{RowPolicy, StopReason, Verdict};
use proptest::prelude::*;

use super::*;
use crate::constraint::{ConstraintSpec, Marker, TextPolicy, ThinkingSpec};
use crate::{Tokenizer, Vocabulary};

/// Ids 0 to 255 are the bytes; these follow.
pub(crate) const OPEN: u32 = 256;
pub(crate) const CLOSE: u32 = 257;
pub(crate) const END: u32 = 258;
const CONTROL: u32 = 259;

pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    // The byte alphabet of GPT-2's tokenizer: printable bytes are themselves, the others follow from U+0100 on.
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut other = 0x100..;
    let mut tokens: Vec<String> = (0..256)
        .map(|b| if printable(b) { b } else { other.next().unwrap() })
        .map(|c| char::from_u32(c).unwrap().to_string())
        .collect();
    tokens.extend(["<think>", "</think>", "<|im_end|>", "<|control|>"].map(String::from));
    let mut types = vec![1; 256];
    types.extend([4, 3, 3, 3]);
    let vocabulary =
        Vocabulary { model: "gpt2".into(), pre: "qwen2".into(), tokens, types, ..Vocabulary::default() };
    Arc::new(Tokenizer::new(vocabulary).unwrap())
}

pub(crate) fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn marks(open: &str, close: &str, opened_by_prompt: bool, budget_tokens: Option<usize>) -> ConstraintSpec {
    let tokenizer = tokenizer();
    let (open, close) = (Marker::new(&tokenizer, open), Marker::new(&tokenizer, close));
    let thinking = Some(ThinkingSpec { open, close, opened_by_prompt, budget_tokens });
    ConstraintSpec { thinking, stop_tokens: vec![END], ..ConstraintSpec::default() }
}

/// Marks that are special tokens.
pub(crate) fn thinking(opened_by_prompt: bool, budget_tokens: Option<usize>) -> ConstraintSpec {
    marks("<think>", "</think>", opened_by_prompt, budget_tokens)
}

/// Marks of several tokens.
pub(crate) fn text_marks(opened_by_prompt: bool, budget_tokens: Option<usize>) -> ConstraintSpec {
    marks("[think]", "[/think]", opened_by_prompt, budget_tokens)
}

fn stops(stops: &[&str]) -> ConstraintSpec {
    let stop_strings = stops.iter().map(|&stop| stop.to_owned()).collect();
    ConstraintSpec { stop_strings, stop_tokens: vec![END], ..ConstraintSpec::default() }
}

fn generation(spec: ConstraintSpec) -> Generation {
    Generation::new(Arc::new(Constraint::new(spec, tokenizer()).unwrap()), 7)
}

#[derive(Debug, Default, PartialEq)]
struct Seen {
    thinking: String,
    text: String,
    end: Option<Finish>,
    completion_tokens: usize,
}

fn see(seen: &mut Seen, events: Vec<Event>) {
    for event in events {
        assert_eq!(seen.end, None, "nothing comes after the end");
        match event {
            Event::Thinking(piece) => {
                assert!(!piece.is_empty() && seen.text.is_empty());
                seen.thinking += &piece;
            }
            Event::Text(piece) => {
                assert!(!piece.is_empty());
                seen.text += &piece;
            }
            Event::End { reason, usage } => {
                (seen.end, seen.completion_tokens) = (Some(reason), usage.completion_tokens);
            }
        }
    }
}

/// All events of tokens that come `at_once` per step and are then cut off.
fn all(spec: &ConstraintSpec, tokens: &[u32], at_once: usize) -> Seen {
    let mut generation = generation(spec.clone());
    let mut seen = Seen::default();
    for step in tokens.chunks(at_once) {
        see(&mut seen, generation.push(step));
    }
    see(&mut seen, generation.finish(Finish::Length));
    assert_eq!(generation.finish(Finish::Length), []);
    seen
}

#[track_caller]
fn check(spec: &ConstraintSpec, tokens: &[u32], thinking: &str, text: &str, end: Finish) {
    for at_once in 1..=8 {
        let seen = all(spec, tokens, at_once);
        assert_eq!(
            (&*seen.thinking, &*seen.text, seen.end),
            (thinking, text, Some(end)),
            "{at_once} at once"
        );
    }
}

const fn stopped(stop: usize) -> Finish {
    Finish::Stop(StopReason::Sequence(stop))
}

#[test]
fn an_answer_ends_exactly_before_the_stop() {
    check(&stops(&["aab"]), &bytes("aaab rest"), "", "a", stopped(0));
    check(&stops(&["abc", "ab"]), &bytes("xabc"), "", "x", stopped(1));
    check(&stops(&["b", "ab"]), &bytes("xab"), "", "x", stopped(1));
    check(&stops(&["abcd", "bc"]), &bytes("xabcd"), "", "xa", stopped(1));
    check(&stops(&["whole"]), &bytes("whole"), "", "", stopped(0));
    check(&stops(&["stop"]), &bytes("go on, sto"), "", "go on, sto", Finish::Length);
    check(&stops(&["🙂"]), &bytes("a🙃🙂b"), "", "a🙃", stopped(0));
    check(&stops(&["é"]), &bytes("aè\u{a9}é"), "", "aè\u{a9}", stopped(0));
    check(&stops(&["<|im_end|>"]), &bytes("a<|im_end|>"), "", "a", stopped(0));
    check(&stops(&["<|control|>", "b!"]), &[b'a'.into(), b'b'.into(), CONTROL, 99], "", "ab", stopped(0));
    check(&stops(&[]), &[b'a'.into(), CONTROL, b'b'.into()], "", "ab", Finish::Length);
    let end = Finish::Stop(StopReason::Token(END));
    check(&stops(&["abc"]), &[b'a'.into(), b'b'.into(), END, b'c'.into()], "", "ab", end);
    assert_eq!(all(&stops(&["abc"]), &[b'a'.into(), END, b'c'.into()], 3).completion_tokens, 1);
    assert_eq!(all(&stops(&["bc"]), &bytes("abcdef"), 6).completion_tokens, 3);
}

#[test]
fn thinking_and_text_keep_apart() {
    let tokens = |parts: &[&[u32]]| parts.concat();
    let spec = thinking(false, None);
    let length = Finish::Length;
    let answered = tokens(&[&bytes("\n"), &[OPEN], &bytes("\nhm\n"), &[CLOSE], &bytes("\n\nyes </think>")]);
    check(&spec, &answered, "hm\n", "yes </think>", length);
    check(&spec, &bytes("<thin air"), "", "<thin air", length);
    check(&spec, &bytes("no <think>"), "", "no <think>", length);
    check(&spec, &bytes("<thi"), "", "<thi", length);
    check(&thinking(true, None), &bytes("never ends</thi"), "never ends</thi", "", length);
    check(&thinking(true, None), &tokens(&[&bytes("a</th"), &[CLOSE], &bytes("b")]), "a</th", "b", length);
    check(&text_marks(true, None), &bytes("a[[/think]b"), "a[", "b", length);
    check(&thinking(true, Some(0)), &tokens(&[&[CLOSE], &bytes("b")]), "", "b", length);
    // A stop string is one of the answer's.
    let spec = ConstraintSpec { stop_strings: vec!["stop".into(), "\n\n".into()], ..thinking(true, None) };
    check(
        &spec,
        &tokens(&[&bytes("stop\n\n"), &[CLOSE], &bytes("\n\ngo stop")]),
        "stop\n\n",
        "go ",
        stopped(0),
    );
}

#[test]
fn pieces_leave_as_soon_as_they_are_certain() {
    let mut generation = generation(stops(&["stop"]));
    let mut leave = |text: &str| -> Vec<String> {
        let piece = |event| match event {
            Event::Text(piece) => piece,
            other => panic!("{other:?}"),
        };
        text.bytes().map(|b| generation.push(&[b.into()]).into_iter().map(piece).collect()).collect()
    };
    assert_eq!(leave("a🙂b"), ["a", "", "", "", "🙂", "b"]);
    assert_eq!(leave("sto st"), ["", "", "", "sto ", "", ""]);
    assert_eq!(leave("xss"), ["stx", "", "s"]);
}

#[test]
fn every_way_to_cut_a_stop_gives_the_same() {
    let text = bytes("one 🙂, two, three");
    for from in 0..text.len() {
        for to in from + 1..=text.len() {
            let raw: Vec<u8> = text[from..to].iter().map(|&b| b as u8).collect();
            let Ok(stop) = String::from_utf8(raw) else { continue };
            let whole = "one 🙂, two, three";
            let wanted = &whole[..whole.find(&stop).unwrap()];
            check(&stops(&[&stop]), &text, "", wanted, stopped(0));
        }
    }
}

/// Tokens that write several bytes: a stop may begin, end or lie within one.
#[test]
fn a_stop_within_a_token_cuts_it() {
    check(&stops(&["hin"]), &[b'a'.into(), OPEN, b'b'.into()], "", "a<t", stopped(0));
    check(&stops(&["a<th"]), &[b'x'.into(), b'a'.into(), OPEN], "", "x", stopped(0));
    check(&stops(&["k>b"]), &[OPEN, b'b'.into(), b'c'.into()], "", "<thin", stopped(0));
    check(&stops(&["<think><think>"]), &[OPEN, b'a'.into(), OPEN, OPEN], "", "<think>a", stopped(0));
    check(&stops(&["k><i", "nk>"]), &[OPEN, OPEN], "", "<thi", stopped(1));
}

/// Characters that are cut off by the limit, by a stop token, by a mark, or by the reader's leave.
#[test]
fn a_character_that_is_cut_off_becomes_one_mark_where_it_belongs() {
    let emoji = bytes("🙂");
    let joined = bytes("👩\u{200d}👩\u{200d}👧");
    let end = Finish::Stop(StopReason::Token(END));
    for cut in 1..4 {
        let tokens = |after: &[u32]| [&bytes("a")[..], &emoji[..cut], after].concat();
        check(&stops(&[]), &tokens(&[]), "", "a\u{fffd}", Finish::Length);
        check(&stops(&[]), &tokens(&[END]), "", "a\u{fffd}", end);
        check(&stops(&["stop"]), &tokens(&bytes("stop")), "", "a\u{fffd}", stopped(0));
        check(&thinking(true, None), &tokens(&[]), "a\u{fffd}", "", Finish::Length);
        check(&thinking(true, None), &tokens(&[CLOSE, b'b'.into()]), "a\u{fffd}", "b", Finish::Length);
        check(&text_marks(true, None), &tokens(&bytes("[/think]b")), "a\u{fffd}", "b", Finish::Length);
        let mut generation = generation(thinking(true, None));
        let mut seen = Seen::default();
        see(&mut seen, generation.push(&tokens(&[CLOSE])));
        see(&mut seen, generation.push(&emoji[..cut]));
        see(&mut seen, generation.finish(Finish::Cancelled));
        assert_eq!((&*seen.thinking, &*seen.text), ("a\u{fffd}", "\u{fffd}"));
    }
    check(&thinking(true, None), &joined, "👩\u{200d}👩\u{200d}👧", "", Finish::Length);
    // Overlong, a surrogate, a lone continuation: each byte that begins nothing is a mark.
    let stray = [0xc0, 0xaf, b'a', 0xed, 0xa0, 0x80, b'b', 0xbf, b'c'];
    let wanted = String::from_utf8_lossy(&stray).into_owned();
    check(&stops(&["z"]), &stray.map(u32::from), "", &wanted, Finish::Length);
}

/// A model that thinks `thinking`, closes it by itself if nobody does, and then says `text`; steered by its constraint as
/// the engine does it.
fn steered(spec: &ConstraintSpec, thinks: &str, says: &str, tokens_max: usize) -> (Seen, Vec<u32>) {
    let marks = spec.thinking.clone().unwrap();
    let constraint = Arc::new(Constraint::new(spec.clone(), tokenizer()).unwrap());
    let mut policy = TextPolicy::new(constraint.clone());
    let mut generation = Generation::new(constraint, 7);
    let opening = if marks.opened_by_prompt { vec![] } else { marks.open.tokens.clone() };
    let mut own: VecDeque<u32> = [opening, bytes(thinks), marks.close.tokens.clone()].concat().into();
    let mut forced = VecDeque::new();
    let (mut seen, mut tokens) = (Seen::default(), Vec::new());
    let mut verdict = policy.start();
    loop {
        match verdict {
            Verdict::GoOn => {}
            Verdict::Force(tokens) => {
                forced = tokens.into();
                own.clear();
            }
            Verdict::Stop(reason) => {
                see(&mut seen, generation.finish(Finish::Stop(reason)));
                break;
            }
        }
        if forced.is_empty() && own.is_empty() && !says.is_empty() && !tokens.ends_with(&bytes(says)) {
            own = bytes(says).into();
        }
        let next = if tokens.len() == tokens_max { None } else { forced.pop_front().or(own.pop_front()) };
        let Some(next) = next else {
            see(&mut seen, generation.finish(Finish::Length));
            break;
        };
        tokens.push(next);
        verdict = policy.advance(next);
        see(&mut seen, generation.push(&[next]));
    }
    (seen, tokens)
}

/// A closing mark that was forced token by token showed as thinking where the limit came within it.
#[test]
fn a_budget_keeps_its_promise_whatever_the_limit() {
    let (thinks, says) = ("let me see now", "The answer.");
    for (special, opened) in [(true, true), (true, false), (false, true), (false, false)] {
        for budget in [Some(0), Some(1), Some(10), Some(14), Some(100), None] {
            for tokens_max in 0..48 {
                let of_kind = if special { thinking } else { text_marks };
                let spec = of_kind(opened, budget);
                let marks = spec.thinking.clone().unwrap();
                let (seen, tokens) = steered(&spec, thinks, says, tokens_max);
                let what = format!("special {special}, opened {opened}, {budget:?} of {tokens_max}");
                assert_eq!(seen.completion_tokens, tokens.len(), "{what}");
                let opening = if opened { 0 } else { marks.open.tokens.len() };
                let left = tokens_max.saturating_sub(opening);
                let spent = budget.unwrap_or(usize::MAX).min(thinks.len());
                let thought = &thinks[..spent.min(left)];
                let answered = left.saturating_sub(spent + marks.close.tokens.len()).min(says.len());
                let cut = spent < thinks.len();
                if left > spent && left < spent + marks.close.tokens.len() && !cut {
                    // Its own mark, cut off, is what the model wrote.
                    assert!(seen.thinking.starts_with(thought), "{what}: {seen:?}");
                } else if left > 0 || opened {
                    assert_eq!(seen.thinking, thought, "{what}");
                }
                assert!(!cut || !seen.thinking.contains(['[', '<']), "{what}: {seen:?}");
                if left > 0 || opened {
                    assert_eq!(seen.text, says[..answered], "{what}");
                }
                assert_eq!(seen.end, Some(Finish::Length), "{what}");
                if cut && left >= spent + marks.close.tokens.len() {
                    assert!(tokens[opening + spent..].starts_with(&marks.close.tokens), "{what}");
                }
            }
        }
    }
}

fn letters() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(b"aab\xc3\xa9".to_vec()), 0..40)
}

fn stop_strings() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("[abé]{1,4}", 0..5)
}

proptest! {
    #[test]
    fn stops_are_the_definition(output in letters(), stop_strings in stop_strings(), at_once in 1usize..9) {
        let stop = (1..=output.len()).find_map(|end| {
            let stops = stop_strings.iter().filter(|stop| output[..end].ends_with(stop.as_bytes()));
            let longest = stops.map(String::len).max()?;
            Some((end - longest, end))
        });
        let wanted = String::from_utf8_lossy(&output[..stop.map_or(output.len(), |stop| stop.0)]).into_owned();
        let spec = ConstraintSpec { stop_strings: stop_strings.clone(), ..ConstraintSpec::default() };
        let tokens: Vec<u32> = output.iter().map(|&b| b.into()).collect();
        let seen = all(&spec, &tokens, at_once);
        prop_assert_eq!(seen.text, wanted);
        prop_assert_eq!(seen.end != Some(Finish::Length), stop.is_some());
        prop_assert_eq!(seen.completion_tokens, stop.map_or(output.len(), |stop| stop.1));
    }

    #[test]
    fn only_a_possible_beginning_is_held(text in "[abé]{0,30}", stop_strings in stop_strings()) {
        let spec = ConstraintSpec { stop_strings: stop_strings.clone(), ..ConstraintSpec::default() };
        let mut generation = generation(spec);
        let mut seen = Seen::default();
        for (end, byte) in (1..).zip(text.bytes()) {
            see(&mut seen, generation.push(&[byte.into()]));
            if seen.end.is_some() {
                break;
            }
            let sure = |held: usize| {
                let tail = &text.as_bytes()[end - held..end];
                stop_strings.iter().any(|s| s.len() > held && s.as_bytes().starts_with(tail))
            };
            let held = (0..=end).rev().find(|&held| held == 0 || sure(held)).unwrap();
            // Of the rest, whole characters.
            let certain = (0..=end - held).rev().find(|&i| text.is_char_boundary(i)).unwrap();
            prop_assert_eq!(&seen.text, &text[..certain]);
        }
    }

    #[test]
    fn any_bytes_give_valid_text(output in prop::collection::vec(any::<u8>(), 0..60), at_once in 1usize..9) {
        let tokens: Vec<u32> = output.iter().map(|&b| b.into()).collect();
        let seen = all(&ConstraintSpec::default(), &tokens, at_once);
        prop_assert_eq!(seen.text, String::from_utf8_lossy(&output));
    }
}
