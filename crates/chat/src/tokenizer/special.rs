//! Finding the special tokens in a text.

/// A set of texts, for the longest one that starts at a place.
#[derive(Debug, Default)]
pub(super) struct SpecialTexts {
    /// Sorted by text.
    texts: Vec<(Box<[u8]>, u32)>,
    /// Which bytes a text can start with.
    starts: Vec<bool>,
}

impl SpecialTexts {
    /// A set of (text, id); no text may be empty.
    pub(super) fn new(texts: impl IntoIterator<Item = (Box<[u8]>, u32)>) -> SpecialTexts {
        let mut texts: Vec<_> = texts.into_iter().collect();
        texts.sort_unstable();
        let mut starts = vec![false; 256];
        for (text, _) in &texts {
            starts[text[0] as usize] = true;
        }
        SpecialTexts { texts, starts }
    }

    /// The first place in `text` where one of the texts stands, with its length and id: the longest if several do.
    ///
    /// Looks at no more bytes per place than the longest text has.
    pub(super) fn find(&self, text: &str) -> Option<(usize, usize, u32)> {
        let bytes = text.as_bytes();
        (0..bytes.len())
            .filter(|&at| self.starts[bytes[at] as usize])
            .find_map(|at| self.longest(&bytes[at..]).map(|(len, id)| (at, len, id)))
    }

    /// The longest text that `bytes` starts with.
    fn longest(&self, bytes: &[u8]) -> Option<(usize, u32)> {
        let mut candidates = &self.texts[..];
        let mut found = None;
        for (depth, &byte) in bytes.iter().enumerate() {
            // All candidates agree in their first `depth` bytes; only the first can be no longer than that.
            let from = candidates.partition_point(|(text, _)| text.get(depth).is_none_or(|&b| b < byte));
            let to = candidates.partition_point(|(text, _)| text.get(depth).is_none_or(|&b| b <= byte));
            candidates = &candidates[from..to];
            match candidates.first() {
                None => break,
                Some((text, id)) if text.len() == depth + 1 => found = Some((depth + 1, *id)),
                Some(_) => {}
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_place_then_the_longest_text() {
        let texts =
            ["<a", "<a>", "<ab>c", "b"].iter().zip(0..).map(|(text, id)| (text.as_bytes().into(), id));
        let specials = SpecialTexts::new(texts);
        let check = |text, expected| assert_eq!(specials.find(text), expected, "{text}");
        check("", None);
        check("x<", None);
        check("x<a", Some((1, 2, 0)));
        check("x<a>c", Some((1, 3, 1)));
        check("<<ab>d", Some((1, 2, 0)));
        check("<ab>cd", Some((0, 5, 2)));
        check("éb<a", Some((2, 1, 3)));
    }
}
