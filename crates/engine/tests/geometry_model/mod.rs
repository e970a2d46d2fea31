//! The oracle's model with the counts of the real one: its file, drawn from the description in `geometry.json`.

use std::path::{Path, PathBuf};

use gguf::Value;
use gguf::write::Writer;
use serde_json::Value as Json;

/// Writes the model's file (100 MB) into `folder`.
pub fn write(folder: &Path) -> PathBuf {
    let recipe = oracle::json("geometry.json");
    let mut writer = Writer::new();
    for entry in recipe["keys"].as_array().expect("keys") {
        let (key, kind) = (text(&entry[0]), text(&entry[1]));
        writer.set(key, value(kind, &entry[2]));
    }
    for entry in recipe["tensors"].as_array().expect("tensors") {
        let name = text(&entry[0]);
        let slowest_first = entry[1].as_array().expect("a shape").iter();
        let mut shape: Vec<u64> = slowest_first.map(|n| n.as_u64().expect("an extent")).collect();
        shape.reverse();
        let (base, step) = (entry[2].as_f64().expect("a base"), entry[3].as_f64().expect("a step"));
        let values = draw(name, shape.iter().product::<u64>() as usize, base as f32, step as f32);
        writer.add_f32(name, &shape, &values);
    }
    let path = folder.join("geometry.gguf");
    writer.write(&path).expect("room for the model");
    path
}

/// `base + (2 u - 255) * step`, u the bytes of splitmix64(key), splitmix64(key + 1), ..., lowest byte first (Steele, Lea
/// and Flood 2014); the key is the FNV-1a hash of the name. Base and step are such that f32 holds every value exactly.
pub fn draw(name: &str, count: usize, base: f32, step: f32) -> Vec<f32> {
    let key = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |key, byte| (key ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let values = (0..count.div_ceil(8) as u64).flat_map(|i| splitmix64(key.wrapping_add(i)).to_le_bytes());
    values.take(count).map(|u| base + (2.0 * f32::from(u) - 255.0) * step).collect()
}

fn splitmix64(v: u64) -> u64 {
    let v = v.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let v = (v ^ v >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let v = (v ^ v >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    v ^ v >> 31
}

fn text(json: &Json) -> &str {
    json.as_str().expect("a string")
}

fn value(kind: &str, json: &Json) -> Value {
    let integer = |v: &Json| v.as_i64().expect("an integer");
    match (kind, json.as_array()) {
        ("string", None) => text(json).into(),
        ("f32", None) => (json.as_f64().expect("a number") as f32).into(),
        ("u32", None) => (integer(json) as u32).into(),
        ("i32", Some(list)) => list.iter().map(|v| integer(v) as i32).collect::<Vec<_>>().into(),
        ("u64", Some(list)) => list.iter().map(|v| integer(v) as u64).collect::<Vec<_>>().into(),
        ("bool", Some(list)) => {
            list.iter().map(|v| v.as_bool().expect("true or false")).collect::<Vec<_>>().into()
        }
        other => panic!("no key is of type {other:?}"),
    }
}
