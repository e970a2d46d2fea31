//! Model files taken apart, changed and put together again.

#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};

use gguf::Value;
use gguf::write::Writer;
use gguf::{ModelFile, TensorType};

/// The keys and tensors of a file, without those of the tokenizer.
#[derive(Clone)]
pub struct Parts {
    /// Metadata in the file's order.
    pub keys: Vec<(String, Value)>,
    /// Tensors in the file's order.
    pub tensors: Vec<Tensor>,
}

/// A tensor with its bytes.
#[derive(Clone)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: TensorType,
    /// Extents in ggml order.
    pub shape: Vec<u64>,
    /// The bytes.
    pub data: Vec<u8>,
}

impl Tensor {
    /// An F32 tensor.
    pub fn f32(name: &str, shape: &[u64], values: &[f32]) -> Tensor {
        assert_eq!(shape.iter().product::<u64>() as usize, values.len(), "{name}");
        let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Tensor { name: name.into(), dtype: TensorType::F32, shape: shape.into(), data }
    }

    /// The values of an F32 tensor.
    pub fn values(&self) -> Vec<f32> {
        assert_eq!(self.dtype, TensorType::F32, "{}", self.name);
        self.data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    }

    /// The same tensor with every value changed; `change` is given the value's index.
    pub fn map(&self, change: impl Fn(usize, f32) -> f32) -> Tensor {
        let values: Vec<f32> = self.values().into_iter().enumerate().map(|(i, v)| change(i, v)).collect();
        Tensor::f32(&self.name, &self.shape, &values)
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.data.len() / self.shape[1..].iter().product::<u64>() as usize
    }
}

impl Parts {
    /// Takes a single file apart.
    pub fn of(path: &Path) -> Parts {
        let file = ModelFile::open(path).unwrap_or_else(|e| panic!("{e}"));
        let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let keys = file.metadata.iter().filter(|(key, _)| !key.starts_with("tokenizer."));
        let tensor = |info: &gguf::TensorInfo| Tensor {
            name: info.name.clone(),
            dtype: info.dtype,
            shape: info.shape.clone(),
            data: bytes[info.offset as usize..(info.offset + info.len) as usize].to_vec(),
        };
        Parts {
            keys: keys.map(|(key, value)| (key.to_owned(), value.clone())).collect(),
            tensors: file.tensors.iter().map(tensor).collect(),
        }
    }

    /// `key` behind the architecture's name.
    pub fn full(&self, key: &str) -> String {
        let architecture = self.keys.iter().find(|(key, _)| key == "general.architecture");
        let Some((_, Value::String(name))) = architecture else { panic!("no architecture") };
        format!("{}.{key}", std::str::from_utf8(name).expect("a name"))
    }

    /// Sets a key of the architecture.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Parts {
        let full = self.full(key);
        self.remove(key);
        self.keys.push((full, value.into()));
        self
    }

    /// The value of a key of the architecture.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let full = self.full(key);
        self.keys.iter().find(|(key, _)| *key == full).map(|(_, value)| value)
    }

    /// Removes a key of the architecture, if it is there.
    pub fn remove(&mut self, key: &str) -> &mut Parts {
        let full = self.full(key);
        self.keys.retain(|(key, _)| *key != full);
        self
    }

    /// The tensor of that name.
    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        let found = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        found.unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// True if there is such a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.iter().any(|tensor| tensor.name == name)
    }

    /// Takes a tensor out.
    pub fn take(&mut self, name: &str) -> Tensor {
        let place = self.tensors.iter().position(|tensor| tensor.name == name);
        self.tensors.remove(place.unwrap_or_else(|| panic!("no tensor {name}")))
    }

    /// Adds a tensor.
    pub fn add(&mut self, tensor: Tensor) -> &mut Parts {
        self.tensors.push(tensor);
        self
    }

    /// A writer with all of it.
    pub fn writer(&self) -> Writer {
        let mut writer = Writer::new();
        for (key, value) in &self.keys {
            writer.set(key, value.clone());
        }
        for tensor in &self.tensors {
            writer.add_tensor(&tensor.name, tensor.dtype, &tensor.shape, tensor.data.clone());
        }
        writer
    }

    /// Writes the file into `folder`.
    pub fn write(&self, folder: &Path) -> PathBuf {
        let path = folder.join("model.gguf");
        self.writer().write(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }
}
