//! Ids equal those of HF `tokenizers` over a corpus of difficult texts.
//!
//! A hand-written pre-tokenizer is easily wrong where nobody looks: a special token right behind punctuation, blanks before
//! a word. The texts are made here by the rules of `oracle/make_tokenizer_corpus.py`, which stored a hash of the ids of each.

mod smollm2;
mod texts;

use chat::{Specials, Tokenizer, Vocabulary};
use serde_json::Value;
use texts::{assert_same_texts, compare, texts};

#[test]
fn small_qwen35() {
    check("small qwen35", small("qwen35"));
}

#[test]
fn small_qwen2() {
    check("small qwen2", small("qwen2"));
}

#[test]
fn small_llama_bpe() {
    check("small llama-bpe", small("llama-bpe"));
}

#[test]
fn small_gpt2() {
    check("small gpt-2", small("gpt-2"));
}

#[test]
fn small_smollm() {
    check("small smollm", small("smollm"));
}

#[test]
fn smollm2() {
    check("smollm2", smollm2::vocabulary("smollm"));
}

/// The cases that llama.cpp, transformers and the numpy reference were run on.
#[test]
fn the_cases_of_the_tiny_models() {
    let tokenizer = Tokenizer::new(small("qwen35")).unwrap();
    let cases = oracle::json("tokenizer_cases.json");
    for case in cases.as_array().unwrap() {
        let ids: Vec<u32> =
            case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(
            tokenizer.encode(case["text"].as_str().unwrap(), Specials::Parse),
            ids,
            "{}",
            case["text"]
        );
    }
}

/// Written as text, no special token of a real model turns into a control token.
#[test]
fn no_control_token_comes_out_of_text() {
    let tokenizer = Tokenizer::new(smollm2::vocabulary("smollm")).unwrap();
    for id in 0..17 {
        let text = String::from_utf8(tokenizer.token_bytes(id).to_vec()).unwrap();
        assert_eq!(tokenizer.encode(&text, Specials::Parse), [id]);
        let ids = tokenizer.encode(&text, Specials::AsText);
        assert!(ids.len() > 1 && ids.iter().all(|&id| !tokenizer.is_control(id)), "{text}");
    }
}

fn check(name: &str, vocabulary: Vocabulary) {
    let expected = &oracle::json("tokenizer_corpus.json")[name];
    let specials: Vec<String> = std::iter::zip(&vocabulary.tokens, &vocabulary.types)
        .filter(|(_, kind)| matches!(kind, 3 | 4))
        .map(|(text, _)| text.clone())
        .collect();
    let texts = texts(&specials);
    assert_same_texts(&texts, &expected["texts"]);
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    compare(&texts, &expected["ids"], |text| tokenizer.encode(text, Specials::Parse));
}

/// The small BPE in `oracle/tokenizer.json` under another pre-tokenizer.
fn small(pre: &str) -> Vocabulary {
    let text = std::fs::read_to_string(oracle::folder().join("tokenizer.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let mut tokens = vec![String::new(); 1018];
    let mut types = vec![1; 1018];
    for (text, id) in json["model"]["vocab"].as_object().unwrap() {
        tokens[id.as_u64().unwrap() as usize] = text.clone();
    }
    for token in json["added_tokens"].as_array().unwrap() {
        let id = token["id"].as_u64().unwrap() as usize;
        tokens[id] = token["content"].as_str().unwrap().to_owned();
        types[id] = if token["special"] == true { 3 } else { 4 };
    }
    let merge = |pair: &Value| format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
    let merges = json["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    Vocabulary { model: "gpt2".into(), pre: pre.into(), tokens, types, merges, ..Vocabulary::default() }
}
