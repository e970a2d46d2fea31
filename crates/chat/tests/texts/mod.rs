//! Difficult texts, made by the rules of `oracle/make_tokenizer_corpus.py`, and their comparison with stored ids.

use serde_json::Value;

/// Compares the ids of all `texts` with those that `expected` holds hashes of; dashes stand where there are none.
pub fn compare(texts: &[String], expected: &Value, encode: impl Fn(&str) -> Vec<u32>) {
    let hashes = expected.as_str().unwrap();
    assert_eq!(hashes.len(), 8 * texts.len());
    let differ: Vec<&String> = std::iter::zip(texts, 0..)
        .filter(|&(_, at)| &hashes[8 * at..8 * at + 8] != "--------")
        .filter(|&(text, at)| {
            let hash = encode(text).iter().fold(FNV_START, |hash, id| fnv(hash, &id.to_le_bytes()));
            format!("{:08x}", (hash >> 32) ^ (hash & 0xffff_ffff)) != hashes[8 * at..8 * at + 8]
        })
        .map(|(text, _)| text)
        .collect();
    let some = &differ[..differ.len().min(5)];
    assert!(differ.is_empty(), "{} of {} texts differ, among them {some:?}", differ.len(), texts.len());
}

/// Tells a difference in texts from a difference in ids.
pub fn assert_same_texts(texts: &[String], expected: &Value) {
    let hash = texts.iter().fold(FNV_START, |hash, text| fnv(fnv(hash, text.as_bytes()), b"\xff"));
    assert_eq!(format!("{hash:016x}"), *expected, "the texts differ from those of the script");
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a 64, gone on with.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((((z ^ (z >> 31)) >> 32) * n as u64) >> 32) as usize
    }
}

/// The texts for a vocabulary with these special tokens.
pub fn texts(specials: &[String]) -> Vec<String> {
    let mut texts: Vec<String> = HAND.iter().map(|&text| text.to_owned()).collect();
    texts.extend(
        [("A", 200), ("ab", 300), (" ", 100), ("\n", 50), ("1", 77), ("=", 80), ("e\u{301}", 40)]
            .map(|(s, n)| s.repeat(n)),
    );
    for special in specials {
        for c in '\0'..='\x7f' {
            texts.extend([format!("{c}{special}"), format!("{special}{c}")]);
        }
    }
    let mut random = Random(20260);
    texts.extend((0..10_000).map(|_| random_text(&mut random)));
    let all: Vec<char> = ('\0'..=char::MAX).collect();
    texts.extend(all.chunks(512).map(|chunk| chunk.iter().map(|c| format!("a{c} x")).collect::<String>()));
    texts
}

fn random_text(random: &mut Random) -> String {
    let mut text = String::new();
    for _ in 0..random.below(32) {
        if random.below(8) == 0 {
            text.push_str(PIECES[random.below(PIECES.len())]);
        } else {
            let (low, high) = RANGES[random.below(RANGES.len())];
            text.push(char::from_u32(low + random.below((high - low + 1) as usize) as u32).unwrap());
        }
    }
    text
}

/// Ranges of code points that random texts draw from, one range per draw.
const RANGES: [(u32, u32); 32] = [
    (0x20, 0x7e),
    (0x20, 0x7e),
    (0x61, 0x7a),
    (0x61, 0x7a),
    (0x41, 0x5a),
    (0x30, 0x39),
    (0x20, 0x20),
    (0x20, 0x20),
    (0x9, 0xd),
    (0xa, 0xa),
    (0xd, 0xd),
    (0x27, 0x27),
    (0x80, 0xff),
    (0x100, 0x24f),
    (0x300, 0x36f),
    (0x370, 0x52f),
    (0x590, 0x6ff),
    (0x900, 0x97f),
    (0xe00, 0xe7f),
    (0x1100, 0x11ff),
    (0x2000, 0x206f),
    (0x2150, 0x218f),
    (0x3000, 0x30ff),
    (0x4e00, 0x9fff),
    (0xac00, 0xd7a3),
    (0xfe00, 0xfe0f),
    (0x1f1e6, 0x1f1ff),
    (0x1f300, 0x1f64f),
    (0x200d, 0x200d),
    (0x0, 0xd7ff),
    (0xe000, 0x10ffff),
    (0x17f, 0x17f),
];

/// Pieces that are drawn now and then instead.
const PIECES: [&str; 24] = [
    "'s",
    "'LL",
    "'Ve",
    "'re",
    "'t",
    "'D",
    "'\u{17f}",
    " the",
    "ing",
    "    ",
    "\r\n",
    "\n\n",
    "\t\t",
    "don't",
    "return x",
    "//",
    "{}",
    "<|",
    "|>",
    "https://",
    "12345",
    "\u{a0}",
    "e\u{301}",
    "\u{915}\u{94d}\u{937}",
];

/// Indentation, line ends, scripts, joined emoji, marks, the same text in NFC and NFD, digits, contractions, specials.
const HAND: [&str; 71] = [
    "",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\r\n\r\n",
    " \r\n  x",
    "a\r\nb\r\n",
    "\n \n  \n   x",
    "\t\tif (x) {\r\n\t\t\treturn;\r\n\t\t}\r\n",
    "def f(x):\n    if x:\n        return  x  # why\n\n\n    else:\n\tpass\n",
    "x  =  1;\t\ty   = 22;  ",
    "   ",
    "a   ",
    "   a",
    "\u{3000}\u{3000}a",
    "\u{e9}\u{e8}\u{e4}\u{f1}\u{c5}",
    "e\u{301}e\u{300}a\u{308}n\u{303}A\u{30a}",
    "\u{d55c}\u{ae00}",
    "\u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af}",
    "\u{1e69}\u{1ec7}",
    "s\u{323}\u{307}e\u{323}\u{302}",
    "\u{4f60}\u{597d}\u{ff0c}\u{4e16}\u{754c}\u{ff01}\u{3002} \u{4e2d}\u{6587}abc123",
    "\u{3053}\u{3093}\u{306b}\u{3061}\u{306f} \u{30c6}\u{30b9}\u{30c8}\u{3001}\u{6f22}\u{5b57}\u{3067}\u{3059}",
    "\u{c548}\u{b155}\u{d558}\u{c138}\u{c694} \u{c138}\u{acc4}",
    "\u{1f469}\u{200d}\u{1f469}\u{200d}\u{1f467}\u{200d}\u{1f466}",
    "\u{1f44d}\u{1f3fd} ok\u{1f44d}",
    "\u{2764}\u{fe0f}\u{200d}\u{1f525} \u{1f1e9}\u{1f1ea}\u{1f1eb}\u{1f1f7}",
    "\u{1f3f4}\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}",
    "1\u{fe0f}\u{20e3} 2\u{20e3}",
    "a\u{301}\u{302}\u{303}\u{304} \u{301}\u{302} \u{301}",
    "\u{e01}\u{e34}\u{e19}\u{e02}\u{e49}\u{e32}\u{e27}",
    "\u{928}\u{92e}\u{938}\u{94d}\u{924}\u{947} \u{915}\u{94d}\u{937}",
    "\u{645}\u{631}\u{62d}\u{628}\u{627} \u{628}\u{650}\u{633}\u{652}\u{645}\u{650}",
    "\u{5e9}\u{5b8}\u{5c1}\u{5dc}\u{5d5}\u{5b9}\u{5dd}",
    "1",
    "12",
    "123",
    "1234",
    "12345678901234567890",
    "3.14159e-10",
    "1,234,567.89",
    "0x1F4A9",
    "\u{661}\u{662}\u{663}\u{664}",
    "\u{bd}\u{b2}\u{2167}\u{3289}",
    "v1.2.3-rc4",
    "1a2b3c",
    " 12  345   6789",
    "I'm we'LL they'Re DON'T it'S 'tis 'S '",
    "'\u{17f}'\u{17f}x",
    "''s'''t",
    "\u{2019}s don\u{2019}t",
    "foo.bar->baz();",
    "#include <stdio.h>\n",
    "</s><s>",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>",
    "<|endoftext|><|endoftext|>",
    "<|im_end|",
    "<<|im_end|>>",
    "<think>\n\n</think>\n\nok",
    "<tool_call>{}</tool_call>",
    "\u{0}\u{1}\u{4}\u{7f}",
    "!\u{4}=",
    "\u{feff}bom",
    "\u{fffd}",
    "\u{85}\u{2028}\u{2029}x",
    "$\u{20ac}\u{a3}\u{a5}",
    "\u{2211}\u{222b}\u{221a}\u{2264}",
    "C:\\Users\\x\\n",
    "...!?!?---___***",
    "a\u{200b}b\u{ad}c",
];
