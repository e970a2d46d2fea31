//! The tokenizer's keys in the metadata of a GGUF file.

use gguf::{Array, Metadata, Value};

use super::Vocabulary;
use crate::Error;

impl Vocabulary {
    /// Reads the tokenizer's keys. What they say together is checked by [`Tokenizer::new`](super::Tokenizer::new).
    ///
    /// # Errors
    /// If a key that is needed is absent, or one has the wrong type or holds text that is not UTF-8.
    pub fn from_metadata(metadata: &Metadata) -> Result<Vocabulary, Error> {
        let needed = |key: &'static str| metadata.string(key)?.ok_or(Error::MissingKey { key });
        let model = needed("tokenizer.ggml.model")?.to_owned();
        let (mut pre, mut merges, mut scores) = (String::new(), Vec::new(), Vec::new());
        match &*model {
            "gpt2" => {
                pre = needed("tokenizer.ggml.pre")?.to_owned();
                merges = texts(metadata, "tokenizer.ggml.merges")?;
            }
            "llama" => {
                let key = "tokenizer.ggml.scores";
                scores = array(metadata, key, "an array of f32", |array| match array {
                    Array::F32(scores) => Some(scores.clone()),
                    _ => None,
                })?
                .ok_or(Error::MissingKey { key })?;
            }
            // Said before the next key is missed: other kinds of tokenizers have none of these.
            _ => return Err(Error::TokenizerModel { found: model }),
        }
        let types = array(metadata, "tokenizer.ggml.token_type", "an array of i32", |array| match array {
            Array::I32(types) => Some(types.clone()),
            _ => None,
        })?;
        Ok(Vocabulary {
            model,
            pre,
            tokens: texts(metadata, "tokenizer.ggml.tokens")?,
            types: types.unwrap_or_default(),
            scores,
            merges,
            bos: id(metadata, "tokenizer.ggml.bos_token_id")?,
            eos: id(metadata, "tokenizer.ggml.eos_token_id")?,
            eot: id(metadata, "tokenizer.ggml.eot_token_id")?,
            eom: id(metadata, "tokenizer.ggml.eom_token_id")?,
            unknown: id(metadata, "tokenizer.ggml.unknown_token_id")?,
            add_bos: metadata.boolean("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.boolean("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: metadata.boolean("tokenizer.ggml.add_space_prefix")?,
            remove_extra_whitespaces: metadata.boolean("tokenizer.ggml.remove_extra_whitespaces")?,
        })
    }
}

/// A token's id, in any integer type, since writers differ. A bool is none, though [`Metadata::integer`] takes it.
fn id(metadata: &Metadata, key: &'static str) -> Result<Option<u64>, Error> {
    match metadata.get(key) {
        Some(value @ Value::Bool(_)) => Err(wrong_type(key, value, "an integer of at least 0")),
        _ => Ok(metadata.integer(key)?),
    }
}

/// An array of one type and no other: a loader that read these as what they should be, and not as what the file says they
/// are, read past their end (llama.cpp #26690).
fn array<T>(
    metadata: &Metadata,
    key: &'static str,
    wanted: &'static str,
    read: impl FnOnce(&Array) -> Option<Vec<T>>,
) -> Result<Option<Vec<T>>, Error> {
    let Some(value) = metadata.get(key) else { return Ok(None) };
    let items = if let Value::Array(array) = value { read(array) } else { None };
    items.map(Some).ok_or_else(|| wrong_type(key, value, wanted))
}

fn wrong_type(key: &str, found: &Value, wanted: &'static str) -> Error {
    gguf::Error::WrongType { key: key.to_owned(), found: found.type_name(), wanted }.into()
}

/// An array of texts that must be there.
fn texts(metadata: &Metadata, key: &'static str) -> Result<Vec<String>, Error> {
    let strings = metadata.strings(key)?.ok_or(Error::MissingKey { key })?;
    let mut texts = Vec::with_capacity(strings.len());
    for (at, bytes) in strings.iter().enumerate() {
        match std::str::from_utf8(bytes) {
            Ok(text) => texts.push(text.to_owned()),
            Err(_) => return Err(Error::BadKey { key, reason: format!("string {at} is not UTF-8") }),
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tokenizer;
    use gguf::{Array, StringArray, Value};

    fn strings(texts: &[&[u8]]) -> Value {
        let mut array = StringArray::new();
        texts.iter().for_each(|text| array.push(text));
        Value::Array(Array::Strings(array))
    }

    fn entries() -> Vec<(String, Value)> {
        [
            ("tokenizer.ggml.model", Value::String(b"gpt2".to_vec())),
            ("tokenizer.ggml.pre", Value::String(b"qwen2".to_vec())),
            ("tokenizer.ggml.tokens", strings(&[b"a", b"b", b"ab", b"<s>"])),
            ("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1, 1, 1, 3]))),
            ("tokenizer.ggml.merges", strings(&[b"a b"])),
            ("tokenizer.ggml.bos_token_id", Value::U32(3)),
            ("tokenizer.ggml.eos_token_id", Value::U32(3)),
            ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }

    fn pieces() -> Vec<(String, Value)> {
        [
            ("tokenizer.ggml.model", Value::String(b"llama".to_vec())),
            (
                "tokenizer.ggml.tokens",
                strings(&[b"<unk>", b"a", b"b", b"\xe2\x96\x81", b"<s>", b"ab", b"\xe2\x96\x81a", b"<e>"]),
            ),
            (
                "tokenizer.ggml.scores",
                Value::Array(Array::F32(vec![0.0, -9.0, -9.0, -9.0, 0.0, -1.0, -2.0, 0.0])),
            ),
            ("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![2, 1, 1, 1, 3, 1, 1, 3]))),
            ("tokenizer.ggml.bos_token_id", Value::U32(4)),
            ("tokenizer.ggml.eos_token_id", Value::U32(7)),
            ("tokenizer.ggml.eot_token_id", Value::U32(7)),
            ("tokenizer.ggml.eom_token_id", Value::U32(7)),
            ("tokenizer.ggml.unknown_token_id", Value::U32(0)),
            ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
            ("tokenizer.ggml.add_eos_token", Value::Bool(true)),
            ("tokenizer.ggml.add_space_prefix", Value::Bool(false)),
            ("tokenizer.ggml.remove_extra_whitespaces", Value::Bool(true)),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }

    fn read(entries: Vec<(String, Value)>) -> Result<Vocabulary, Error> {
        Vocabulary::from_metadata(&Metadata::new(entries).unwrap())
    }

    #[test]
    fn every_key_arrives() {
        let tokenizer = Tokenizer::new(read(entries()).unwrap()).unwrap();
        assert_eq!(tokenizer.encode_prompt("ab", crate::Specials::AsText), [3, 2]);
        assert!(tokenizer.is_control(3) && tokenizer.end_of_generation().contains(&3));
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(3), Some(3)));
    }

    #[test]
    fn what_is_absent_or_wrong_is_named() {
        for (at, expected) in
            [(0, "tokenizer.ggml.model"), (1, "tokenizer.ggml.pre"), (2, ".tokens"), (4, ".merges")]
        {
            let mut absent = entries();
            absent.remove(at);
            let text = read(absent).unwrap_err().to_string();
            assert!(text.contains("no `") && text.contains(expected), "{text}");
        }
        let mut wrong = entries();
        wrong[2].1 = strings(&[b"a", b"\xff"]);
        assert!(read(wrong).unwrap_err().to_string().contains("string 1 is not UTF-8"));
        for (entry, key) in [(0, "tokenizer.ggml.tokens"), (1, "tokenizer.ggml.scores")] {
            let mut absent = pieces();
            absent.remove(entry + 1);
            let text = read(absent).unwrap_err().to_string();
            assert!(text.contains("no `") && text.contains(key), "{text}");
        }
        for name in ["t5", "bert", "Llama", ""] {
            let mut other = entries();
            other[0].1 = Value::String(name.into());
            other.truncate(1);
            let text = read(other).unwrap_err().to_string();
            assert!(text.contains(&format!("model is `{name}`; only")), "{text}");
        }
    }

    #[test]
    fn every_key_of_sentencepiece_arrives() {
        let tokenizer = Tokenizer::new(read(pieces()).unwrap()).unwrap();
        let ids = |text| tokenizer.encode_prompt(text, crate::Specials::AsText);
        // No space in front and one space of two; the pair of the higher score; the unknown token; no BOS.
        assert_eq!(ids("a  ab?"), [1, 3, 5, 0]);
        assert_eq!((tokenizer.bos(), tokenizer.adds_bos()), (Some(4), false));
        assert_eq!((tokenizer.eos(), tokenizer.adds_eos()), (Some(7), true));
    }

    /// llama.cpp #26690: arrays of the right length and the wrong type were read past their end.
    #[test]
    fn values_of_every_other_type_are_refused_by_key_found_and_wanted() {
        let bytes = || Value::String(b"1".to_vec());
        let scalars = || {
            use Value::*;
            [
                U8(1),
                I8(1),
                U16(1),
                I16(1),
                U32(1),
                I32(1),
                F32(1.0),
                Bool(true),
                bytes(),
                U64(1),
                I64(1),
                F64(1.0),
            ]
        };
        let arrays = || {
            let n = 8;
            let items = [
                Array::U8(vec![1; n]),
                Array::I8(vec![1; n]),
                Array::U16(vec![1; n]),
                Array::I16(vec![1; n]),
                Array::U32(vec![1; n]),
                Array::I32(vec![1; n]),
                Array::F32(vec![1.0; n]),
                Array::Bool(vec![true; n]),
                Array::Strings(["a", "b", "c", "d", "e", "f", "g", "h"].iter().collect()),
                Array::U64(vec![1; n]),
                Array::I64(vec![1; n]),
                Array::F64(vec![1.0; n]),
            ];
            items.map(Value::Array)
        };
        let integers = ["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"];
        for (key, original) in pieces() {
            let (allowed, wanted): (&[&str], _) = match key.rsplit('.').next().unwrap() {
                "tokens" => (&["array of 8 string"], "an array of strings"),
                "scores" => (&["array of 8 f32"], "an array of f32"),
                "token_type" => (&["array of 8 i32"], "an array of i32"),
                "model" => (&["string"], "a string"),
                name if name.ends_with("_id") => (&integers, "an integer of at least 0"),
                _ => (&["bool"], "a bool"),
            };
            for value in scalars().into_iter().chain(arrays()) {
                let found = value.type_name();
                if allowed.contains(&&*found) {
                    continue;
                }
                let mut wrong = pieces();
                wrong.iter_mut().filter(|entry| entry.0 == key).for_each(|entry| entry.1 = value.clone());
                let text = read(wrong).map(|_| original.type_name()).unwrap_err().to_string();
                for part in [&*key, &found, wanted] {
                    assert!(text.contains(part), "{text} does not contain {part}");
                }
            }
        }
    }

    #[test]
    fn arrays_of_another_length_are_refused() {
        for (key, value) in [
            ("tokenizer.ggml.scores", Array::F32(vec![1.0; 7])),
            ("tokenizer.ggml.token_type", Array::I32(vec![1; 9])),
        ] {
            let found = value.len();
            let mut wrong = pieces();
            wrong
                .iter_mut()
                .filter(|entry| entry.0 == key)
                .for_each(|entry| entry.1 = Value::Array(value.clone()));
            let text = Tokenizer::new(read(wrong).unwrap()).unwrap_err().to_string();
            assert_eq!(text, format!("`{key}` has {found} values; expected one for each of the 8 tokens"));
        }
    }
}
