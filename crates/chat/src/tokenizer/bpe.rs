//! Byte-level BPE: a text is cut into words, whose bytes merge by the list of rules in the file.

use std::collections::HashMap;

use super::alphabet;
use super::merger::Merger;
use super::merges::Merges;
use super::pre::PreTokenizer;
use super::tokens::{Kind, Tokens};
use crate::Error;

/// What byte-level BPE needs beside the tokens.
#[derive(Debug)]
pub(super) struct Bpe {
    pre: PreTokenizer,
    merges: Merges,
    /// The token of each single byte; a byte without one is left out of the encoding, as in the references.
    byte_ids: [Option<u32>; 256],
}

impl Bpe {
    /// Merges by the `rules` of [`parse_merges`].
    pub(super) fn new(pre: PreTokenizer, rules: &[(u32, u32, u32)], tokens: &Tokens) -> Bpe {
        let mut byte_ids = [None; 256];
        for (byte, id) in (0..=255).zip(&mut byte_ids) {
            *id = tokens.id_of(alphabet::char_of(byte).encode_utf8(&mut [0; 2]));
        }
        Bpe { pre, merges: Merges::new(rules, tokens.len()), byte_ids }
    }
}

/// One text being encoded.
pub(super) struct Encoder<'a> {
    bpe: &'a Bpe,
    tokens: &'a Tokens,
    pub(super) merger: Merger<u32>,
    /// A word in the byte alphabet.
    word: String,
}

impl<'a> Encoder<'a> {
    pub(super) fn new(bpe: &'a Bpe, tokens: &'a Tokens) -> Encoder<'a> {
        Encoder { bpe, tokens, merger: Merger::new(), word: String::new() }
    }

    /// Appends the ids of text without specials.
    pub(super) fn encode(&mut self, text: &str, out: &mut Vec<u32>) {
        let Bpe { pre, merges, byte_ids } = self.bpe;
        pre.pattern.split(text, |word| {
            if pre.ignore_merges {
                self.word.clear();
                self.word.extend(word.bytes().map(alphabet::char_of));
                // Only an ordinary token: a word of the user's must not become a control token.
                let whole = self.tokens.id_of(&self.word);
                if let Some(id) = whole.filter(|&id| self.tokens.kind(id) == Kind::Ordinary) {
                    out.push(id);
                    return;
                }
            }
            let bytes = word.bytes().filter_map(|byte| byte_ids[byte as usize]);
            self.merger.merge(merges, bytes, |id| out.push(id));
        });
    }
}

/// `(left, right, merged)` of each merge.
pub(super) fn parse_merges(
    merges: &[String],
    ids: &HashMap<Box<str>, u32>,
) -> Result<Vec<(u32, u32, u32)>, Error> {
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
