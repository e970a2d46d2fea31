//! Which control tokens of a rendered prompt the template wrote, and which came in with the messages.
//!
//! A user may type `<|im_end|>`; it must reach the model as text. Once a template has glued strings together nobody can see
//! where a piece came from, so the strings from outside are marked on their way in: each piece that could be part of a
//! control token's text gets a private-use character, which occurs nowhere else. The template carries the marks along;
//! afterwards they are taken out, and a control token's text with a marked piece in it came from outside.
//!
//! - A *piece* is a word (letters and digits) or one other character that is not white space. It is marked if it stands
//!   anywhere within a control token's text, ASCII case aside: `<`, `|`, `im`, `end`. So a text that is put together of two
//!   messages, or of a message and the template's own words, has a marked piece in it too.
//! - Texts that the template itself looks for, like `</think>`, are left as they are, if they cannot be a part of a control
//!   token's text nor overlap with one.
//! - Names of fields that the template knows are left as they are, unless they hold a control token's text.
//!
//! Marks may change what a template does, as it may measure a length, write in capitals, or look for `object`. So the
//! prompt is rendered without marks as well, and marks in several ways are tried until the prompts are equal: before each
//! piece, in place of each piece's first character, and in these two forms only where the text of a whole control token
//! is, or where a string ends. The last of these is taken in any case.
//!
//! Not covered: a template that takes an outside word apart, and puts the end of it into the middle of a control token.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use super::source::Words;

/// Bytes of control texts that are indexed; real vocabularies have some 100,000. Of more, every piece counts as a part.
const INDEXED_BYTES_MAX: usize = 1 << 20;

/// Most characters that have a mark of their own.
const ALPHABET_MAX: usize = 1000;

/// Private-use characters, which mean nothing to anyone.
const MARKS: Range<u32> = 0xe000..0xf900;

/// How much of the strings from outside is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// Every piece that could be part of a control token's text.
    Pieces,
    /// Of these, those in a whole control token's text, and those that touch an end of the string, white space aside.
    /// Strings that the template compares with are left as they are.
    Edges,
}

/// How a piece is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// By a character before it: survives a change of case.
    Before,
    /// By another character in place of its first one: survives counting and cutting.
    Instead,
}

/// The texts of the control tokens, and what of the template's words may be left unmarked.
#[derive(Debug, Default)]
pub(super) struct ControlTexts {
    /// In ASCII lower case, sorted.
    texts: Vec<Box<[u8]>>,
    /// All ends of all texts, sorted: `(text, start)`.
    tails: Vec<(u32, u32)>,
    /// Whether `tails` has all.
    indexed: bool,
    /// Which bytes a text can start with.
    starts: Vec<bool>,
    /// The characters that a marked piece can begin with; none if they are too many.
    alphabet: Vec<char>,
    /// Strings that the template has, by first character; longest first.
    sought: HashMap<char, Vec<Box<str>>>,
    words: Words,
}

impl ControlTexts {
    pub(super) fn new(control_texts: &[String], words: Words) -> ControlTexts {
        let mut texts: Vec<Box<[u8]>> = control_texts
            .iter()
            .filter(|text| !text.is_empty())
            .map(|text| text.to_ascii_lowercase().into_bytes().into())
            .collect();
        texts.sort_unstable();
        texts.dedup();
        let indexed = texts.iter().map(|text| text.len()).sum::<usize>() <= INDEXED_BYTES_MAX;
        let mut tails = Vec::new();
        if indexed {
            let ends = |(len, index)| (0..len as u32).map(move |at| (index, at));
            tails = texts.iter().map(|text| text.len()).zip(0..).flat_map(ends).collect();
            tails.sort_unstable_by_key(|&(text, at)| &texts[text as usize][at as usize..]);
        }
        let mut starts = vec![false; 256];
        for text in &texts {
            starts[text[0] as usize] = true;
        }
        let chars: BTreeSet<char> = control_texts
            .iter()
            .flat_map(|text| text.chars())
            .flat_map(|c| [c, c.to_ascii_lowercase(), c.to_ascii_uppercase()])
            .collect();
        let few = indexed && chars.len() <= ALPHABET_MAX;
        let alphabet = if few { chars.into_iter().collect() } else { Vec::new() };
        let sought = HashMap::new();
        let mut this = ControlTexts { texts, tails, indexed, starts, alphabet, sought, words };
        this.sought = this.harmless();
        this
    }

    /// Whether there is nothing to protect.
    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// The strings of the template that share nothing with a control token's text.
    fn harmless(&self) -> HashMap<char, Vec<Box<str>>> {
        let mut sought: HashMap<char, Vec<Box<str>>> = HashMap::new();
        for literal in self.words.literals() {
            let text = literal.trim();
            if let Some(first) = text.chars().next().filter(|_| !self.touches(text.as_bytes())) {
                sought.entry(first).or_default().push(text.into());
            }
        }
        for texts in sought.values_mut() {
            texts.sort_unstable_by_key(|text| std::cmp::Reverse(text.len()));
        }
        sought
    }

    /// Whether a text holds a control token's text, is part of one, or could overlap with one.
    fn touches(&self, text: &[u8]) -> bool {
        let text = text.to_ascii_lowercase();
        let begins = |tail: &[u8]| {
            let at = self.texts.partition_point(|whole| **whole < *tail);
            self.texts.get(at).is_some_and(|whole| whole.starts_with(tail))
        };
        let ends = |head: &[u8]| {
            self.tails
                .binary_search_by(|&(text, at)| self.texts[text as usize][at as usize..].cmp(head))
                .is_ok()
        };
        self.occurs(&text)
            || self.is_part(&text)
            || (1..text.len()).any(|at| begins(&text[at..]) || ends(&text[..at]))
    }

    /// Whether `piece`, in lower case, stands within a control token's text.
    fn is_part(&self, piece: &[u8]) -> bool {
        if !self.indexed {
            return true;
        }
        let tail = |&(text, at): &(u32, u32)| &self.texts[text as usize][at as usize..];
        let at = self.tails.partition_point(|entry| tail(entry) < piece);
        self.tails.get(at).is_some_and(|entry| tail(entry).starts_with(piece))
    }

    /// Whether a control token's text stands in `text`, which is in lower case.
    fn occurs(&self, text: &[u8]) -> bool {
        (0..text.len()).any(|at| self.lengths_at(&text[at..]).next().is_some())
    }

    /// The lengths of the control tokens' texts that `text` begins with, in lower case; shortest first.
    fn lengths_at<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
        let mut candidates = match text.first() {
            Some(&first) if self.starts.get(first as usize) == Some(&true) => &self.texts[..],
            _ => &[],
        };
        let mut depth = 0;
        std::iter::from_fn(move || {
            while let Some(&byte) = text.get(depth).filter(|_| !candidates.is_empty()) {
                // All candidates agree in their first `depth` bytes; only the first can be no longer than that.
                let from = candidates.partition_point(|text| text.get(depth).is_none_or(|&b| b < byte));
                let to = candidates.partition_point(|text| text.get(depth).is_none_or(|&b| b <= byte));
                candidates = &candidates[from..to];
                depth += 1;
                if candidates.first().is_some_and(|text| text.len() == depth) {
                    return Some(depth);
                }
            }
            None
        })
    }

    /// The length of a text of the template that nobody need mark, at the beginning of `text`.
    fn sought_at(&self, text: &str) -> Option<usize> {
        let texts = self.sought.get(&text.chars().next()?)?;
        texts.iter().find(|known| text.starts_with(&***known)).map(|known| known.len())
    }
}

/// Marks strings on their way into a template.
#[derive(Debug)]
pub(super) struct Marker<'a> {
    pub(super) controls: &'a ControlTexts,
    pub(super) marks: &'a Marks,
    pub(super) extent: Extent,
    pub(super) form: Form,
}

impl Marker<'_> {
    /// The name of a field, which a template may know.
    pub(super) fn key(&self, text: &str) -> String {
        let known = self.controls.words.contains(text);
        if known && !self.controls.occurs(&text.to_ascii_lowercase().into_bytes()) {
            return text.to_owned();
        }
        self.text(text)
    }

    pub(super) fn text(&self, text: &str) -> String {
        let lower = text.to_ascii_lowercase();
        // Where the texts of control tokens are, whole.
        let whole: Vec<Range<usize>> = (0..text.len())
            .filter_map(|at| Some(at..at + self.controls.lengths_at(&lower.as_bytes()[at..]).last()?))
            .collect();
        let edges = match self.extent {
            Extent::Pieces => None,
            Extent::Edges if whole.is_empty() && self.controls.words.contains(text.trim()) => {
                return text.to_owned();
            }
            Extent::Edges => Some(self.edges(text, &lower)),
        };
        let mut marks: Vec<usize> = whole.iter().map(|range| range.start).collect();
        let mut at = 0;
        let mut reach = 0;
        let mut next = whole.iter().peekable();
        while at < text.len() {
            if let Some(len) = self.controls.sought_at(&text[at..]) {
                at += len;
                continue;
            }
            let (start, end) = (at, at + piece_len(&text[at..]));
            while let Some(range) = next.next_if(|range| range.start < end) {
                reach = reach.max(range.end);
            }
            let wanted = match &edges {
                None => true,
                Some((head, tail)) => start < *head || start >= *tail || start < reach,
            };
            if wanted && self.is_marked(&lower[start..end]) {
                marks.push(start);
            }
            at = end;
        }
        self.insert(text, marks)
    }

    fn is_marked(&self, piece: &str) -> bool {
        !piece.starts_with(char::is_whitespace) && self.controls.is_part(piece.as_bytes())
    }

    /// Where the run of parts at the beginning ends, and where that at the end begins.
    fn edges(&self, text: &str, lower: &str) -> (usize, usize) {
        let mut head = text.len() - text.trim_start().len();
        let (mut start, mut at) = (head, head);
        let mut leading = true;
        let end = text.trim_end().len();
        while at < end {
            let len = piece_len(&text[at..]);
            let part = self.is_marked(&lower[at..at + len]);
            at += len;
            if !part {
                (leading, start) = (false, at);
            } else if leading {
                head = at;
            }
        }
        (head, start)
    }

    fn insert(&self, text: &str, mut marks: Vec<usize>) -> String {
        marks.sort_unstable();
        marks.dedup();
        let mut out = String::with_capacity(text.len() + marks.len() * self.marks.before.len_utf8());
        let mut from = 0;
        for at in marks {
            let Some(first) = text.get(at..).and_then(|rest| rest.chars().next()) else { continue };
            out.push_str(&text[from..at]);
            match self.marks.instead.get(&first).filter(|_| self.form == Form::Instead) {
                Some(&mark) => {
                    out.push(mark);
                    from = at + first.len_utf8();
                }
                None => {
                    out.push(self.marks.before);
                    from = at;
                }
            }
        }
        out.push_str(&text[from..]);
        out
    }
}

/// Bytes of the word, or of the one other character, that `text` begins with.
fn piece_len(text: &str) -> usize {
    match text.find(|c: char| !c.is_alphanumeric()) {
        Some(0) => text.chars().next().map_or(0, char::len_utf8),
        Some(at) => at,
        None => text.len(),
    }
}

/// The characters that mark.
#[derive(Debug)]
pub(super) struct Marks {
    before: char,
    /// By the character that it replaces; empty if there are too few.
    instead: HashMap<char, char>,
    /// The inverse of `instead`.
    originals: HashMap<char, char>,
}

impl Marks {
    /// Marks that stand in none of the texts, also not as an escape of JSON; none if the texts use all there are.
    pub(super) fn new<'a>(
        controls: &ControlTexts,
        texts: impl IntoIterator<Item = &'a str>,
    ) -> Option<Marks> {
        let mut used = HashSet::new();
        for text in texts {
            used.extend(text.chars().map(u32::from).filter(|c| MARKS.contains(c)));
            let escapes = text.match_indices("\\u").filter_map(|(at, _)| text.get(at + 2..at + 6));
            used.extend(escapes.filter_map(|digits| u32::from_str_radix(digits, 16).ok()));
        }
        let mut unused = MARKS.filter(|c| !used.contains(c)).filter_map(char::from_u32);
        let before = unused.next()?;
        let mut instead: HashMap<char, char> = controls.alphabet.iter().copied().zip(unused).collect();
        if instead.len() < controls.alphabet.len() {
            instead.clear();
        }
        let originals = instead.iter().map(|(&original, &mark)| (mark, original)).collect();
        Some(Marks { before, instead, originals })
    }

    /// The ways to mark, in the order to try them.
    pub(super) fn ways(&self) -> impl Iterator<Item = (Extent, Form)> {
        let ways = [Extent::Pieces, Extent::Edges]
            .into_iter()
            .flat_map(|extent| [Form::Before, Form::Instead].map(|form| (extent, form)));
        ways.filter(|&(_, form)| form == Form::Before || !self.instead.is_empty())
    }

    /// Takes the marks out of a rendered text; also gives where the marked characters are, in order.
    pub(super) fn removed(&self, text: &str) -> (String, Vec<usize>) {
        let mut out = String::with_capacity(text.len());
        let mut marked = Vec::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            // `tojson(ensure_ascii=true)` writes them as escapes.
            let escaped = rest.strip_prefix("\\u").and_then(|rest| rest.get(..4));
            let escaped = escaped.and_then(|digits| char::from_u32(u32::from_str_radix(digits, 16).ok()?));
            let mark = escaped.unwrap_or(first);
            let original = self.originals.get(&mark);
            let len = if escaped.is_some() { 6 } else { first.len_utf8() };
            if original.is_some() || mark == self.before {
                marked.push(out.len());
                out.extend(original);
            } else {
                out.push_str(&rest[..len]);
            }
            rest = &rest[len..];
        }
        (out, marked)
    }
}

/// The ranges of `text` that read like control tokens and are not, as a character at one of `marked` is in them.
///
/// Of a text that is the beginning of another one, it may be that only the longer one has a mark in it: then the range
/// begins behind the shorter one.
pub(super) fn outside(controls: &ControlTexts, text: &str, marked: &[usize]) -> Vec<Range<usize>> {
    let lower = text.to_ascii_lowercase();
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut next = 0;
    for at in 0..text.len() {
        while marked.get(next).is_some_and(|&mark| mark < at) {
            next += 1;
        }
        let Some(&mark) = marked.get(next) else { break };
        let (mut clean, mut dirty) = (at, at);
        for len in controls.lengths_at(&lower.as_bytes()[at..]) {
            if mark < at + len {
                dirty = at + len;
            } else {
                clean = at + len;
            }
        }
        if dirty > clean {
            match ranges.last_mut().filter(|last| last.end >= clean) {
                Some(last) => *last = last.start.min(clean)..last.end.max(dirty),
                None => ranges.push(clean..dirty),
            }
        }
    }
    ranges
}
