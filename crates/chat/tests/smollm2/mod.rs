//! The tokenizer of SmolLM2-135M-Instruct.

use chat::Vocabulary;

/// The tokenizer of SmolLM2-135M-Instruct: its special tokens, its single bytes, and a token for each merge;
/// under any pre-tokenizer.
pub fn vocabulary(pre: &str) -> Vocabulary {
    let text = std::fs::read_to_string(oracle::folder().join("golden/smollm2_merges.txt")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let [specials, bytes, merges @ ..] = &lines[..] else { panic!("two lines come before the merges") };
    let mut tokens: Vec<String> = specials.split(' ').chain(bytes.split(' ')).map(str::to_owned).collect();
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let types = (0..tokens.len()).map(|id| if id < 17 { 3 } else { 1 }).collect();
    let merges = merges.iter().map(|&merge| merge.to_owned()).collect();
    Vocabulary { model: "gpt2".into(), pre: pre.into(), tokens, types, merges, ..Vocabulary::default() }
}
