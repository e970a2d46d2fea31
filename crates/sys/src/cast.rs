//! Views of byte slices as numbers and back, checked for alignment and length.
//!
//! The numbers are in the machine's byte order; a caller that reads a little-endian file decides what to do on a
//! big-endian machine.

pub use bytemuck::Pod;

/// The bytes as `T`s, or `None` when they do not start at an address aligned for `T` or are not a whole number of them.
pub fn slice<T: Pod>(bytes: &[u8]) -> Option<&[T]> {
    bytemuck::try_cast_slice(bytes).ok()
}

/// As [`slice`], for writing.
pub fn slice_mut<T: Pod>(bytes: &mut [u8]) -> Option<&mut [T]> {
    bytemuck::try_cast_slice_mut(bytes).ok()
}

/// The bytes as `f32`s; `None` when misaligned or not a multiple of 4 bytes.
pub fn f32_slice(bytes: &[u8]) -> Option<&[f32]> {
    slice(bytes)
}

/// The bytes as `u16`s; `None` when misaligned or not a multiple of 2 bytes.
pub fn u16_slice(bytes: &[u8]) -> Option<&[u16]> {
    slice(bytes)
}

/// The bytes as `u32`s; `None` when misaligned or not a multiple of 4 bytes.
pub fn u32_slice(bytes: &[u8]) -> Option<&[u32]> {
    slice(bytes)
}

/// The memory of plain numbers as bytes.
pub fn bytes_of<T: Pod>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// The memory of plain numbers as writable bytes.
pub fn bytes_of_mut<T: Pod>(values: &mut [T]) -> &mut [u8] {
    bytemuck::cast_slice_mut(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_the_way_through_bytes() {
        let mut values = [1.5f32, -0.0, f32::INFINITY];
        assert_eq!(bytes_of(&values).len(), 12);
        assert_eq!(f32_slice(bytes_of(&values)).unwrap(), &values);
        bytes_of_mut(&mut values)[..4].copy_from_slice(&2.0f32.to_ne_bytes());
        assert_eq!(values[0], 2.0);
        assert_eq!(u16_slice(bytes_of(&[7u16, 9])), Some(&[7u16, 9][..]));
        let mut words = [0u32; 2];
        slice_mut::<u16>(bytes_of_mut(&mut words)).unwrap().fill(u16::MAX);
        assert_eq!(words, [u32::MAX; 2]);
    }

    #[test]
    fn misaligned_or_partial_views_are_refused() {
        let words = [0u32; 4];
        let bytes = bytes_of(&words);
        assert!(f32_slice(&bytes[1..5]).is_none());
        assert!(f32_slice(&bytes[2..6]).is_none());
        assert!(f32_slice(&bytes[..6]).is_none());
        assert!(u16_slice(&bytes[1..3]).is_none());
        assert!(u16_slice(&bytes[..3]).is_none());
        assert_eq!(f32_slice(&bytes[4..12]).unwrap().len(), 2);
        assert_eq!(u32_slice(&bytes[..0]).unwrap().len(), 0);
    }
}
