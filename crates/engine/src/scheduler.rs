//! Which rows the next window has.

/// How many of each sequence's pending tokens go into the next window, of at most `rows_max` rows in all, unless more
/// sequences than that want one row.
///
/// Sequences that write, whose one pending token waits for its row, come first: a prompt that is read beside them makes
/// them slower and never stops them. What rows are left go to the prompts in the order given; the first one always gets
/// one at least.
pub(crate) fn rows(pending: &[usize], rows_max: usize) -> Vec<usize> {
    assert!(pending.iter().all(|&tokens| tokens > 0), "a sequence without a pending token");
    let single = pending.iter().filter(|&&tokens| tokens == 1).count();
    let mut left = rows_max.saturating_sub(single).max(1);
    let of = |&tokens: &usize| {
        if tokens == 1 {
            return 1;
        }
        let rows = tokens.min(left);
        left -= rows;
        rows
    };
    pending.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::rows;

    #[test]
    fn one_sequence_is_read_in_chunks() {
        assert_eq!(rows(&[1000], 512), [512]);
        assert_eq!(rows(&[488], 512), [488]);
        assert_eq!(rows(&[1], 512), [1]);
        assert_eq!(rows(&[], 512), [0; 0]);
    }

    #[test]
    fn who_writes_never_waits_for_who_reads() {
        assert_eq!(rows(&[1000, 1, 600, 1], 512), [510, 1, 0, 1]);
        assert_eq!(rows(&[100, 1, 600, 1], 512), [100, 1, 410, 1]);
        // Prompts go on where the writing ones fill the window.
        assert_eq!(rows(&[1, 1, 7, 9], 2), [1, 1, 1, 0]);
    }
}
