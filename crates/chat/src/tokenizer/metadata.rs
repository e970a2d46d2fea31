//! The tokenizer's keys in the metadata of a GGUF file.

use gguf::Metadata;

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
        if model != "gpt2" {
            // Said before the next key is missed: other kinds of tokenizers have none.
            return Err(Error::TokenizerModel { found: model });
        }
        let types = metadata.integers("tokenizer.ggml.token_type")?.unwrap_or_default();
        Ok(Vocabulary {
            model,
            pre: needed("tokenizer.ggml.pre")?.to_owned(),
            tokens: texts(metadata, "tokenizer.ggml.tokens")?,
            // A number that fits no type is as good as any other number that means no special type.
            types: types.into_iter().map(|number| i32::try_from(number).unwrap_or(0)).collect(),
            merges: texts(metadata, "tokenizer.ggml.merges")?,
            bos: metadata.integer("tokenizer.ggml.bos_token_id")?,
            eos: metadata.integer("tokenizer.ggml.eos_token_id")?,
            eot: metadata.integer("tokenizer.ggml.eot_token_id")?,
            eom: metadata.integer("tokenizer.ggml.eom_token_id")?,
            add_bos: metadata.boolean("tokenizer.ggml.add_bos_token")?,
        })
    }
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
        let mut wrong = entries();
        wrong[5].1 = Value::F32(3.0);
        assert!(read(wrong).unwrap_err().to_string().contains("bos_token_id"));
        let mut other = entries();
        other[0].1 = Value::String(b"llama".to_vec());
        other.remove(1);
        assert!(matches!(read(other), Err(Error::TokenizerModel { .. })));
    }
}
