//! The names that a mistyped one may have meant.

use super::stored::Stored;

/// Names that are offered.
const OFFERED: usize = 3;

/// The stored names nearest to a text, nearest first; none that differs from it in more than half of its letters.
pub fn names(text: &str, stored: &[Stored]) -> Vec<String> {
    let text = text.strip_prefix("hf:").unwrap_or(text).to_lowercase();
    let mut near: Vec<(usize, String)> = stored
        .iter()
        .filter_map(|model| {
            let forms = model.forms();
            let nearest = forms.iter().map(|form| distance(&text, &form.to_lowercase())).min()?;
            (nearest <= text.chars().count() / 2).then(|| (nearest, model.name()))
        })
        .collect();
    near.sort();
    near.into_iter().take(OFFERED).map(|(_, name)| name).collect()
}

/// Letters to insert, delete or replace until one text is the other (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, c) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &d) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(c != d);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::stored::tests::stored;

    #[test]
    fn distances_are_known_ones() {
        for (a, b, wanted) in
            [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("größe", "grösse", 2), ("ab", "ba", 2)]
        {
            assert_eq!((distance(a, b), distance(b, a)), (wanted, wanted), "{a} {b}");
        }
    }

    #[test]
    fn what_is_far_from_everything_is_offered_nothing() {
        let all = stored(&["hf/acme/Tiny-GGUF/Tiny.Q8_0.gguf"]);
        assert_eq!(names("tiny.q8", &all), ["acme/Tiny-GGUF:Tiny.Q8_0.gguf"]);
        assert!(names("elephant", &all).is_empty());
    }
}
