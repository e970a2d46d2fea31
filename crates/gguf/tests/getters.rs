//! Each getter takes the types it says and refuses every other one with key, found type and wanted type.

use gguf::write::Writer;
use gguf::{Array, Error, Metadata, ModelFile, StringArray, Value};

/// A value of every type there is.
fn every_type() -> Vec<Value> {
    vec![
        Value::U8(1),
        Value::I8(1),
        Value::U16(1),
        Value::I16(1),
        Value::U32(1),
        Value::I32(1),
        Value::F32(1.0),
        Value::Bool(true),
        Value::from("1"),
        Value::U64(1),
        Value::I64(1),
        Value::F64(1.0),
        Value::Array(Array::U8(vec![1])),
        Value::Array(Array::I8(vec![1])),
        Value::Array(Array::U16(vec![1])),
        Value::Array(Array::I16(vec![1])),
        Value::Array(Array::U32(vec![1])),
        Value::Array(Array::I32(vec![1])),
        Value::Array(Array::F32(vec![1.0])),
        Value::Array(Array::Bool(vec![true])),
        Value::Array(Array::Strings(["1"].into_iter().collect())),
        Value::Array(Array::U64(vec![1])),
        Value::Array(Array::I64(vec![1])),
        Value::Array(Array::F64(vec![1.0])),
    ]
}

/// Metadata with `value` under `k`, by way of a file.
fn metadata(value: Value) -> Metadata {
    ModelFile::parse(&Writer::new().set("k", value).to_bytes()).unwrap_or_else(|e| panic!("{e}")).metadata
}

/// `get` answers `expected` for the types in `taken` and refuses the others by their names.
fn check<T: PartialEq + std::fmt::Debug>(
    wanted: &str,
    taken: &[&str],
    expected: T,
    get: impl Fn(&Metadata) -> Result<Option<T>, Error>,
) {
    let mut seen = 0;
    for value in every_type() {
        let name = value.type_name();
        match get(&metadata(value)) {
            Ok(found) => {
                assert!(taken.contains(&name.as_str()), "{wanted} from {name}");
                assert_eq!(found.as_ref(), Some(&expected), "{wanted} from {name}");
                seen += 1;
            }
            Err(error) => {
                let text = format!("metadata key \"k\" holds {name}, but {wanted} is needed");
                assert_eq!(error.to_string(), text);
            }
        }
    }
    assert_eq!(seen, taken.len(), "{wanted}");
    assert_eq!(get(&Metadata::default()).expect("an absent key is no error"), None);
}

const INTEGERS: [&str; 9] = ["u8", "i8", "u16", "i16", "u32", "i32", "bool", "u64", "i64"];

#[test]
fn getters_take_their_types_only() {
    let lists: Vec<String> = INTEGERS.iter().map(|name| format!("array of 1 {name}")).collect();
    let integers: Vec<&str> = INTEGERS.into_iter().chain(lists.iter().map(String::as_str)).collect();
    check("a string", &["string"], "1".to_owned(), |m| Ok(m.string("k")?.map(str::to_owned)));
    check("a bool", &["bool"], true, |m| m.boolean("k"));
    check("an integer of at least 0", &INTEGERS, 1, |m| m.integer("k"));
    check("a float", &["f32", "f64"], 1.0, |m| m.float("k"));
    check("an array of integers", &integers, vec![1], |m| m.integers("k"));
    let floats = ["f32", "f64", "array of 1 f32", "array of 1 f64"];
    check("an array of floats", &floats, vec![1.0], |m| m.floats("k"));
    let strings: StringArray = ["1"].into_iter().collect();
    check("an array of strings", &["array of 1 string"], strings, |m| Ok(m.strings("k")?.cloned()));
}

#[test]
fn integers_out_of_range_are_refused() {
    for value in [Value::I8(-1), Value::I16(-1), Value::I32(-1), Value::I64(i64::MIN)] {
        let text = metadata(value).integer("k").expect_err("negative").to_string();
        assert!(text.contains("with a negative number, but an integer of at least 0"), "{text}");
    }
    assert_eq!(metadata(Value::U64(u64::MAX)).integer("k").expect("fits"), Some(u64::MAX));
    for value in [Value::U64(1 << 63), Value::from(vec![0, u64::MAX])] {
        let text = metadata(value).integers("k").expect_err("large").to_string();
        assert!(text.contains("with a number of 2^63 or more"), "{text}");
    }
    let extremes = metadata(Value::from(vec![i64::MIN, -1, i64::MAX]));
    assert_eq!(extremes.integers("k").expect("fits"), Some(vec![i64::MIN, -1, i64::MAX]));
}

#[test]
fn values_are_shown_in_one_short_line() {
    let shown = |value: Value| value.to_string();
    assert_eq!(shown(Value::from(vec![1u32, 2])), "[1, 2]");
    assert_eq!(
        shown(Value::from((0..100u8).collect::<Vec<_>>())),
        "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, and 88 more]"
    );
    assert_eq!(shown(Value::from("a\n\u{1b}[2J")), "\"a\\n\\u{1b}[2J\"");
    assert_eq!(shown(Value::from("x".repeat(1000))), format!("\"{}\"...", "x".repeat(120)));
    assert_eq!(shown(Value::from(&["a", "b"][..])), "[\"a\", \"b\"]");
    assert_eq!(shown(Value::F32(1e-6)), "0.000001");
}

#[test]
fn keys_stay_in_order_and_come_once() {
    let entries = |keys: &[&str]| keys.iter().map(|k| ((*k).to_owned(), Value::U8(0))).collect::<Vec<_>>();
    let metadata = Metadata::new(entries(&["z", "a", "m"])).expect("no key twice");
    assert_eq!(metadata.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["z", "a", "m"]);
    assert_eq!(metadata.get("m"), Some(&Value::U8(0)));
    assert_eq!(metadata.get("b"), None);
    let text = Metadata::new(entries(&["z", "a", "z"])).expect_err("z comes twice").to_string();
    assert_eq!(text, "metadata key \"z\" is there twice");
}
