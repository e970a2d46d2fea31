//! Kernels, chosen once.
//!
//! A [`Kernels`] holds one function per operation, and per tensor type where that matters, for one instruction set. It is
//! made at start; nothing decides again in a loop. Its methods check lengths and call.

use std::borrow::Cow;

use gguf::TensorType;

use crate::attention::{
    Attended, Cells, Partition, Queries, cells_of_all, int4_bytes, int4_scales, int8_scales,
};
use crate::interleave::{INTERLEAVED_ROWS, Layout, can_interleave, copy_row};
use crate::isa::Isa;
use crate::tile::Tile;
use crate::{GROUP_VALUES, PARTITION_CELLS, quant, scalar};

/// Consecutive rows of a weight matrix.
#[derive(Clone, Copy)]
pub struct WeightRows<'a> {
    /// Element type.
    pub dtype: TensorType,
    /// Values per row.
    pub k: usize,
    /// Whole rows, `row_bytes` each.
    pub bytes: &'a [u8],
    row_bytes: usize,
    layout: Layout,
    continued: Option<Continued<'a>>,
}

/// What a thread read before some rows and reads after them.
#[derive(Clone, Copy)]
struct Continued<'a> {
    /// Whether the first rows have been asked for.
    asked: bool,
    next: &'a [u8],
}

impl<'a> WeightRows<'a> {
    /// Rows of `k` values of type `dtype` as they lie in a file; `bytes` holds whole rows.
    pub fn new(dtype: TensorType, k: usize, bytes: &'a [u8]) -> WeightRows<'a> {
        WeightRows::laid_out(dtype, k, bytes, Layout::Rows)
    }

    /// [`WeightRows::new`] of rows in some layout.
    ///
    /// # Panics
    /// When `bytes` are not whole rows, or not rows that can be laid out so ([`can_interleave`]).
    pub fn laid_out(dtype: TensorType, k: usize, bytes: &'a [u8], layout: Layout) -> WeightRows<'a> {
        let row_bytes =
            dtype.row_bytes(k).unwrap_or_else(|| panic!("rows of {k} values of type {}", dtype.name()));
        assert!(
            row_bytes > 0 && bytes.len().is_multiple_of(row_bytes),
            "{} bytes in rows of {row_bytes}",
            bytes.len()
        );
        assert!(layout == Layout::Rows || can_interleave(dtype, bytes.len() / row_bytes));
        WeightRows { dtype, k, bytes, row_bytes, layout, continued: None }
    }

    /// The same rows, knowing what the thread that multiplies them does around that: it asks the memory for the first bytes of
    /// `next` before it is done, as those are what it reads then; and it need not ask for the first of these rows if `asked`, as
    /// they were the `next` of the rows before. The results are the same bits.
    pub fn continued(self, asked: bool, next: &'a [u8]) -> WeightRows<'a> {
        WeightRows { continued: Some(Continued { asked, next }), ..self }
    }

    /// Whether the first rows have been asked for.
    pub(crate) fn asked(&self) -> bool {
        self.continued.is_some_and(|continued| continued.asked)
    }

    /// Where the bytes lie that are read when those from row `row` on of these were, `row` being beyond the last by a few:
    /// what to ask for.
    #[inline(always)]
    pub(crate) fn later(&self, row: usize) -> Option<*const u8> {
        if row < self.rows() {
            return Some(self.bytes[row * self.row_bytes..].as_ptr());
        }
        let next = self.continued?.next;
        Some(next.get((row - self.rows()) * self.row_bytes..)?.as_ptr())
    }

    /// What is read after these rows, if that is not what lies behind them.
    pub(crate) fn next_elsewhere(&self) -> Option<&'a [u8]> {
        let next = self.continued?.next;
        (next.as_ptr() != self.bytes.as_ptr_range().end).then_some(next)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.bytes.len() / self.row_bytes
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// How they lie.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Row `row` of rows that lie one after another.
    pub(crate) fn row(&self, row: usize) -> &'a [u8] {
        assert_eq!(self.layout, Layout::Rows);
        &self.bytes[row * self.row_bytes..][..self.row_bytes]
    }

    /// Row `row` as it lies in the file.
    pub fn row_of_file(&self, row: usize) -> Cow<'a, [u8]> {
        match self.layout {
            Layout::Rows => Cow::Borrowed(self.row(row)),
            Layout::Interleaved => {
                let mut bytes = vec![0; self.row_bytes];
                let sixteen = self.slice(row / INTERLEAVED_ROWS * INTERLEAVED_ROWS, INTERLEAVED_ROWS).bytes;
                copy_row(self.dtype, sixteen, row % INTERLEAVED_ROWS, &mut bytes);
                Cow::Owned(bytes)
            }
        }
    }

    /// Rows `first..first + count`. Interleaved ones begin and end with whole sixteens.
    pub fn slice(&self, first: usize, count: usize) -> WeightRows<'a> {
        let whole = first.is_multiple_of(INTERLEAVED_ROWS) && count.is_multiple_of(INTERLEAVED_ROWS);
        assert!(self.layout == Layout::Rows || whole, "rows {first} and {count} more of interleaved ones");
        WeightRows {
            bytes: &self.bytes[first * self.row_bytes..][..count * self.row_bytes],
            continued: None,
            ..*self
        }
    }
}

/// Activation rows in int8: `k` codes per row, a scale per 32 codes, exact sums per 16 codes.
#[derive(Clone, Copy)]
pub struct Int8Rows<'a> {
    /// Values per row, a multiple of 32.
    pub k: usize,
    /// Codes in -127..=127, `[rows][k]`. With -128 products are wrong on some instruction sets.
    pub q: &'a [i8],
    /// Scales, `[rows][k / 32]`.
    pub d: &'a [f32],
    /// Sums of codes, `[rows][k / 16]`.
    pub sum16: &'a [i16],
}

impl<'a> Int8Rows<'a> {
    /// Codes and scales of row `row`.
    pub fn row(&self, row: usize) -> (&'a [i8], &'a [f32]) {
        let groups = self.k / GROUP_VALUES;
        (&self.q[row * self.k..][..self.k], &self.d[row * groups..][..groups])
    }
}

/// Where activation rows in int8 are written; same shapes as [`Int8Rows`].
pub struct Int8RowsMut<'a> {
    /// Values per row, a multiple of 32.
    pub k: usize,
    /// Codes, `[rows][k]`.
    pub q: &'a mut [i8],
    /// Scales, `[rows][k / 32]`.
    pub d: &'a mut [f32],
    /// Sums of codes, `[rows][k / 16]`.
    pub sum16: &'a mut [i16],
}

pub(crate) type MatmulFloat = fn(&WeightRows<'_>, &[f32], &[u32], &mut Tile<'_>);
pub(crate) type MatmulInt8 = fn(&WeightRows<'_>, &Int8Rows<'_>, &[u32], &mut Tile<'_>);
type DeltaQuery<'a> = Option<(&'a [f32], f32, &'a mut [f32])>;

/// One function per operation. `matmul_*` answer with the function for a tensor type.
#[expect(clippy::type_complexity, reason = "each type is written once and names an operation's arguments")]
pub(crate) struct Functions {
    pub matmul_float: fn(TensorType) -> MatmulFloat,
    pub matmul_int8: fn(TensorType) -> MatmulInt8,
    pub quantize_row: fn(&[f32], &mut [i8], &mut [f32], &mut [i16]),
    pub dot: fn(&[f32], &[f32]) -> f32,
    pub rms_norm: fn(&[f32], Option<&[f32]>, f32, &mut [f32]),
    pub l2_norm: fn(&mut [f32], f32),
    pub add: fn(&mut [f32], &[f32]),
    pub add_scaled: fn(&mut [f32], f32, &[f32]),
    pub silu: fn(&mut [f32]),
    pub sigmoid: fn(&mut [f32]),
    pub silu_multiply: fn(&mut [f32], &[f32]),
    pub multiply_sigmoid: fn(&mut [f32], &[f32]),
    pub multiply_silu: fn(&mut [f32], &[f32]),
    pub mix_streams: fn(&[f32], &[f32], &mut [f32]),
    pub apply_rope_halves: fn(&mut [f32], &[f32], &[f32]),
    pub apply_rope_adjacent: fn(&mut [f32], &[f32], &[f32]),
    pub attend_partition: fn(&Queries<'_>, f32, &Partition<'_>, &mut Attended),
    pub score_blocks: fn(&Queries<'_>, &[Cells<'_>], &mut [f32], &mut Attended),
    pub merge_partition: fn((f32, f32), &mut [f32], (f32, f32), &[f32]) -> (f32, f32),
    pub convolve: fn(&[&[f32]], &[f32], &mut [f32]),
    pub delta_step: fn(&mut [f32], &[f32], &[f32], f32, f32, DeltaQuery<'_>),
    pub narrow_f16: fn(&[f32], &mut [u16]),
    pub narrow_int8: fn(&[f32], &mut [i8], &mut [u16]),
    pub narrow_int4: fn(&[f32], &mut [u8], &mut [u16]),
    pub hadamard: fn(&mut [f32]),
}

/// The definition.
pub(crate) const SCALAR: Functions = Functions {
    matmul_float: |_| scalar::matmul_float,
    matmul_int8: |_| scalar::matmul_int8,
    quantize_row: quant::quantize_row,
    dot: scalar::dot,
    rms_norm: scalar::rms_norm,
    l2_norm: scalar::l2_norm,
    add: scalar::add,
    add_scaled: scalar::add_scaled,
    silu: scalar::silu,
    sigmoid: scalar::sigmoid,
    silu_multiply: scalar::silu_multiply,
    multiply_sigmoid: scalar::multiply_sigmoid,
    multiply_silu: scalar::multiply_silu,
    mix_streams: scalar::mix_streams,
    apply_rope_halves: scalar::apply_rope_halves,
    apply_rope_adjacent: scalar::apply_rope_adjacent,
    attend_partition: scalar::attend_partition,
    score_blocks: scalar::score_blocks,
    merge_partition: scalar::merge_partition,
    convolve: scalar::convolve,
    delta_step: scalar::delta_step,
    narrow_f16: |x, out| {
        for (out, &x) in out.iter_mut().zip(x) {
            *out = quant::f32_to_f16(x);
        }
    },
    narrow_int8: scalar::narrow_int8,
    narrow_int4: scalar::narrow_int4,
    hadamard: scalar::hadamard,
};

/// The kernels of one instruction set that this CPU can run.
#[derive(Clone, Copy)]
pub struct Kernels {
    isa: Isa,
    f: &'static Functions,
    /// By [`TensorType`].
    matmul_float: [Option<MatmulFloat>; TYPES],
    matmul_int8: [Option<MatmulInt8>; TYPES],
}

/// One more than the largest number of a tensor type that products take.
const TYPES: usize = {
    let (mut types, mut i) = (TensorType::BF16 as usize + 1, 0);
    while i < quant::FORMATS.len() {
        if quant::FORMATS[i] as usize >= types {
            types = quant::FORMATS[i] as usize + 1;
        }
        i += 1;
    }
    types
};

impl Kernels {
    /// Kernels of `isa`, or `None` where this CPU lacks it.
    pub fn new(isa: Isa) -> Option<Kernels> {
        if !isa.available() {
            return None;
        }
        let f = match isa {
            Isa::Scalar => &SCALAR,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &crate::vector::AVX2,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &crate::vector::AVX512,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => &crate::vector::NEON,
            _ => return None,
        };
        let (mut matmul_float, mut matmul_int8) = ([None; TYPES], [None; TYPES]);
        for dtype in [TensorType::F32, TensorType::F16, TensorType::BF16] {
            matmul_float[dtype as usize] = Some((f.matmul_float)(dtype));
        }
        for &dtype in quant::FORMATS {
            matmul_int8[dtype as usize] = Some((f.matmul_int8)(dtype));
        }
        Some(Kernels { isa, f, matmul_float, matmul_int8 })
    }

    /// Kernels of the best instruction set this CPU has.
    pub fn detect() -> Kernels {
        Kernels::new(Isa::detect()).expect("a detected instruction set is available")
    }

    /// Which instruction set these are.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// True for types whose products take f32 activations; the others take int8 activations.
    pub fn takes_float(dtype: TensorType) -> bool {
        matches!(dtype, TensorType::F32 | TensorType::F16 | TensorType::BF16)
    }

    /// Products of float weights; see [`scalar::matmul_float`].
    pub fn matmul_float(&self, weights: &WeightRows<'_>, x: &[f32], rows: &[u32], out: &mut Tile<'_>) {
        let Some(Some(matmul)) = self.matmul_float.get(weights.dtype as usize) else {
            panic!("{} does not take f32 activations", weights.dtype.name());
        };
        assert!(weights.rows() == out.columns() && rows.len() == out.rows());
        assert!(rows.iter().all(|&row| (row as usize + 1) * weights.k <= x.len()));
        matmul(weights, x, rows, out);
    }

    /// Products of quantised weights; see [`scalar::matmul_int8`].
    pub fn matmul_int8(&self, weights: &WeightRows<'_>, x: &Int8Rows<'_>, rows: &[u32], out: &mut Tile<'_>) {
        let Some(Some(matmul)) = self.matmul_int8.get(weights.dtype as usize) else {
            panic!("{} does not take int8 activations", weights.dtype.name());
        };
        assert!(weights.rows() == out.columns() && rows.len() == out.rows() && weights.k == x.k);
        let rows_there = x.q.len() / x.k;
        assert!(x.d.len() == x.q.len() / GROUP_VALUES && x.sum16.len() == x.q.len() / 16);
        assert!(rows.iter().all(|&row| (row as usize) < rows_there));
        matmul(weights, x, rows, out);
    }

    /// Quantises one row; see [`quant::quantize_row`]. The length is a multiple of 32.
    pub fn quantize_row(&self, x: &[f32], q: &mut [i8], d: &mut [f32], sum16: &mut [i16]) {
        assert!(x.len().is_multiple_of(GROUP_VALUES) && q.len() == x.len());
        assert!(d.len() == x.len() / GROUP_VALUES && sum16.len() == x.len() / 16);
        (self.f.quantize_row)(x, q, d, sum16);
    }

    /// See [`scalar::dot`].
    pub fn dot(&self, a: &[f32], b: &[f32]) -> f32 {
        assert_eq!(a.len(), b.len());
        (self.f.dot)(a, b)
    }

    /// See [`scalar::rms_norm`].
    pub fn rms_norm(&self, x: &[f32], gamma: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        assert!(x.len() == out.len() && gamma.is_none_or(|g| g.len() == x.len()));
        (self.f.rms_norm)(x, gamma, eps, out);
    }

    /// See [`scalar::l2_norm`].
    pub fn l2_norm(&self, x: &mut [f32], eps: f32) {
        (self.f.l2_norm)(x, eps);
    }

    /// See [`scalar::add`].
    pub fn add(&self, y: &mut [f32], x: &[f32]) {
        assert_eq!(y.len(), x.len());
        (self.f.add)(y, x);
    }

    /// See [`scalar::add_scaled`].
    pub fn add_scaled(&self, y: &mut [f32], scale: f32, x: &[f32]) {
        assert_eq!(y.len(), x.len());
        (self.f.add_scaled)(y, scale, x);
    }

    /// See [`scalar::silu`].
    pub fn silu(&self, x: &mut [f32]) {
        (self.f.silu)(x);
    }

    /// See [`scalar::sigmoid`].
    pub fn sigmoid(&self, x: &mut [f32]) {
        (self.f.sigmoid)(x);
    }

    /// See [`scalar::silu_multiply`].
    pub fn silu_multiply(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len());
        (self.f.silu_multiply)(gate, up);
    }

    /// See [`scalar::multiply_sigmoid`].
    pub fn multiply_sigmoid(&self, x: &mut [f32], gate: &[f32]) {
        assert_eq!(x.len(), gate.len());
        (self.f.multiply_sigmoid)(x, gate);
    }

    /// See [`scalar::multiply_silu`].
    pub fn multiply_silu(&self, x: &mut [f32], gate: &[f32]) {
        assert_eq!(x.len(), gate.len());
        (self.f.multiply_silu)(x, gate);
    }

    /// See [`scalar::mix_streams`].
    pub fn mix_streams(&self, gate: &[f32], x: &[f32], out: &mut [f32]) {
        assert!(gate.len() == x.len() && !out.is_empty() && x.len().is_multiple_of(out.len()));
        (self.f.mix_streams)(gate, x, out);
    }

    /// See [`scalar::apply_rope_halves`].
    pub fn apply_rope_halves(&self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        assert!(cos.len() == sin.len() && x.len() >= 2 * cos.len());
        (self.f.apply_rope_halves)(x, cos, sin);
    }

    /// See [`scalar::apply_rope_adjacent`].
    pub fn apply_rope_adjacent(&self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        assert!(cos.len() == sin.len() && x.len() >= 2 * cos.len());
        (self.f.apply_rope_adjacent)(x, cos, sin);
    }

    /// See [`scalar::attend_partition`].
    pub fn attend_partition(
        &self,
        queries: &Queries<'_>,
        scale: f32,
        partition: &Partition<'_>,
        out: &mut Attended,
    ) {
        queries.assert_shape();
        partition.assert_shape(queries);
        (self.f.attend_partition)(queries, scale, partition, out);
    }

    /// See [`scalar::score_blocks`].
    pub fn score_blocks(
        &self,
        queries: &Queries<'_>,
        keys: &[Cells<'_>],
        scores: &mut [f32],
        room: &mut Attended,
    ) {
        queries.assert_shape();
        assert!(scores.len().is_multiple_of(queries.rows));
        assert_eq!(cells_of_all(keys, queries.head_dim), Some(scores.len() / queries.rows));
        let few = |piece: &Cells<'_>| {
            piece.cells_of(queries.head_dim).is_some_and(|cells| cells <= PARTITION_CELLS)
        };
        assert!(keys.iter().all(few));
        (self.f.score_blocks)(queries, keys, scores, room);
    }

    /// See [`scalar::merge_partition`].
    pub fn merge_partition(
        &self,
        running: (f32, f32),
        values: &mut [f32],
        later: (f32, f32),
        later_values: &[f32],
    ) -> (f32, f32) {
        assert_eq!(values.len(), later_values.len());
        (self.f.merge_partition)(running, values, later, later_values)
    }

    /// See [`scalar::convolve`].
    pub fn convolve(&self, taps: &[&[f32]], weights: &[f32], out: &mut [f32]) {
        assert!(weights.len() == taps.len() * out.len() && taps.iter().all(|tap| tap.len() == out.len()));
        (self.f.convolve)(taps, weights, out);
    }

    /// See [`scalar::delta_step`].
    pub fn delta_step(
        &self,
        state: &mut [f32],
        k: &[f32],
        v: &[f32],
        decay: f32,
        beta: f32,
        query: Option<(&[f32], f32, &mut [f32])>,
    ) {
        assert_eq!(state.len(), k.len() * v.len());
        assert!(query.as_ref().is_none_or(|(q, _, out)| q.len() == k.len() && out.len() == v.len()));
        (self.f.delta_step)(state, k, v, decay, beta, query);
    }

    /// Rounds to half precision, to nearest, ties to even.
    pub fn narrow_f16(&self, x: &[f32], out: &mut [u16]) {
        assert_eq!(x.len(), out.len());
        (self.f.narrow_f16)(x, out);
    }

    /// A cell in int8; see [`scalar::narrow_int8`].
    pub fn narrow_int8(&self, x: &[f32], codes: &mut [i8], scales: &mut [u16]) {
        assert!(codes.len() == x.len() && scales.len() == int8_scales(x.len()));
        (self.f.narrow_int8)(x, codes, scales);
    }

    /// A cell in four bits; see [`scalar::narrow_int4`].
    pub fn narrow_int4(&self, x: &[f32], codes: &mut [u8], scales: &mut [u16]) {
        assert!(codes.len() == int4_bytes(x.len()) && scales.len() == int4_scales(x.len()));
        (self.f.narrow_int4)(x, codes, scales);
    }

    /// See [`scalar::hadamard`].
    pub fn hadamard(&self, x: &mut [f32]) {
        (self.f.hadamard)(x);
    }
}
