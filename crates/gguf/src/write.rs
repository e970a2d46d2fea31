//! Writing GGUF files: models for tests, whole or split, and files that lie about anything.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::header::ALIGNMENT_DEFAULT;
use crate::metadata::{Array, StringArray, Value};
use crate::tensor::TensorType;

/// A file in the making: keys and tensors in the order in which they are added.
///
/// Nothing is checked: what is added is written, so that readers can be tested with bad files. A tensor's bytes are put
/// at the next aligned offset and padded.
#[derive(Clone, Debug)]
pub struct Writer {
    version: u32,
    alignment: u64,
    keys: Vec<RawKey>,
    tensors: Vec<RawTensor>,
    tensors_claimed: Option<u64>,
    keys_claimed: Option<u64>,
}

/// A metadata entry as bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawKey {
    /// Name of the key.
    pub key: Vec<u8>,
    /// Number of the value type.
    pub type_id: u32,
    /// The value as it stands in the file.
    pub value: Vec<u8>,
}

/// A tensor table entry as numbers, with the tensor's bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RawTensor {
    /// Name of the tensor.
    pub name: Vec<u8>,
    /// The extents.
    pub shape: Vec<u64>,
    /// The number of extents, if another one than there are shall be claimed.
    pub dimensions: Option<u32>,
    /// Number of the tensor type.
    pub type_id: u32,
    /// The offset from the start of the data, if another one than where the bytes are shall be claimed.
    pub offset: Option<u64>,
    /// The bytes.
    pub data: Vec<u8>,
}

impl Default for Writer {
    fn default() -> Writer {
        Writer::new()
    }
}

impl Writer {
    /// An empty file of version 3 with the default alignment.
    pub fn new() -> Writer {
        Writer {
            version: 3,
            alignment: ALIGNMENT_DEFAULT,
            keys: Vec::new(),
            tensors: Vec::new(),
            tensors_claimed: None,
            keys_claimed: None,
        }
    }

    /// Writes this number as the version; the layout is that of versions 2 and 3.
    pub fn version(&mut self, version: u32) -> &mut Writer {
        self.version = version;
        self
    }

    /// Aligns tensors to this many bytes and sets the key that says so. Panics if it is zero.
    pub fn alignment(&mut self, alignment: u32) -> &mut Writer {
        assert!(alignment > 0, "an alignment is at least 1");
        self.alignment = u64::from(alignment);
        self.set("general.alignment", alignment)
    }

    /// Adds a key, or replaces the value it has.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Writer {
        let (type_id, value) = value_bytes(&value.into());
        let new = RawKey { key: key.as_bytes().to_vec(), type_id, value };
        match self.keys.iter_mut().find(|old| old.key == new.key) {
            Some(old) => *old = new,
            None => self.keys.push(new),
        }
        self
    }

    /// Adds a tensor; `shape` in ggml order (first extent contiguous). Panics if `bytes` is not what the type and shape
    /// take.
    pub fn add_tensor(
        &mut self,
        name: &str,
        dtype: TensorType,
        shape: &[u64],
        bytes: impl Into<Vec<u8>>,
    ) -> &mut Writer {
        let data = bytes.into();
        assert_eq!(dtype.tensor_bytes(shape), Some(data.len() as u64), "bytes of {name}: {dtype} {shape:?}");
        self.add_raw_tensor(RawTensor {
            name: name.as_bytes().to_vec(),
            shape: shape.to_vec(),
            type_id: dtype.id(),
            data,
            ..RawTensor::default()
        })
    }

    /// Adds an F32 tensor.
    pub fn add_f32(&mut self, name: &str, shape: &[u64], values: &[f32]) -> &mut Writer {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.add_tensor(name, TensorType::F32, shape, bytes)
    }

    /// Adds a key as it is, also if there is one of its name.
    pub fn add_raw_key(&mut self, key: RawKey) -> &mut Writer {
        self.keys.push(key);
        self
    }

    /// Adds a tensor as it is.
    pub fn add_raw_tensor(&mut self, tensor: RawTensor) -> &mut Writer {
        self.tensors.push(tensor);
        self
    }

    /// Writes these counts instead of the true ones.
    pub fn claim_counts(&mut self, tensors: Option<u64>, keys: Option<u64>) -> &mut Writer {
        self.tensors_claimed = tensors;
        self.keys_claimed = keys;
        self
    }

    /// The file as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes).expect("writing to memory does not fail");
        bytes
    }

    /// Writes the file, replacing one that is there.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        self.write_to(&mut file)?;
        file.flush()
    }

    /// Writes the file to `out`.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let mut header = b"GGUF".to_vec();
        header.extend(self.version.to_le_bytes());
        header.extend(self.tensors_claimed.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        header.extend(self.keys_claimed.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for key in &self.keys {
            push_string(&mut header, &key.key);
            header.extend(key.type_id.to_le_bytes());
            header.extend(&key.value);
        }
        let mut end = 0;
        for tensor in &self.tensors {
            push_string(&mut header, &tensor.name);
            header.extend(tensor.dimensions.unwrap_or(tensor.shape.len() as u32).to_le_bytes());
            for extent in &tensor.shape {
                header.extend(extent.to_le_bytes());
            }
            header.extend(tensor.type_id.to_le_bytes());
            header.extend(tensor.offset.unwrap_or(end).to_le_bytes());
            end = (end + tensor.data.len() as u64).next_multiple_of(self.alignment);
        }
        out.write_all(&header)?;
        self.pad(out, header.len() as u64)?;
        for tensor in &self.tensors {
            out.write_all(&tensor.data)?;
            self.pad(out, tensor.data.len() as u64)?;
        }
        Ok(())
    }

    /// Writes a split model as llama-gguf-split does: `<stem>-00001-of-0000N.gguf` and so on, where `stem` may have
    /// folders in front. The first file gets all keys (the others only the alignment), and each one the tensors that its
    /// group names; a group may be empty. Answers the paths. Panics if a tensor is not in exactly one group.
    pub fn write_split(&self, stem: &Path, groups: &[&[&str]]) -> io::Result<Vec<PathBuf>> {
        let count = u16::try_from(groups.len()).expect("at most 65535 shards");
        let total: usize = groups.iter().map(|group| group.len()).sum();
        assert_eq!(total, self.tensors.len(), "each tensor is in one group");
        let mut paths = Vec::new();
        for (no, group) in groups.iter().enumerate() {
            let mut shard = Writer { version: self.version, alignment: self.alignment, ..Writer::new() };
            if no == 0 {
                shard.keys.clone_from(&self.keys);
            } else {
                let alignment = self.keys.iter().filter(|key| key.key == b"general.alignment");
                shard.keys.extend(alignment.cloned());
            }
            shard
                .set("split.no", no as u16)
                .set("split.count", count)
                .set("split.tensors.count", total as i32);
            for name in *group {
                let tensor = self.tensors.iter().find(|tensor| tensor.name == name.as_bytes());
                shard.tensors.push(tensor.unwrap_or_else(|| panic!("no tensor {name}")).clone());
            }
            let mut path = stem.as_os_str().to_owned();
            path.push(format!("-{:05}-of-{count:05}.gguf", no + 1));
            shard.write(Path::new(&path))?;
            paths.push(PathBuf::from(path));
        }
        Ok(paths)
    }

    fn pad(&self, out: &mut impl Write, written: u64) -> io::Result<()> {
        let padding = written.next_multiple_of(self.alignment) - written;
        out.write_all(&vec![0; padding as usize])
    }
}

/// The type number of a value and the bytes that stand for it in a file.
pub fn value_bytes(value: &Value) -> (u32, Vec<u8>) {
    match value {
        Value::U8(v) => (0, v.to_le_bytes().to_vec()),
        Value::I8(v) => (1, v.to_le_bytes().to_vec()),
        Value::U16(v) => (2, v.to_le_bytes().to_vec()),
        Value::I16(v) => (3, v.to_le_bytes().to_vec()),
        Value::U32(v) => (4, v.to_le_bytes().to_vec()),
        Value::I32(v) => (5, v.to_le_bytes().to_vec()),
        Value::F32(v) => (6, v.to_le_bytes().to_vec()),
        Value::Bool(v) => (7, vec![u8::from(*v)]),
        Value::String(v) => {
            let mut bytes = Vec::new();
            push_string(&mut bytes, v);
            (8, bytes)
        }
        Value::Array(v) => (9, array_bytes(v)),
        Value::U64(v) => (10, v.to_le_bytes().to_vec()),
        Value::I64(v) => (11, v.to_le_bytes().to_vec()),
        Value::F64(v) => (12, v.to_le_bytes().to_vec()),
    }
}

fn array_bytes(array: &Array) -> Vec<u8> {
    fn items<T, const N: usize>(id: u32, items: &[T], to_le_bytes: fn(&T) -> [u8; N]) -> (u32, Vec<u8>) {
        (id, items.iter().flat_map(to_le_bytes).collect())
    }
    let (id, bytes) = match array {
        Array::U8(v) => items(0, v, |v| v.to_le_bytes()),
        Array::I8(v) => items(1, v, |v| v.to_le_bytes()),
        Array::U16(v) => items(2, v, |v| v.to_le_bytes()),
        Array::I16(v) => items(3, v, |v| v.to_le_bytes()),
        Array::U32(v) => items(4, v, |v| v.to_le_bytes()),
        Array::I32(v) => items(5, v, |v| v.to_le_bytes()),
        Array::F32(v) => items(6, v, |v| v.to_le_bytes()),
        Array::Bool(v) => items(7, v, |v| [u8::from(*v)]),
        Array::Strings(v) => (8, strings_bytes(v)),
        Array::U64(v) => items(10, v, |v| v.to_le_bytes()),
        Array::I64(v) => items(11, v, |v| v.to_le_bytes()),
        Array::F64(v) => items(12, v, |v| v.to_le_bytes()),
    };
    let mut all = id.to_le_bytes().to_vec();
    all.extend((array.len() as u64).to_le_bytes());
    all.extend(bytes);
    all
}

fn strings_bytes(strings: &StringArray) -> Vec<u8> {
    let mut bytes = Vec::new();
    for string in strings.iter() {
        push_string(&mut bytes, string);
    }
    bytes
}

fn push_string(bytes: &mut Vec<u8>, string: &[u8]) {
    bytes.extend((string.len() as u64).to_le_bytes());
    bytes.extend(string);
}
