//! Files that lie are refused, each with a sentence that names what is wrong, and without memory they do not justify.

use gguf::write::{RawKey, RawTensor, Writer, value_bytes};
use gguf::{Array, ModelFile, StringArray, TensorType, Value};

const F32: u32 = TensorType::F32 as u32;

/// A small valid file with a bit of everything.
fn honest() -> Writer {
    let mut writer = Writer::new();
    writer
        .set("general.architecture", "llama")
        .set("llama.block_count", 2u32)
        .set("tokenizer.ggml.tokens", &["a", "b", "\u{120}c"][..])
        .set("tokenizer.ggml.scores", vec![0.0f32, -1.0, -2.0])
        .set("tokenizer.ggml.add_bos_token", false)
        .add_f32("token_embd.weight", &[4, 3], &[0.5; 12])
        .add_tensor("output.weight", TensorType::Q8_0, &[32, 2], vec![7; 68]);
    writer
}

/// A tensor of four F32 values, to be spoilt.
fn tensor() -> RawTensor {
    RawTensor { name: b"x".to_vec(), shape: vec![4], type_id: F32, data: vec![0; 16], ..RawTensor::default() }
}

/// A file with `tensor` only.
fn with_tensor(tensor: RawTensor) -> Vec<u8> {
    Writer::new().add_raw_tensor(tensor).to_bytes()
}

/// A file with one key of the given type number and bytes, and a tensor so that the file goes on behind it.
fn with_key(type_id: u32, value: &[u8]) -> Vec<u8> {
    let key = RawKey { key: b"k".to_vec(), type_id, value: value.to_vec() };
    Writer::new().add_raw_key(key).add_raw_tensor(tensor()).to_bytes()
}

/// The bytes of an array value with the given item type and count in front of `items`.
fn array(item_type: u32, count: u64, items: &[u8]) -> Vec<u8> {
    [&item_type.to_le_bytes(), &count.to_le_bytes()[..], items].concat()
}

fn with_alignment(value: impl Into<Value>) -> Vec<u8> {
    Writer::new().set("general.alignment", value).add_raw_tensor(tensor()).to_bytes()
}

/// Every lie: what it is, the file, and words of the refusal.
fn lies() -> Vec<(String, Vec<u8>, Vec<&'static str>)> {
    let mut lies = Vec::new();
    let mut lie = |what: &str, bytes: Vec<u8>, words: &[&'static str]| {
        lies.push((what.to_owned(), bytes, words.to_vec()));
    };
    start(&mut lie);
    counts(&mut lie);
    values(&mut lie);
    shapes(&mut lie);
    places(&mut lie);
    lies
}

type Lie<'a> = dyn FnMut(&str, Vec<u8>, &[&'static str]) + 'a;

fn start(lie: &mut Lie) {
    let mut bytes = honest().to_bytes();
    lie("no bytes", Vec::new(), &["is empty (0 bytes", "download it again"]);
    bytes[..4].copy_from_slice(b"vers");
    lie("git pointer", bytes.clone(), &["not a GGUF file", "\"vers\"", "git lfs pull"]);
    bytes[..4].copy_from_slice(b"<!DO");
    lie("web page", bytes.clone(), &["not a GGUF file", "web page"]);
    bytes[..4].copy_from_slice(&[0; 4]);
    lie("zeros", bytes.clone(), &["not a GGUF file", "download it again"]);
    bytes[..4].copy_from_slice(b"tjgg");
    lie("old format", bytes, &["not a GGUF file", "older than GGUF"]);
    for version in [0, 1, 4, 255, u32::MAX] {
        lie(
            "version",
            honest().version(version).to_bytes(),
            &["has GGUF version", "versions 2 and 3 are read"],
        );
    }
    for version in [2u32, 3] {
        lie("big-endian", honest().version(version.swap_bytes()).to_bytes(), &["big-endian"]);
    }
}

fn counts(lie: &mut Lie) {
    for count in [100, 1 << 20, 1 << 32, (1 << 32) + 2, 1 << 63, u64::MAX] {
        let tensors = honest().claim_counts(Some(count), None).to_bytes();
        let keys = honest().claim_counts(None, Some(count)).to_bytes();
        lie("tensor count", tensors, &["tensors, but only", "download it again"]);
        lie("key count", keys, &["metadata keys, but only", "download it again"]);
        for item_type in (0..=12).filter(|&t| t != 9) {
            let what = format!("{count} items of type {item_type}");
            let words = &["items in metadata key \"k\", but only", "download it again"];
            lie(&what, with_key(9, &array(item_type, count, &[])), words);
        }
        let cut = &["inside its header", "metadata key \"k\" needs", "download it again"];
        lie("string length", with_key(8, &count.to_le_bytes()), cut);
        lie("string item length", with_key(9, &array(8, 1, &count.to_le_bytes())), cut);
        // Counts that would wrap when multiplied by the size of an item.
        lie(
            "wrapping items",
            with_key(9, &array(10, (1 << 61) + 1, &[0; 8])),
            &["items in metadata key \"k\", but only"],
        );

        let mut bytes = Writer::new().set("k", 1u8).to_bytes();
        bytes[24..32].copy_from_slice(&count.to_le_bytes());
        lie("key length", bytes, &["inside its header: metadata key number 0 needs"]);
        let mut bytes = with_tensor(tensor());
        bytes[24..32].copy_from_slice(&count.to_le_bytes());
        lie("tensor name length", bytes, &["inside its header: the name of tensor number 0 needs"]);
    }
    // One more or less than there is: what follows is read as something else.
    lie("a key too many", honest().claim_counts(None, Some(6)).to_bytes(), &[]);
    lie("a key too few", honest().claim_counts(None, Some(4)).to_bytes(), &[]);
    lie("a tensor too many", honest().claim_counts(Some(3), None).to_bytes(), &[]);
    let many = |tensors, keys| {
        let mut bytes = Writer::new().claim_counts(tensors, keys).to_bytes();
        bytes.resize(36 << 20, 0);
        bytes
    };
    lie(
        "more tensors than taken",
        many(Some((1 << 20) + 1), None),
        &["number of tensors", "at most 1048576"],
    );
    lie(
        "more keys than taken",
        many(None, Some((1 << 16) + 1)),
        &["number of metadata keys", "at most 65536"],
    );
}

fn values(lie: &mut Lie) {
    for type_id in [13, 14, 255, u32::MAX] {
        lie("value type", with_key(type_id, &[0; 8]), &["metadata key \"k\"", "unknown value type"]);
        lie(
            "item type",
            with_key(9, &array(type_id, 1, &[0; 8])),
            &["metadata key \"k\"", "unknown value type"],
        );
    }
    lie(
        "nested array",
        with_key(9, &array(9, 1, &array(4, 0, &[]))),
        &["metadata key \"k\"", "array of arrays"],
    );
    lie("no nested arrays", with_key(9, &array(9, 0, &[])), &["metadata key \"k\"", "array of arrays"]);
    lie("bool of 2", with_key(7, &[2]), &["metadata key \"k\" is a bool", "byte there is 2"]);
    lie("item bool of 2", with_key(9, &array(7, 3, &[0, 1, 2])), &["is a bool", "byte there is 2"]);
    let key = |key: &[u8]| RawKey { key: key.to_vec(), type_id: 4, value: vec![0; 4] };
    lie("empty key", Writer::new().add_raw_key(key(b"")).to_bytes(), &["empty metadata key (number 0)"]);
    let odd = Writer::new().add_raw_key(key(b"k\xff")).to_bytes();
    lie("key not UTF-8", odd, &["metadata key that is not UTF-8 (number 0)"]);
    let long = Writer::new().add_raw_key(key(&[b'k'; 65536])).to_bytes();
    lie("long key", long, &["metadata key length of 65536", "at most 65535"]);
    let twice = honest()
        .add_raw_key(RawKey { key: b"llama.block_count".to_vec(), type_id: 4, value: vec![0; 4] })
        .to_bytes();
    lie("key twice", twice, &["\"llama.block_count\" is there twice"]);
    for value in [0u32, 1, 3, 4, 33, 1 << 21, 1 << 31, u32::MAX] {
        lie(
            "alignment",
            with_alignment(value),
            &["\"general.alignment\" is", "power of two from 8 to 1048576"],
        );
    }
    let wrong_types = [
        Value::U8(32),
        Value::I8(32),
        Value::U16(32),
        Value::I16(32),
        Value::I32(32),
        Value::U64(32),
        Value::I64(32),
        Value::F32(32.0),
        Value::F64(32.0),
        Value::Bool(true),
        Value::from("32"),
        Value::from(vec![32u32]),
    ];
    for value in wrong_types {
        lie("alignment type", with_alignment(value), &["\"general.alignment\" is", "as a u32"]);
    }
}

fn shapes(lie: &mut Lie) {
    for dimensions in [0u32, 5, 6, 1 << 31, u32::MAX] {
        let bytes = with_tensor(RawTensor { dimensions: Some(dimensions), ..tensor() });
        lie("dimensions", bytes, &["tensor \"x\" has", "dimensions, but 1 to 4"]);
    }
    for shape in [vec![0], vec![4, 0], vec![0, u64::MAX], vec![4, 1, 1, 0]] {
        lie("no values", with_tensor(RawTensor { shape, ..tensor() }), &["tensor \"x\" has no values"]);
    }
    let wrapping = [
        vec![1 << 32, 1 << 32],
        vec![1 << 16, 1 << 16, 1 << 16, 1 << 16],
        vec![1 << 31, 1 << 33],
        vec![(1 << 42) + 1, (1 << 42) + 1],
        vec![(1 << 42) + 1, 1 << 22],
        vec![u64::MAX, 2],
        vec![u64::MAX, u64::MAX, u64::MAX, u64::MAX],
        // The values fit in 64 bits, their bytes do not.
        vec![1 << 62],
        vec![1 << 31, 1 << 31],
        vec![u64::MAX],
    ];
    for shape in wrapping {
        lie(
            "wrapping shape",
            with_tensor(RawTensor { shape, ..tensor() }),
            &["tensor \"x\"", "too large for any file"],
        );
    }
    // What wraps at 32 or 63 bits only is larger than the file.
    for shape in [
        vec![1 << 32],
        vec![1 << 30],
        vec![(1 << 32) + 4],
        vec![1 << 16, 1 << 16],
        vec![1 << 60],
        vec![1 << 61],
    ] {
        lie(
            "large shape",
            with_tensor(RawTensor { shape, ..tensor() }),
            &["its tensors need", "the last one is \"x\""],
        );
    }
    for (type_id, row) in [(8, 31), (8, 33), (12, 128), (12, 640), (39, 16), (40, 32), (41, 64), (42, 32)] {
        let bytes = with_tensor(RawTensor { shape: vec![row, 2], type_id, ..tensor() });
        lie("partial block", bytes, &["tensor \"x\" has rows of", "at a time"]);
    }
    for type_id in [4, 5, 31, 32, 33, 36, 37, 38] {
        let bytes = with_tensor(RawTensor { type_id, ..tensor() });
        lie("removed type", bytes, &["tensor \"x\" has type", "ggml no longer has"]);
    }
    for type_id in [43, 64, 1 << 31, u32::MAX] {
        let bytes = with_tensor(RawTensor { type_id, ..tensor() });
        lie("unknown type", bytes, &["tensor \"x\" has type", "not known"]);
    }
}

fn places(lie: &mut Lie) {
    let (end, last_aligned) = (64, u64::MAX - 31);
    for offset in [32, end, end + 32, 1 << 32, 1 << 63, last_aligned] {
        let bytes =
            with_tensor(RawTensor { offset: Some(offset), data: vec![0; 32], shape: vec![8], ..tensor() });
        let needed = &["its tensors need", "the last one is \"x\"", "download it again"];
        lie("offset behind the end", bytes, needed);
    }
    // Offset and size each fit, their sum wraps to a small number.
    let bytes = with_tensor(RawTensor { offset: Some(last_aligned), shape: vec![16], ..tensor() });
    lie("wrapping end", bytes, &["its tensors need"]);
    for offset in [1, 4, 31, 33, u64::MAX] {
        let bytes = with_tensor(RawTensor { offset: Some(offset), ..tensor() });
        lie("misaligned", bytes, &["tensor \"x\" is at offset", "no multiple of the alignment 32"]);
    }
    let other = |offset| RawTensor { name: b"y".to_vec(), offset: Some(offset), ..tensor() };
    let wide = RawTensor { shape: vec![16], data: vec![0; 64], ..tensor() };
    let overlap = &["tensors", "\"x\"", "\"y\"", "overlap"];
    for offset in [0, 32] {
        let bytes = Writer::new().add_raw_tensor(wide.clone()).add_raw_tensor(other(offset)).to_bytes();
        lie("overlap", bytes, overlap);
    }
    let bytes = Writer::new().add_raw_tensor(other(64)).add_raw_tensor(wide).to_bytes();
    lie("overlap with an earlier one", bytes, overlap);
    let bytes = Writer::new().add_raw_tensor(tensor()).add_raw_tensor(tensor()).to_bytes();
    lie("tensor twice", bytes, &["two tensors named \"x\""]);
    lie(
        "empty name",
        with_tensor(RawTensor { name: Vec::new(), ..tensor() }),
        &["empty tensor name (number 0)"],
    );
    let odd = with_tensor(RawTensor { name: b"\xc3".to_vec(), ..tensor() });
    lie("name not UTF-8", odd, &["tensor name that is not UTF-8 (number 0)"]);
    let long = with_tensor(RawTensor { name: vec![b'x'; 256], ..tensor() });
    lie("long name", long, &["tensor name length of 256", "at most 255"]);
}

#[test]
fn each_lie_is_refused_with_its_sentence() {
    for (what, bytes, words) in lies() {
        let text = match ModelFile::parse(&bytes) {
            Ok(model) => panic!("{what}: opened with {:?}", model.tensors),
            Err(error) => error.to_string(),
        };
        for word in words {
            assert!(text.contains(word), "{what}: {word:?} is not in: {text}");
        }
        assert!(!text.chars().any(char::is_control), "{what}: control characters in {text:?}");
    }
}

#[test]
fn what_is_spoilt_was_valid_before() {
    for bytes in [honest().to_bytes(), with_tensor(tensor()), with_key(7, &[1]), with_alignment(32u32)] {
        ModelFile::parse(&bytes).unwrap_or_else(|e| panic!("{e}"));
    }
    // At its end to the byte, without padding behind it.
    let mut bytes = with_tensor(tensor());
    bytes.truncate(bytes.len() - 16);
    let model = ModelFile::parse(&bytes).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(model.tensors[0].offset + model.tensors[0].len, bytes.len() as u64);
    bytes.pop();
    let text = ModelFile::parse(&bytes).expect_err("one byte short").to_string();
    let sizes = format!("has {} bytes, but its tensors need {}", bytes.len(), bytes.len() + 1);
    assert!(text.contains(&sizes), "{text}");
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = honest().to_bytes();
    let model = ModelFile::parse(&bytes).unwrap_or_else(|e| panic!("{e}"));
    let needed = model.tensors.iter().map(|t| t.offset + t.len).max().expect("tensors") as usize;
    for len in 0..needed {
        let text = ModelFile::parse(&bytes[..len]).expect_err("cut").to_string();
        assert!(text.contains("download it again"), "cut to {len}: {text}");
        assert!(text.contains(&format!("{len} bytes")), "cut to {len}: {text}");
    }
    for len in needed..=bytes.len() {
        ModelFile::parse(&bytes[..len]).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// Lies whose files are much smaller than what they announce, opened in a process that cannot have much memory.
#[test]
#[cfg(target_os = "linux")]
fn lies_are_refused_in_little_memory() {
    let program = std::env::current_exe().expect("this test's program");
    let status = std::process::Command::new("sh")
        .args(["-c", "ulimit -v 98304 && exec \"$0\" \"$@\""])
        .arg(program)
        .args(["--exact", "in_little_memory", "--ignored", "--test-threads=1"])
        // An arena for each thread would reserve more address space than the limit.
        .env("MALLOC_ARENA_MAX", "1")
        // Making a backtrace takes memory under a lock; where there is none, it would wait instead of failing.
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("sh runs");
    let text =
        String::from_utf8_lossy(&status.stdout).into_owned() + &String::from_utf8_lossy(&status.stderr);
    assert!(status.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "run by lies_are_refused_in_little_memory"]
fn in_little_memory() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("lie.gguf");
    for (what, bytes, _) in lies() {
        std::fs::write(&path, &bytes).expect("written");
        drop(bytes);
        assert!(ModelFile::open(&path).is_err(), "{what}");
    }
    long_headers_are_refused();
}

/// A large file does not justify a large allocation for a header of a few bytes.
#[test]
fn a_header_longer_than_any_is_refused() {
    long_headers_are_refused();
}

fn long_headers_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("sparse.gguf");
    for (type_id, value) in [
        (8, (1u64 << 33).to_le_bytes().to_vec()),
        (9, array(0, 1 << 33, &[])),
        (9, array(8, 1 << 30, &[])),
        (9, array(12, 1 << 30, &[])),
    ] {
        Writer::new()
            .add_raw_key(RawKey { key: b"k".to_vec(), type_id, value })
            .write(&path)
            .expect("written");
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("there");
        // Sparse: takes no space on the disk.
        file.set_len(1 << 34).expect("made longer");
        let text = ModelFile::open(&path).expect_err("too long").to_string();
        assert!(text.contains("header length") && text.contains("at most 268435456"), "{text}");
    }
}

#[test]
fn strings_that_are_not_text_do_not_make_a_model_unreadable() {
    let strings: StringArray = [&b"\xff"[..], b"b"].into_iter().collect();
    let (type_id, value) = value_bytes(&Value::String(b"caf\xe9".to_vec()));
    let bytes = Writer::new()
        .add_raw_key(RawKey { key: b"general.description".to_vec(), type_id, value })
        .set("tokens", Value::Array(Array::Strings(strings)))
        .to_bytes();
    let model = ModelFile::parse(&bytes).unwrap_or_else(|e| panic!("{e}"));
    let text = model.metadata.string("general.description").expect_err("not UTF-8").to_string();
    assert!(text.contains("\"general.description\" holds string with bytes that are not UTF-8"), "{text}");
    let tokens = model.metadata.strings("tokens").expect("strings").expect("there");
    assert_eq!((tokens.get(0), tokens.get_str(0), tokens.get_str(1)), (Some(&b"\xff"[..]), None, Some("b")));
}
