//! The metadata of a file: values as they are stored, and getters that ask for a type.

use crate::error::Error;

/// One metadata value, in the type the file gives it.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Bytes that should be UTF-8 but are only checked by [`Metadata::string`]: a vendor's odd remark does not make
    /// a model unreadable.
    String(Vec<u8>),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of values of one type. Arrays of arrays are refused when a file is opened: no published model has any.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    Strings(StringArray),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Strings end to end in one allocation, since a vocabulary has hundreds of thousands.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct StringArray {
    bytes: Vec<u8>,
    /// `ends[i]` is where string `i` ends in `bytes`; it starts where the one before ends. A header is shorter than
    /// [`HEADER_BYTES_MAX`](crate::HEADER_BYTES_MAX), hence 32 bits.
    ends: Vec<u32>,
}

/// The metadata of a model: keys in the order of the file, each once.
#[derive(Clone, PartialEq, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    /// Indices into `entries`, in the order of the keys.
    by_key: Vec<u32>,
}

impl Metadata {
    /// Metadata of these entries; an error names the first key that comes twice.
    pub fn new(entries: Vec<(String, Value)>) -> Result<Metadata, Error> {
        let count = u32::try_from(entries.len()).expect("fewer than 2^32 keys");
        let mut by_key: Vec<u32> = (0..count).collect();
        by_key.sort_unstable_by(|&a, &b| entries[a as usize].0.cmp(&entries[b as usize].0));
        for pair in by_key.windows(2) {
            let key = &entries[pair[0] as usize].0;
            if *key == entries[pair[1] as usize].0 {
                return Err(Error::DuplicateKey { key: key.clone() });
            }
        }
        Ok(Metadata { entries, by_key })
    }

    /// Gives a key another value, or adds it at the end: what a file says can be overruled, without another file.
    pub fn set(&mut self, key: &str, value: Value) {
        match self.by_key.binary_search_by(|&i| self.entries[i as usize].0.as_str().cmp(key)) {
            Ok(found) => self.entries[self.by_key[found] as usize].1 = value,
            Err(place) => {
                self.by_key.insert(place, u32::try_from(self.entries.len()).expect("fewer than 2^32 keys"));
                self.entries.push((key.to_owned(), value));
            }
        }
    }

    /// The value of a key, whatever its type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let found = self.by_key.binary_search_by(|&i| self.entries[i as usize].0.as_str().cmp(key)).ok()?;
        Some(&self.entries[self.by_key[found] as usize].1)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All keys with their values, in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// A string; `None` if the key is absent, an error if it holds another type or is not UTF-8.
    pub fn string(&self, key: &str) -> Result<Option<&str>, Error> {
        self.typed(key, "a string", |value| match value {
            Value::String(bytes) => {
                std::str::from_utf8(bytes).map_err(|_| Mismatch::Content("bytes that are not UTF-8"))
            }
            _ => Err(Mismatch::Type),
        })
    }

    /// A boolean; `None` if the key is absent, an error if it holds another type.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "a bool", |value| match value {
            Value::Bool(value) => Ok(*value),
            _ => Err(Mismatch::Type),
        })
    }

    /// A count: any integer type, or a bool as 0 or 1, since writers differ; `None` if the key is absent, an error if
    /// it is negative or of another type.
    pub fn integer(&self, key: &str) -> Result<Option<u64>, Error> {
        self.typed(key, "an integer of at least 0", |value| {
            let signed = match *value {
                Value::U64(v) => return Ok(v),
                Value::U8(v) => i64::from(v),
                Value::I8(v) => i64::from(v),
                Value::U16(v) => i64::from(v),
                Value::I16(v) => i64::from(v),
                Value::U32(v) => i64::from(v),
                Value::I32(v) => i64::from(v),
                Value::I64(v) => v,
                Value::Bool(v) => i64::from(v),
                _ => return Err(Mismatch::Type),
            };
            u64::try_from(signed).map_err(|_| Mismatch::Content("a negative number"))
        })
    }

    /// A float, rounded to f32 if the file has f64; `None` if the key is absent, an error if it holds another type.
    pub fn float(&self, key: &str) -> Result<Option<f32>, Error> {
        self.typed(key, "a float", |value| match *value {
            Value::F32(v) => Ok(v),
            Value::F64(v) => Ok(v as f32),
            _ => Err(Mismatch::Type),
        })
    }

    /// Integers: an array of any integer type or of bools, or one such scalar as a list of one; `None` if the key is
    /// absent, an error if it holds another type or a number of 2^63 or more.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, Error> {
        self.typed(key, "an array of integers", |value| {
            fn widen<T: Copy + Into<i64>>(values: &[T]) -> Result<Vec<i64>, Mismatch> {
                Ok(values.iter().map(|&v| v.into()).collect())
            }
            fn narrow(values: &[u64]) -> Result<Vec<i64>, Mismatch> {
                let narrowed: Result<_, _> = values.iter().map(|&v| i64::try_from(v)).collect();
                narrowed.map_err(|_| Mismatch::Content("a number of 2^63 or more"))
            }
            match value {
                Value::U8(v) => widen(&[*v]),
                Value::I8(v) => widen(&[*v]),
                Value::U16(v) => widen(&[*v]),
                Value::I16(v) => widen(&[*v]),
                Value::U32(v) => widen(&[*v]),
                Value::I32(v) => widen(&[*v]),
                Value::I64(v) => widen(&[*v]),
                Value::Bool(v) => widen(&[*v]),
                Value::U64(v) => narrow(&[*v]),
                Value::Array(Array::U8(v)) => widen(v),
                Value::Array(Array::I8(v)) => widen(v),
                Value::Array(Array::U16(v)) => widen(v),
                Value::Array(Array::I16(v)) => widen(v),
                Value::Array(Array::U32(v)) => widen(v),
                Value::Array(Array::I32(v)) => widen(v),
                Value::Array(Array::I64(v)) => widen(v),
                Value::Array(Array::Bool(v)) => widen(v),
                Value::Array(Array::U64(v)) => narrow(v),
                _ => Err(Mismatch::Type),
            }
        })
    }

    /// Floats: an array of f32 or f64 (rounded to f32), or one such scalar as a list of one; `None` if the key is
    /// absent, an error if it holds another type.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, Error> {
        self.typed(key, "an array of floats", |value| match value {
            Value::F32(v) => Ok(vec![*v]),
            Value::F64(v) => Ok(vec![*v as f32]),
            Value::Array(Array::F32(v)) => Ok(v.clone()),
            Value::Array(Array::F64(v)) => Ok(v.iter().map(|&v| v as f32).collect()),
            _ => Err(Mismatch::Type),
        })
    }

    /// An array of strings, as bytes; `None` if the key is absent, an error if it holds another type.
    pub fn strings(&self, key: &str) -> Result<Option<&StringArray>, Error> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Array(Array::Strings(strings)) => Ok(strings),
            _ => Err(Mismatch::Type),
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        read: impl FnOnce(&'a Value) -> Result<T, Mismatch>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).map_err(|mismatch| {
            let found = match mismatch {
                Mismatch::Type => value.type_name(),
                Mismatch::Content(what) => format!("{} with {what}", value.type_name()),
            };
            Error::WrongType { key: key.to_owned(), found, wanted }
        })
    }
}

/// Why a getter does not take a value.
enum Mismatch {
    Type,
    Content(&'static str),
}

impl Value {
    /// The type in words: `u32`, `string`, `array of 12 bool`.
    pub fn type_name(&self) -> String {
        match self {
            Value::U8(_) => "u8".to_owned(),
            Value::I8(_) => "i8".to_owned(),
            Value::U16(_) => "u16".to_owned(),
            Value::I16(_) => "i16".to_owned(),
            Value::U32(_) => "u32".to_owned(),
            Value::I32(_) => "i32".to_owned(),
            Value::F32(_) => "f32".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::String(_) => "string".to_owned(),
            Value::Array(array) => format!("array of {} {}", array.len(), array.item_type_name()),
            Value::U64(_) => "u64".to_owned(),
            Value::I64(_) => "i64".to_owned(),
            Value::F64(_) => "f64".to_owned(),
        }
    }
}

impl Array {
    /// Number of items.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::Strings(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F64(v) => v.len(),
        }
    }

    /// Whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The type of the items in words.
    pub fn item_type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "u8",
            Array::I8(_) => "i8",
            Array::U16(_) => "u16",
            Array::I16(_) => "i16",
            Array::U32(_) => "u32",
            Array::I32(_) => "i32",
            Array::F32(_) => "f32",
            Array::Bool(_) => "bool",
            Array::Strings(_) => "string",
            Array::U64(_) => "u64",
            Array::I64(_) => "i64",
            Array::F64(_) => "f64",
        }
    }
}

impl StringArray {
    /// An array without strings.
    pub fn new() -> StringArray {
        StringArray::default()
    }

    /// Appends a string. Panics when all strings together reach 4 GiB.
    pub fn push(&mut self, string: impl AsRef<[u8]>) {
        self.bytes.extend_from_slice(string.as_ref());
        self.end_string();
    }

    /// String `i` as the bytes in the file, which need not be UTF-8.
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        let end = *self.ends.get(i)? as usize;
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        Some(&self.bytes[start..end])
    }

    /// String `i` as text; `None` if there is no such string or it is not UTF-8.
    pub fn get_str(&self, i: usize) -> Option<&str> {
        std::str::from_utf8(self.get(i)?).ok()
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no string.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i).expect("i is below len"))
    }

    pub(crate) fn with_capacity(strings: usize) -> StringArray {
        StringArray { bytes: Vec::new(), ends: Vec::with_capacity(strings) }
    }

    /// Room for the next string, which the caller fills; [`end_string`](Self::end_string) makes it one.
    pub(crate) fn next_string(&mut self, len: usize) -> &mut [u8] {
        let start = self.bytes.len();
        self.bytes.resize(start + len, 0);
        &mut self.bytes[start..]
    }

    pub(crate) fn end_string(&mut self) {
        self.ends.push(u32::try_from(self.bytes.len()).expect("strings of an array stay below 4 GiB"));
    }
}

impl<S: AsRef<[u8]>> FromIterator<S> for StringArray {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> StringArray {
        let mut array = StringArray::new();
        for string in strings {
            array.push(string);
        }
        array
    }
}

impl std::fmt::Debug for StringArray {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(String::from_utf8_lossy)).finish()
    }
}

impl std::fmt::Debug for Metadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// The value in one line for people: long strings and arrays are cut, control characters escaped.
impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::U8(v) => write!(f, "{v}"),
            Value::I8(v) => write!(f, "{v}"),
            Value::U16(v) => write!(f, "{v}"),
            Value::I16(v) => write!(f, "{v}"),
            Value::U32(v) => write!(f, "{v}"),
            Value::I32(v) => write!(f, "{v}"),
            Value::F32(v) => write!(f, "{v}"),
            Value::Bool(v) => write!(f, "{v}"),
            Value::String(v) => write_text(f, v),
            Value::Array(v) => write!(f, "{v}"),
            Value::U64(v) => write!(f, "{v}"),
            Value::I64(v) => write!(f, "{v}"),
            Value::F64(v) => write!(f, "{v}"),
        }
    }
}

/// The first items in brackets, cut like [`Value`].
impl std::fmt::Display for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        fn list<T: std::fmt::Display>(f: &mut std::fmt::Formatter<'_>, items: &[T]) -> std::fmt::Result {
            for (i, item) in items.iter().take(ITEMS_SHOWN).enumerate() {
                write!(f, "{}{item}", if i == 0 { "" } else { ", " })?;
            }
            Ok(())
        }
        f.write_str("[")?;
        match self {
            Array::U8(v) => list(f, v),
            Array::I8(v) => list(f, v),
            Array::U16(v) => list(f, v),
            Array::I16(v) => list(f, v),
            Array::U32(v) => list(f, v),
            Array::I32(v) => list(f, v),
            Array::F32(v) => list(f, v),
            Array::Bool(v) => list(f, v),
            Array::Strings(v) => v.iter().take(ITEMS_SHOWN).enumerate().try_for_each(|(i, item)| {
                f.write_str(if i == 0 { "" } else { ", " })?;
                write_text(f, item)
            }),
            Array::U64(v) => list(f, v),
            Array::I64(v) => list(f, v),
            Array::F64(v) => list(f, v),
        }?;
        let rest = self.len().saturating_sub(ITEMS_SHOWN);
        if rest > 0 {
            write!(f, ", and {rest} more")?;
        }
        f.write_str("]")
    }
}

const ITEMS_SHOWN: usize = 12;
const CHARS_SHOWN: usize = 120;

fn write_text(f: &mut std::fmt::Formatter<'_>, bytes: &[u8]) -> std::fmt::Result {
    // Four bytes a character at most; the rest of a long template need not be looked at.
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * CHARS_SHOWN)]);
    let shown: String = text.chars().take(CHARS_SHOWN).collect();
    let cut = shown.len() < bytes.len();
    write!(f, "{shown:?}{}", if cut { "..." } else { "" })
}

macro_rules! values_from {
    ($($from:ty => $variant:ident),* $(,)?) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Value { Value::$variant(value) }
        }
        impl From<Vec<$from>> for Value {
            fn from(values: Vec<$from>) -> Value { Value::Array(Array::$variant(values)) }
        }
    )*};
}
values_from!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32, bool => Bool,
             u64 => U64, i64 => I64, f64 => F64);

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.as_bytes().to_vec())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::String(text.into_bytes())
    }
}

impl From<StringArray> for Value {
    fn from(strings: StringArray) -> Value {
        Value::Array(Array::Strings(strings))
    }
}

impl<S: AsRef<str>> From<&[S]> for Value {
    fn from(strings: &[S]) -> Value {
        strings.iter().map(|s| s.as_ref()).collect::<StringArray>().into()
    }
}
