//! A model as a whole: one file, or the shards of a set.
//!
//! Shards are named `<stem>-00001-of-00003.gguf`, counted from 1; the key `split.no` inside counts from 0,
//! `split.count` says how many there are, and `split.tensors.count` how many tensors all of them hold together. Only
//! the first one has the model's metadata (llama.cpp, tools/gguf-split).

use std::fs::File;
use std::io::{BufReader, Cursor};
use std::path::{Path, PathBuf};

use crate::error::{Error, Fault};
use crate::header::{self, Header};
use crate::metadata::{Metadata, Value};
use crate::tensor::TensorInfo;

/// A model: its metadata and where its tensors lie. Holds no open file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelFile {
    /// The metadata of the file, of the first one if there are several.
    pub metadata: Metadata,
    /// The tensors of all files, in the order of the files and of their tables.
    pub tensors: Vec<TensorInfo>,
    /// The files, in order.
    pub shards: Vec<Shard>,
    /// Indices into `tensors`, in the order of the names.
    by_name: Vec<u32>,
}

/// The most files of a set that are taken: writers count them in 16 bits.
pub const SHARDS_MAX: u64 = u16::MAX as u64;

/// One file of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shard {
    /// Where it is.
    pub path: PathBuf,
    /// Its size in bytes when the header was read.
    pub len: u64,
}

impl ModelFile {
    /// Reads the headers of the model that `path` names: a file, any shard of a set, or a folder that holds one model.
    ///
    /// In a folder, files whose name contains `mmproj` or begins with `mtp-` (image encoders and draft heads) are passed
    /// over, as are hidden ones; they can be opened by their own names. All shards are checked to be there, to belong
    /// together and to be as long as their tensors need.
    pub fn open(path: &Path) -> Result<ModelFile, Error> {
        let metadata = std::fs::metadata(path).map_err(io_error("open", path))?;
        let path = if metadata.is_dir() { model_in_folder(path)? } else { path.to_owned() };
        let (shard, header) = read_file(&path)?;
        let in_file = |fault| Error::File { path: path.clone(), fault };
        let set = split_keys(&header.metadata).map_err(in_file)?;
        let name = path.file_name().and_then(|n| n.to_str()).and_then(ShardName::parse);
        match (set, name) {
            (None, None) => ModelFile::assemble(vec![(shard, header)]),
            (None, Some(name)) if name.count < 2 => ModelFile::assemble(vec![(shard, header)]),
            (None, Some(name)) => Err(in_file(Fault::NotAShard { no: name.no, count: name.count })),
            (Some(split), None) => Err(in_file(Fault::ShardName { no: split.no, count: split.count })),
            (Some(split), Some(name)) => {
                name.check(&split).and_then(|()| name.limit()).map_err(in_file)?;
                open_set(&path, &name, (shard, header))
            }
        }
    }

    /// Reads the header of one file that lies in memory. A shard is read by itself, without its set.
    pub fn parse(bytes: &[u8]) -> Result<ModelFile, Error> {
        let shard = Shard { path: PathBuf::from("(memory)"), len: bytes.len() as u64 };
        match header::read(Cursor::new(bytes), shard.len) {
            Ok(header) => ModelFile::assemble(vec![(shard, header)]),
            Err(fault) => Err(Error::File { path: shard.path, fault }),
        }
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let found =
            self.by_name.binary_search_by(|&i| self.tensors[i as usize].name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[self.by_name[found] as usize])
    }

    fn assemble(files: Vec<(Shard, Header)>) -> Result<ModelFile, Error> {
        let mut metadata = Metadata::default();
        let mut tensors = Vec::with_capacity(files.iter().map(|(_, header)| header.tensors.len()).sum());
        let mut shards = Vec::with_capacity(files.len());
        for (index, (shard, header)) in files.into_iter().enumerate() {
            if index == 0 {
                metadata = header.metadata;
            }
            tensors.extend(header.tensors.into_iter().map(|tensor| TensorInfo { shard: index, ..tensor }));
            shards.push(shard);
        }
        // At most TENSORS_MAX in each of at most SHARDS_MAX files.
        let count = u32::try_from(tensors.len()).expect("fewer than 2^32 tensors");
        let mut by_name: Vec<u32> = (0..count).collect();
        by_name.sort_unstable_by(|&a, &b| tensors[a as usize].name.cmp(&tensors[b as usize].name));
        for pair in by_name.windows(2) {
            let (a, b) = (&tensors[pair[0] as usize], &tensors[pair[1] as usize]);
            if a.name == b.name {
                return Err(Error::DuplicateTensor {
                    name: a.name.clone(),
                    first: shards[a.shard.min(b.shard)].path.clone(),
                    second: shards[a.shard.max(b.shard)].path.clone(),
                });
            }
        }
        Ok(ModelFile { metadata, tensors, shards, by_name })
    }
}

/// What a file says about its set.
#[derive(Clone, Copy)]
struct Split {
    /// From 0.
    no: u64,
    count: u64,
    /// Of the whole set.
    tensors: Option<u64>,
}

/// The split keys of a file; `None` if it is a whole model.
fn split_keys(metadata: &Metadata) -> Result<Option<Split>, Fault> {
    let get = |key| metadata.integer(key).map_err(|e| Fault::Metadata(Box::new(e)));
    let (no, count, tensors) = (get("split.no")?, get("split.count")?, get("split.tensors.count")?);
    match count {
        None | Some(0 | 1) => Ok(None),
        Some(count) => {
            let no = no.ok_or(Fault::MissingKey { key: "split.no" })?;
            Ok(Some(Split { no, count, tensors }))
        }
    }
}

/// Reads the other shards and puts all together.
fn open_set(path: &Path, name: &ShardName, opened: (Shard, Header)) -> Result<ModelFile, Error> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let path_of = |no| folder.join(name.of_shard(no));
    let missing: Vec<String> =
        (1..=name.count).filter(|&no| !path_of(no).exists()).map(|no| name.of_shard(no)).collect();
    if !missing.is_empty() {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        return Err(Error::MissingShards { folder: folder.to_owned(), count: name.count, missing });
    }
    let mut opened = Some(opened);
    let mut files = Vec::new();
    let mut cut = Vec::new();
    for no in 1..=name.count {
        let file = match &opened {
            Some(_) if no == name.no => Ok(opened.take().expect("just seen")),
            _ => read_file(&path_of(no)),
        };
        match file {
            Ok(file) => files.push((no, file)),
            // Parts that were not downloaded to their end are likely several: all are named at once.
            Err(Error::File { path, fault }) if fault.is_cut() => cut.push((path, fault)),
            Err(other) => return Err(other),
        }
    }
    match cut.len() {
        0 => {}
        1 => return Err(cut.pop().map(|(path, fault)| Error::File { path, fault }).expect("there is one")),
        _ => return Err(Error::SeveralFiles(cut)),
    }
    let total = check_set(name, &files)?;
    let files: Vec<(Shard, Header)> = files.into_iter().map(|(_, file)| file).collect();
    let found = files.iter().map(|(_, header)| header.tensors.len() as u64).sum();
    if let Some(wanted) = total.filter(|&wanted| wanted != found) {
        return Err(Error::TensorTotal { path: files[0].0.path.clone(), shards: files.len(), wanted, found });
    }
    ModelFile::assemble(files)
}

/// Checks that each file is the shard of its name and of the first one's model; the announced total of tensors.
fn check_set(name: &ShardName, files: &[(u64, (Shard, Header))]) -> Result<Option<u64>, Error> {
    let mut total = None;
    let mut architecture: Option<&Value> = None;
    for (no, (shard, header)) in files {
        let in_file = |fault| Error::File { path: shard.path.clone(), fault };
        let split = split_keys(&header.metadata)
            .map_err(in_file)?
            .ok_or_else(|| in_file(Fault::NotAShard { no: *no, count: name.count }))?;
        ShardName { no: *no, ..name.clone() }.check(&split).map_err(in_file)?;
        let differs =
            |what, found: String, wanted: String| in_file(Fault::OtherModel { what, found, wanted });
        let own = header.metadata.get("general.architecture");
        if *no == 1 {
            (total, architecture) = (split.tensors, own);
            continue;
        }
        if let (Some(found), Some(wanted)) = (split.tensors, total)
            && found != wanted
        {
            return Err(differs(
                "number of tensors of the whole model",
                found.to_string(),
                wanted.to_string(),
            ));
        }
        if let (Some(found), Some(wanted)) = (own, architecture)
            && found != wanted
        {
            return Err(differs("architecture", found.to_string(), wanted.to_string()));
        }
    }
    Ok(total)
}

fn read_file(path: &Path) -> Result<(Shard, Header), Error> {
    let in_file = |fault| Error::File { path: path.to_owned(), fault };
    // Asked before opening, since opening a pipe would wait for its other end.
    if !std::fs::metadata(path).map_err(io_error("open", path))?.is_file() {
        return Err(in_file(Fault::NotAFile));
    }
    let file = File::open(path).map_err(io_error("open", path))?;
    let len = file.metadata().map_err(io_error("look at", path))?.len();
    let header = header::read(BufReader::with_capacity(1 << 16, file), len).map_err(in_file)?;
    Ok((Shard { path: path.to_owned(), len }, header))
}

/// The file of a folder that is the model, or a shard of it.
fn model_in_folder(folder: &Path) -> Result<PathBuf, Error> {
    let mut names = Vec::new();
    let mut passed_over = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io_error("read folder", folder))? {
        let name = entry.map_err(io_error("read folder", folder))?.file_name();
        // A name that is not UTF-8 can still be given as a path.
        let Some(name) = name.to_str() else { continue };
        let lower = name.to_ascii_lowercase();
        if name.starts_with('.') || !lower.ends_with(".gguf") || folder.join(name).is_dir() {
            continue;
        }
        let companion = lower.contains("mmproj") || lower.starts_with("mtp-");
        if companion { &mut passed_over } else { &mut names }.push(name.to_owned());
    }
    names.sort();
    passed_over.sort();
    // The first file of each model: shards of a set have stem and count in common.
    let mut models: Vec<(Option<(String, u64)>, String)> = Vec::new();
    for name in names {
        let set = ShardName::parse(&name).map(|shard| (shard.stem, shard.count));
        if set.is_none() || models.iter().all(|(known, _)| *known != set) {
            models.push((set, name));
        }
    }
    let mut models: Vec<String> = models.into_iter().map(|(_, name)| name).collect();
    match models.len() {
        0 => Err(Error::NoModel { folder: folder.to_owned(), passed_over }),
        1 => Ok(folder.join(models.remove(0))),
        _ => Err(Error::SeveralModels { folder: folder.to_owned(), models }),
    }
}

/// The parts of `<stem>-<no>-of-<count>.gguf`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardName {
    /// What all files of the set begin with.
    pub stem: String,
    /// From 1.
    pub no: u64,
    /// Files of the set.
    pub count: u64,
    /// Digits of `no` and of `count`, leading zeros included.
    digits: (usize, usize),
    /// `.gguf`, in the letters of the name.
    extension: String,
}

impl ShardName {
    /// The parts of a file's name; `None` if it is none of a set's.
    pub fn parse(file_name: &str) -> Option<ShardName> {
        let extension_start = file_name.len().checked_sub(".gguf".len())?;
        let (rest, extension) = file_name.split_at_checked(extension_start)?;
        if !extension.eq_ignore_ascii_case(".gguf") {
            return None;
        }
        let (rest, count) = rest.rsplit_once("-of-")?;
        let (stem, no) = rest.rsplit_once('-')?;
        let number = |text: &str| {
            let digits = (1..=9).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| text.parse::<u64>().ok()).flatten()
        };
        let name = ShardName {
            stem: stem.to_owned(),
            no: number(no)?,
            count: number(count)?,
            digits: (no.len(), count.len()),
            extension: extension.to_owned(),
        };
        (1..=name.count).contains(&name.no).then_some(name)
    }

    /// The name of another shard of the same set.
    pub fn of_shard(&self, no: u64) -> String {
        let (no_digits, count_digits) = self.digits;
        format!("{}-{no:0no_digits$}-of-{:0count_digits$}{}", self.stem, self.count, self.extension)
    }

    /// Every shard is looked for by its name, so a set may not have any number of them.
    fn limit(&self) -> Result<(), Fault> {
        if self.count > SHARDS_MAX {
            return Err(Fault::Limit { what: "a number of parts", found: self.count, most: SHARDS_MAX });
        }
        Ok(())
    }

    /// Whether a file of this name holds the shard it should.
    fn check(&self, split: &Split) -> Result<(), Fault> {
        let (named, holds) = ((self.no, self.count), (split.no.saturating_add(1), split.count));
        if named == holds { Ok(()) } else { Err(Fault::ShardSwapped { named, holds }) }
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { action, path, source }
}
