//! The header of one file: counts, metadata, tensor table.
//!
//! The layout (all little-endian): `GGUF`, u32 version, u64 tensor count, u64 key count; per key its name, u32 value
//! type, value; per tensor its name, u32 dimension count, that many u64 extents, u32 type, u64 offset from the start
//! of the data, which is the end of the header rounded up to the alignment. A string is a u64 length and that many
//! bytes; an array is a u32 item type, a u64 count and the items.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};

use crate::error::{Fault, HEADER_BYTES_MIN};
use crate::metadata::{Array, Metadata, StringArray, Value};
use crate::tensor::{TensorInfo, TensorType};

/// Alignment of tensor data in a file that names none.
pub const ALIGNMENT_DEFAULT: u64 = 32;
/// The smallest alignment that is taken: the format wants multiples of 8.
pub const ALIGNMENT_MIN: u64 = 8;
/// The largest alignment that is taken; a page of any machine fits.
pub const ALIGNMENT_MAX: u64 = 1 << 20;
/// The longest header that is read. A vocabulary of 250,000 tokens with its merges takes some 10 MB.
pub const HEADER_BYTES_MAX: u64 = 256 << 20;
/// The most metadata keys that are taken. Published models have some 50.
pub const KEYS_MAX: u64 = 1 << 16;
/// The most tensors that are taken. The largest published models have some 3000; with every expert in a tensor of its
/// own it would be tens of thousands.
pub const TENSORS_MAX: u64 = 1 << 20;

const TENSOR_NAME_BYTES_MAX: u64 = 255;
const KEY_BYTES_MAX: u64 = (1 << 16) - 1;
const DIMENSIONS_MAX: u32 = 4;

/// What a tensor or a key takes in a file at least: a name of one byte, and one extent or a value of one byte.
const TENSOR_BYTES_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;
const KEY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;

/// Room that is made for tensors and keys before they are read: their records take a few times more memory than in
/// the file, so that a large count has to earn it.
const RECORDS_AHEAD: u64 = 4096;

/// What the header of one file says, checked against the size of the file.
pub(crate) struct Header {
    pub metadata: Metadata,
    /// With `shard` 0.
    pub tensors: Vec<TensorInfo>,
}

/// Reads the header of a file of `len` bytes from its start.
pub(crate) fn read<R: Read + Seek>(file: R, len: u64) -> Result<Header, Fault> {
    let mut input = Input { inner: file, position: 0, len };
    let (tensor_count, key_count) = read_start(&mut input)?;
    let mut entries = Vec::with_capacity(key_count.min(RECORDS_AHEAD) as usize);
    for index in 0..key_count {
        entries.push(read_entry(&mut input, index)?);
    }
    let metadata = Metadata::new(entries).map_err(|e| Fault::Metadata(Box::new(e)))?;
    let alignment = alignment(&metadata)?;
    let mut tensors = Vec::with_capacity(tensor_count.min(RECORDS_AHEAD) as usize);
    for index in 0..tensor_count {
        tensors.push(read_tensor(&mut input, index, alignment)?);
    }
    let header_end = input.position;
    let data_start = header_end.next_multiple_of(alignment);
    place_tensors(&mut tensors, data_start, len)?;
    check_names(&tensors)?;
    let data_end = tensors.iter().map(|t| t.offset + t.len).max().unwrap_or(header_end);
    check_not_joined(&mut input, &metadata, data_end, alignment)?;
    check_overlaps(&tensors)?;
    Ok(Header { metadata, tensors })
}

/// Magic, version and the two counts: (tensors, keys).
fn read_start<R: Read>(input: &mut Input<R>) -> Result<(u64, u64), Fault> {
    if input.len == 0 {
        return Err(Fault::Empty);
    }
    let magic = input.bytes::<4>(Place::Start)?;
    if magic != *MAGIC {
        return Err(Fault::Magic { found: magic });
    }
    let version = input.u32(Place::Start)?;
    match version {
        2 | 3 => {}
        // Small numbers stored with the highest byte first.
        _ if version != 0 && version & 0xffff == 0 => return Err(Fault::BigEndian),
        _ => return Err(Fault::Version { found: version }),
    }
    input.need(HEADER_BYTES_MIN - input.position, Place::Start)?;
    let tensor_count = input.u64(Place::Start)?;
    let key_count = input.u64(Place::Start)?;
    input.check_count(tensor_count, TENSOR_BYTES_MIN, "tensors")?;
    input.check_count(key_count, KEY_BYTES_MIN, "metadata keys")?;
    limit("a number of tensors", tensor_count, TENSORS_MAX)?;
    limit("a number of metadata keys", key_count, KEYS_MAX)?;
    Ok((tensor_count, key_count))
}

const MAGIC: &[u8; 4] = b"GGUF";

fn read_entry<R: Read>(input: &mut Input<R>, index: u64) -> Result<(String, Value), Fault> {
    let key = input.name("metadata key", index, KEY_BYTES_MAX, Place::Key(index))?;
    let place = Place::Value(&key);
    let id = input.u32(place)?;
    let value = match id {
        0 => Value::U8(u8::from_le_bytes(input.bytes(place)?)),
        1 => Value::I8(i8::from_le_bytes(input.bytes(place)?)),
        2 => Value::U16(u16::from_le_bytes(input.bytes(place)?)),
        3 => Value::I16(i16::from_le_bytes(input.bytes(place)?)),
        4 => Value::U32(u32::from_le_bytes(input.bytes(place)?)),
        5 => Value::I32(i32::from_le_bytes(input.bytes(place)?)),
        6 => Value::F32(f32::from_le_bytes(input.bytes(place)?)),
        7 => match input.bytes(place)? {
            [0] => Value::Bool(false),
            [1] => Value::Bool(true),
            [found] => return Err(Fault::Bool { key, found }),
        },
        8 => {
            let len = input.u64(place)?;
            input.need(len, place)?;
            let mut bytes = vec![0; len as usize];
            input.fill(&mut bytes, place)?;
            Value::String(bytes)
        }
        9 => Value::Array(read_array(input, &key)?),
        10 => Value::U64(u64::from_le_bytes(input.bytes(place)?)),
        11 => Value::I64(i64::from_le_bytes(input.bytes(place)?)),
        12 => Value::F64(f64::from_le_bytes(input.bytes(place)?)),
        _ => return Err(Fault::ValueType { key, id }),
    };
    Ok((key, value))
}

fn read_array<R: Read>(input: &mut Input<R>, key: &str) -> Result<Array, Fault> {
    let place = Place::Value(key);
    let id = input.u32(place)?;
    let count = input.u64(place)?;
    Ok(match id {
        0 => Array::U8(read_items(input, count, key, u8::from_le_bytes)?),
        1 => Array::I8(read_items(input, count, key, i8::from_le_bytes)?),
        2 => Array::U16(read_items(input, count, key, u16::from_le_bytes)?),
        3 => Array::I16(read_items(input, count, key, i16::from_le_bytes)?),
        4 => Array::U32(read_items(input, count, key, u32::from_le_bytes)?),
        5 => Array::I32(read_items(input, count, key, i32::from_le_bytes)?),
        6 => Array::F32(read_items(input, count, key, f32::from_le_bytes)?),
        7 => {
            let bytes = read_items(input, count, key, u8::from_le_bytes)?;
            if let Some(&found) = bytes.iter().find(|&&b| b > 1) {
                return Err(Fault::Bool { key: key.to_owned(), found });
            }
            Array::Bool(bytes.into_iter().map(|b| b == 1).collect())
        }
        8 => Array::Strings(read_strings(input, count, key)?),
        9 => return Err(Fault::NestedArray { key: key.to_owned() }),
        10 => Array::U64(read_items(input, count, key, u64::from_le_bytes)?),
        11 => Array::I64(read_items(input, count, key, i64::from_le_bytes)?),
        12 => Array::F64(read_items(input, count, key, f64::from_le_bytes)?),
        _ => return Err(Fault::ValueType { key: key.to_owned(), id }),
    })
}

/// Items of `N` bytes each.
fn read_items<R: Read, T, const N: usize>(
    input: &mut Input<R>,
    count: u64,
    key: &str,
    from_le_bytes: fn([u8; N]) -> T,
) -> Result<Vec<T>, Fault> {
    input.check_count(count, N as u64, Items(key))?;
    let place = Place::Value(key);
    let mut left = count as usize;
    let mut items = Vec::with_capacity(left);
    let mut buffer = [0; 4096];
    while left > 0 {
        let items_now = left.min(buffer.len() / N);
        let bytes = &mut buffer[..items_now * N];
        input.fill(bytes, place)?;
        let (chunks, _) = bytes.as_chunks::<N>();
        items.extend(chunks.iter().map(|&chunk| from_le_bytes(chunk)));
        left -= items_now;
    }
    Ok(items)
}

fn read_strings<R: Read>(input: &mut Input<R>, count: u64, key: &str) -> Result<StringArray, Fault> {
    // Each has at least its length.
    input.check_count(count, 8, Items(key))?;
    let place = Place::Value(key);
    let mut strings = StringArray::with_capacity(count as usize);
    for _ in 0..count {
        let len = input.u64(place)?;
        input.need(len, place)?;
        input.fill(strings.next_string(len as usize), place)?;
        strings.end_string();
    }
    Ok(strings)
}

/// One line of the tensor table; `offset` still counts from the start of the data.
fn read_tensor<R: Read>(input: &mut Input<R>, index: u64, alignment: u64) -> Result<TensorInfo, Fault> {
    let name = input.name("tensor name", index, TENSOR_NAME_BYTES_MAX, Place::TensorName(index))?;
    let place = Place::Tensor(&name);
    let dimensions = input.u32(place)?;
    if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
        return Err(Fault::Dimensions { name, found: dimensions });
    }
    let mut shape = Vec::with_capacity(dimensions as usize);
    for _ in 0..dimensions {
        shape.push(input.u64(place)?);
    }
    let id = input.u32(place)?;
    let offset = input.u64(place)?;
    let Some(dtype) = TensorType::from_id(id) else {
        return Err(Fault::TensorType { name, id, removed: TensorType::removed_name(id) });
    };
    if shape.contains(&0) {
        return Err(Fault::NoValues { name, shape });
    }
    let (row, block) = (shape[0], dtype.block_values());
    if !row.is_multiple_of(block as u64) {
        return Err(Fault::PartialBlock { name, row, dtype: dtype.name(), block });
    }
    let Some(len) = dtype.tensor_bytes(&shape) else {
        return Err(Fault::TooLarge { name, shape });
    };
    if !offset.is_multiple_of(alignment) {
        return Err(Fault::Misaligned { name, offset, alignment });
    }
    Ok(TensorInfo { name, dtype, shape, shard: 0, offset, len })
}

/// The alignment that a file names, or the default.
fn alignment(metadata: &Metadata) -> Result<u64, Fault> {
    match metadata.get("general.alignment") {
        None => Ok(ALIGNMENT_DEFAULT),
        Some(&Value::U32(value))
            if value.is_power_of_two() && (ALIGNMENT_MIN..=ALIGNMENT_MAX).contains(&u64::from(value)) =>
        {
            Ok(u64::from(value))
        }
        Some(other) => {
            let found = match other {
                Value::String(_) | Value::Array(_) => other.type_name(),
                scalar => format!("{scalar} ({})", scalar.type_name()),
            };
            Err(Fault::Alignment { found, least: ALIGNMENT_MIN, most: ALIGNMENT_MAX })
        }
    }
}

/// Turns offsets within the data into offsets within the file, all of whose ends are inside the file of `len` bytes.
fn place_tensors(tensors: &mut [TensorInfo], data_start: u64, len: u64) -> Result<(), Fault> {
    let end = |t: &TensorInfo| u128::from(data_start) + u128::from(t.offset) + u128::from(t.len);
    if let Some(last) = tensors.iter().max_by_key(|t| end(t))
        && end(last) > u128::from(len)
    {
        return Err(Fault::DataCut { len, needed: end(last), name: last.name.clone() });
    }
    for tensor in tensors {
        // Cannot wrap: the end is inside the file.
        tensor.offset += data_start;
    }
    Ok(())
}

fn check_names(tensors: &[TensorInfo]) -> Result<(), Fault> {
    let mut names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Fault::DuplicateTensor { name: pair[0].to_owned() }),
        None => Ok(()),
    }
}

fn check_overlaps(tensors: &[TensorInfo]) -> Result<(), Fault> {
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_unstable_by_key(|t| t.offset);
    for pair in by_offset.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        let end = first.offset + first.len;
        if end > second.offset {
            return Err(Fault::Overlap {
                first: first.name.clone(),
                second: second.name.clone(),
                end,
                start: second.offset,
            });
        }
    }
    Ok(())
}

/// A shard has nothing behind its tensors but padding; another header there means that shards were pasted together.
fn check_not_joined<R: Read + Seek>(
    input: &mut Input<R>,
    metadata: &Metadata,
    data_end: u64,
    alignment: u64,
) -> Result<(), Fault> {
    if !matches!(metadata.integer("split.count"), Ok(Some(2..))) {
        return Ok(());
    }
    // Writers differ in whether they pad behind the last tensor. No wrap: `data_end` is inside the file.
    for at in [data_end, data_end.next_multiple_of(alignment)] {
        if input.len.saturating_sub(at) >= HEADER_BYTES_MIN {
            let mut magic = [0; 4];
            input.inner.seek(SeekFrom::Start(at))?;
            input.inner.read_exact(&mut magic)?;
            if magic == *MAGIC {
                return Err(Fault::Joined { at });
            }
        }
    }
    Ok(())
}

fn limit(what: &'static str, found: u64, most: u64) -> Result<(), Fault> {
    if found > most { Err(Fault::Limit { what, found, most }) } else { Ok(()) }
}

/// A file read from its start, with account of the bytes that are left.
struct Input<R> {
    inner: R,
    position: u64,
    len: u64,
}

impl<R: Read> Input<R> {
    /// Fails unless `bytes` more are in the file and within the longest header.
    fn need(&self, bytes: u64, place: Place) -> Result<(), Fault> {
        let needed = self.position.saturating_add(bytes);
        if needed > self.len {
            return Err(Fault::HeaderCut { len: self.len, needed, within: place.to_string() });
        }
        limit("a header length", needed, HEADER_BYTES_MAX)
    }

    /// Fails unless `count` items of at least `bytes_min` each are in the file and within the longest header.
    fn check_count(&self, count: u64, bytes_min: u64, what: impl fmt::Display) -> Result<(), Fault> {
        let left = self.len - self.position;
        if count > left / bytes_min {
            return Err(Fault::Count { what: what.to_string(), count, left, len: self.len });
        }
        limit("a header length", self.position.saturating_add(count * bytes_min), HEADER_BYTES_MAX)
    }

    fn fill(&mut self, buffer: &mut [u8], place: Place) -> Result<(), Fault> {
        self.need(buffer.len() as u64, place)?;
        self.inner.read_exact(buffer).map_err(|e| match e.kind() {
            // The file has become shorter since it was measured.
            io::ErrorKind::UnexpectedEof => Fault::HeaderCut {
                len: self.position,
                needed: self.position + buffer.len() as u64,
                within: place.to_string(),
            },
            _ => Fault::Read(e),
        })?;
        self.position += buffer.len() as u64;
        Ok(())
    }

    fn bytes<const N: usize>(&mut self, place: Place) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, place)?;
        Ok(bytes)
    }

    fn u32(&mut self, place: Place) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.bytes(place)?))
    }

    fn u64(&mut self, place: Place) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.bytes(place)?))
    }

    fn name(
        &mut self,
        what: &'static str,
        index: u64,
        bytes_max: u64,
        place: Place,
    ) -> Result<String, Fault> {
        let len = self.u64(place)?;
        self.need(len, place)?;
        if len == 0 {
            return Err(Fault::EmptyName { what, index });
        }
        let length_of =
            if matches!(place, Place::Key(_)) { "a metadata key length" } else { "a tensor name length" };
        limit(length_of, len, bytes_max)?;
        let mut bytes = vec![0; len as usize];
        self.fill(&mut bytes, place)?;
        String::from_utf8(bytes).map_err(|e| {
            let found = String::from_utf8_lossy(e.as_bytes()).chars().take(64).collect();
            Fault::NameNotUtf8 { what, index, found }
        })
    }
}

/// What is being read, for errors.
#[derive(Clone, Copy)]
enum Place<'a> {
    Start,
    Key(u64),
    Value(&'a str),
    TensorName(u64),
    Tensor(&'a str),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Start => write!(f, "its beginning"),
            Place::Key(index) => write!(f, "metadata key number {index}"),
            Place::Value(key) => write!(f, "the value of metadata key {key:?}"),
            Place::TensorName(index) => write!(f, "the name of tensor number {index}"),
            Place::Tensor(name) => write!(f, "the entry of tensor {name:?}"),
        }
    }
}

/// The items of an array, for errors.
struct Items<'a>(&'a str);

impl fmt::Display for Items<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "items in metadata key {:?}", self.0)
    }
}
