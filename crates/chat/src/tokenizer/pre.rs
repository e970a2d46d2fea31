//! Pre-tokenizers: how a text is cut into words before the merges, each word being merged on its own.
//!
//! The references are regular expressions with backtracking; here each is a hand-made splitter that looks at a character
//! a bounded number of times and keeps no stack, so that any text takes linear time.

use super::classes::Class;
use crate::Error;

/// A named way to cut text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// Every numeric character alone, the texts between them by `Gpt2`.
    SmolLm,
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?L+|\p{N}{1,D}| ?[^\s L \p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    /// where L is `\p{L}`, with `\p{M}` if `marks_are_letters`, and D is `digits`.
    Words {
        /// Whether combining marks count as letters.
        marks_are_letters: bool,
        /// Most digits of one word.
        digits: usize,
    },
}

/// A pre-tokenizer and what llama.cpp ties to its name.
#[derive(Debug, Clone, Copy)]
pub(super) struct PreTokenizer {
    pub(super) pattern: Pattern,
    /// A word that is a token by itself is taken whole, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Whether a prompt begins with the BOS token if the file does not say.
    pub(super) add_bos: bool,
}

const LLAMA3: Pattern = Pattern::Words { marks_are_letters: false, digits: 3 };
const QWEN2: Pattern = Pattern::Words { marks_are_letters: false, digits: 1 };
const QWEN35: Pattern = Pattern::Words { marks_are_letters: true, digits: 1 };

/// (names, pattern, ignore_merges, add_bos). Source: `llama_vocab::impl::load` and `llm_tokenizer_bpe` of llama.cpp.
const KNOWN: [(&[&str], Pattern, bool, bool); 6] = [
    (
        &[
            "gpt-2",
            "phi-2",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        Pattern::Gpt2,
        false,
        false,
    ),
    (
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        Pattern::SmolLm,
        false,
        false,
    ),
    (
        &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open"],
        QWEN2,
        false,
        false,
    ),
    (&["qwen35"], QWEN35, false, false),
    (
        &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        LLAMA3,
        true,
        true,
    ),
    (&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], LLAMA3, false, false),
];

impl PreTokenizer {
    /// The pre-tokenizer with this name in `tokenizer.ggml.pre`.
    pub(super) fn by_name(name: &str) -> Result<PreTokenizer, Error> {
        match KNOWN.iter().find(|entry| entry.0.contains(&name)) {
            Some(&(_, pattern, ignore_merges, add_bos)) => {
                Ok(PreTokenizer { pattern, ignore_merges, add_bos })
            }
            None => {
                let known: Vec<&str> = KNOWN.iter().flat_map(|entry| entry.0).copied().collect();
                Err(Error::PreTokenizer { found: name.to_owned(), known: known.join(", ") })
            }
        }
    }
}

impl Pattern {
    /// Calls `word` with the successive words; together they are `text`.
    pub(super) fn split<'t>(self, text: &'t str, mut word: impl FnMut(&'t str)) {
        match self {
            Pattern::Gpt2 => cut(text, gpt2_word, &mut word),
            Pattern::SmolLm => {
                let mut rest = text;
                while let Some((at, digit)) = rest.char_indices().find(|&(_, c)| is_digit(c)) {
                    let end = at + digit.len_utf8();
                    cut(&rest[..at], gpt2_word, &mut word);
                    word(&rest[at..end]);
                    rest = &rest[end..];
                }
                cut(rest, gpt2_word, &mut word);
            }
            Pattern::Words { marks_are_letters, digits } => {
                cut(text, |rest| words_word(rest, marks_are_letters, digits), &mut word);
            }
        }
    }
}

/// Calls `word` with the successive words, `first_word` giving the length in bytes of the first word of a text.
fn cut<'t>(text: &'t str, first_word: impl Fn(&str) -> usize, word: &mut impl FnMut(&'t str)) {
    let mut rest = text;
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(first_word(rest));
        assert!(!head.is_empty(), "a splitter must advance");
        word(head);
        rest = tail;
    }
}

/// Length of the first word of `text`, which is not empty, by [`Pattern::Gpt2`].
fn gpt2_word(text: &str) -> usize {
    if let Some(len) = contraction(text, false) {
        return len;
    }
    let blank = usize::from(text.starts_with(' '));
    let kind = match class_at(&text[blank..]) {
        Some(class) if !class.is_space() => class,
        _ => return blanks(text, false),
    };
    blank
        + match kind {
            Class::Letter | Class::Number => run(&text[blank..], |class| class == kind),
            _ => run(&text[blank..], |class| matches!(class, Class::Mark | Class::Other)),
        }
}

/// Whether [`Pattern::SmolLm`] isolates `c`: the numbers of Unicode 17. The reference does this in a step of its own, whose
/// Unicode is a version ahead of the regular expressions'.
pub(super) fn is_digit(c: char) -> bool {
    Class::of(c) == Class::Number || matches!(c, '\u{11de0}'..='\u{11de9}' | '\u{16ff4}'..='\u{16ff6}')
}

/// Length of the first word of `text`, which is not empty, by [`Pattern::Words`].
fn words_word(text: &str, marks_are_letters: bool, digits: usize) -> usize {
    let is_letter = |class| class == Class::Letter || (marks_are_letters && class == Class::Mark);
    if let Some(len) = contraction(text, true) {
        return len;
    }
    let first = text.chars().next().expect("not empty");
    let class = Class::of(first);
    if is_letter(class) {
        return run(text, is_letter);
    }
    if class == Class::Number {
        return text
            .chars()
            .take(digits)
            .take_while(|&c| Class::of(c) == Class::Number)
            .map(char::len_utf8)
            .sum();
    }
    // One character that is neither a newline, a letter nor a number goes with the letters after it.
    let after = &text[first.len_utf8()..];
    if class != Class::Newline && class_at(after).is_some_and(is_letter) {
        return first.len_utf8() + run(after, is_letter);
    }
    let blank = usize::from(first == ' ');
    let is_other = |class| class == Class::Other || (!marks_are_letters && class == Class::Mark);
    match run(&text[blank..], is_other) {
        0 => blanks(text, true),
        others => blank + others + run(&text[blank + others..], |class| class == Class::Newline),
    }
}

/// Length of an English contraction at the start of `text`.
///
/// Without regard to case, the long s counts as an s: the reference folds case by Unicode's rules.
fn contraction(text: &str, ignore_case: bool) -> Option<usize> {
    let tail = text.strip_prefix('\'')?;
    let mut chars = tail.chars().map(|c| match c {
        'ſ' if ignore_case => 's',
        c if ignore_case => c.to_ascii_lowercase(),
        c => c,
    });
    match (chars.next()?, chars.next()) {
        ('s' | 't' | 'm' | 'd', _) => Some(1 + tail.chars().next()?.len_utf8()),
        ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(3),
        _ => None,
    }
}

/// Length of the first word of `text`, which starts with white space that belongs to no other word.
///
/// With `newlines`: everything up to the last newline of the run, if there is one (`\s*[\r\n]+`). Then all of the run but
/// its last character, which goes with the word after it (`\s+(?!\S)`); the whole run at the end of the text, or if
/// it is one character (`\s+`).
fn blanks(text: &str, newlines: bool) -> usize {
    let (mut end, mut last, mut newline_end) = (0, 0, 0);
    for c in text.chars() {
        let class = Class::of(c);
        if !class.is_space() {
            break;
        }
        last = end;
        end += c.len_utf8();
        if class == Class::Newline {
            newline_end = end;
        }
    }
    match (newlines && newline_end > 0, end == text.len() || last == 0) {
        (true, _) => newline_end,
        (false, true) => end,
        (false, false) => last,
    }
}

/// The class of the first character of `text`.
fn class_at(text: &str) -> Option<Class> {
    text.chars().next().map(Class::of)
}

/// Bytes of the characters at the start of `text` whose classes are `wanted`.
fn run(text: &str, wanted: impl Fn(Class) -> bool) -> usize {
    text.char_indices().find(|&(_, c)| !wanted(Class::of(c))).map_or(text.len(), |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: Pattern, text: &str, expected: &[&str]) {
        let mut words = Vec::new();
        pattern.split(text, |word| words.push(word));
        assert_eq!(words, expected, "{pattern:?}");
    }

    #[test]
    fn gpt2() {
        check(
            Pattern::Gpt2,
            "I'll DON'T  12 3a!?  ",
            &["I", "'ll", " DON", "'", "T", " ", " 12", " 3", "a", "!?", "  "],
        );
        check(Pattern::Gpt2, "a\n\n b\r\n", &["a", "\n\n", " b", "\r\n"]);
        check(Pattern::Gpt2, "e\u{301}\u{a0}x", &["e", "\u{301}", "\u{a0}", "x"]);
    }

    #[test]
    fn smollm() {
        check(Pattern::SmolLm, "v12  3 x", &["v", "1", "2", "  ", "3", " x"]);
    }

    #[test]
    fn llama3() {
        check(LLAMA3, "12345 'S x'RE", &["123", "45", " '", "S", " x", "'RE"]);
        check(LLAMA3, "    if(x):\n\n\t y", &["   ", " if", "(x", "):\n\n", "\t", " y"]);
    }

    #[test]
    fn qwen() {
        check(QWEN2, "e\u{301}e 12", &["e", "\u{301}e", " ", "1", "2"]);
        check(QWEN35, "e\u{301}e 12", &["e\u{301}e", " ", "1", "2"]);
        check(QWEN35, " \u{301} \n \n  z", &[" \u{301}", " \n \n", " ", " z"]);
        check(QWEN35, "'ſt \r\n  ", &["'ſ", "t", " \r\n", "  "]);
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let text = PreTokenizer::by_name("qwen99").unwrap_err().to_string();
        assert!(text.contains("`qwen99`") && text.contains("qwen35, llama-bpe"), "{text}");
    }
}
