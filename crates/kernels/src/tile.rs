//! Disjoint rectangles of one matrix, for several threads.

use std::marker::PhantomData;

/// A rectangle of a row-major f32 matrix: some of its rows, some of its columns.
pub struct Tile<'a> {
    first: *mut f32,
    rows: usize,
    columns: usize,
    stride: usize,
    row0: usize,
    column0: usize,
    matrix: PhantomData<&'a mut [f32]>,
}

// SAFETY: a tile is an exclusive borrow of its cells, like `&mut [f32]`; f32 may be sent between threads.
unsafe impl Send for Tile<'_> {}

impl<'a> Tile<'a> {
    /// A whole matrix of `columns` columns as one tile. The slice's length is a multiple of `columns`.
    pub fn whole(matrix: &'a mut [f32], columns: usize) -> Tile<'a> {
        assert!(
            columns > 0 && matrix.len().is_multiple_of(columns),
            "{} values, {columns} columns",
            matrix.len()
        );
        Tile {
            first: matrix.as_mut_ptr(),
            rows: matrix.len() / columns,
            columns,
            stride: columns,
            row0: 0,
            column0: 0,
            matrix: PhantomData,
        }
    }

    /// Rows of the tile.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the tile.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The matrix row that is the tile's first.
    pub fn row0(&self) -> usize {
        self.row0
    }

    /// The matrix column that is the tile's first.
    pub fn column0(&self) -> usize {
        self.column0
    }

    /// Row `row` of the tile.
    pub fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: row < rows, so the range lies in the rectangle this tile borrows exclusively; `&mut self` keeps the
        // returned slice the only one.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(row * self.stride), self.columns) }
    }
}

/// Cuts a row-major matrix of `width` columns into the rectangles between consecutive bounds.
///
/// `row_bounds` and `column_bounds` rise (not strictly) from 0 or more to at most the matrix's extent. Tiles come
/// row band by row band; empty ones are left out.
pub fn split_grid<'a>(
    matrix: &'a mut [f32],
    width: usize,
    row_bounds: &[usize],
    column_bounds: &[usize],
) -> Vec<Tile<'a>> {
    assert!(width > 0 && matrix.len().is_multiple_of(width), "{} values, {width} columns", matrix.len());
    let rows = matrix.len() / width;
    assert!(
        row_bounds.is_sorted() && row_bounds.last().is_none_or(|&r| r <= rows),
        "{row_bounds:?} of {rows} rows"
    );
    assert!(
        column_bounds.is_sorted() && column_bounds.last().is_none_or(|&c| c <= width),
        "{column_bounds:?} of {width} columns"
    );
    let first = matrix.as_mut_ptr();
    let mut tiles =
        Vec::with_capacity(row_bounds.len().saturating_sub(1) * column_bounds.len().saturating_sub(1));
    for row in row_bounds.windows(2).filter(|w| w[0] < w[1]) {
        for column in column_bounds.windows(2).filter(|w| w[0] < w[1]) {
            tiles.push(Tile {
                // SAFETY: row[0] < rows and column[0] < width by the bounds asserted above, so the offset is inside.
                first: unsafe { first.add(row[0] * width + column[0]) },
                rows: row[1] - row[0],
                columns: column[1] - column[0],
                stride: width,
                row0: row[0],
                column0: column[0],
                matrix: PhantomData,
            });
        }
    }
    tiles
}
