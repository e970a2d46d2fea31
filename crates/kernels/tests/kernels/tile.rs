//! Disjoint rectangles of a matrix, and the measured peak.

use std::time::Duration;

use kernels::{Isa, Kernels, split_grid};

#[test]
fn tiles_cover_the_matrix_once() {
    let mut matrix = vec![0.0; 6 * 10];
    for (i, tile) in split_grid(&mut matrix, 10, &[0, 2, 2, 6], &[0, 3, 10]).iter_mut().enumerate() {
        for r in 0..tile.rows() {
            for value in tile.row(r) {
                *value += 1.0 + i as f32;
            }
        }
    }
    let wanted: Vec<f32> = (0..60)
        .map(|i| match (i / 10 < 2, i % 10 < 3) {
            (true, true) => 1.0,
            (true, false) => 2.0,
            (false, true) => 3.0,
            (false, false) => 4.0,
        })
        .collect();
    assert_eq!(matrix, wanted);
}

#[test]
#[should_panic(expected = "of 4 rows")]
fn bounds_beyond_the_matrix_are_refused() {
    split_grid(&mut [0.0; 8], 2, &[0, 5], &[0, 2]);
}

/// A pass that gave other sums would have stopped the measurement. At least 256 passes of 2 times 4 rows of 1,024 values.
#[test]
fn every_instruction_set_makes_the_products() {
    for kernels in Isa::ALL.into_iter().filter_map(Kernels::new) {
        let products = kernels.int8_products(Duration::from_millis(1));
        assert!(products >= 256 * 2 * 4 * 1024, "{products}");
    }
}
