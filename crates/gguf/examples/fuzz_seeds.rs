//! Writes the files from which fuzzing starts, which are kept: `cargo run -p gguf --example fuzz_seeds -- fuzz/seeds/gguf_header`.

use std::path::PathBuf;

use gguf::write::Writer;
use gguf::{StringArray, TensorType, Value};

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).expect("a folder"));
    std::fs::create_dir_all(&folder)?;
    Writer::new().version(2).add_f32("a", &[1], &[1.0]).write(&folder.join("smallest.gguf"))?;
    scalars().write(&folder.join("scalars.gguf"))?;
    arrays().write(&folder.join("arrays.gguf"))?;
    tensors().write(&folder.join("tensors.gguf"))?;
    // Two parts pasted together.
    let mut part = Writer::new();
    part.set("split.no", 0u16).set("split.count", 2u16).set("split.tensors.count", 2i32);
    part.add_f32("a", &[1], &[1.0]);
    let mut joined = part.to_bytes();
    joined.extend(part.set("split.no", 1u16).to_bytes());
    std::fs::write(folder.join("joined.gguf"), joined)
}

fn scalars() -> Writer {
    let mut writer = Writer::new();
    writer
        .set("u8", 1u8)
        .set("i8", -1i8)
        .set("u16", 1u16)
        .set("i16", -1i16)
        .set("u32", 1u32)
        .set("i32", -1i32)
        .set("f32", 1f32)
        .set("bool", true)
        .set("string", "text")
        .set("u64", 1u64)
        .set("i64", -1i64)
        .set("f64", 1f64);
    writer
}

fn arrays() -> Writer {
    let strings: StringArray = ["a", "", "bc"].into_iter().collect();
    let mut writer = Writer::new();
    writer
        .set("u8", vec![1u8, 2])
        .set("i16", vec![-1i16])
        .set("u32", vec![1u32, 2, 3])
        .set("f32", vec![0.5f32])
        .set("bool", vec![true, false])
        .set("strings", Value::from(strings))
        .set("u64", vec![u64::MAX])
        .set("f64", Vec::<f64>::new());
    writer
}

fn tensors() -> Writer {
    let mut writer = Writer::new();
    writer.alignment(8);
    for (name, dtype, shape) in [
        ("one", TensorType::F16, &[3][..]),
        ("two", TensorType::Q8_0, &[32, 2]),
        ("three", TensorType::MXFP4, &[64, 1, 2]),
        ("four", TensorType::I8, &[2, 2, 2, 2]),
    ] {
        let len = dtype.tensor_bytes(shape).expect("small");
        writer.add_tensor(name, dtype, shape, vec![0; len as usize]);
    }
    writer
}
