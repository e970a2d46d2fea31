//! The byte alphabet of byte-level BPE: every byte is written as one printable character.
//!
//! Source: GPT-2's `bytes_to_unicode`. The printable Latin-1 bytes stand for themselves, the other 68 are the characters
//! from U+0100 on, in the order of the bytes.

/// The character that stands for each byte.
const CHARS: [char; 256] = {
    let mut chars = ['\0'; 256];
    let (mut byte, mut shifted) = (0u32, 0x100u32);
    while byte < 256 {
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if printable { byte } else { shifted };
        if !printable {
            shifted += 1;
        }
        chars[byte as usize] = match char::from_u32(code) {
            Some(c) => c,
            None => unreachable!(),
        };
        byte += 1;
    }
    chars
};

/// The byte that each character up to U+0143 stands for.
const BYTES: [Option<u8>; 0x144] = {
    let mut bytes = [None; 0x144];
    let mut byte = 0;
    while byte < 256 {
        bytes[CHARS[byte] as usize] = Some(byte as u8);
        byte += 1;
    }
    bytes
};

/// The character that stands for `byte`.
pub(super) fn char_of(byte: u8) -> char {
    CHARS[byte as usize]
}

/// The byte that `c` stands for; `None` for a character outside the alphabet.
pub(super) fn byte_of(c: char) -> Option<u8> {
    BYTES.get(c as usize).copied().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_letters_and_the_way_back() {
        assert_eq!([b' ', b'\n', 0, b'A', 0xad].map(char_of), ['Ġ', 'Ċ', 'Ā', 'A', 'Ń']);
        assert!((0..=255).all(|b| byte_of(char_of(b)) == Some(b)));
        assert_eq!([' ', '\u{144}', '世'].map(byte_of), [None; 3]);
    }
}
