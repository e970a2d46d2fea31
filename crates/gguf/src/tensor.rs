//! Tensor types with their numbers, names and sizes, and the description of one tensor.

/// One tensor of a model: what it is and where its bytes lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    /// The name, 1 to 255 bytes, unique over all shards.
    pub name: String,
    /// How the values are stored.
    pub dtype: TensorType,
    /// Extents in ggml order: `shape[0]` is contiguous and a multiple of the type's block; 1 to 4 of them, none zero.
    pub shape: Vec<u64>,
    /// Index into [`ModelFile::shards`](crate::ModelFile::shards) of the file that holds the bytes.
    pub shard: usize,
    /// First byte, counted from the start of that file.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl TensorInfo {
    /// Values in a row: `shape[0]`.
    pub fn row_values(&self) -> u64 {
        self.shape[0]
    }

    /// Number of rows: the product of the other extents.
    pub fn rows(&self) -> u64 {
        self.shape[1..].iter().product()
    }
}

macro_rules! tensor_types {
    ($($name:ident = $id:literal, $values:literal values in $bytes:literal bytes;)*) => {
        /// How the values of a tensor are stored. The discriminant is the number in the file (`enum ggml_type`).
        ///
        /// Values come in blocks of [`block_values`](Self::block_values), each [`block_bytes`](Self::block_bytes) long.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum TensorType { $($name = $id,)* }

        impl TensorType {
            /// Every type, in ascending number.
            pub const ALL: &[TensorType] = &[$(TensorType::$name,)*];

            /// The type of a number in a file; `None` for unknown and removed numbers.
            pub fn from_id(id: u32) -> Option<TensorType> {
                match id { $($id => Some(TensorType::$name),)* _ => None }
            }

            /// The name as ggml's enumeration spells it, such as `Q4_K`.
            pub fn name(self) -> &'static str {
                match self { $(TensorType::$name => stringify!($name),)* }
            }

            /// Values in a block.
            pub const fn block_values(self) -> usize {
                match self { $(TensorType::$name => $values,)* }
            }

            /// Bytes of a block.
            pub const fn block_bytes(self) -> usize {
                match self { $(TensorType::$name => $bytes,)* }
            }
        }
    };
}

// Numbers: ggml.h, enum ggml_type. Sizes: the block structures of ggml-common.h.
tensor_types! {
    F32 = 0, 1 values in 4 bytes;
    F16 = 1, 1 values in 2 bytes;
    Q4_0 = 2, 32 values in 18 bytes;
    Q4_1 = 3, 32 values in 20 bytes;
    Q5_0 = 6, 32 values in 22 bytes;
    Q5_1 = 7, 32 values in 24 bytes;
    Q8_0 = 8, 32 values in 34 bytes;
    Q8_1 = 9, 32 values in 36 bytes;
    Q2_K = 10, 256 values in 84 bytes;
    Q3_K = 11, 256 values in 110 bytes;
    Q4_K = 12, 256 values in 144 bytes;
    Q5_K = 13, 256 values in 176 bytes;
    Q6_K = 14, 256 values in 210 bytes;
    Q8_K = 15, 256 values in 292 bytes;
    IQ2_XXS = 16, 256 values in 66 bytes;
    IQ2_XS = 17, 256 values in 74 bytes;
    IQ3_XXS = 18, 256 values in 98 bytes;
    IQ1_S = 19, 256 values in 50 bytes;
    IQ4_NL = 20, 32 values in 18 bytes;
    IQ3_S = 21, 256 values in 110 bytes;
    IQ2_S = 22, 256 values in 82 bytes;
    IQ4_XS = 23, 256 values in 136 bytes;
    I8 = 24, 1 values in 1 bytes;
    I16 = 25, 1 values in 2 bytes;
    I32 = 26, 1 values in 4 bytes;
    I64 = 27, 1 values in 8 bytes;
    F64 = 28, 1 values in 8 bytes;
    IQ1_M = 29, 256 values in 56 bytes;
    BF16 = 30, 1 values in 2 bytes;
    TQ1_0 = 34, 256 values in 54 bytes;
    TQ2_0 = 35, 256 values in 66 bytes;
    MXFP4 = 39, 32 values in 17 bytes;
    NVFP4 = 40, 64 values in 36 bytes;
    Q1_0 = 41, 128 values in 18 bytes;
    Q2_0 = 42, 64 values in 18 bytes;
}

impl TensorType {
    /// The number that stands for the type in a file.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// The type of a name, in capitals or not.
    pub fn from_name(name: &str) -> Option<TensorType> {
        TensorType::ALL.iter().copied().find(|t| t.name().eq_ignore_ascii_case(name))
    }

    /// Bytes of a row of `values` values; `None` when that is no whole number of blocks or does not fit a `usize`.
    pub fn row_bytes(self, values: usize) -> Option<usize> {
        if !values.is_multiple_of(self.block_values()) {
            return None;
        }
        (values / self.block_values()).checked_mul(self.block_bytes())
    }

    /// Bytes of a tensor of this type, by the rules of [`TensorInfo::shape`]; `None` when the row is no whole number of
    /// blocks or a product leaves the 64 bits.
    pub fn tensor_bytes(self, shape: &[u64]) -> Option<u64> {
        let (&row, rows) = shape.split_first()?;
        if !row.is_multiple_of(self.block_values() as u64) {
            return None;
        }
        // The number of values has to fit as well, since users of the shape multiply the extents themselves.
        let values = rows.iter().try_fold(row, |product, &extent| product.checked_mul(extent))?;
        (values / self.block_values() as u64).checked_mul(self.block_bytes() as u64)
    }

    /// The name of a type that ggml once had under this number and took out.
    pub(crate) fn removed_name(id: u32) -> Option<&'static str> {
        Some(match id {
            4 => "Q4_2",
            5 => "Q4_3",
            31 => "Q4_0_4_4",
            32 => "Q4_0_4_8",
            33 => "Q4_0_8_8",
            36 => "IQ4_NL_4_4",
            37 => "IQ4_NL_4_8",
            38 => "IQ4_NL_8_8",
            _ => return None,
        })
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::TensorType;

    /// `GGML_QUANT_SIZES` of the Python package gguf 0.19.0 as (number, name, values, bytes). Two lines differ from it:
    /// its Q8_1 has 40 bytes, from the time when the two scales were f32 (ggml-common.h: two f16, 36 bytes), and it does
    /// not know Q2_0 yet.
    const SIZES: &[(u32, &str, usize, usize)] = &[
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 36),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
        (42, "Q2_0", 64, 18),
    ];

    #[test]
    fn sizes_are_those_of_ggml() {
        let ours: Vec<_> =
            TensorType::ALL.iter().map(|t| (t.id(), t.name(), t.block_values(), t.block_bytes())).collect();
        assert_eq!(ours, SIZES);
    }

    #[test]
    fn numbers_and_names_lead_back() {
        for &t in TensorType::ALL {
            assert_eq!(TensorType::from_id(t.id()), Some(t));
            assert_eq!(TensorType::from_name(t.name()), Some(t));
            assert_eq!(TensorType::from_name(&t.name().to_lowercase()), Some(t));
            assert_eq!(TensorType::removed_name(t.id()), None);
        }
        for removed in [4, 5, 31, 32, 33, 36, 37, 38] {
            assert_eq!(TensorType::from_id(removed), None);
            assert!(TensorType::removed_name(removed).is_some());
        }
        assert_eq!(TensorType::from_id(43), None);
        assert_eq!(TensorType::from_name("Q9_9"), None);
    }

    #[test]
    fn row_bytes_wants_whole_blocks() {
        assert_eq!(TensorType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(TensorType::Q4_K.row_bytes(640), None);
        assert_eq!(TensorType::F64.row_bytes(usize::MAX), None);
        assert_eq!(TensorType::Q8_0.row_bytes(0), Some(0));
    }

    #[test]
    fn tensor_bytes_refuses_wrapping_products() {
        assert_eq!(TensorType::Q8_0.tensor_bytes(&[64, 3, 2]), Some(34 * 12));
        assert_eq!(TensorType::F32.tensor_bytes(&[1 << 32, 1 << 32]), None);
        assert_eq!(TensorType::F32.tensor_bytes(&[1 << 31, 1 << 31]), None);
        // 2^42 + 1 is odd, so that the product wraps to a small number, not to zero.
        assert_eq!(TensorType::F32.tensor_bytes(&[(1 << 42) + 1, (1 << 42) + 1]), None);
        // The bytes fit, the values do not.
        assert_eq!(TensorType::Q1_0.tensor_bytes(&[1 << 40, 1 << 24]), None);
    }
}
