//! Finding the special tokens in a text.

use std::ops::Range;

/// One text that is looked for.
#[derive(Debug)]
pub(super) struct SpecialText {
    pub(super) text: Box<[u8]>,
    pub(super) id: u32,
    /// Whether it is found in text that came from outside too.
    pub(super) everywhere: bool,
}

/// A set of texts, for the longest one that starts at a place.
#[derive(Debug, Default)]
pub(super) struct SpecialTexts {
    /// Sorted by text.
    texts: Vec<SpecialText>,
    /// Which bytes a text can start with.
    starts: Vec<bool>,
}

impl SpecialTexts {
    /// A set of texts, none empty and none twice.
    pub(super) fn new(mut texts: Vec<SpecialText>) -> SpecialTexts {
        texts.sort_unstable_by(|a, b| a.text.cmp(&b.text));
        let mut starts = vec![false; 256];
        for special in &texts {
            starts[special.text[0] as usize] = true;
        }
        SpecialTexts { texts, starts }
    }

    /// The first place in `text`, at `from` or later, where one of the texts stands, and its id: the longest if several do.
    ///
    /// `outside` are byte ranges, sorted, disjoint, none empty. Only texts that are found everywhere may touch them.
    ///
    /// Looks at no more bytes per place than the longest text has.
    pub(super) fn find(
        &self,
        text: &str,
        from: usize,
        outside: &[Range<usize>],
    ) -> Option<(Range<usize>, u32)> {
        let bytes = text.as_bytes();
        (from..bytes.len()).filter(|&at| self.starts[bytes[at] as usize]).find_map(|at| {
            let next = outside.partition_point(|range| range.end <= at);
            let trusted = outside.get(next).map_or(bytes.len(), |range| range.start.saturating_sub(at));
            self.longest(&bytes[at..], trusted).map(|special| (at..at + special.text.len(), special.id))
        })
    }

    /// The longest text that `bytes` starts with, of which the first `trusted` are from no outside range.
    fn longest(&self, bytes: &[u8], trusted: usize) -> Option<&SpecialText> {
        let mut candidates = &self.texts[..];
        let mut found = None;
        for (depth, &byte) in bytes.iter().enumerate() {
            // All candidates agree in their first `depth` bytes; only the first can be no longer than that.
            let from =
                candidates.partition_point(|special| special.text.get(depth).is_none_or(|&b| b < byte));
            let to = candidates.partition_point(|special| special.text.get(depth).is_none_or(|&b| b <= byte));
            candidates = &candidates[from..to];
            let Some(first) = candidates.first() else { break };
            if first.text.len() == depth + 1 && (first.everywhere || depth < trusted) {
                found = Some(first);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts with ids from 0; those that start with `u` are found everywhere.
    fn specials(texts: &[&str]) -> SpecialTexts {
        let special = |(text, id): (&&str, u32)| SpecialText {
            text: text.as_bytes().into(),
            id,
            everywhere: text.starts_with('u'),
        };
        SpecialTexts::new(texts.iter().zip(0..).map(special).collect())
    }

    #[test]
    fn the_first_place_then_the_longest_text() {
        let specials = specials(&["<a", "<a>", "<ab>c", "b"]);
        let check = |text, expected| assert_eq!(specials.find(text, 0, &[]), expected, "{text}");
        check("", None);
        check("x<", None);
        check("x<a", Some((1..3, 0)));
        check("x<a>c", Some((1..4, 1)));
        check("<<ab>d", Some((1..3, 0)));
        check("<ab>cd", Some((0..5, 2)));
        check("éb<a", Some((2..3, 3)));
        assert_eq!(specials.find("b<ab", 1, &[]), Some((1..3, 0)));
    }

    #[test]
    fn what_touches_an_outside_range_is_found_only_if_it_is_found_everywhere() {
        let specials = specials(&["<a>", "<a>b", "<", "u>", "u>u"]);
        let check = |outside: &[(usize, usize)], expected| {
            let outside: Vec<Range<usize>> = outside.iter().map(|&(start, end)| start..end).collect();
            assert_eq!(specials.find("x<a>bu>u", 0, &outside), expected, "{outside:?}");
        };
        check(&[], Some((1..5, 1)));
        check(&[(0, 1), (5, 8)], Some((1..5, 1)));
        // The longest that does not reach the range.
        check(&[(4, 5)], Some((1..4, 0)));
        check(&[(0, 1), (3, 4)], Some((1..2, 2)));
        check(&[(1, 2), (3, 4)], Some((5..8, 4)));
        check(&[(0, 8)], Some((5..8, 4)));
    }
}
