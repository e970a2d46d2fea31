//! What can be wrong with a model file. Every text is a sentence for the person who named the file; names that come
//! from the file are quoted and escaped.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a model is not opened, or a metadata value not handed out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried: a verb such as `open`.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
    /// One file cannot be used.
    #[error("{}: {fault}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: Fault,
    },
    /// More than one shard of a set is cut short.
    #[error("{} parts of this model are incomplete:{}", .0.len(), each_fault(.0))]
    SeveralFiles(Vec<(PathBuf, Fault)>),
    /// Files of a set are not there.
    #[error(
        "the model is split into {count} parts, of which {} missing in {}: {}; download every part into one folder",
        if missing.len() == 1 { "one is" } else { "some are" }, folder.display(), some_of(missing)
    )]
    MissingShards {
        /// Where they were looked for.
        folder: PathBuf,
        /// How many files the set has.
        count: u64,
        /// The names of those that are absent.
        missing: Vec<String>,
    },
    /// The shards hold fewer or more tensors than the first one announces.
    #[error(
        "{}: the model should have {wanted} tensors in its {shards} parts, but they hold {found}: \
         parts of different models are mixed, or one is damaged; download the model again", path.display()
    )]
    TensorTotal {
        /// The first shard.
        path: PathBuf,
        /// Number of shards.
        shards: usize,
        /// `split.tensors.count` of the first shard.
        wanted: u64,
        /// Tensors in all shards together.
        found: u64,
    },
    /// A tensor comes twice in a set.
    #[error(
        "tensor {name:?} is in {} and again in {}: parts of different models are mixed; download the model again",
        first.display(), second.display()
    )]
    DuplicateTensor {
        /// Its name.
        name: String,
        /// One file that holds it.
        first: PathBuf,
        /// Another.
        second: PathBuf,
    },
    /// A folder holds no model.
    #[error(
        "{} holds no model file: none of its files ends in .gguf{}", folder.display(),
        if passed_over.is_empty() { String::new() }
        else { format!(" but for {}, which only goes with a model", some_of(passed_over)) }
    )]
    NoModel {
        /// The folder.
        folder: PathBuf,
        /// Companion files (image encoders, draft heads) that are no models of their own.
        passed_over: Vec<String>,
    },
    /// A folder holds more than one model.
    #[error("{} holds several models: {}; name one of these files", folder.display(), some_of(models))]
    SeveralModels {
        /// The folder.
        folder: PathBuf,
        /// One file of each model.
        models: Vec<String>,
    },
    /// A metadata key comes twice.
    #[error("metadata key {key:?} is there twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A metadata value has another type than its user needs.
    #[error("metadata key {key:?} holds {found}, but {wanted} is needed")]
    WrongType {
        /// The key.
        key: String,
        /// What the file holds.
        found: String,
        /// What is needed.
        wanted: &'static str,
    },
}

/// What is wrong with one file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Reading failed.
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    /// A device, a pipe or the like.
    #[error("is not an ordinary file")]
    NotAFile,
    /// The file has no bytes.
    #[error(
        "is empty (0 bytes; a header alone needs {HEADER_BYTES_MIN}): the download did not finish; download it again"
    )]
    Empty,
    /// The first four bytes are others than `GGUF`.
    #[error("is not a GGUF file: it begins with {}{}", quoted(found), kind_of(found))]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// Numbers are stored with the highest byte first.
    #[error("is a big-endian GGUF file, made for another kind of machine; download the little-endian one")]
    BigEndian,
    /// A version that is not read.
    #[error("has GGUF version {found}, but versions 2 and 3 are read{}",
        if *found < 2 { "; convert the model again with current tools" } else { "; a newer program may read it" })]
    Version {
        /// The version of the file.
        found: u32,
    },
    /// The header goes on where the file ends.
    #[error(
        "ends after {len} bytes, inside its header: {within} needs the file to have at least {needed} bytes; \
         it is incomplete or damaged; download it again"
    )]
    HeaderCut {
        /// Bytes the file has.
        len: u64,
        /// Bytes it would need to have, at least.
        needed: u64,
        /// What is being read there.
        within: String,
    },
    /// A number of items for which the file is too small.
    #[error(
        "says that it has {count} {what}, but only {left} of its {len} bytes are left to hold them; \
         it is incomplete or damaged; download it again"
    )]
    Count {
        /// What is counted.
        what: String,
        /// The number in the file.
        count: u64,
        /// Bytes that follow it.
        left: u64,
        /// Bytes the file has.
        len: u64,
    },
    /// More than this program takes, however large the file is.
    #[error("has {what} of {found}, but at most {most} are taken")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// The number in the file.
        found: u64,
        /// The limit.
        most: u64,
    },
    /// A name or key that is empty.
    #[error("has an empty {what} (number {index})")]
    EmptyName {
        /// What is named.
        what: &'static str,
        /// Which one, from 0.
        index: u64,
    },
    /// A name or key that is not text.
    #[error("has a {what} that is not UTF-8 (number {index}): {found:?}")]
    NameNotUtf8 {
        /// What is named.
        what: &'static str,
        /// Which one, from 0.
        index: u64,
        /// The name, with replacement characters.
        found: String,
    },
    /// A number that stands for no value type.
    #[error("metadata key {key:?} has the unknown value type {id}")]
    ValueType {
        /// The key.
        key: String,
        /// The number in the file.
        id: u32,
    },
    /// An array whose items are arrays.
    #[error("metadata key {key:?} is an array of arrays, which no known model has")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// A bool that is neither 0 nor 1.
    #[error("metadata key {key:?} is a bool, but the byte there is {found}, not 0 or 1")]
    Bool {
        /// The key.
        key: String,
        /// The byte.
        found: u8,
    },
    /// Something about the metadata as a whole, such as a key that comes twice or a `split.` key of a wrong type.
    #[error("{0}")]
    Metadata(#[source] Box<Error>),
    /// A key that is needed to make sense of the others.
    #[error("has no metadata key {key:?}")]
    MissingKey {
        /// The key.
        key: &'static str,
    },
    /// `general.alignment` is no usable number.
    #[error(
        "\"general.alignment\" is {found}, but a power of two from {least} to {most}, as a u32, is needed"
    )]
    Alignment {
        /// The value in the file.
        found: String,
        /// The smallest alignment.
        least: u64,
        /// The largest one.
        most: u64,
    },
    /// A number that stands for no tensor type.
    #[error("tensor {name:?} has type {id}{}",
        match removed { Some(removed) => format!(" ({removed}), which ggml no longer has; convert the model again"),
                        None => ", which is not known; a newer program may read it".to_owned() })]
    TensorType {
        /// The tensor.
        name: String,
        /// The number in the file.
        id: u32,
        /// The name of the type that once had this number.
        removed: Option<&'static str>,
    },
    /// No, or more than four dimensions.
    #[error("tensor {name:?} has {found} dimensions, but 1 to 4 are possible")]
    Dimensions {
        /// The tensor.
        name: String,
        /// The number in the file.
        found: u32,
    },
    /// An extent of zero.
    #[error("tensor {name:?} has no values: its shape is {shape:?}")]
    NoValues {
        /// The tensor.
        name: String,
        /// The shape in the file.
        shape: Vec<u64>,
    },
    /// A row that is no whole number of blocks.
    #[error("tensor {name:?} has rows of {row} values, but {dtype} stores {block} at a time")]
    PartialBlock {
        /// The tensor.
        name: String,
        /// Values in a row.
        row: u64,
        /// The type.
        dtype: &'static str,
        /// Values in a block of it.
        block: usize,
    },
    /// A shape whose size does not fit 64 bits.
    #[error("tensor {name:?} with shape {shape:?} would be too large for any file")]
    TooLarge {
        /// The tensor.
        name: String,
        /// The shape in the file.
        shape: Vec<u64>,
    },
    /// An offset that is no multiple of the alignment.
    #[error("tensor {name:?} is at offset {offset}, which is no multiple of the alignment {alignment}")]
    Misaligned {
        /// The tensor.
        name: String,
        /// The offset in the file, from the start of the tensor data.
        offset: u64,
        /// The alignment.
        alignment: u64,
    },
    /// Tensor data that should lie behind the end of the file.
    #[error(
        "has {len} bytes, but its tensors need {needed} (the last one is {name:?}): \
             it is incomplete or damaged; download it again"
    )]
    DataCut {
        /// Bytes the file has.
        len: u64,
        /// Bytes it should have, at least. 128 bits since a liar's offset and size may add up to more than 64.
        needed: u128,
        /// The tensor that ends last.
        name: String,
    },
    /// Two tensors that share bytes.
    #[error(
        "tensors {first:?} and {second:?} overlap: the first ends at byte {end}, the second starts at {start}"
    )]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The other.
        second: String,
        /// End of the first, from the start of the file.
        end: u64,
        /// Start of the second.
        start: u64,
    },
    /// Two tensors of one name.
    #[error("has two tensors named {name:?}")]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// Shards pasted together.
    #[error(
        "has another GGUF file pasted on at byte {at}: these are parts of a split model, which must not be joined \
         (with cat or otherwise); download the parts and give the name of the first"
    )]
    Joined {
        /// Where the next file begins.
        at: u64,
    },
    /// A shard under a name that does not say which one it is.
    #[error(
        "is part {} of {count} of a split model, but its name does not end in -{:05}-of-{count:05}.gguf, by which the \
         other parts would be found; give it its name back", no + 1, no + 1
    )]
    ShardName {
        /// `split.no`, from 0.
        no: u64,
        /// `split.count`.
        count: u64,
    },
    /// A shard under the name of another one.
    #[error(
        "is part {} of {} by its name, but part {} of {} by its contents: parts were renamed or swapped; \
         download it again or give each its own name", .named.0, .named.1, .holds.0, .holds.1
    )]
    ShardSwapped {
        /// Number, from 1, and count in the file name.
        named: (u64, u64),
        /// Number, from 1, and count in the file.
        holds: (u64, u64),
    },
    /// A file that is named like a shard but does not say that it is one.
    #[error(
        "is part {no} of {count} by its name, but nothing in it says that it belongs to a split model; \
         if it is a whole model, give it another name"
    )]
    NotAShard {
        /// Number in the name, from 1.
        no: u64,
        /// Count in the name.
        count: u64,
    },
    /// A shard that announces another model than the first one.
    #[error(
        "does not belong with the first part: its {what} is {found}, there it is {wanted}; download it again"
    )]
    OtherModel {
        /// What differs.
        what: &'static str,
        /// Here.
        found: String,
        /// In the first shard.
        wanted: String,
    },
}

/// Bytes of magic, version and two counts.
pub(crate) const HEADER_BYTES_MIN: u64 = 24;

impl Fault {
    /// Whether the file is too short for what it says; then others of its set may be, too.
    pub(crate) fn is_cut(&self) -> bool {
        matches!(self, Fault::Empty | Fault::HeaderCut { .. } | Fault::Count { .. } | Fault::DataCut { .. })
    }
}

fn each_fault(faults: &[(PathBuf, Fault)]) -> String {
    faults.iter().map(|(path, fault)| format!("\n  {}: {fault}", path.display())).collect()
}

fn some_of(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN {
        text += &format!(" and {} more", names.len() - SHOWN);
    }
    text
}

fn quoted(bytes: &[u8; 4]) -> impl fmt::Display {
    format!("\"{}\"", bytes.escape_ascii())
}

/// What a file with this beginning most likely is.
fn kind_of(magic: &[u8; 4]) -> &'static str {
    match magic {
        b"vers" => ", like the pointer that git leaves without LFS; fetch the real file with `git lfs pull`",
        b"<!DO" | b"<!do" | b"<htm" | b"<HTM" => {
            ", like a web page saved in its place; download the file itself"
        }
        b"lmgg" | b"tjgg" | b"fmgg" => {
            ", a format older than GGUF; convert the model again with current tools"
        }
        b"PK\x03\x04" => ", like a zip archive or a PyTorch checkpoint",
        b"FUGG" => ", like a GGUF file of a machine with the other byte order",
        b"\0\0\0\0" => "; the download may have reserved the space and not filled it; download it again",
        _ => "",
    }
}
