//! Text to token ids and ids to bytes: byte-level BPE, and BPE as SentencePiece has it.

mod alphabet;
mod bpe;
mod classes;
mod ends;
mod merger;
mod merges;
mod metadata;
mod pre;
mod special;
mod spm;
mod tokens;
mod vocabulary;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::Range;

use crate::Error;
use bpe::Bpe;
use pre::PreTokenizer;
use special::{SpecialText, SpecialTexts};
use spm::Spm;
use tokens::{Kind, Spelling, Tokens};
pub use vocabulary::Vocabulary;

/// Whether the texts of control tokens in a text mean these tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// They do: for text that a template wrote.
    Parse,
    /// They are ordinary text, so that a user cannot write a control token. User-defined tokens are found all the same,
    /// as in llama.cpp: the model knows no other form of their text.
    AsText,
}

/// Longest text of a special token, in bytes; the search for specials costs up to this much per byte of text.
const SPECIAL_BYTES_MAX: usize = 256;

/// Most tokens of a vocabulary; real ones have at most some 260,000.
const TOKENS_MAX: usize = 1 << 24;

/// A tokenizer.
///
/// Of a byte-level BPE vocabulary (`gpt2`) it gives the ids of HF `tokenizers`, without its optional normalisation: a GGUF file
/// does not say whether its model's original tokenizer made texts NFC first, and llama.cpp never does. Of a SentencePiece
/// vocabulary (`llama`) it gives the ids of llama.cpp, which are those of SentencePiece up to the first special token.
#[derive(Debug)]
pub struct Tokenizer {
    model: Model,
    tokens: Tokens,
    specials: SpecialTexts,
    ends: BTreeSet<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
}

/// How ordinary text becomes ids.
#[derive(Debug)]
enum Model {
    Bpe(Bpe),
    Spm(Spm),
}

/// A part of a text between special tokens.
#[derive(Debug, Clone, Copy)]
struct Fragment<'a> {
    text: &'a str,
    /// Whether it stands at the start of a text or behind a special token.
    follows_special: bool,
    /// Whether nothing stands before it.
    starts_text: bool,
    /// Whether nothing stands behind it.
    ends_text: bool,
}

/// What stands before a text that is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    Text,
}

impl Tokenizer {
    /// Builds the tokenizer of a vocabulary.
    ///
    /// # Errors
    /// If its kind or its pre-tokenizer is unknown, or its parts contradict each other.
    pub fn new(vocabulary: Vocabulary) -> Result<Tokenizer, Error> {
        let (pre, spelling) = match &*vocabulary.model {
            "gpt2" => (Some(PreTokenizer::by_name(&vocabulary.pre)?), Spelling::Bytes),
            "llama" => (None, Spelling::Pieces),
            _ => return Err(Error::TokenizerModel { found: vocabulary.model }),
        };
        let len = vocabulary.tokens.len();
        if len == 0 || len > TOKENS_MAX {
            return Err(Error::VocabularyLength { found: len, max: TOKENS_MAX });
        }
        let found = vocabulary.types.len();
        if found != 0 && found != len {
            return Err(Error::ArrayLength { key: "tokenizer.ggml.token_type", found, wanted: len });
        }
        // What llama.cpp takes for granted of SentencePiece vocabularies.
        let usual = |id: u64| Some(id).filter(|&id| spelling == Spelling::Pieces && id < len as u64);
        let in_range = |key, id: Option<u64>| match id {
            Some(id) if id >= len as u64 => Err(Error::IdRange { key, id, len }),
            id => Ok(id.map(|id| id as u32)),
        };
        let bos = in_range("tokenizer.ggml.bos_token_id", vocabulary.bos.or(usual(1)))?;
        let eos = in_range("tokenizer.ggml.eos_token_id", vocabulary.eos.or(usual(2)))?;
        let eot = in_range("tokenizer.ggml.eot_token_id", vocabulary.eot)?;
        let eom = in_range("tokenizer.ggml.eom_token_id", vocabulary.eom)?;
        let unknown = in_range("tokenizer.ggml.unknown_token_id", vocabulary.unknown)?;

        let mut kinds = tokens::kinds(&vocabulary, spelling)?;
        let unknown =
            unknown.or_else(|| (0..).zip(&kinds).find(|&(_, &kind)| kind == Kind::Unknown).map(|(id, _)| id));
        let ids = tokens::index(&vocabulary.tokens)?;
        let rules = bpe::parse_merges(&vocabulary.merges, &ids)?;
        let mut ends = ends::end_tokens(&ids, &rules, &mut kinds);
        ends.extend([eos, eot, eom].into_iter().flatten());
        let specials = special_texts(&vocabulary.tokens, &kinds)?;
        let tokens = Tokens::new(&vocabulary.tokens, ids, kinds, spelling)?;
        Ok(Tokenizer {
            add_bos: vocabulary.add_bos.unwrap_or(pre.is_none_or(|pre| pre.add_bos)) && bos.is_some(),
            add_eos: vocabulary.add_eos.unwrap_or(false) && eos.is_some(),
            model: match pre {
                Some(pre) => Model::Bpe(Bpe::new(pre, &rules, &tokens)),
                None => Model::Spm(Spm::new(&vocabulary, &tokens, unknown)?),
            },
            tokens,
            specials,
            ends,
            bos,
            eos,
        })
    }

    /// The ids of a text, without BOS. The tokens' bytes joined are the text's bytes, but for characters without a token,
    /// and for what SentencePiece vocabularies do with spaces: most put one in front of a text and behind each special token.
    ///
    /// Time grows as n log n at worst with the length of the text, whatever is in it.
    pub fn encode(&self, text: &str, specials: Specials) -> Vec<u32> {
        self.encode_all(text, specials, Before::Nothing)
    }

    /// As [`Tokenizer::encode`], for text that goes on behind other text: no space is put in front of it.
    pub fn encode_continuation(&self, text: &str, specials: Specials) -> Vec<u32> {
        self.encode_all(text, specials, Before::Text)
    }

    /// The ids of a whole prompt: as [`Tokenizer::encode`], after the BOS token if the model wants one and the text does
    /// not start with it (templates often write it themselves). No EOS token is put behind it: an answer shall follow.
    pub fn encode_prompt(&self, text: &str, specials: Specials) -> Vec<u32> {
        self.with_bos(self.encode(text, specials))
    }

    /// The ids of a whole prompt that a chat template wrote, of which the bytes `outside` came from messages.
    ///
    /// Special tokens are found as by [`Specials::AsText`] where they touch one of these ranges, be it with a single byte,
    /// and as by [`Specials::Parse`] elsewhere. Nothing else depends on the ranges: words and merges go across their
    /// edges, so that the ids are those the model was trained on. Without ranges this is
    /// [`Tokenizer::encode_prompt`] with `Parse`; the BOS token is added as there.
    ///
    /// # Panics
    /// If the ranges are not sorted and disjoint, or do not lie in the text on borders of characters.
    pub fn encode_rendered(&self, text: &str, outside: &[Range<usize>]) -> Vec<u32> {
        let mut end = 0;
        for range in outside {
            assert!(end <= range.start && range.start <= range.end, "outside ranges are sorted and disjoint");
            let borders = text.is_char_boundary(range.start) && text.is_char_boundary(range.end);
            assert!(borders, "outside ranges lie in the text on borders of characters");
            end = range.end;
        }
        let outside: Vec<Range<usize>> = outside.iter().filter(|range| !range.is_empty()).cloned().collect();
        self.with_bos(self.encode_mixed(text, &outside, Before::Nothing))
    }

    fn encode_all(&self, text: &str, specials: Specials, before: Before) -> Vec<u32> {
        match specials {
            Specials::Parse => self.encode_mixed(text, &[], before),
            Specials::AsText => self.encode_mixed(text, std::slice::from_ref(&(0..text.len())), before),
        }
    }

    /// The ids of a text of which the bytes `outside` (sorted, disjoint, none empty) may hold no control token.
    fn encode_mixed(&self, text: &str, outside: &[Range<usize>], before: Before) -> Vec<u32> {
        match &self.model {
            Model::Bpe(bpe) => {
                let mut encoder = bpe::Encoder::new(bpe, &self.tokens);
                self.fragments(text, outside, before, |fragment, ids| encoder.encode(fragment.text, ids))
            }
            Model::Spm(spm) => {
                let mut encoder = spm::Encoder::new(spm, &self.tokens);
                self.fragments(text, outside, before, |fragment, ids| encoder.encode(fragment, ids))
            }
        }
    }

    /// Finds the special tokens of a text; `encode` appends the ids of what stands between them.
    fn fragments(
        &self,
        text: &str,
        outside: &[Range<usize>],
        before: Before,
        mut encode: impl FnMut(Fragment<'_>, &mut Vec<u32>),
    ) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut done = 0;
        loop {
            let special = self.specials.find(text, done, outside);
            let end = special.as_ref().map_or(text.len(), |(range, _)| range.start);
            if done < end {
                let fragment = Fragment {
                    text: &text[done..end],
                    follows_special: done > 0 || before == Before::Nothing,
                    starts_text: done == 0 && before == Before::Nothing,
                    ends_text: special.is_none(),
                };
                encode(fragment, &mut ids);
            }
            let Some((range, id)) = special else { return ids };
            ids.push(id);
            done = range.end;
        }
    }

    /// The ids of a prompt with the BOS token in front if it belongs there and is not there.
    fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(bos) = self.bos.filter(|bos| self.add_bos && ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        ids
    }

    /// The bytes that `id` stands for; those of special tokens are their text.
    ///
    /// They do not depend on where the token stands: a piece of SentencePiece that begins a word begins with a space
    /// here, also at the start of a text, where [`Tokenizer::decode`] leaves it out.
    ///
    /// # Panics
    /// If `id` is not below [`Tokenizer::vocabulary_len`].
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.tokens.bytes(id)
    }

    /// The text of ids: their bytes joined, without the spaces that [`Tokenizer::encode`] put in front, at the start and
    /// behind special tokens. (llama.cpp leaves out the first of these, and encodes as we do.)
    ///
    /// # Panics
    /// If an id is not below [`Tokenizer::vocabulary_len`].
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        let prefix = matches!(&self.model, Model::Spm(spm) if spm.space_prefix);
        let mut text = Vec::new();
        let mut after_special = true;
        for &id in ids {
            let is_special = self.tokens.kind(id).is_special();
            let bytes = self.tokens.bytes(id);
            let added = prefix && after_special && !is_special;
            text.extend_from_slice(bytes.strip_prefix(b" ").filter(|_| added).unwrap_or(bytes));
            after_special = is_special;
        }
        text
    }

    /// Whether `id` is a control token, which is not part of an answer's text.
    ///
    /// # Panics
    /// If `id` is not below [`Tokenizer::vocabulary_len`].
    pub fn is_control(&self, id: u32) -> bool {
        self.tokens.kind(id) == Kind::Control
    }

    /// The tokens that end an answer: those the file names, and those known by their text.
    pub fn end_of_generation(&self) -> &BTreeSet<u32> {
        &self.ends
    }

    /// Number of ids.
    pub fn vocabulary_len(&self) -> usize {
        self.tokens.len()
    }

    /// The id of the token with this text in the file; texts of ordinary tokens are spelled
    /// as the vocabulary does it (`Ġthe`, `▁the`).
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.tokens.id_of(text)
    }

    /// The token that begins a text, if the file names one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Whether a prompt begins with the BOS token.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// The token that ends a text, if the file names one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether the file asks for the EOS token behind a text, which is for models that answer with one vector.
    pub fn adds_eos(&self) -> bool {
        self.add_eos
    }
}

/// The texts that are looked for before anything else.
fn special_texts(tokens: &[String], kinds: &[Kind]) -> Result<SpecialTexts, Error> {
    let mut texts = Vec::new();
    for ((text, &kind), id) in tokens.iter().zip(kinds).zip(0..) {
        if !kind.is_special() || text.is_empty() {
            continue;
        }
        if text.len() > SPECIAL_BYTES_MAX {
            return Err(Error::SpecialTooLong { id, bytes: text.len(), max: SPECIAL_BYTES_MAX });
        }
        texts.push(SpecialText { text: text.as_bytes().into(), id, everywhere: kind == Kind::UserDefined });
    }
    Ok(SpecialTexts::new(texts))
}
