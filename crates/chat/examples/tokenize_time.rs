//! How long loading a vocabulary and encoding hard texts take.
//!
//!     cargo run --release -p chat --example tokenize_time
//!
//! prints milliseconds per size for texts on which regular expressions and naive merging fail, for byte-level BPE (the
//! tokenizer of SmolLM2 under the pre-tokenizer of Qwen3.5) and SentencePiece (the small one of the oracle), and the time
//! to build a byte-level tokenizer of 250,000 merges.

#[path = "../tests/smollm2/mod.rs"]
mod smollm2;

use std::collections::HashSet;
use std::time::Instant;

use chat::{Specials, Tokenizer, Vocabulary};

const SIZES: [usize; 4] = [10_000, 100_000, 1_000_000, 5_000_000];

fn main() {
    let bpe = Tokenizer::new(smollm2::vocabulary("qwen35")).expect("a good vocabulary");
    let spm = Tokenizer::new(sentencepiece()).expect("a good vocabulary");
    for (name, tokenizer) in [("BPE", &bpe), ("SentencePiece", &spm)] {
        let sizes = SIZES.map(|bytes| format!("{:>8} KB", bytes / 1000)).concat();
        println!("{:<26}{sizes}   (ms)", name);
        for (what, unit) in units() {
            let times = SIZES.map(|bytes| {
                let text = unit.repeat(bytes / unit.len());
                let start = Instant::now();
                let ids = tokenizer.encode(&text, Specials::AsText);
                let time = start.elapsed();
                assert!(tokenizer.decode(&ids) == text.as_bytes());
                format!("{:>11.1}", time.as_secs_f64() * 1e3)
            });
            println!("{what:<26}{}", times.concat());
        }
    }
    load();
}

/// A name and a text to repeat.
fn units() -> Vec<(&'static str, String)> {
    let letters: String = (0..9973u32).map(|i| char::from(b'a' + (i * i % 26) as u8)).collect();
    let words = include_str!("tokenize_time.rs").to_owned();
    [
        ("one letter", "a"),
        ("letters and marks", "e\u{301}"),
        ("spaces", " "),
        ("newlines", "\n"),
        ("one emoji", "🙂"),
        ("digits", "1"),
        ("ideographs", "\u{4e00}\u{4e8c}\u{4e09}"),
    ]
    .map(|(what, unit)| (what, unit.to_owned()))
    .into_iter()
    .chain([("letters without a break", letters), ("this program's source", words)])
    .collect()
}

/// The small vocabulary of the oracle.
fn sentencepiece() -> Vocabulary {
    let file = oracle::folder().join("golden/spm_vocab.gguf");
    let model = gguf::ModelFile::open(&file).expect("a good file");
    Vocabulary::from_metadata(&model.metadata).expect("a good vocabulary")
}

/// Builds a byte-level tokenizer of 250,000 merges: those of SmolLM2, and others of any two of its shorter tokens.
fn load() {
    let mut vocabulary = smollm2::vocabulary("qwen35");
    let short: Vec<String> =
        vocabulary.tokens[17..].iter().filter(|token| token.chars().count() < 9).cloned().collect();
    let mut seen: HashSet<String> = vocabulary.tokens.iter().cloned().collect();
    for at in 0.. {
        if vocabulary.merges.len() == 250_000 {
            break;
        }
        let (left, right) =
            (&short[at * 7919 % short.len()], &short[(at + at / short.len() * 31) % short.len()]);
        let joined = format!("{left}{right}");
        if seen.insert(joined.clone()) {
            vocabulary.merges.push(format!("{left} {right}"));
            vocabulary.tokens.push(joined);
            vocabulary.types.push(1);
        }
    }
    println!("{} tokens, {} merges", vocabulary.tokens.len(), vocabulary.merges.len());
    for _ in 0..5 {
        let vocabulary = vocabulary.clone();
        let start = Instant::now();
        let tokenizer = Tokenizer::new(vocabulary).expect("a good vocabulary");
        println!("built in {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
        assert!(tokenizer.vocabulary_len() > 250_000);
    }
}
