//! Kernels in vector instructions.
//!
//! Algorithms are written once over [`simd::Simd`] and instantiated for each instruction set inside functions that
//! enable its features; [`functions`] makes the tables.

/// Methods of an instruction set's type that are made of its instructions.
macro_rules! operations {
    ($($(#[$doc:meta])* fn $name:ident($self:ident $(, $arg:ident: $type:ty)*) -> $out:ty { $($body:tt)* })*) => {$(
        $(#[$doc])*
        #[inline(always)]
        fn $name($self $(, $arg: $type)*) -> $out {
            // SAFETY: `self` exists only where the CPU has these instructions; references give as many values as the
            // loads and stores take, masks cover as many as the slices hold, `lie::Rows::row` asserts that its N bytes
            // lie within the slice of the rows.
            unsafe { $($body)* }
        }
    )*};
}

/// The same for each of some numbers; written out, so that sums stay in registers and addresses are constants. A macro and
/// no function of a closure, as in [`elementwise`].
macro_rules! each {
    ($i:ident in $($value:literal)* => $body:block) => {
        $({
            let $i = $value;
            $body
        })*
    };
}

mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod cells;
mod dots;
mod elementwise;
mod few_rows;
mod lie;
mod matmul_float;
mod matmul_int8;
#[cfg(target_arch = "aarch64")]
mod neon;
mod packed;
mod packed_iq;
mod packed_small;
mod product;
mod recurrent;
mod reduce;
mod simd;
mod words;

use gguf::TensorType;

use crate::attention::{Attended, Cells, Partition, Queries};
use crate::quant;
use crate::table::{Functions, Int8Rows, MatmulInt8, WeightRows};
use crate::tile::Tile;
#[cfg(target_arch = "x86_64")]
use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
use neon::Neon;
use packed::Packed;
use words::Unpack;

/// A safe function that runs a generic one with the features of an instruction set.
macro_rules! enabled {
    ($isa:ident, $features:tt, $(<$format:ident: $bound:ident>,)? $run:path,
     ($($arg:ident: $type:ty),*) $(-> $out:ty)?) => {{
        #[target_feature(enable = $features)]
        fn enabled$(<$format: $bound>)?($($arg: $type),*) $(-> $out)? {
            // SAFETY: this function runs only where the CPU has the features.
            let s = unsafe { $isa::assume() };
            $run(s, $($arg),*)
        }
        |$($arg: $type),*| {
            // SAFETY: the table is reached only through a `Kernels`, which exists only where the CPU has the features.
            unsafe { enabled$(::<$format>)?($($arg),*) }
        }
    }};
}

macro_rules! functions {
    ($table:ident, $module:ident, $isa:ident, $features:tt) => {
        mod $module {
            use super::*;

            fn words<F: Unpack>() -> MatmulInt8 {
                enabled!($isa, $features, <F: Unpack>, product::matmul::<$isa, F>,
                    (w: &WeightRows<'_>, x: &Int8Rows<'_>, rows: &[u32], out: &mut Tile<'_>))
            }

            fn packed<F: Packed>() -> MatmulInt8 {
                enabled!($isa, $features, <F: Packed>, product::matmul_by_row::<$isa, F>,
                    (w: &WeightRows<'_>, x: &Int8Rows<'_>, rows: &[u32], out: &mut Tile<'_>))
            }

    pub(crate) static $table: Functions = Functions {
        matmul_float: |dtype| {
            matmul_float::choose(
                dtype,
                enabled!($isa, $features, matmul_float::matmul_float::<$isa, matmul_float::F32>,
                                    (w: &WeightRows<'_>, x: &[f32], rows: &[u32], out: &mut Tile<'_>)),
                        enabled!($isa, $features, matmul_float::matmul_float::<$isa, matmul_float::F16>,
                                    (w: &WeightRows<'_>, x: &[f32], rows: &[u32], out: &mut Tile<'_>)),
                        enabled!($isa, $features, matmul_float::matmul_float::<$isa, matmul_float::Bf16>,
                                    (w: &WeightRows<'_>, x: &[f32], rows: &[u32], out: &mut Tile<'_>)),
            )
        },
        matmul_int8: |dtype: TensorType| match dtype {
                    TensorType::Q4_0 => words::<quant::Q4_0>(),
                    TensorType::Q4_1 => words::<quant::Q4_1>(),
                    TensorType::Q8_0 => words::<quant::Q8_0>(),
                    TensorType::Q6_K => words::<quant::Q6K>(),
                    TensorType::Q5_0 => words::<quant::Q5_0>(),
                    TensorType::Q5_1 => words::<quant::Q5_1>(),
                    TensorType::Q2_K => words::<quant::Q2K>(),
                    TensorType::Q3_K => words::<quant::Q3K>(),
                    TensorType::Q4_K => words::<quant::Q4K>(),
                    TensorType::Q5_K => words::<quant::Q5K>(),
                    TensorType::IQ4_NL => words::<quant::Iq4Nl>(),
                    TensorType::IQ4_XS => words::<quant::Iq4Xs>(),
                    TensorType::IQ1_S => packed::<quant::Iq1S>(),
                    TensorType::IQ1_M => packed::<quant::Iq1M>(),
                    TensorType::IQ2_XXS => packed::<quant::Iq2Xxs>(),
                    TensorType::IQ2_XS => packed::<quant::Iq2Xs>(),
                    TensorType::IQ2_S => packed::<quant::Iq2S>(),
                    TensorType::IQ3_XXS => packed::<quant::Iq3Xxs>(),
                    TensorType::IQ3_S => packed::<quant::Iq3S>(),
                    TensorType::MXFP4 => packed::<quant::Mxfp4>(),
                    TensorType::NVFP4 => packed::<quant::Nvfp4>(),
                    TensorType::TQ1_0 => packed::<quant::Tq1_0>(),
                    TensorType::TQ2_0 => packed::<quant::Tq2_0>(),
                    TensorType::Q1_0 => packed::<quant::Q1_0>(),
                    TensorType::Q2_0 => packed::<quant::Q2_0>(),
                    _ => panic!("{} does not take int8 activations", dtype.name()),
                },
                quantize_row: enabled!($isa, $features, elementwise::quantize_row,
                    (x: &[f32], q: &mut [i8], d: &mut [f32], sum16: &mut [i16])),
        dot: enabled!($isa, $features, reduce::dot, (a: &[f32], b: &[f32]) -> f32),
        rms_norm: enabled!($isa, $features, reduce::rms_norm,
                    (x: &[f32], gamma: Option<&[f32]>, eps: f32, out: &mut [f32])),
        l2_norm: enabled!($isa, $features, reduce::l2_norm, (x: &mut [f32], eps: f32)),
        add: enabled!($isa, $features, elementwise::add, (y: &mut [f32], x: &[f32])),
        add_scaled: enabled!($isa, $features, elementwise::add_scaled,
                    (y: &mut [f32], scale: f32, x: &[f32])),
        silu: enabled!($isa, $features, elementwise::silu, (x: &mut [f32])),
        sigmoid: enabled!($isa, $features, elementwise::sigmoid, (x: &mut [f32])),
        silu_multiply: enabled!($isa, $features, elementwise::silu_multiply,
                    (gate: &mut [f32], up: &[f32])),
        multiply_sigmoid: enabled!($isa, $features, elementwise::multiply_sigmoid,
                    (x: &mut [f32], gate: &[f32])),
        multiply_silu: enabled!($isa, $features, elementwise::multiply_silu,
                    (x: &mut [f32], gate: &[f32])),
        mix_streams: enabled!($isa, $features, elementwise::mix_streams,
                    (gate: &[f32], x: &[f32], out: &mut [f32])),
        apply_rope_halves: enabled!($isa, $features, elementwise::apply_rope_halves,
                    (x: &mut [f32], cos: &[f32], sin: &[f32])),
        apply_rope_adjacent: enabled!($isa, $features, elementwise::apply_rope_adjacent,
                    (x: &mut [f32], cos: &[f32], sin: &[f32])),
        attend_partition: enabled!($isa, $features, attention::attend_partition,
                    (queries: &Queries<'_>, scale: f32, partition: &Partition<'_>, out: &mut Attended)),
        score_blocks: enabled!($isa, $features, attention::score_blocks,
                    (queries: &Queries<'_>, keys: &[Cells<'_>], scores: &mut [f32], room: &mut Attended)),
        merge_partition: enabled!($isa, $features, attention::merge_partition,
                    (running: (f32, f32), values: &mut [f32], later: (f32, f32), later_values: &[f32])
                        -> (f32, f32)),
        convolve: enabled!($isa, $features, recurrent::convolve,
                            (taps: &[&[f32]], weights: &[f32], out: &mut [f32])),
                delta_step: enabled!($isa, $features, recurrent::delta_step,
                            (state: &mut [f32], k: &[f32], v: &[f32], decay: f32, beta: f32,
                                query: Option<(&[f32], f32, &mut [f32])>)),
                narrow_f16: enabled!($isa, $features, elementwise::narrow_f16, (x: &[f32], out: &mut [u16])),
                narrow_int8: enabled!($isa, $features, cells::narrow_int8,
                            (x: &[f32], codes: &mut [i8], scales: &mut [u16])),
                narrow_int4: enabled!($isa, $features, cells::narrow_int4,
                            (x: &[f32], codes: &mut [u8], scales: &mut [u16])),
                hadamard: enabled!($isa, $features, cells::hadamard, (x: &mut [f32])),
            };
        }
        pub(crate) use $module::$table;
    };
}

#[cfg(target_arch = "x86_64")]
functions!(AVX2, table_avx2, Avx2, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
functions!(AVX512, table_avx512, Avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");
#[cfg(target_arch = "aarch64")]
functions!(NEON, table_neon, Neon, "neon,dotprod");
