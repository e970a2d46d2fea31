//! Access to the oracle: tiny models with expected numbers from independent implementations.
//!
//! `README.md` beside this file says how the numbers were made. Only tests depend on this crate; every function panics
//! with the file's name when something is missing, since a missing oracle is a broken checkout.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

/// The folder that holds `models/` and `golden/`.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Path of `models/<name>.gguf`.
pub fn model(name: &str) -> PathBuf {
    let path = folder().join("models").join(format!("{name}.gguf"));
    assert!(path.exists(), "oracle model {} is missing", path.display());
    path
}

/// A JSON file of `golden/`, by file name.
pub fn json(file: &str) -> serde_json::Value {
    let path = folder().join("golden").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    // Python writes infinities and NaN in a way that JSON does not know; no test reads them.
    let text = text.replace("-Infinity", "null").replace("Infinity", "null").replace("NaN", "null");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// One array of an `.npz` file: its shape (slowest dimension first) and its values in C order.
#[derive(Clone, Debug)]
pub struct Array {
    /// Extent of each dimension, slowest first.
    pub shape: Vec<usize>,
    /// The values, in the element type of the file.
    pub data: Data,
}

/// The values of an [`Array`].
#[derive(Clone, Debug)]
pub enum Data {
    /// float32 and float64 (narrowed).
    F32(Vec<f32>),
    /// Signed integers and booleans.
    I64(Vec<i64>),
    /// Raw bytes.
    U8(Vec<u8>),
}

impl Array {
    /// The values as floats.
    pub fn f32(&self) -> &[f32] {
        match &self.data {
            Data::F32(v) => v,
            other => panic!("expected floats, found {other:?}"),
        }
    }

    /// The values as integers.
    pub fn i64(&self) -> &[i64] {
        match &self.data {
            Data::I64(v) => v,
            other => panic!("expected integers, found {other:?}"),
        }
    }

    /// The values as bytes.
    pub fn u8(&self) -> &[u8] {
        match &self.data {
            Data::U8(v) => v,
            other => panic!("expected bytes, found {other:?}"),
        }
    }

    /// Row `i` of a two-dimensional float array.
    pub fn row(&self, i: usize) -> &[f32] {
        let width: usize = self.shape[1..].iter().product();
        &self.f32()[i * width..(i + 1) * width]
    }
}

/// All arrays of `golden/<name>.npz`, by name.
pub fn npz(name: &str) -> BTreeMap<String, Array> {
    let path = folder().join("golden").join(format!("{name}.npz"));
    let mut archive =
        npyz::npz::NpzArchive::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let names: Vec<String> = archive.array_names().map(str::to_owned).collect();
    names
        .into_iter()
        .map(|name| {
            let npy = archive.by_name(&name).unwrap_or_else(|e| panic!("{name}: {e}")).expect("listed array");
            let array = read(&name, npy);
            (name, array)
        })
        .collect()
}

fn read<R: Read>(name: &str, npy: npyz::NpyFile<R>) -> Array {
    let shape: Vec<usize> = npy.shape().iter().map(|&n| n as usize).collect();
    let npyz::DType::Plain(dtype) = npy.dtype() else {
        panic!("{name}: structured arrays are not used here")
    };
    let bad = |e: std::io::Error| -> ! { panic!("{name}: {e}") };
    let data = match (dtype.type_char(), dtype.size_field()) {
        (npyz::TypeChar::Float, 4) => Data::F32(npy.into_vec().unwrap_or_else(|e| bad(e))),
        (npyz::TypeChar::Float, 8) => Data::F32(
            npy.into_vec::<f64>().unwrap_or_else(|e| bad(e)).into_iter().map(|v| v as f32).collect(),
        ),
        (npyz::TypeChar::Int, 8) => Data::I64(npy.into_vec().unwrap_or_else(|e| bad(e))),
        (npyz::TypeChar::Int, 4) => {
            Data::I64(npy.into_vec::<i32>().unwrap_or_else(|e| bad(e)).into_iter().map(i64::from).collect())
        }
        (npyz::TypeChar::Bool, _) => {
            Data::I64(npy.into_vec::<bool>().unwrap_or_else(|e| bad(e)).into_iter().map(i64::from).collect())
        }
        (npyz::TypeChar::Uint, 1) => Data::U8(npy.into_vec().unwrap_or_else(|e| bad(e))),
        other => panic!("{name}: element type {other:?} is not read here"),
    };
    Array { shape, data }
}
