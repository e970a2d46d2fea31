//! What the writer writes, the reader reads; and bytes changed at random never make it panic or hand out a range
//! outside the file.

use gguf::write::Writer;
use gguf::{Array, Metadata, ModelFile, StringArray, TensorType, Value};
use proptest::prelude::*;

fn a_value() -> impl Strategy<Value = Value> {
    use proptest::collection::vec;
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        proptest::num::f32::NORMAL.prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        vec(any::<u8>(), 0..40).prop_map(Value::String),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        proptest::num::f64::NORMAL.prop_map(Value::F64),
        vec(any::<u8>(), 0..9000).prop_map(Value::from),
        vec(any::<i8>(), 0..9).prop_map(Value::from),
        vec(any::<u16>(), 0..9).prop_map(Value::from),
        vec(any::<i16>(), 0..9).prop_map(Value::from),
        vec(any::<u32>(), 0..2000).prop_map(Value::from),
        vec(any::<i32>(), 0..9).prop_map(Value::from),
        vec(proptest::num::f32::NORMAL, 0..9).prop_map(Value::from),
        vec(any::<bool>(), 0..9).prop_map(Value::from),
        vec(any::<u64>(), 0..1000).prop_map(Value::from),
        vec(any::<i64>(), 0..9).prop_map(Value::from),
        vec(proptest::num::f64::NORMAL, 0..9).prop_map(Value::from),
        vec(vec(any::<u8>(), 0..9), 0..20).prop_map(|v| v.into_iter().collect::<StringArray>().into()),
    ]
}

fn a_tensor() -> impl Strategy<Value = (TensorType, Vec<u64>)> {
    (proptest::sample::select(TensorType::ALL), 1..3u64, proptest::collection::vec(1..4u64, 0..4)).prop_map(
        |(dtype, blocks, rows)| {
            let mut shape = vec![blocks * dtype.block_values() as u64];
            shape.extend(rows);
            (dtype, shape)
        },
    )
}

proptest! {
    #[test]
    fn written_is_read(
        version in 2..=3u32,
        alignment in proptest::option::of(3..=12u32),
        values in proptest::collection::vec(a_value(), 0..12),
        tensors in proptest::collection::vec(a_tensor(), 0..6),
    ) {
        let mut writer = Writer::new();
        writer.version(version);
        let mut entries = Vec::new();
        if let Some(power) = alignment {
            writer.alignment(1 << power);
            entries.push(("general.alignment".to_owned(), Value::U32(1 << power)));
        }
        for (i, value) in values.into_iter().enumerate() {
            let key = format!("key.{i}");
            writer.set(&key, value.clone());
            entries.push((key, value));
        }
        let mut contents = Vec::new();
        for (i, (dtype, shape)) in tensors.iter().enumerate() {
            let len = dtype.tensor_bytes(shape).expect("small") as usize;
            contents.push(vec![i as u8 + 1; len]);
            writer.add_tensor(&format!("tensor.{i}"), *dtype, shape, contents[i].clone());
        }
        let bytes = writer.to_bytes();
        let model = ModelFile::parse(&bytes).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(&model.metadata, &Metadata::new(entries).expect("no key twice"));
        prop_assert_eq!(model.tensors.len(), tensors.len());
        for (i, (dtype, shape)) in tensors.iter().enumerate() {
            let info = model.tensor(&format!("tensor.{i}")).expect("written");
            prop_assert_eq!((info.dtype, &info.shape), (*dtype, shape));
            prop_assert_eq!(info.offset % (1 << alignment.unwrap_or(5)), 0);
            let range = info.offset as usize..(info.offset + info.len) as usize;
            prop_assert_eq!(&bytes[range], &contents[i][..]);
        }
    }

    #[test]
    fn changed_bytes_never_lead_outside(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = Writer::new()
            .set("general.alignment", 64u32)
            .set("tokens", &["a", "bc"][..])
            .set("list", vec![1u64, 2])
            .set("flags", vec![true, false])
            .add_f32("x", &[16], &[0.0; 16])
            .add_tensor("y", TensorType::Q8_0, &[32, 2], vec![0; 68])
            .to_bytes();
        for (index, byte) in changes {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        if let Ok(model) = ModelFile::parse(&bytes) {
            for tensor in &model.tensors {
                prop_assert!(tensor.offset + tensor.len <= bytes.len() as u64);
            }
        }
    }
}

/// A vocabulary and merges of the size of the largest published ones.
#[test]
fn a_large_vocabulary_opens() {
    let bytes = large_vocabulary(250_000).to_bytes();
    let model = ModelFile::parse(&bytes).unwrap_or_else(|e| panic!("{e}"));
    let tokens = model.metadata.strings("tokenizer.ggml.tokens").expect("strings").expect("there");
    let merges = model.metadata.strings("tokenizer.ggml.merges").expect("strings").expect("there");
    assert_eq!((tokens.len(), merges.len()), (250_000, 250_000));
    assert_eq!(tokens.get_str(249_999), Some("token249999"));
    assert_eq!(merges.get_str(123_456), Some("tok en123456"));
    assert_eq!(merges.iter().filter(|merge| merge.starts_with(b"tok en")).count(), 250_000);
    assert_eq!(
        model.metadata.get("tokenizer.ggml.token_type"),
        Some(&Value::Array(Array::I32(vec![1; 250_000])))
    );
}

fn large_vocabulary(count: usize) -> Writer {
    let tokens: StringArray = (0..count).map(|i| format!("token{i}")).collect();
    let merges: StringArray = (0..count).map(|i| format!("tok en{i}")).collect();
    let mut writer = Writer::new();
    writer
        .set("tokenizer.ggml.tokens", tokens)
        .set("tokenizer.ggml.merges", merges)
        .set("tokenizer.ggml.token_type", vec![1i32; count])
        .set("tokenizer.ggml.scores", vec![0.0f32; count])
        .add_f32("x", &[1], &[1.0]);
    writer
}
