//! Bytes of generated tokens to text, piece by piece.

/// Turns the bytes of successive tokens into text without ever emitting half a character.
///
/// The pieces joined, with that of [`Decoder::finish`] at the end, equal [`String::from_utf8_lossy`] of all bytes
/// joined, wherever the bytes were cut. A character leaves with the push that completes it.
#[derive(Debug, Default, Clone)]
pub struct Decoder {
    /// The start of a character that may still become whole: at most 3 bytes.
    pending: Vec<u8>,
}

impl Decoder {
    /// A decoder at the start of a text.
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// Takes the bytes of the next token and returns the text that is now certain; possibly none.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::with_capacity(self.pending.len());
        let mut rest: &[u8] = &self.pending;
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    self.pending.clear();
                    return text;
                }
                Err(error) => {
                    let (valid, tail) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).expect("valid up to here"));
                    match error.error_len() {
                        Some(len) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = &tail[len..];
                        }
                        None => {
                            let kept = self.pending.len() - tail.len();
                            self.pending.drain(..kept);
                            assert!(self.pending.len() < 4, "an unfinished character has at most 3 bytes");
                            return text;
                        }
                    }
                }
            }
        }
    }

    /// Ends the text: an unfinished character becomes one replacement mark. The decoder is then as new.
    pub fn finish(&mut self) -> String {
        let unfinished = !self.pending.is_empty();
        self.pending.clear();
        if unfinished { char::REPLACEMENT_CHARACTER.to_string() } else { String::new() }
    }

    /// Bytes held back because the character they start is not whole: 0 to 3.
    pub fn pending_bytes(&self) -> usize {
        self.pending.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes that meet often at the borders of UTF-8: leads, continuations, overlong and surrogate leads, ASCII.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let border = prop::sample::select(vec![
            0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xed, 0xef,
            0xf0, 0xf1, 0xf4, 0xf5, 0xff,
        ]);
        let character = any::<char>().prop_map(|c| c.to_string().into_bytes());
        prop::collection::vec(
            prop_oneof![border.prop_map(|b| vec![b]), any::<u8>().prop_map(|b| vec![b]), character],
            0..24,
        )
        .prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn pieces_join_to_the_lossy_text(bytes in bytes(), cuts in prop::collection::vec(0usize..64, 0..12)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut decoder = Decoder::new();
            let mut text = String::new();
            for pair in cuts.windows(2) {
                text += &decoder.push(&bytes[pair[0]..pair[1]]);
            }
            text += &decoder.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn a_character_leaves_with_its_last_byte(text in any::<String>()) {
            let mut decoder = Decoder::new();
            for c in text.chars() {
                let mut buffer = [0; 4];
                let (last, head) = c.encode_utf8(&mut buffer).as_bytes().split_last().unwrap();
                for byte in head {
                    prop_assert_eq!(decoder.push(&[*byte]), "");
                }
                prop_assert_eq!(decoder.push(&[*last]), c.to_string());
                prop_assert_eq!(decoder.pending_bytes(), 0);
            }
        }
    }

    #[test]
    fn unfinished_tails_become_one_mark() {
        for tail in [&[0xf0, 0x9f, 0x99][..], &[0xe4, 0xbd], &[0xc3]] {
            let mut decoder = Decoder::new();
            assert_eq!(decoder.push(b"ok"), "ok");
            assert_eq!(decoder.push(tail), "");
            assert_eq!(decoder.finish(), "\u{fffd}");
            assert_eq!(decoder.finish(), "");
        }
    }

    #[test]
    fn stray_bytes_do_not_hold_back_what_follows() {
        let mut decoder = Decoder::new();
        assert_eq!(decoder.push(&[0xe4]), "");
        assert_eq!(decoder.push(b"a"), "\u{fffd}a");
        assert_eq!(decoder.push(&[0xed, 0xa0, 0x80, b'b']), "\u{fffd}\u{fffd}\u{fffd}b");
    }
}
