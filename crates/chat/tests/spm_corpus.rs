//! Ids equal those of llama.cpp and SentencePiece over a corpus of difficult texts.
//!
//! `oracle/make_spm_corpus.py` stored a hash of the ids of each text and says who gave them, in which setting, and where
//! the two differ.

mod texts;

use chat::{Specials, Tokenizer, Vocabulary};
use texts::{assert_same_texts, compare, texts};

/// llama.cpp.
#[test]
fn with_special_tokens() {
    check("prefix-specials", Specials::Parse, |_| {});
    check("plain-specials", Specials::Parse, |v| v.add_space_prefix = Some(false));
}

/// llama.cpp, and SentencePiece except for texts with user-defined tokens.
#[test]
fn as_text() {
    check("prefix", Specials::AsText, |_| {});
    check("plain", Specials::AsText, |v| v.add_space_prefix = Some(false));
}

/// SentencePiece.
#[test]
fn without_extra_spaces() {
    check("prefix-trimmed", Specials::AsText, |v| v.remove_extra_whitespaces = Some(true));
    check("plain-trimmed", Specials::AsText, |v| {
        (v.remove_extra_whitespaces, v.add_space_prefix) = (Some(true), Some(false));
    });
}

/// SentencePiece.
#[test]
fn without_byte_tokens() {
    check("prefix-bytes", Specials::AsText, |v| {
        for (id, (token, kind)) in std::iter::zip(&mut v.tokens, &mut v.types).enumerate() {
            if *kind == 6 {
                (*token, *kind) = (format!("[unused {id}]"), 5);
            }
        }
    });
}

/// Whatever the text, decoding gives it back, and no control token comes out of it. Only U+2581 comes back as a space.
#[test]
fn and_back() {
    let v = vocabulary();
    let texts = texts(&specials(&v));
    for prefix in [true, false] {
        let v = Vocabulary { add_space_prefix: Some(prefix), ..v.clone() };
        let tokenizer = Tokenizer::new(v).unwrap();
        for text in &texts {
            for specials in [Specials::Parse, Specials::AsText] {
                let ids = tokenizer.encode(text, specials);
                let back = String::from_utf8(tokenizer.decode(&ids)).unwrap();
                assert_eq!(back, text.replace('\u{2581}', " "), "{specials:?}");
                let control = ids.iter().any(|&id| tokenizer.is_control(id));
                assert!(!control || specials == Specials::Parse, "{text:?}");
            }
        }
    }
}

fn check(name: &str, specials_are: Specials, change: impl FnOnce(&mut Vocabulary)) {
    let expected = oracle::json("spm_corpus.json");
    let mut vocabulary = vocabulary();
    let texts = texts(&specials(&vocabulary));
    assert_same_texts(&texts, &expected["texts"]);
    change(&mut vocabulary);
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    compare(&texts, &expected[name], |text| tokenizer.encode(text, specials_are));
}

fn vocabulary() -> Vocabulary {
    let model = gguf::ModelFile::open(&oracle::folder().join("golden/spm_vocab.gguf")).unwrap();
    Vocabulary::from_metadata(&model.metadata).unwrap()
}

/// The unknown token, the control tokens, the user-defined ones.
fn specials(vocabulary: &Vocabulary) -> Vec<String> {
    let of_type = |number: i32| {
        let tokens = std::iter::zip(&vocabulary.tokens, &vocabulary.types);
        tokens.filter(move |(_, kind)| **kind == number).map(|(text, _)| text.clone())
    };
    of_type(2).chain(of_type(3)).chain(of_type(4)).collect()
}
