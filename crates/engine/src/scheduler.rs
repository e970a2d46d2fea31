//! Which rows the next window has.

/// How many of each sequence's `pending` tokens go into the next window, at most `most` of them, at least 1, and
/// `prompt_rows` rows of prompts in all. The sequences are in the order they were admitted in; `left` tokens of each are to be
/// read until it is of use to somebody.
///
/// Sequences that write have the row of their one pending token in every window: a prompt that is read beside them makes
/// them slower and never stops them. Half of the rows for prompts, one at least, are the oldest prompt's, so that every
/// prompt is read in the end, whatever comes after it. The other half goes to those that have least left to read: a short
/// prompt does not wait for a long one.
pub(crate) fn rows(pending: &[usize], left: &[usize], most: &[usize], prompt_rows: usize) -> Vec<usize> {
    assert!(most.iter().all(|&tokens| tokens > 0), "a sequence without a pending token");
    let mut rows: Vec<usize> = pending.iter().map(|&tokens| usize::from(tokens == 1)).collect();
    let mut prompts: Vec<usize> = (0..rows.len()).filter(|&i| rows[i] == 0).collect();
    let Some(&oldest) = prompts.first() else { return rows };
    // One that would be read in a window, were it not for a pause in it, is not to wait for as many whole windows as it pauses.
    let pauses = |&&i: &&usize| most[i] < pending[i] && pending[i] <= prompt_rows / 2;
    let pausing = prompts.iter().filter(pauses).map(|&i| 2 * most[i]).max();
    let mut free = pausing.map_or(prompt_rows, |rows| rows.min(prompt_rows));
    rows[oldest] = most[oldest].min(free.div_ceil(2));
    free -= rows[oldest];
    prompts.sort_by_key(|&i| left[i].saturating_sub(rows[i]));
    for i in prompts {
        let more = (most[i] - rows[i]).min(free);
        rows[i] += more;
        free -= more;
    }
    rows
}

#[cfg(test)]
mod tests {
    fn rows(pending: &[usize], rows_max: usize) -> Vec<usize> {
        let writing = pending.iter().filter(|&&tokens| tokens == 1).count();
        super::rows(pending, pending, pending, rows_max.saturating_sub(writing).max(1))
    }

    #[test]
    fn a_window_can_be_of_those_that_write_alone() {
        assert_eq!(super::rows(&[1000, 1, 3, 1], &[1000, 1, 3, 1], &[1000, 1, 3, 1], 0), [0, 1, 0, 1]);
    }

    /// Six requests waited for the beginning that they shared with a prompt of 20,000 tokens, and it was read at half speed.
    #[test]
    fn what_others_wait_for_is_as_short_as_what_they_wait_for() {
        assert_eq!(
            super::rows(&[9000, 20_000, 600], &[9000, 500, 600], &[9000, 20_000, 600], 512),
            [256, 256, 0]
        );
        assert_eq!(
            super::rows(&[9000, 20_000, 600], &[9000, 900, 600], &[9000, 20_000, 600], 512),
            [256, 0, 256]
        );
    }

    /// A prompt that pauses for its state to be kept is no shorter for it.
    #[test]
    fn a_prompt_pauses_where_it_must() {
        assert_eq!(super::rows(&[1000], &[1000], &[100], 512), [100]);
        assert_eq!(super::rows(&[1000, 300], &[1000, 300], &[900, 1], 512), [511, 1]);
        assert_eq!(super::rows(&[1000, 300, 500], &[1000, 300, 500], &[1000, 300, 20], 512), [256, 256, 0]);
    }

    /// A model with recurrent layers pauses at the ends of messages: a short prompt of two had to wait for three windows full of
    /// a long one.
    #[test]
    fn a_short_prompt_that_pauses_does_not_wait_for_a_long_one_at_every_pause() {
        let next = |pending: usize, most: usize| {
            super::rows(&[20_000, pending], &[20_000, pending], &[20_000, most], 512)
        };
        assert_eq!([next(104, 16), next(88, 84), next(4, 4)], [[16, 16], [84, 84], [508, 4]]);
    }

    #[test]
    fn one_sequence_is_read_in_chunks() {
        assert_eq!(rows(&[1000], 512), [512]);
        assert_eq!(rows(&[488], 512), [488]);
        assert_eq!(rows(&[1], 512), [1]);
        assert_eq!(rows(&[], 512), [0; 0]);
    }

    #[test]
    fn who_writes_never_waits_for_who_reads() {
        assert_eq!(rows(&[1000, 1, 600, 1], 512), [255, 1, 255, 1]);
        assert_eq!(rows(&[100, 1, 600, 1], 512), [100, 1, 410, 1]);
        // Prompts go on where the writing ones fill the window.
        assert_eq!(rows(&[1, 1, 7, 9], 2), [1, 1, 1, 0]);
    }

    /// The first prompt took all rows: behind one of 100,000 tokens, a short one waited for minutes.
    #[test]
    fn a_short_prompt_does_not_wait_for_a_long_one() {
        assert_eq!(rows(&[100_000, 1, 10, 300], 512), [256, 1, 10, 245]);
        assert_eq!(rows(&[1000, 1000], 512), [512, 0]);
        assert_eq!(rows(&[1000, 700], 512), [256, 256]);
    }

    #[test]
    fn a_stream_of_short_prompts_does_not_stop_a_long_one() {
        let mut long = 5000;
        for windows in 1.. {
            let rows = rows(&[long, 64, 64, 64, 64, 64, 64, 64, 64, 1, 1], 512);
            assert!(rows.iter().sum::<usize>() <= 512);
            long -= rows[0];
            if long <= 1 {
                assert!(windows <= 20, "{windows} windows for 5000 tokens");
                break;
            }
        }
    }

    #[test]
    fn a_window_keeps_to_its_rows() {
        for sequences in 1..12 {
            for rows_max in 1..20 {
                for seed in 0..200usize {
                    let pending: Vec<usize> =
                        (0..sequences).map(|i| 1 + (seed * 31 + i * i * 17 + i * seed) % 13).collect();
                    let rows = rows(&pending, rows_max);
                    let sum: usize = rows.iter().sum();
                    assert!(
                        (1..=rows_max.max(sequences)).contains(&sum),
                        "{pending:?} in {rows_max}: {rows:?}"
                    );
                    assert!(rows.iter().zip(&pending).all(|(rows, pending)| rows <= pending));
                    let wanted: usize = pending.iter().sum();
                    assert!(sum >= wanted.min(rows_max), "{pending:?} in {rows_max}: {rows:?}");
                }
            }
        }
    }
}
