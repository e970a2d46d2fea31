//! Byte-level BPE: text to token ids and ids to bytes.

mod alphabet;
mod classes;
mod merges;
mod metadata;
mod pre;
mod special;
mod vocabulary;

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use crate::Error;
use merges::{Merger, Merges};
use pre::PreTokenizer;
use special::{SpecialText, SpecialTexts};
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

/// Texts that end a generation. Source: `special_eog_ids` in llama.cpp's `llama_vocab::impl::load`, of which these
/// belong to byte-level BPE vocabularies; the last rows are ends of a part in fill-in-the-middle prompts.
const END_TEXTS: [&str; 28] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Kinds of tokens that encoding and decoding tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Its text is in the byte alphabet; comes out of merges.
    Ordinary,
    /// Its text is plain; stands for itself in every text.
    UserDefined,
    /// Its text is plain; stands for itself only in text with [`Specials::Parse`].
    Control,
    /// As `Control`, but it steers nothing: the unknown token.
    Unknown,
}

/// A byte-level BPE tokenizer.
///
/// Gives the ids of HF `tokenizers` for the same vocabulary, without its optional normalisation: a GGUF file does not say
/// whether its model's original tokenizer made texts NFC first, and llama.cpp never does.
#[derive(Debug)]
pub struct Tokenizer {
    pre: PreTokenizer,
    merges: Merges,
    /// The token of each single byte; a byte without one is left out of the encoding, as in the references.
    byte_ids: [Option<u32>; 256],
    /// Text in the file to id.
    ids: HashMap<Box<str>, u32>,
    kinds: Vec<Kind>,
    /// All tokens' bytes in order of id, and where each starts; one more entry for the end.
    bytes: Vec<u8>,
    starts: Vec<u32>,
    specials: SpecialTexts,
    ends: BTreeSet<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
}

impl Tokenizer {
    /// Builds the tokenizer of a vocabulary.
    ///
    /// # Errors
    /// If it is not byte-level BPE, its pre-tokenizer is unknown, or its parts contradict each other.
    pub fn new(vocabulary: Vocabulary) -> Result<Tokenizer, Error> {
        let len = vocabulary.tokens.len();
        if vocabulary.model != "gpt2" {
            return Err(Error::TokenizerModel { found: vocabulary.model });
        }
        let pre = PreTokenizer::by_name(&vocabulary.pre)?;
        if len == 0 || len > TOKENS_MAX {
            return Err(Error::VocabularyLength { found: len, max: TOKENS_MAX });
        }
        if !vocabulary.types.is_empty() && vocabulary.types.len() != len {
            return Err(Error::TypesLength { tokens: len, types: vocabulary.types.len() });
        }
        let in_range = |key, id: Option<u64>| match id {
            Some(id) if id >= len as u64 => Err(Error::IdRange { key, id, len }),
            id => Ok(id.map(|id| id as u32)),
        };
        let bos = in_range("tokenizer.ggml.bos_token_id", vocabulary.bos)?;
        let eos = in_range("tokenizer.ggml.eos_token_id", vocabulary.eos)?;
        let eot = in_range("tokenizer.ggml.eot_token_id", vocabulary.eot)?;
        let eom = in_range("tokenizer.ggml.eom_token_id", vocabulary.eom)?;

        let mut kinds = vec![Kind::Ordinary; len];
        for (kind, number) in kinds.iter_mut().zip(&vocabulary.types) {
            *kind = match number {
                2 => Kind::Unknown,
                3 => Kind::Control,
                4 => Kind::UserDefined,
                _ => Kind::Ordinary,
            };
        }
        let ids = index(&vocabulary.tokens)?;
        let rules = parse_merges(&vocabulary.merges, &ids)?;
        let mut ends = end_tokens(&ids, &rules, &mut kinds);
        ends.extend([eos, eot, eom].into_iter().flatten());

        let specials = special_texts(&vocabulary.tokens, &kinds)?;
        let (bytes, starts) = all_bytes(&vocabulary.tokens, &kinds)?;
        let mut byte_ids = [None; 256];
        for (byte, id) in (0..=255).zip(&mut byte_ids) {
            *id = ids.get(alphabet::char_of(byte).encode_utf8(&mut [0; 2]) as &str).copied();
        }
        Ok(Tokenizer {
            add_bos: vocabulary.add_bos.unwrap_or(pre.add_bos) && bos.is_some(),
            merges: Merges::new(&rules, len),
            pre,
            byte_ids,
            ids,
            kinds,
            bytes,
            starts,
            specials,
            ends,
            bos,
            eos,
        })
    }

    /// The ids of a text, nothing added. The tokens' bytes joined are the text's bytes, but for bytes without a token.
    ///
    /// Time grows as n log n at worst with the length of the text, whatever is in it.
    pub fn encode(&self, text: &str, specials: Specials) -> Vec<u32> {
        match specials {
            Specials::Parse => self.encode_mixed(text, &[]),
            Specials::AsText => self.encode_mixed(text, std::slice::from_ref(&(0..text.len()))),
        }
    }

    /// The ids of a whole prompt: as [`Tokenizer::encode`], after the BOS token if the model wants one and the text does
    /// not start with it (templates often write it themselves).
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
        self.with_bos(self.encode_mixed(text, &outside))
    }

    /// The ids of a text of which the bytes `outside` (sorted, disjoint, none empty) may hold no control token.
    fn encode_mixed(&self, text: &str, outside: &[Range<usize>]) -> Vec<u32> {
        let mut encoder =
            Encoder { tokenizer: self, merger: Merger::default(), word: String::new(), ids: Vec::new() };
        let mut done = 0;
        while let Some((range, id)) = self.specials.find(text, done, outside) {
            encoder.ordinary(&text[done..range.start]);
            encoder.ids.push(id);
            done = range.end;
        }
        encoder.ordinary(&text[done..]);
        encoder.ids
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
    /// # Panics
    /// If `id` is not below [`Tokenizer::vocabulary_len`].
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        &self.bytes[self.starts[id as usize] as usize..self.starts[id as usize + 1] as usize]
    }

    /// Whether `id` is a control token, which is not part of an answer's text.
    ///
    /// # Panics
    /// If `id` is not below [`Tokenizer::vocabulary_len`].
    pub fn is_control(&self, id: u32) -> bool {
        self.kinds[id as usize] == Kind::Control
    }

    /// The tokens that end an answer: those the file names, and those known by their text.
    pub fn end_of_generation(&self) -> &BTreeSet<u32> {
        &self.ends
    }

    /// Number of ids.
    pub fn vocabulary_len(&self) -> usize {
        self.kinds.len()
    }

    /// The id of the token with this text in the file; texts of ordinary tokens are in the byte alphabet (`Ġthe`).
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
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
}

/// One call of [`Tokenizer::encode`].
struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    merger: Merger,
    /// A word in the byte alphabet.
    word: String,
    ids: Vec<u32>,
}

impl Encoder<'_> {
    /// Encodes text without specials.
    fn ordinary(&mut self, text: &str) {
        let Tokenizer { pre, merges, byte_ids, ids, kinds, .. } = self.tokenizer;
        pre.pattern.split(text, |word| {
            if pre.ignore_merges {
                self.word.clear();
                self.word.extend(word.bytes().map(alphabet::char_of));
                // Only an ordinary token: a word of the user's must not become a control token.
                if let Some(&id) = ids.get(&*self.word)
                    && kinds[id as usize] == Kind::Ordinary
                {
                    self.ids.push(id);
                    return;
                }
            }
            let bytes = word.bytes().filter_map(|byte| byte_ids[byte as usize]);
            self.merger.merge(merges, bytes, &mut self.ids);
        });
    }
}

/// Text to id. Empty texts, which stand for nothing, are left out.
fn index(tokens: &[String]) -> Result<HashMap<Box<str>, u32>, Error> {
    let mut ids = HashMap::with_capacity(tokens.len());
    for (text, id) in tokens.iter().zip(0..).filter(|(text, _)| !text.is_empty()) {
        if let Some(first) = ids.insert(text.as_str().into(), id) {
            return Err(Error::DuplicateToken { text: text.clone(), first, second: id });
        }
    }
    Ok(ids)
}

/// `(left, right, merged)` of each merge.
fn parse_merges(merges: &[String], ids: &HashMap<Box<str>, u32>) -> Result<Vec<(u32, u32, u32)>, Error> {
    let mut rules = Vec::with_capacity(merges.len());
    let mut joined = String::new();
    for (rank, text) in merges.iter().enumerate() {
        let Some((left, right)) =
            text.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty())
        else {
            return Err(Error::MergeSyntax { rank, text: text.clone() });
        };
        joined.clear();
        joined.extend([left, right]);
        let id = |text: &str| {
            ids.get(text).copied().ok_or_else(|| Error::MergeToken { rank, text: text.to_owned() })
        };
        rules.push((id(left)?, id(right)?, id(&joined)?));
    }
    Ok(rules)
}

/// The tokens of [`END_TEXTS`], which become control tokens whatever their type in the file: converters often get it
/// wrong. One that ordinary text merges into is ordinary text, and left alone.
fn end_tokens(ids: &HashMap<Box<str>, u32>, rules: &[(u32, u32, u32)], kinds: &mut [Kind]) -> BTreeSet<u32> {
    let mut ends: BTreeSet<u32> = END_TEXTS.iter().filter_map(|&text| ids.get(text).copied()).collect();
    for &(_, _, merged) in rules {
        if kinds[merged as usize] == Kind::Ordinary {
            ends.remove(&merged);
        }
    }
    // In vocabularies with these calls, a turn of several parts has `<|end|>` between them.
    let has = |text| ids.get(text).is_some_and(|id| ends.contains(id));
    let parts = has("<|call|>") && has("<|return|>") || has("<|calls|>") && has("<|flush|>");
    if let Some(end) = ids.get("<|end|>").filter(|_| parts) {
        ends.remove(end);
    }
    for &id in &ends {
        kinds[id as usize] = Kind::Control;
    }
    ends
}

/// The texts of the tokens that are not ordinary.
fn special_texts(tokens: &[String], kinds: &[Kind]) -> Result<SpecialTexts, Error> {
    let mut texts = Vec::new();
    for ((text, &kind), id) in tokens.iter().zip(kinds).zip(0..) {
        if kind == Kind::Ordinary || text.is_empty() {
            continue;
        }
        if text.len() > SPECIAL_BYTES_MAX {
            return Err(Error::SpecialTooLong { id, bytes: text.len(), max: SPECIAL_BYTES_MAX });
        }
        texts.push(SpecialText { text: text.as_bytes().into(), id, everywhere: kind == Kind::UserDefined });
    }
    Ok(SpecialTexts::new(texts))
}

/// The bytes of all tokens, and where each starts.
fn all_bytes(tokens: &[String], kinds: &[Kind]) -> Result<(Vec<u8>, Vec<u32>), Error> {
    let mut bytes = Vec::new();
    let mut starts = vec![0];
    for (text, &kind) in tokens.iter().zip(kinds) {
        if kind == Kind::Ordinary {
            for c in text.chars() {
                match alphabet::byte_of(c) {
                    Some(byte) => bytes.push(byte),
                    // Outside the alphabet: a plain text that the file does not mark as one.
                    None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
        } else {
            bytes.extend_from_slice(text.as_bytes());
        }
        let end = u32::try_from(bytes.len()).map_err(|_| Error::BadKey {
            key: "tokenizer.ggml.tokens",
            reason: "its texts together are longer than 4 GiB".to_owned(),
        })?;
        starts.push(end);
    }
    Ok((bytes, starts))
}
