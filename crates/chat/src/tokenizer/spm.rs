//! SentencePiece's BPE: no rules, but a score for each token; neighbours join if their joined text is a token.
//!
//! Source: SentencePiece's `bpe_model.cc` and `normalizer.cc`, and llama.cpp's `llm_tokenizer_spm_session`, which agree but
//! for these: an unused token is as good as a normal one here and in llama.cpp; extra spaces are removed (if
//! the file asks for it) here and in SentencePiece; after a special token the text begins anew, with a space in front, here
//! and in llama.cpp. Control, unknown and byte tokens never come out of merges here and in SentencePiece.

use super::merger::{Merger, NONE, Rules};
use super::tokens::{Kind, SPACE, Tokens, byte_of};
use super::{Fragment, Vocabulary};
use crate::Error;

/// What SentencePiece's BPE needs beside the tokens.
#[derive(Debug)]
pub(super) struct Spm {
    /// By id: how soon a pair becomes this token, the highest score first; `NONE` if never.
    ranks: Vec<u32>,
    pairs: Pairs,
    /// Most bytes of a token that pairs become.
    bytes_max: usize,
    byte_ids: [Option<u32>; 256],
    /// Stands for a run of characters that neither are tokens nor have tokens for their bytes.
    unknown: Option<u32>,
    /// Whether a text begins with a space that is not written.
    pub(super) space_prefix: bool,
    /// Whether of several spaces only one counts, and none at the ends of a text.
    remove_extra_spaces: bool,
}

impl Spm {
    /// The merges of a vocabulary, whose `tokens` are these.
    ///
    /// # Errors
    /// If there is not one score for each token, or one is not a number.
    pub(super) fn new(vocabulary: &Vocabulary, tokens: &Tokens, unknown: Option<u32>) -> Result<Spm, Error> {
        let Vocabulary { tokens: texts, scores, .. } = vocabulary;
        if scores.len() != texts.len() {
            let (found, wanted) = (scores.len(), texts.len());
            return Err(Error::ArrayLength { key: "tokenizer.ggml.scores", found, wanted });
        }
        let mut spm = Spm {
            ranks: Vec::with_capacity(texts.len()),
            pairs: Pairs::new(),
            bytes_max: 0,
            byte_ids: [None; 256],
            unknown,
            space_prefix: vocabulary.add_space_prefix.unwrap_or(true),
            remove_extra_spaces: vocabulary.remove_extra_whitespaces.unwrap_or(false),
        };
        for ((text, &score), id) in texts.iter().zip(scores).zip(0..) {
            if score.is_nan() {
                let reason = format!("the score of token {id} is not a number");
                return Err(Error::BadKey { key: "tokenizer.ggml.scores", reason });
            }
            let kind = tokens.kind(id);
            spm.ranks.push(NONE);
            if let Some(byte) = byte_of(text).filter(|_| kind == Kind::Byte) {
                spm.byte_ids[byte as usize].get_or_insert(id);
            }
            if matches!(kind, Kind::Ordinary | Kind::UserDefined) {
                spm.ranks[id as usize] = rank(score);
                spm.bytes_max = spm.bytes_max.max(text.len());
                spm.pairs.insert_all(text);
            }
        }
        Ok(spm)
    }
}

/// A rank that falls as the score rises, equal for equal scores; not [`NONE`], which only a NaN would give.
fn rank(score: f32) -> u32 {
    // Adding 0 makes one zero of the two.
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { bits } else { !bits & 0x7fff_ffff }
}

/// Which characters stand side by side within a token: between any others no merge can ever reach, so that the text can
/// be cut there and long texts are merged in short pieces. A set of hashes, so it may hold a few pairs too many.
#[derive(Debug)]
struct Pairs(Box<[u64]>);

impl Pairs {
    /// 2^20 bits: even the 200,000 pairs of a vocabulary of 260,000 tokens leave most others out.
    const BITS_LOG2: u32 = 20;

    fn new() -> Pairs {
        Pairs(vec![0; 1 << (Pairs::BITS_LOG2 - 6)].into())
    }

    fn insert_all(&mut self, text: &str) {
        for (left, right) in text.chars().zip(text.chars().skip(1)) {
            let (word, bit) = Pairs::place(left, right);
            self.0[word] |= bit;
        }
    }

    fn contains(&self, left: char, right: char) -> bool {
        let (word, bit) = Pairs::place(left, right);
        self.0[word] & bit != 0
    }

    fn place(left: char, right: char) -> (usize, u64) {
        let pair = u64::from(u32::from(left)) << 32 | u64::from(u32::from(right));
        let hash = pair.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - Pairs::BITS_LOG2);
        ((hash >> 6) as usize, 1 << (hash & 63))
    }
}

/// A part of the text between two bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    start: u32,
    end: u32,
}

/// The rules for pieces of one text.
struct Texts<'a> {
    spm: &'a Spm,
    tokens: &'a Tokens,
    text: &'a str,
}

impl Texts<'_> {
    /// The token that pairs become if they join to this text.
    fn token(&self, piece: Piece) -> Option<u32> {
        let id = self.tokens.id_of(&self.text[piece.start as usize..piece.end as usize])?;
        Some(id).filter(|&id| self.spm.ranks[id as usize] != NONE)
    }
}

impl Rules for Texts<'_> {
    type Symbol = Piece;

    fn rank(&self, left: Piece, right: Piece) -> Option<u32> {
        let joined = self.join(left, right);
        if (joined.end - joined.start) as usize > self.spm.bytes_max {
            return None;
        }
        self.token(joined).map(|id| self.spm.ranks[id as usize])
    }

    fn join(&self, left: Piece, right: Piece) -> Piece {
        Piece { start: left.start, end: right.end }
    }
}

/// One text being encoded.
pub(super) struct Encoder<'a> {
    spm: &'a Spm,
    tokens: &'a Tokens,
    pub(super) merger: Merger<Piece>,
    /// A fragment as the tokens spell it.
    text: String,
}

impl<'a> Encoder<'a> {
    pub(super) fn new(spm: &'a Spm, tokens: &'a Tokens) -> Encoder<'a> {
        Encoder { spm, tokens, merger: Merger::new(), text: String::new() }
    }

    /// Appends the ids of text without specials.
    pub(super) fn encode(&mut self, fragment: Fragment<'_>, out: &mut Vec<u32>) {
        self.spell(fragment);
        assert!(u32::try_from(self.text.len()).is_ok(), "a text is shorter than 4 GiB");
        let Encoder { spm, tokens, merger, text } = self;
        let texts = Texts { spm, tokens, text };
        let first = out.len();
        let mut merge = |start: usize, end: usize| {
            let symbols = text[start..end]
                .char_indices()
                .map(|(at, c)| Piece { start: (start + at) as u32, end: (start + at + c.len_utf8()) as u32 });
            merger.merge(&texts, symbols, |piece| match texts.token(piece) {
                Some(id) => out.push(id),
                None => texts.push_bytes(piece, first, out),
            });
        };
        let (mut start, mut last) = (0, None);
        for (at, c) in text.char_indices() {
            if last.is_some_and(|last| !spm.pairs.contains(last, c)) {
                merge(start, at);
                start = at;
            }
            last = Some(c);
        }
        merge(start, text.len());
    }

    /// Writes a fragment into `self.text` as the tokens spell it.
    fn spell(&mut self, fragment: Fragment<'_>) {
        let Spm { space_prefix, remove_extra_spaces, .. } = *self.spm;
        self.text.clear();
        let mut rest = fragment.text;
        if remove_extra_spaces && fragment.starts_text {
            rest = rest.trim_start_matches(' ');
            if rest.is_empty() {
                return;
            }
        }
        let prefix = space_prefix && fragment.follows_special;
        if prefix {
            self.text.push(SPACE);
        }
        let mut after_space = prefix;
        for c in rest.chars() {
            if c != ' ' {
                self.text.push(c);
            } else if !(remove_extra_spaces && after_space) {
                self.text.push(SPACE);
            }
            after_space = c == ' ';
        }
        if remove_extra_spaces && fragment.ends_text {
            self.text.truncate(self.text.trim_end_matches(SPACE).len());
        }
    }
}

impl Texts<'_> {
    /// Appends a character that is no token: its bytes, or else the unknown token, once for a run of such characters;
    /// `first` is where the ids of this fragment begin.
    fn push_bytes(&self, piece: Piece, first: usize, out: &mut Vec<u32>) {
        let bytes = self.text[piece.start as usize..piece.end as usize].bytes();
        let ids = bytes.map(|byte| self.spm.byte_ids[byte as usize]);
        if ids.clone().all(|id| id.is_some()) {
            out.extend(ids.flatten());
        } else if let Some(unknown) = self.spm.unknown
            && out[first..].last() != Some(&unknown)
        {
            out.push(unknown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::super::tests::pieces;
    use super::super::{Specials, Tokenizer};
    use proptest::prelude::*;

    /// Texts of the ids; SentencePiece's space is `_` on both sides.
    fn check(v: &Vocabulary, text: &str, expected: &[&str]) {
        let tokenizer = Tokenizer::new(v.clone()).unwrap();
        let ids = tokenizer.encode(text, Specials::AsText);
        let texts: Vec<String> = ids.iter().map(|&id| v.tokens[id as usize].replace(SPACE, "_")).collect();
        assert_eq!(texts, expected, "{text:?}");
    }

    #[test]
    fn the_highest_score_joins_first_and_the_leftmost_of_equals() {
        let v = pieces(&[("ab", -2.0), ("bc", -1.0), ("aa", -3.0), ("abc", -9.0)], &["a", "b", "c", "▁"]);
        check(&v, "abab", &["_", "ab", "ab"]);
        // `bc` goes first, then `a` and `bc` are `abc`: any two neighbours whose text is a token join.
        check(&v, "abc", &["_", "abc"]);
        check(&v, "aaab", &["_", "aa", "ab"]);
    }

    #[test]
    fn characters_without_a_token_are_bytes_then_unknown_then_nothing() {
        let mut v = pieces(&[], &["a", "▁"]);
        check(&v, "aé☃", &["_", "a", "<0xC3>", "<0xA9>", "<0xE2>", "<0x98>", "<0x83>"]);
        // Typed as normal tokens they are the same bytes.
        v.types[3..259].fill(1);
        check(&v, "é", &["_", "<0xC3>", "<0xA9>"]);
        let tokenizer = Tokenizer::new(v.clone()).unwrap();
        assert_eq!(tokenizer.decode(&tokenizer.encode("é", Specials::AsText)), "é".as_bytes());
        // Without byte tokens a run of unknown characters is one unknown token.
        for byte in 3..259 {
            v.tokens[byte] = format!("unused {byte}");
        }
        check(&v, "aé☃a☃", &["_", "a", "<unk>", "a", "<unk>"]);
        v.unknown = Some(1);
        check(&v, "☃", &["_", "<s>"]);
        (v.unknown, v.types[0]) = (None, 1);
        check(&v, "a☃", &["_", "a"]);
    }

    #[test]
    fn a_character_without_a_token_still_joins_with_its_neighbour() {
        check(&pieces(&[("xy", -1.0)], &["▁"]), "xyx", &["_", "xy", "<0x78>"]);
    }

    /// llama.cpp merges into control tokens: it knows only texts.
    #[test]
    fn no_control_token_comes_out_of_merges() {
        let more = [
            ("<s", -1.0),
            ("</", -1.0),
            ("</s", -1.0),
            ("<0", -1.0),
            ("<0x", -1.0),
            ("<0x4", -1.0),
            ("<0x41", -1.0),
        ];
        let v = pieces(&more, &["<", ">", "s", "/", "0", "x", "4", "1", "▁"]);
        check(&v, "<s></s>", &["_", "<s", ">", "</s", ">"]);
        check(&v, "<0x41>", &["_", "<0x41", ">"]);
    }

    #[test]
    fn a_space_goes_in_front_of_a_text_and_behind_special_tokens() {
        let mut v = pieces(&[("▁a", -1.0)], &["a", "▁"]);
        let ids = |v: &Vocabulary, text: &str| {
            let tokenizer = Tokenizer::new(v.clone()).unwrap();
            let ids = tokenizer.encode(text, Specials::Parse);
            assert_eq!(tokenizer.decode(&ids), text.as_bytes());
            ids
        };
        let (word, a, space) = (259, 260, 261);
        assert_eq!(ids(&v, "a a"), [word, word]);
        assert_eq!(ids(&v, " a"), [space, word]);
        assert_eq!(ids(&v, "a<s>a</s> a"), [word, 1, word, 2, space, word]);
        assert!(ids(&v, "").is_empty());
        assert_eq!(ids(&v, " "), [space, space]);
        let tokenizer = Tokenizer::new(v.clone()).unwrap();
        assert_eq!(tokenizer.encode_continuation("a<s>a", Specials::Parse), [a, 1, word]);
        assert_eq!(tokenizer.encode_prompt("a", Specials::Parse), [1, word]);
        assert_eq!(tokenizer.token_bytes(word), b" a");
        v.add_space_prefix = Some(false);
        assert_eq!(ids(&v, "a a<s>a"), [a, word, 1, a]);
    }

    #[test]
    fn what_a_message_holds_of_a_control_token_is_text_and_merges_go_across_its_edges() {
        let v = pieces(&[("▁a", -1.0), ("ab", -2.0), ("▁ab", -3.0)], &["a", "b", "<", "s", ">", "▁"]);
        let tokenizer = Tokenizer::new(v.clone()).unwrap();
        let rendered = |text: &str, start: usize, end: usize| -> Vec<String> {
            let ids = tokenizer.encode_rendered(text, std::slice::from_ref(&(start..end)));
            ids.iter().map(|&id| v.tokens[id as usize].replace(SPACE, "_")).collect()
        };
        assert_eq!(rendered("<s>ab<s>ab", 4, 5), ["<s>", "_ab", "<s>", "_ab"]);
        assert_eq!(rendered("<s>ab<s>ab", 3, 8), ["<s>", "_ab", "<", "s", ">", "ab"]);
        assert_eq!(rendered("<s>", 1, 2), ["<s>", "_", "<", "s", ">"]);
    }

    #[test]
    fn extra_spaces_are_removed_if_the_file_asks_for_it() {
        let mut v = pieces(&[("▁a", -1.0)], &["a", "▁"]);
        v.remove_extra_whitespaces = Some(true);
        check(&v, "  a   a  ", &["_a", "_a"]);
        check(&v, "   ", &[]);
        check(&v, "", &[]);
        v.add_space_prefix = Some(false);
        check(&v, "  a   a  ", &["a", "_a"]);
    }

    #[test]
    fn ranks_are_in_the_order_of_falling_scores() {
        let scores =
            [f32::INFINITY, 3.5, f32::MIN_POSITIVE, 0.0, -0.0, -1e-40, -1.0, -31999.0, f32::NEG_INFINITY];
        let ranks = scores.map(rank);
        assert!(ranks.is_sorted(), "{ranks:?}");
        assert_eq!(ranks[3], ranks[4]);
        assert!(ranks[8] < NONE && ranks[5] < ranks[6]);
    }

    /// The definition: of all neighbours whose text is a token, join those of the highest score, the leftmost of equals, again
    /// and again; in the whole text at once.
    fn encode_slowly(v: &Vocabulary, text: &str) -> Vec<String> {
        let mut parts: Vec<String> = text.chars().map(String::from).collect();
        loop {
            let joined = parts.windows(2).map(|pair| pair.concat());
            let score = |text: String| {
                let id = v.tokens.iter().zip(&v.types).position(|(token, &kind)| *token == text && kind == 1);
                id.map(|id| v.scores[id])
            };
            let scored = joined.enumerate().filter_map(|(at, text)| score(text).map(|score| (at, score)));
            let best = scored.reduce(|best, next| if next.1 > best.1 { next } else { best });
            let Some((at, _)) = best else { return parts };
            let pair = parts[at..at + 2].concat();
            parts.splice(at..at + 2, [pair]);
        }
    }

    proptest! {
        #[test]
        fn the_queue_and_the_cuts_give_what_the_definition_gives(
            tokens in prop::collection::btree_map("[abc]{2,4}", 0u8..4, 0..16),
            text in "[abcd]{0,24}",
        ) {
            let more: Vec<(&str, f32)> = tokens.iter().map(|(text, &score)| (&**text, -f32::from(score))).collect();
            let mut v = pieces(&more, &["a", "b", "c", "d"]);
            v.add_space_prefix = Some(false);
            let tokenizer = Tokenizer::new(v.clone()).unwrap();
            let ids = tokenizer.encode(&text, Specials::AsText);
            let texts: Vec<String> = ids.iter().map(|&id| v.tokens[id as usize].clone()).collect();
            prop_assert_eq!(texts, encode_slowly(&v, &text));
        }
    }
}
