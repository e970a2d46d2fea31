//! Scratch memory of a stage.

use kernels::{GROUP_VALUES, Int8Rows, Int8RowsMut};
use sys::memory::AlignedBuf;

use crate::error::StepError;
use crate::graph::{BufferId, BufferSpec, Content, Domain};

/// All buffers of a graph, grown to the window's rows.
pub struct Buffers {
    specs: Vec<BufferSpec>,
    rows: [usize; 3],
    /// The memory of each slot, one of the two.
    floats: Vec<AlignedBuf<f32>>,
    int8: Vec<Int8Buffer>,
}

/// Slots of these buffers.
fn slots(specs: &[BufferSpec]) -> usize {
    specs.iter().map(|spec| spec.slot as usize + 1).max().unwrap_or(0)
}

/// Bytes of memory that buffers of these shapes take once their domains have had `rows` rows, in the order of
/// [`Domain`].
pub fn scratch_bytes(specs: &[BufferSpec], rows: [usize; 3]) -> u64 {
    let bytes = |spec: &BufferSpec| {
        let values = rows[spec.domain as usize].saturating_mul(spec.width);
        let held = |bytes: usize| sys::memory::held_bytes(bytes) as u64;
        match spec.content {
            Content::Float => held(values.saturating_mul(4)),
            Content::Int8 => held(values) + held(values / GROUP_VALUES * 4) + held(values / 16 * 2),
        }
    };
    let mut largest = vec![0; slots(specs)];
    for spec in specs {
        let slot = &mut largest[spec.slot as usize];
        *slot = bytes(spec).max(*slot);
    }
    largest.into_iter().fold(0, u64::saturating_add)
}

/// Rows in int8.
#[derive(Clone)]
pub struct Int8Buffer {
    q: AlignedBuf<i8>,
    d: AlignedBuf<f32>,
    sum16: AlignedBuf<i16>,
}

impl Int8Buffer {
    fn zeroed(values: usize) -> Result<Int8Buffer, sys::memory::OutOfMemory> {
        Ok(Int8Buffer {
            q: AlignedBuf::zeroed(values)?,
            d: AlignedBuf::zeroed(values / GROUP_VALUES)?,
            sum16: AlignedBuf::zeroed(values / 16)?,
        })
    }

    /// The first `values` values as rows of `k`.
    pub fn rows(&self, values: usize, k: usize) -> Int8Rows<'_> {
        Int8Rows {
            k,
            q: &self.q[..values],
            d: &self.d[..values / GROUP_VALUES],
            sum16: &self.sum16[..values / 16],
        }
    }

    /// The first `values` values as rows of `k`, to be written.
    pub fn rows_mut(&mut self, values: usize, k: usize) -> Int8RowsMut<'_> {
        Int8RowsMut {
            k,
            q: &mut self.q[..values],
            d: &mut self.d[..values / GROUP_VALUES],
            sum16: &mut self.sum16[..values / 16],
        }
    }

    /// Scales of all values, for poisoning.
    pub(super) fn scales_mut(&mut self) -> &mut [f32] {
        &mut self.d
    }

    pub(super) fn scales(&self) -> &[f32] {
        &self.d
    }
}

impl Buffers {
    /// Buffers of these shapes, without rows.
    pub fn new(specs: &[BufferSpec]) -> Buffers {
        let empty = || AlignedBuf::zeroed(0).expect("nothing needs no memory");
        Buffers {
            specs: specs.to_vec(),
            rows: [0; 3],
            floats: (0..slots(specs)).map(|_| empty()).collect(),
            int8: (0..slots(specs))
                .map(|_| Int8Buffer::zeroed(0).expect("nothing needs no memory"))
                .collect(),
        }
    }

    /// Sets how many rows a domain has from now on; memory only grows, and what grows loses what it held.
    pub fn set_rows(&mut self, domain: Domain, rows: usize) -> Result<(), StepError> {
        // Without rows until all of them are there: growth gives the old memory back first, and may fail half-way.
        self.rows[domain as usize] = 0;
        for spec in self.specs.iter().filter(|spec| spec.domain == domain) {
            let i = spec.slot as usize;
            let values = rows * spec.width;
            let oom =
                |_| StepError::OutOfMemory { what: "scratch buffers", bytes: values * 4, left_bytes: None };
            match spec.content {
                Content::Float if self.floats[i].len() < values => {
                    self.floats[i] = AlignedBuf::zeroed(0).map_err(oom)?;
                    self.floats[i] = AlignedBuf::zeroed(values).map_err(oom)?;
                }
                Content::Int8 if self.int8[i].q.len() < values => {
                    self.int8[i] = Int8Buffer::zeroed(0).map_err(oom)?;
                    self.int8[i] = Int8Buffer::zeroed(values).map_err(oom)?;
                }
                _ => {}
            }
        }
        self.rows[domain as usize] = rows;
        Ok(())
    }

    /// Shape of a buffer.
    pub fn spec(&self, id: BufferId) -> BufferSpec {
        self.specs[id.0 as usize]
    }

    fn slot(&self, id: BufferId) -> usize {
        self.spec(id).slot as usize
    }

    /// Rows a domain has now.
    pub fn rows_of(&self, domain: Domain) -> usize {
        self.rows[domain as usize]
    }

    /// Rows a buffer has now.
    pub fn rows(&self, id: BufferId) -> usize {
        self.rows[self.spec(id).domain as usize]
    }

    /// Values per row.
    pub fn width(&self, id: BufferId) -> usize {
        self.spec(id).width
    }

    /// All rows of a float buffer.
    pub fn float(&self, id: BufferId) -> &[f32] {
        &self.floats[self.slot(id)][..self.rows(id) * self.width(id)]
    }

    /// All rows of an int8 buffer as rows of `k` values.
    pub fn int8(&self, id: BufferId, k: usize) -> Int8Rows<'_> {
        self.int8[self.slot(id)].rows(self.rows(id) * self.width(id), k)
    }

    /// Takes a float buffer out, to be written while others are read; [`Buffers::put`] gives it back.
    pub(super) fn take(&mut self, id: BufferId) -> AlignedBuf<f32> {
        let empty = AlignedBuf::zeroed(0).expect("nothing needs no memory");
        let slot = self.slot(id);
        std::mem::replace(&mut self.floats[slot], empty)
    }

    /// Gives back what [`Buffers::take`] took.
    pub(super) fn put(&mut self, id: BufferId, buffer: AlignedBuf<f32>) {
        let slot = self.slot(id);
        self.floats[slot] = buffer;
    }

    pub(super) fn int8_mut(&mut self, id: BufferId) -> &mut Int8Buffer {
        let slot = self.slot(id);
        &mut self.int8[slot]
    }

    pub(super) fn float_and_int8_mut(
        &mut self,
        float: BufferId,
        int8: BufferId,
    ) -> (&[f32], &mut Int8Buffer) {
        let values = self.rows(float) * self.width(float);
        let (float, int8) = (self.slot(float), self.slot(int8));
        (&self.floats[float][..values], &mut self.int8[int8])
    }

    /// Number of buffers.
    pub fn len(&self) -> usize {
        self.specs.len()
    }

    /// True without buffers.
    pub fn is_empty(&self) -> bool {
        self.specs.is_empty()
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> usize {
        let floats: usize = self.floats.iter().map(|b| b.len() * 4).sum();
        let int8: usize = self.int8.iter().map(|b| b.q.len() + b.d.len() * 4 + b.sum16.len() * 2).sum();
        floats + int8
    }
}
