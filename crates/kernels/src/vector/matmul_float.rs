//! Float weights against f32 activations: register tiles of several weight rows by several activation rows, each output
//! in the sixteen lanes that the definition of a dot product names.

use gguf::TensorType;

use super::simd::Simd;
use crate::table::WeightRows;
use crate::tile::Tile;

/// An element type of weights.
pub(super) trait Weight {
    /// Bytes of a value.
    const BYTES: usize;
    /// Sixteen values, widened; `bytes` holds at least those.
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;

impl Weight for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        s.load_f32_bytes(bytes.first_chunk().expect("16 values"))
    }
}

impl Weight for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        s.load_f16_bytes(bytes.first_chunk().expect("16 values"))
    }
}

impl Weight for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        s.load_bf16_bytes(bytes.first_chunk().expect("16 values"))
    }
}

/// See [`crate::scalar::matmul_float`].
#[inline(always)]
pub(super) fn matmul_float<S: Simd, W: Weight>(
    s: S,
    weights: &WeightRows<'_>,
    x: &[f32],
    rows: &[u32],
    out: &mut Tile<'_>,
) {
    assert!(rows.len() == out.rows() && weights.rows() == out.columns());
    let product = Product { weights: *weights, x, rows };
    if S::WIDE {
        product.columns::<S, W, 4, 4>(s, out);
    } else {
        product.columns::<S, W, 2, 2>(s, out);
    }
}

struct Product<'a> {
    weights: WeightRows<'a>,
    x: &'a [f32],
    rows: &'a [u32],
}

impl Product<'_> {
    /// All columns, C at a time against R rows at a time. A lone row takes eight columns at a time instead, so that
    /// enough chains are in flight.
    #[inline(always)]
    fn columns<S: Simd, W: Weight, const C: usize, const R: usize>(&self, s: S, out: &mut Tile<'_>) {
        let columns = out.columns();
        let mut c = 0;
        if self.rows.len() == 1 {
            while c + 8 <= columns {
                self.tile::<S, W, 8, 1>(s, c, 0, out);
                c += 8;
            }
        }
        while c + C <= columns {
            self.rows::<S, W, C, R>(s, c, out);
            c += C;
        }
        while c < columns {
            self.rows::<S, W, 1, R>(s, c, out);
            c += 1;
        }
    }

    #[inline(always)]
    fn rows<S: Simd, W: Weight, const C: usize, const R: usize>(&self, s: S, c: usize, out: &mut Tile<'_>) {
        let mut r = 0;
        while r + R <= self.rows.len() {
            self.tile::<S, W, C, R>(s, c, r, out);
            r += R;
        }
        while r < self.rows.len() {
            self.tile::<S, W, C, 1>(s, c, r, out);
            r += 1;
        }
    }

    /// Columns `c .. c + C` of rows `r .. r + R`; at most 16 outputs.
    #[inline(always)]
    fn tile<S: Simd, W: Weight, const C: usize, const R: usize>(
        &self,
        s: S,
        c: usize,
        r: usize,
        out: &mut Tile<'_>,
    ) {
        let k = self.weights.k;
        let mut weight_rows = [self.weights.bytes; C];
        for i in 0..C {
            weight_rows[i] = self.weights.row(c + i);
        }
        let mut x_rows = [self.x; R];
        for j in 0..R {
            x_rows[j] = &self.x[self.rows[r + j] as usize * k..][..k];
        }
        let mut sums = [[s.splat(0.0); C]; R];
        let whole = k / 16 * 16;
        for at in (0..whole).step_by(16) {
            let mut w = [s.splat(0.0); C];
            for i in 0..C {
                w[i] = W::load(s, &weight_rows[i][at * W::BYTES..]);
            }
            for j in 0..R {
                let x = s.load(x_rows[j][at..].first_chunk().expect("16 values"));
                for i in 0..C {
                    sums[j][i] = s.fma(w[i], x, sums[j][i]);
                }
            }
        }
        if whole < k {
            for i in 0..C {
                let mut bytes = [0; 64];
                let rest = &weight_rows[i][whole * W::BYTES..];
                bytes[..rest.len()].copy_from_slice(rest);
                let w = W::load(s, &bytes);
                for j in 0..R {
                    sums[j][i] = s.fma_first(k - whole, w, s.load_first(&x_rows[j][whole..]), sums[j][i]);
                }
            }
        }
        let mut all = [s.splat(0.0); 16];
        for j in 0..R {
            all[j * C..(j + 1) * C].copy_from_slice(&sums[j]);
        }
        let mut outputs = [0.0; 16];
        s.store(s.sum_each(&all), &mut outputs);
        for j in 0..R {
            out.row(r + j)[c..c + C].copy_from_slice(&outputs[j * C..(j + 1) * C]);
        }
    }
}

/// The function for float types; see [`super::functions`].
pub(super) fn choose<T>(dtype: TensorType, f32: T, f16: T, bf16: T) -> T {
    match dtype {
        TensorType::F32 => f32,
        TensorType::F16 => f16,
        TensorType::BF16 => bf16,
        _ => panic!("{} takes int8 activations", dtype.name()),
    }
}
