//! The tokens of a vocabulary: text to id, id to bytes.

use std::collections::HashMap;

use super::{Vocabulary, alphabet};
use crate::Error;

/// What a space is in the tokens of SentencePiece.
pub(super) const SPACE: char = '\u{2581}';

/// How the texts of ordinary tokens stand in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// In the byte alphabet of BPE.
    Bytes,
    /// As SentencePiece writes them: [`SPACE`] for a space, `<0xNN>` for a single byte.
    Pieces,
}

/// Kinds of tokens that encoding and decoding tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Spelled as the vocabulary does it; comes out of merges.
    Ordinary,
    /// A byte of a character without a token of its own.
    Byte,
    /// Its text is plain; stands for itself in every text.
    UserDefined,
    /// Its text is plain; stands for itself only in text with [`Specials::Parse`](super::Specials::Parse).
    Control,
    /// As `Control`, but it steers nothing: the unknown token.
    Unknown,
}

impl Kind {
    /// Whether the token is looked for in texts before anything else.
    pub(super) fn is_special(self) -> bool {
        matches!(self, Kind::UserDefined | Kind::Control | Kind::Unknown)
    }
}

/// All tokens by text and by id.
#[derive(Debug)]
pub(super) struct Tokens {
    /// Text in the file to id.
    ids: HashMap<Box<str>, u32>,
    kinds: Vec<Kind>,
    /// All tokens' bytes in order of id, and where each starts; one more entry for the end.
    bytes: Vec<u8>,
    starts: Vec<u32>,
}

impl Tokens {
    /// The tokens of a vocabulary, of these kinds.
    pub(super) fn new(
        texts: &[String],
        ids: HashMap<Box<str>, u32>,
        kinds: Vec<Kind>,
        spelling: Spelling,
    ) -> Result<Tokens, Error> {
        let mut bytes = Vec::new();
        let mut starts = vec![0];
        for (text, &kind) in texts.iter().zip(&kinds) {
            match (kind, spelling) {
                (Kind::Byte, _) => bytes.extend(byte_of(text)),
                (Kind::Ordinary, Spelling::Bytes) => {
                    for c in text.chars() {
                        match alphabet::byte_of(c) {
                            Some(byte) => bytes.push(byte),
                            // Outside the alphabet: a plain text that the file does not mark as one.
                            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                        }
                    }
                }
                (Kind::Ordinary, Spelling::Pieces) => bytes.extend(text.replace(SPACE, " ").bytes()),
                (Kind::UserDefined | Kind::Control | Kind::Unknown, _) => bytes.extend(text.bytes()),
            }
            let end = u32::try_from(bytes.len()).map_err(|_| Error::BadKey {
                key: "tokenizer.ggml.tokens",
                reason: "its texts together are longer than 4 GiB".to_owned(),
            })?;
            starts.push(end);
        }
        Ok(Tokens { ids, kinds, bytes, starts })
    }

    /// The id of the token with this text in the file.
    pub(super) fn id_of(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// The kind of a token of the vocabulary.
    pub(super) fn kind(&self, id: u32) -> Kind {
        self.kinds[id as usize]
    }

    /// What a token of the vocabulary stands for.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        &self.bytes[self.starts[id as usize] as usize..self.starts[id as usize + 1] as usize]
    }

    /// Number of ids.
    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }
}

/// Text to id. Empty texts, which stand for nothing, are left out.
pub(super) fn index(texts: &[String]) -> Result<HashMap<Box<str>, u32>, Error> {
    let mut ids = HashMap::with_capacity(texts.len());
    for (text, id) in texts.iter().zip(0..).filter(|(text, _)| !text.is_empty()) {
        if let Some(first) = ids.insert(text.as_str().into(), id) {
            return Err(Error::DuplicateToken { text: text.clone(), first, second: id });
        }
    }
    Ok(ids)
}

/// The kinds that a vocabulary gives its tokens.
pub(super) fn kinds(vocabulary: &Vocabulary, spelling: Spelling) -> Result<Vec<Kind>, Error> {
    let mut kinds = Vec::with_capacity(vocabulary.tokens.len());
    for (id, text) in vocabulary.tokens.iter().enumerate() {
        let number = vocabulary.types.get(id).copied().unwrap_or(1);
        kinds.push(match (number, spelling) {
            (2, _) => Kind::Unknown,
            (3, _) => Kind::Control,
            (4, _) => Kind::UserDefined,
            // By the text, as in llama.cpp: some files call them normal.
            (_, Spelling::Pieces) if byte_of(text).is_some() => Kind::Byte,
            (6, Spelling::Pieces) => {
                let reason =
                    format!("token {id} is of type 6, a byte, but its text `{text}` is not `<0xNN>`");
                return Err(Error::BadKey { key: "tokenizer.ggml.token_type", reason });
            }
            _ => Kind::Ordinary,
        });
    }
    Ok(kinds)
}

/// The byte that a token of SentencePiece stands for by its text.
pub(super) fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_byte = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| is_byte)
}
