use super::*;

/// A vocabulary of all bytes, then `more` as (text, type), with merges.
fn vocabulary(pre: &str, more: &[(&str, i32)], merges: &[&str]) -> Vocabulary {
    let mut tokens: Vec<String> = (0..=255).map(|byte| alphabet::char_of(byte).to_string()).collect();
    let mut types = vec![1; 256];
    for (text, kind) in more {
        tokens.push((*text).to_owned());
        types.push(*kind);
    }
    let merges = merges.iter().map(|&merge| merge.to_owned()).collect();
    Vocabulary { model: "gpt2".into(), pre: pre.into(), tokens, types, merges, ..Vocabulary::default() }
}

fn check(vocabulary: &Vocabulary, text: &str, specials: Specials, expected: &[&str]) {
    let tokenizer = Tokenizer::new(vocabulary.clone()).unwrap();
    let ids = tokenizer.encode(text, specials);
    let texts: Vec<&str> = ids.iter().map(|&id| &*vocabulary.tokens[id as usize]).collect();
    assert_eq!(texts, expected, "{text:?} {specials:?}");
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect();
    assert_eq!(String::from_utf8_lossy(&bytes), text);
}

/// A SentencePiece vocabulary: `<unk>`, `<s>`, `</s>`, all bytes, then `more` with scores, then single characters.
pub(super) fn pieces(more: &[(&str, f32)], characters: &[&str]) -> Vocabulary {
    let mut v = Vocabulary { model: "llama".into(), ..Vocabulary::default() };
    let mut push = |text: &str, score, kind| {
        v.tokens.push(text.to_owned());
        v.scores.push(score);
        v.types.push(kind);
    };
    push("<unk>", 0.0, 2);
    push("<s>", 0.0, 3);
    push("</s>", 0.0, 3);
    (0..=255).for_each(|byte| push(&format!("<0x{byte:02X}>"), 0.0, 6));
    more.iter().for_each(|&(text, score)| push(text, score, 1));
    characters.iter().for_each(|&text| push(text, -1e4, 1));
    v
}

#[test]
fn control_tokens_are_text_unless_parsed_and_user_defined_ones_are_always_found() {
    let v = vocabulary("qwen2", &[("<|s|>", 3), ("<t>", 4), ("<t", 4)], &[]);
    check(&v, "a<|s|><t>b", Specials::Parse, &["a", "<|s|>", "<t>", "b"]);
    check(&v, "a<|s|><t>b", Specials::AsText, &["a", "<", "|", "s", "|", ">", "<t>", "b"]);
    check(&v, "<t<t>", Specials::AsText, &["<t", "<t>"]);
}

/// The texts of the ids of a rendered prompt, of which the bytes from `.0` to `.1` came from messages.
fn rendered(v: &Vocabulary, text: &str, outside: &[(usize, usize)]) -> Vec<String> {
    let outside: Vec<Range<usize>> = outside.iter().map(|&(start, end)| start..end).collect();
    let ids = Tokenizer::new(v.clone()).unwrap().encode_rendered(text, &outside);
    ids.iter().map(|&id| v.tokens[id as usize].clone()).collect()
}

#[test]
fn control_tokens_are_text_where_a_message_has_a_part_in_them() {
    let v = vocabulary("qwen2", &[("<s>", 3), ("<s", 3), ("<t>", 4)], &[]);
    let text = "<s>a<s><t></s>b<s>";
    assert_eq!(rendered(&v, text, &[]), ["<s>", "a", "<s>", "<t>", "<", "/", "s", ">", "b", "<s>"]);
    // A message of its own; one that is empty.
    assert_eq!(
        rendered(&v, text, &[(3, 10), (14, 14)]),
        ["<s>", "a", "<", "s", ">", "<t>", "<", "/", "s", ">", "b", "<s>"]
    );
    // A token that the message only completes, or only begins; one that it cuts short.
    assert_eq!(rendered(&v, "<s>", &[(1, 2)]), ["<", "s", ">"]);
    assert_eq!(rendered(&v, "<s>", &[(0, 1)]), ["<", "s", ">"]);
    assert_eq!(rendered(&v, "<s>", &[(2, 3)]), ["<s", ">"]);
    assert_eq!(rendered(&v, "<t>", &[(1, 2)]), ["<t>"]);
    // Two messages side by side, and an empty one within what the template wrote.
    assert_eq!(rendered(&v, "<s><s>", &[(3, 4), (4, 6)]), ["<s>", "<", "s", ">"]);
    assert_eq!(rendered(&v, "<s>", &[(1, 1)]), ["<s>"]);
}

#[test]
fn words_and_merges_go_across_the_edges_of_messages() {
    let mut v =
        vocabulary("llama-bpe", &[("ab", 1), ("abc", 1), ("<s>", 3), ("ĊĊ", 1)], &["a b", "ab c", "Ċ Ċ"]);
    v.bos = Some(258);
    assert_eq!(rendered(&v, "abc", &[(1, 2)]), ["<s>", "abc"]);
    assert_eq!(rendered(&v, "x\n\nabc", &[(0, 2)]), ["<s>", "x", "ĊĊ", "abc"]);
    // BOS as in every prompt: once, and a written one does not count.
    assert_eq!(rendered(&v, "<s>ab", &[(3, 4)]), ["<s>", "ab"]);
    assert_eq!(rendered(&v, "<s>", &[(0, 3)]), ["<s>", "<", "s", ">"]);
    assert_eq!(rendered(&v, "", &[]), ["<s>"]);
}

#[test]
#[should_panic(expected = "sorted and disjoint")]
fn ranges_that_overlap_are_a_broken_invariant() {
    rendered(&vocabulary("qwen2", &[], &[]), "abc", &[(0, 2), (1, 3)]);
}

#[test]
#[should_panic(expected = "borders of characters")]
fn a_range_within_a_character_is_a_broken_invariant() {
    rendered(&vocabulary("qwen2", &[], &[]), "\u{e9}", &[(0, 1)]);
}

proptest::proptest! {
    /// With all of the text from outside it is `AsText`, with none `Parse`, and the bytes are always the text's.
    #[test]
    fn ranges_change_only_which_specials_are_found(text in "[<s>t a\n\u{e9}]{0,24}", cut in 0usize..24) {
        let v = vocabulary("qwen35", &[("<s>", 3), ("<t>", 4), ("\u{120}a", 1)], &["\u{120} a"]);
        let tokenizer = Tokenizer::new(v).unwrap();
        let cut = text.floor_char_boundary(cut);
        proptest::prop_assert_eq!(tokenizer.encode_rendered(&text, &[]), tokenizer.encode(&text, Specials::Parse));
        let whole = [0..cut, cut..text.len()];
        proptest::prop_assert_eq!(tokenizer.encode_rendered(&text, &whole), tokenizer.encode(&text, Specials::AsText));
        let ids = tokenizer.encode_rendered(&text, &whole[1..]);
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect();
        proptest::prop_assert_eq!(bytes, text.as_bytes());
        // What is found before the cut alone is found; a special across it is none.
        let head = tokenizer.encode(&text[..cut], Specials::Parse);
        let count = |ids: &[u32]| ids.iter().filter(|&&id| id == 256).count();
        proptest::prop_assert_eq!(count(&ids), count(&head));
    }
}

#[test]
fn a_whole_word_is_taken_before_merges_only_where_the_name_says_so() {
    let more = [("ab", 1), ("bc", 1), ("abc", 1), ("word", 3)];
    // Without `ignore_merges` no rule leads to `abc`.
    let merges = ["b c", "a b"];
    check(&vocabulary("llama-bpe", &more, &merges), "abc", Specials::AsText, &["abc"]);
    check(&vocabulary("qwen2", &more, &merges), "abc", Specials::AsText, &["a", "bc"]);
    check(&vocabulary("llama-bpe", &more, &merges), "word", Specials::AsText, &["w", "o", "r", "d"]);
}

#[test]
fn merges_apply_by_rank_then_from_the_left() {
    let v =
        vocabulary("gpt-2", &[("aa", 1), ("ab", 1), ("aaa", 1), ("Ġa", 1)], &["a b", "a a", "aa a", "Ġ a"]);
    check(&v, "aaab", Specials::AsText, &["aa", "ab"]);
    check(&v, "aaaa", Specials::AsText, &["aa", "aa"]);
    check(&v, "aaa a", Specials::AsText, &["aaa", "Ġa"]);
}

#[test]
fn bos_is_added_once_and_by_the_rule_of_the_name_or_the_file() {
    let mut v = vocabulary("llama-bpe", &[("<s>", 3)], &[]);
    v.bos = Some(256);
    let ids = |v: &Vocabulary, text| Tokenizer::new(v.clone()).unwrap().encode_prompt(text, Specials::Parse);
    assert_eq!(ids(&v, "a"), [256, 97]);
    assert_eq!(ids(&v, "<s>a"), [256, 97]);
    assert_eq!(ids(&v, ""), [256]);
    v.add_bos = Some(false);
    assert_eq!(ids(&v, "a"), [97]);
    v.pre = "qwen2".into();
    v.add_bos = None;
    assert_eq!(ids(&v, "a"), [97]);
}

#[test]
fn ends_are_known_by_id_and_by_text() {
    let more = [("<|im_end|>", 1), ("<x>", 3), ("</s>", 1), ("</", 1), ("</s", 1), ("<|endoftext|>", 4)];
    let mut v = vocabulary("qwen2", &more, &["< /", "</ s", "</s >"]);
    v.eos = Some(257);
    let tokenizer = Tokenizer::new(v).unwrap();
    // `</s>` is the result of a merge, so an ordinary text, and not looked for as a special one.
    assert_eq!(tokenizer.end_of_generation(), &BTreeSet::from([256, 257, 261]));
    assert_eq!([256, 257, 258, 261, 97].map(|id| tokenizer.is_control(id)), [true, true, false, true, false]);
    assert_eq!(tokenizer.encode("</s>", Specials::Parse), [259, 115, 62]);
    assert_eq!(tokenizer.encode("<|im_end|>", Specials::Parse), [256]);
    assert_eq!(tokenizer.id_of("<x>"), Some(257));
    assert_eq!(tokenizer.id_of("<y>"), None);
    assert_eq!(tokenizer.vocabulary_len(), 262);
}

#[test]
fn a_byte_without_a_token_is_left_out() {
    let mut v = vocabulary("gpt-2", &[("!=", 1)], &["! ="]);
    v.tokens[4] = "unused".into();
    assert_eq!(Tokenizer::new(v).unwrap().encode("!\u{4}=", Specials::AsText), [256]);
}

#[test]
fn contradictions_are_errors_that_name_what_is_wrong() {
    type Change = fn(&mut Vocabulary);
    let cases: [(Change, &str); 9] = [
        (|v| v.model = "t5".into(), "`t5`; only byte-level BPE"),
        (|v| v.pre = "nonsense".into(), "`nonsense` is not known"),
        (|v| v.tokens.clear(), "has 0 tokens"),
        (
            |v| v.types.truncate(3),
            "`tokenizer.ggml.token_type` has 3 values; expected one for each of the 256 tokens",
        ),
        (|v| v.tokens[9] = "A".into(), "`A` has two ids, 9 and 65"),
        (|v| v.merges = vec!["a b".into()], "merge 0 needs the token `ab`"),
        (|v| v.merges = vec!["ab".into()], "merge 0 is `ab`"),
        (|v| v.eos = Some(1 << 40), "eos_token_id` is 1099511627776"),
        (|v| (v.tokens[7], v.types[7]) = ("x".repeat(300), 3), "special token 7 is 300 bytes"),
    ];
    for (change, expected) in cases {
        let mut v = vocabulary("qwen2", &[], &[]);
        change(&mut v);
        let text = Tokenizer::new(v).unwrap_err().to_string();
        assert!(text.contains(expected), "{text} does not contain {expected}");
    }
}

/// Texts that regular expressions with recursion or backtracking break on, and for which merges without a queue take for
/// ever. llama.cpp #21919: letters with combining marks overflowed the stack.
const HARD_UNITS: [&str; 12] =
    ["a", "e\u{301}", " ", "\n", "🙂", "1", "\u{4e00}\u{4e01}", " \n", "\u{301}", "'", "a1 ", "x\t"];

/// Sizes of texts in bytes; a quadratic step would take hours for the largest.
const HARD_BYTES: [usize; 2] = [10_000, 5_000_000];

/// As little stack as a server's thread may have.
fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(256 << 10).spawn(test).unwrap().join().unwrap();
}

#[test]
fn bpe_work_grows_with_the_length_of_the_text() {
    let merges = ["a a", "aa aa", "Ġ Ġ", "ĠĠ ĠĠ", "1 1", "Ċ Ċ"];
    let more = [("aa", 1), ("aaaa", 1), ("ĠĠ", 1), ("ĠĠĠĠ", 1), ("11", 1), ("ĊĊ", 1)];
    let tokenizer = |pre| Tokenizer::new(vocabulary(pre, &more, &merges)).unwrap();
    let tokenizers = ["gpt-2", "smollm", "qwen2", "qwen35", "llama-bpe"].map(tokenizer);
    on_a_small_stack(move || {
        for (tokenizer, unit) in tokenizers.iter().flat_map(|t| HARD_UNITS.map(|unit| (t, unit))) {
            let Model::Bpe(bpe) = &tokenizer.model else { unreachable!() };
            let text = unit.repeat(HARD_BYTES[0] / unit.len());
            let mut ids = Vec::new();
            let mut encoder = bpe::Encoder::new(bpe, &tokenizer.tokens);
            encoder.encode(&text, &mut ids);
            assert!(encoder.merger.queued <= 3 * text.len() as u64, "{bpe:?} {unit:?}");
            assert!(tokenizer.decode(&ids) == text.as_bytes(), "{bpe:?} {unit:?}");
        }
    });
}

#[test]
fn spm_work_grows_with_the_length_of_the_text() {
    let more = [("aa", -1.0), ("aaaa", -2.0), ("▁▁", -3.0), ("▁▁▁▁", -3.0), ("11", -5.0), ("\n\n", -6.0)];
    let tokenizer = Tokenizer::new(pieces(&more, &["a", "▁", "1", "\n", "x"])).unwrap();
    on_a_small_stack(move || {
        let Model::Spm(spm) = &tokenizer.model else { unreachable!() };
        for unit in HARD_UNITS {
            let text = unit.repeat(HARD_BYTES[0] / unit.len());
            let fragment =
                Fragment { text: &text, follows_special: true, starts_text: true, ends_text: true };
            let mut ids = Vec::new();
            let mut encoder = spm::Encoder::new(spm, &tokenizer.tokens);
            encoder.encode(fragment, &mut ids);
            assert!(encoder.merger.queued <= 3 * text.len() as u64, "{unit:?}");
            assert!(tokenizer.decode(&ids) == text.as_bytes(), "{unit:?}");
        }
    });
}

/// Completion is what is tested: recursion would overflow the stack, a quadratic step would not end.
#[test]
fn five_megabytes_of_anything_are_encoded() {
    let merges = ["a a", "aa aa", "Ġ Ġ", "ĠĠ ĠĠ", "1 1", "Ċ Ċ"];
    let more = [("aa", 1), ("aaaa", 1), ("ĠĠ", 1), ("ĠĠĠĠ", 1), ("11", 1), ("ĊĊ", 1)];
    let bpe = Tokenizer::new(vocabulary("qwen35", &more, &merges)).unwrap();
    let more = [("aa", -1.0), ("aaaa", -2.0), ("▁▁", -3.0), ("▁▁▁▁", -3.0), ("11", -5.0), ("\n\n", -6.0)];
    let spm = Tokenizer::new(pieces(&more, &["a", "▁", "1", "\n", "x"])).unwrap();
    on_a_small_stack(move || {
        for (unit, tokenizer) in HARD_UNITS[..7].iter().flat_map(|unit| [(unit, &bpe), (unit, &spm)]) {
            let text = unit.repeat(HARD_BYTES[1] / unit.len());
            let ids = tokenizer.encode(&text, Specials::AsText);
            assert!(tokenizer.decode(&ids) == text.as_bytes(), "{unit:?}");
        }
    });
}
