//! The weights of a model, held for computing.

mod moving;

use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use gguf::{ModelFile, TensorType};
use kernels::{INTERLEAVED_ROWS, Layout, WeightRows, quant};
use sys::arena::{Lease, STEP_BYTES_MIN, Segment, lease_bytes};
use sys::memory::AlignedBuf;
use sys::mmap::Map;
use sys::read::Part;

use crate::error::LoadError;
use crate::memory::ngram_tables;
use crate::models::{Binding, Form, ModelSpec, TensorId};

pub(crate) use moving::Mover;
use moving::PIECE_BYTES;

/// Mapped files and the tensors in them, in the order of [`ModelSpec::tensors`].
pub struct Weights {
    maps: Vec<Map>,
    held: Vec<Held>,
    /// What stays mapped: tables of which a token uses a few rows.
    tables: Vec<TensorId>,
}

/// How weights come into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Loading {
    /// The file is mapped: its pages come when they are first used, and the system may drop them again.
    #[default]
    Mapped,
    /// The file is mapped, and once a first pass is done an engine copies the matrices into huge pages of this process, in
    /// the background.
    Moved,
    /// The file is read to its end into memory of this process.
    Read,
}

impl Loading {
    /// Every way.
    pub const ALL: [Loading; 3] = [Loading::Mapped, Loading::Moved, Loading::Read];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Loading::Mapped => "mapped",
            Loading::Moved => "moved",
            Loading::Read => "read",
        }
    }

    /// The way of that name.
    pub fn from_name(name: &str) -> Option<Loading> {
        Loading::ALL.into_iter().find(|loading| loading.name() == name)
    }
}

/// Larger tensors are not searched for the number that spoilt a pass.
const SEARCHED_BYTES_MAX: usize = 256 << 20;

enum Held {
    Rows {
        bytes: Bytes,
        dtype: TensorType,
        row_values: usize,
        /// Whether sixteen rows lie side by side ([`kernels::interleave`]) where bytes are not those of the file: products
        /// read them faster, and give the same bits.
        interleaves: bool,
    },
    Vector(AlignedBuf<f32>),
}

/// Where the bytes of a matrix are.
enum Bytes {
    /// In a file, and from some time on in memory too; from then on nobody asks for those in the file.
    Mapped {
        map: usize,
        range: Range<usize>,
        moved: OnceLock<Lease>,
    },
    Read(Lease),
}

impl Weights {
    /// Maps the files and holds every tensor the spec names. With [`Loading::Read`] all matrices but n-gram tables, of
    /// which a token uses a few rows, are read into memory; `progress` hears of the bytes that are there and of how many
    /// there will be, from several threads.
    ///
    /// # Errors
    /// [`LoadError`] names the file or the tensor at fault.
    pub fn load(
        file: &ModelFile,
        draft: Option<&ModelFile>,
        spec: &ModelSpec,
        loading: Loading,
        progress: Progress<'_>,
    ) -> Result<Weights, LoadError> {
        let mut maps = Vec::new();
        for shard in file.shards.iter().chain(draft.iter().flat_map(|f| &f.shards)) {
            let map = Map::open(&shard.path)?;
            // Tensors were checked to lie within the length the header was read with.
            if map.len() as u64 != shard.len {
                let (path, found) = (shard.path.clone(), map.len() as u64);
                return Err(LoadError::FileChanged { path, found, wanted: shard.len });
            }
            maps.push(map);
        }
        let draft_maps = file.shards.len();
        let mut held: Vec<Held> = spec
            .tensors
            .iter()
            .map(|binding| {
                let (file, first_map) = match (binding.in_draft_file, draft) {
                    (true, Some(draft)) => (draft, draft_maps),
                    _ => (file, 0),
                };
                hold(binding, file, first_map, &maps)
            })
            .collect::<Result<_, _>>()?;
        let tables = ngram_tables(spec);
        if loading == Loading::Read {
            read(&mut held, &maps, &tables, progress)?;
        }
        Ok(Weights { maps, held, tables })
    }

    /// All rows of a tensor held as rows.
    pub fn rows(&self, id: TensorId) -> WeightRows<'_> {
        match &self.held[id.0 as usize] {
            Held::Rows { bytes, dtype, row_values, interleaves } => {
                let of_copy = if *interleaves { Layout::Interleaved } else { Layout::Rows };
                let (bytes, layout): (&[u8], Layout) = match bytes {
                    Bytes::Mapped { map, range, moved } => match moved.get() {
                        Some(lease) => (lease, of_copy),
                        None => (&self.maps[*map][range.clone()], Layout::Rows),
                    },
                    Bytes::Read(lease) => (lease, of_copy),
                };
                WeightRows::laid_out(*dtype, *row_values, bytes, layout)
            }
            Held::Vector(_) => panic!("tensor {} is held as a vector", id.0),
        }
    }

    /// Element type of a tensor held as it lies in the file.
    pub fn dtype(&self, id: TensorId) -> TensorType {
        match &self.held[id.0 as usize] {
            Held::Rows { dtype, .. } => *dtype,
            Held::Vector(_) => TensorType::F32,
        }
    }

    /// A tensor held in f32.
    pub fn vector(&self, id: TensorId) -> &[f32] {
        match &self.held[id.0 as usize] {
            Held::Vector(values) => values,
            Held::Rows { .. } => panic!("tensor {} is held as rows", id.0),
        }
    }

    /// Bytes of a tensor as it is held.
    pub fn held_bytes(&self, id: TensorId) -> usize {
        match &self.held[id.0 as usize] {
            Held::Rows { bytes, .. } => bytes.len(),
            Held::Vector(values) => values.len() * 4,
        }
    }

    /// The first tensor among `candidates` that holds a number that is not finite.
    ///
    /// Looks at no tensor of more than [`SEARCHED_BYTES_MAX`]: this runs while requests wait.
    pub(crate) fn find_not_finite(&self, candidates: impl Iterator<Item = TensorId>) -> Option<TensorId> {
        let mut values = Vec::new();
        candidates.into_iter().find(|&id| match &self.held[id.0 as usize] {
            Held::Vector(values) => values.iter().any(|v| !v.is_finite()),
            Held::Rows { bytes, row_values, .. } => {
                let rows = self.rows(id);
                values.resize(*row_values, 0.0);
                bytes.len() <= SEARCHED_BYTES_MAX
                    && (0..rows.rows()).any(|row| {
                        quant::dequantize_row(rows.dtype, &rows.row_of_file(row), &mut values).is_ok()
                            && values.iter().any(|v| !v.is_finite())
                    })
            }
        })
    }

    /// True unless a value of this row of a tensor held as rows is not finite.
    pub(crate) fn row_is_finite(&self, id: TensorId, row: usize) -> bool {
        let rows = self.rows(id);
        let mut values = vec![0.0; rows.k];
        quant::dequantize_row(rows.dtype, &rows.row_of_file(row), &mut values)
            .expect("types are checked when loaded");
        values.iter().all(|v| v.is_finite())
    }

    /// Appends the first 64 bytes of a tensor's first row and of its middle row as they lie in the file, in two pages; of
    /// vectors those at the beginning and in the middle as they are held.
    pub(crate) fn sample(&self, id: TensorId, out: &mut Vec<u8>) {
        let mut first_64 = |bytes: &[u8]| out.extend_from_slice(&bytes[..bytes.len().min(64)]);
        match &self.held[id.0 as usize] {
            Held::Rows { .. } => {
                let rows = self.rows(id);
                [0, rows.rows() / 2].into_iter().for_each(|row| first_64(&rows.row_of_file(row)));
            }
            Held::Vector(values) => {
                let bytes = sys::cast::bytes_of(&values[..]);
                [0, bytes.len() / 2].into_iter().for_each(|first| first_64(&bytes[first..]));
            }
        }
    }

    /// A file of which a part could not be read since it was mapped.
    pub fn damaged(&self) -> Option<&Path> {
        self.maps.iter().find(|map| map.damaged()).map(Map::path)
    }
}

impl Bytes {
    fn len(&self) -> usize {
        match self {
            Bytes::Mapped { range, .. } => range.len(),
            Bytes::Read(lease) => lease.len(),
        }
    }
}

/// Hears how many bytes are there and how many there will be.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Threads that read a file: more of them make no disk faster.
const READ_THREADS_MAX: usize = 8;

/// Reads mapped matrices, except `mapped` ones, into one segment in huge pages.
fn read(
    held: &mut [Held],
    maps: &[Map],
    mapped: &[TensorId],
    progress: Progress<'_>,
) -> Result<(), LoadError> {
    let wanted = |(i, held): (usize, &Held)| match held {
        Held::Rows { bytes: Bytes::Mapped { map, range, .. }, .. }
            if !mapped.contains(&TensorId(i as u32)) =>
        {
            Some((i, *map, range.clone()))
        }
        _ => None,
    };
    let wanted: Vec<(usize, usize, Range<usize>)> = held.iter().enumerate().filter_map(wanted).collect();
    let bytes = wanted.iter().map(|(_, _, range)| lease_bytes(range.len())).sum();
    let segment = Segment::reserve("weights", bytes, STEP_BYTES_MIN)?;
    let mut leases =
        wanted.iter().map(|(_, _, range)| segment.lease(range.len())).collect::<Result<Vec<Lease>, _>>()?;
    let parts = wanted.iter().zip(&mut leases).map(|((_, map, range), lease)| Part {
        path: maps[*map].path(),
        offset: range.start as u64,
        into: lease,
    });
    let threads = sys::topology::threads_default().min(READ_THREADS_MAX);
    sys::read::read_parts(parts.collect(), threads, progress)?;
    let sixteens = wanted.iter().zip(&mut leases).filter_map(|((i, ..), lease)| match &held[*i] {
        Held::Rows { dtype, row_values, interleaves: true, .. } => {
            Some((*dtype, *row_values, &mut lease[..]))
        }
        _ => None,
    });
    interleave_in_place(sixteens.collect(), threads);
    for ((i, ..), lease) in wanted.into_iter().zip(leases) {
        if let Held::Rows { bytes, .. } = &mut held[i] {
            *bytes = Bytes::Read(lease);
        }
    }
    Ok(())
}

/// Interleaves the rows of matrices: type, values of a row, bytes.
fn interleave_in_place(matrices: Vec<(TensorType, usize, &mut [u8])>, threads: usize) {
    let left = Mutex::new(matrices.into_iter());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        let mut copy = Vec::new();
        while let Some((dtype, row_values, bytes)) = next() {
            let row_bytes = dtype.row_bytes(row_values).expect("rows were checked when the file was opened");
            for sixteen in bytes.chunks_exact_mut(INTERLEAVED_ROWS * row_bytes) {
                copy.clear();
                copy.extend_from_slice(sixteen);
                kernels::interleave(dtype, row_bytes, &copy, sixteen);
            }
        }
    };
    thread::scope(|scope| {
        // Where the system gives no more threads, those that are there do it.
        (1..threads).for_each(|_| drop(thread::Builder::new().spawn_scoped(scope, work)));
        work();
    });
}

fn hold(binding: &Binding, file: &ModelFile, first_map: usize, maps: &[Map]) -> Result<Held, LoadError> {
    let info = file.tensor(&binding.name).expect("a bound tensor is in its file");
    let map = first_map + info.shard;
    let range = info.offset as usize..(info.offset + info.len) as usize;
    let bad_type = || LoadError::TensorType { name: binding.name.clone(), found: info.dtype.name() };
    let float = matches!(info.dtype, TensorType::F32 | TensorType::F16 | TensorType::BF16);
    if !float && !quant::FORMATS.contains(&info.dtype) {
        return Err(bad_type());
    }
    if binding.form == Form::Rows {
        let bytes = Bytes::Mapped { map, range, moved: OnceLock::new() };
        // Rows of one of the matrices that the tensor may hold. Sixteen are copied at a time, into memory that no plan counts.
        let rows = info.shape.get(1).copied().unwrap_or(1) as usize;
        let small =
            info.dtype.row_bytes(binding.row_values).is_some_and(|row| INTERLEAVED_ROWS * row <= PIECE_BYTES);
        let interleaves = small && kernels::can_interleave(info.dtype, rows);
        return Ok(Held::Rows { bytes, dtype: info.dtype, row_values: binding.row_values, interleaves });
    }
    let mut values = AlignedBuf::<f32>::zeroed(binding.row_values * binding.rows)?;
    let rows = WeightRows::new(info.dtype, binding.row_values, &maps[map][range]);
    for row in 0..binding.rows {
        let out = &mut values[row * binding.row_values..][..binding.row_values];
        quant::dequantize_row(info.dtype, &rows.row_of_file(row), out).map_err(|_| bad_type())?;
    }
    if binding.form == Form::Taps {
        let mut tap_major = AlignedBuf::<f32>::zeroed(values.len())?;
        for channel in 0..binding.rows {
            for tap in 0..binding.row_values {
                tap_major[tap * binding.rows + channel] = values[channel * binding.row_values + tap];
            }
        }
        values = tap_major;
    }
    Ok(Held::Vector(values))
}
