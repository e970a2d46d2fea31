//! Character classes of the pre-tokenizers.

use std::sync::OnceLock;

use unicode_general_category::{GeneralCategory, get_general_category};

/// What the pre-tokenizers tell apart. Every character has exactly one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Class {
    /// `\p{L}`
    Letter,
    /// `\p{M}`
    Mark,
    /// `\p{N}`
    Number,
    /// `\r` and `\n`
    Newline,
    /// `\s` other than `\r` and `\n`: Unicode's White_Space
    Space,
    /// The rest: punctuation, symbols, controls, unassigned.
    Other,
}

impl Class {
    /// The class of `c`, in the version of Unicode that the reference's regular expressions have (16).
    pub(super) fn of(c: char) -> Class {
        // One table for the plane of most texts, filled at first use in about a millisecond; the search in the
        // crate's ranges would cost more per character than the rest of the splitting.
        static BASIC_PLANE: OnceLock<Vec<Class>> = OnceLock::new();
        let table = BASIC_PLANE.get_or_init(|| {
            (0..0x10000).map(|code| char::from_u32(code).map_or(Class::Other, Class::search)).collect()
        });
        table.get(c as usize).copied().unwrap_or_else(|| Class::search(c))
    }

    /// `\s`, newlines included.
    pub(super) fn is_space(self) -> bool {
        matches!(self, Class::Space | Class::Newline)
    }

    fn search(c: char) -> Class {
        use GeneralCategory::*;
        if matches!(c, '\r' | '\n') {
            return Class::Newline;
        }
        if c.is_whitespace() {
            return Class::Space;
        }
        match get_general_category(c) {
            UppercaseLetter | LowercaseLetter | TitlecaseLetter | ModifierLetter | OtherLetter => {
                Class::Letter
            }
            NonspacingMark | SpacingMark | EnclosingMark => Class::Mark,
            DecimalNumber | LetterNumber | OtherNumber => Class::Number,
            _ => Class::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids alone do not tell: most characters merge with nothing, so a word cut elsewhere often gives the same ones.
    #[test]
    fn every_character_is_classed_as_the_reference_does() {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for c in '\0'..=char::MAX {
            let class = match Class::of(c) {
                Class::Letter => 0,
                Class::Mark => 1,
                Class::Number => 2,
                Class::Newline | Class::Space => 3,
                Class::Other => 4,
            };
            let digit = u64::from(super::super::pre::is_digit(c));
            hash = (hash ^ (class | digit << 3)).wrapping_mul(0x100_0000_01b3);
        }
        assert_eq!(format!("{hash:016x}"), oracle::json("tokenizer_corpus.json")["classes"]);
    }
}
