//! Ids equal those of HF `tokenizers` over a corpus of difficult texts.
//!
//! A hand-written pre-tokenizer is easily wrong where nobody looks: a special token right behind punctuation, blanks before
//! a word. The texts are made here by the rules of `oracle/make_tokenizer_corpus.py`, which stored a hash of the ids of each.

use chat::{Specials, Tokenizer, Vocabulary};
use serde_json::Value;

#[test]
fn small_qwen35() {
    check("small qwen35", small("qwen35"));
}

#[test]
fn small_qwen2() {
    check("small qwen2", small("qwen2"));
}

#[test]
fn small_llama_bpe() {
    check("small llama-bpe", small("llama-bpe"));
}

#[test]
fn small_gpt2() {
    check("small gpt-2", small("gpt-2"));
}

#[test]
fn small_smollm() {
    check("small smollm", small("smollm"));
}

#[test]
fn smollm2() {
    check("smollm2", smollm2_vocabulary());
}

/// The cases that llama.cpp, transformers and the numpy reference were run on.
#[test]
fn the_cases_of_the_tiny_models() {
    let tokenizer = Tokenizer::new(small("qwen35")).unwrap();
    let cases = oracle::json("tokenizer_cases.json");
    for case in cases.as_array().unwrap() {
        let ids: Vec<u32> =
            case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(
            tokenizer.encode(case["text"].as_str().unwrap(), Specials::Parse),
            ids,
            "{}",
            case["text"]
        );
    }
}

/// Written as text, no special token of a real model turns into a control token.
#[test]
fn no_control_token_comes_out_of_text() {
    let tokenizer = Tokenizer::new(smollm2_vocabulary()).unwrap();
    for id in 0..17 {
        let text = String::from_utf8(tokenizer.token_bytes(id).to_vec()).unwrap();
        assert_eq!(tokenizer.encode(&text, Specials::Parse), [id]);
        let ids = tokenizer.encode(&text, Specials::AsText);
        assert!(ids.len() > 1 && ids.iter().all(|&id| !tokenizer.is_control(id)), "{text}");
    }
}

fn check(name: &str, vocabulary: Vocabulary) {
    let expected = &oracle::json("tokenizer_corpus.json")[name];
    let specials: Vec<String> = std::iter::zip(&vocabulary.tokens, &vocabulary.types)
        .filter(|(_, kind)| matches!(kind, 3 | 4))
        .map(|(text, _)| text.clone())
        .collect();
    let texts = texts(&specials);
    let hash = texts.iter().fold(FNV_START, |hash, text| fnv(fnv(hash, text.as_bytes()), b"\xff"));
    assert_eq!(format!("{hash:016x}"), expected["texts"], "the texts differ from those of the script");

    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    let hashes = expected["ids"].as_str().unwrap();
    assert_eq!(hashes.len(), 8 * texts.len());
    let differ: Vec<&String> = std::iter::zip(&texts, 0..)
        .filter(|(text, at)| {
            let ids = tokenizer.encode(text, Specials::Parse);
            let hash = ids.iter().fold(FNV_START, |hash, id| fnv(hash, &id.to_le_bytes()));
            format!("{:08x}", (hash >> 32) ^ (hash & 0xffff_ffff)) != hashes[8 * at..8 * at + 8]
        })
        .map(|(text, _)| text)
        .collect();
    let some = &differ[..differ.len().min(5)];
    assert!(differ.is_empty(), "{} of {} texts differ, among them {some:?}", differ.len(), texts.len());
}

/// The small BPE in `oracle/tokenizer.json` under another pre-tokenizer.
fn small(pre: &str) -> Vocabulary {
    let text = std::fs::read_to_string(oracle::folder().join("tokenizer.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let mut tokens = vec![String::new(); 1018];
    let mut types = vec![1; 1018];
    for (text, id) in json["model"]["vocab"].as_object().unwrap() {
        tokens[id.as_u64().unwrap() as usize] = text.clone();
    }
    for token in json["added_tokens"].as_array().unwrap() {
        let id = token["id"].as_u64().unwrap() as usize;
        tokens[id] = token["content"].as_str().unwrap().to_owned();
        types[id] = if token["special"] == true { 3 } else { 4 };
    }
    let merge = |pair: &Value| format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
    let merges = json["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    Vocabulary { model: "gpt2".into(), pre: pre.into(), tokens, types, merges, ..Vocabulary::default() }
}

/// The tokenizer of SmolLM2-135M-Instruct: its special tokens, its single bytes, and a token for each merge.
fn smollm2_vocabulary() -> Vocabulary {
    let text = std::fs::read_to_string(oracle::folder().join("golden/smollm2_merges.txt")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let [specials, bytes, merges @ ..] = &lines[..] else { panic!("two lines come before the merges") };
    let mut tokens: Vec<String> = specials.split(' ').chain(bytes.split(' ')).map(str::to_owned).collect();
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let types = (0..tokens.len()).map(|id| if id < 17 { 3 } else { 1 }).collect();
    let merges = merges.iter().map(|&merge| merge.to_owned()).collect();
    Vocabulary { model: "gpt2".into(), pre: "smollm".into(), tokens, types, merges, ..Vocabulary::default() }
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

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

fn texts(specials: &[String]) -> Vec<String> {
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
