//! The data that kernels read, and the data that they must write.

use super::e4m3;

/// The size of the matrix: 64 x 64 bf16 elements.
pub const MATRIX_BYTES: usize = 8192;

/// The input of a kernel, and its output.
#[derive(Clone, Copy, Debug)]
pub enum Data {
    /// The input is the matrix, and the output is equal to the input.
    Matrix,
    /// The matrix. The output is the transposed matrix.
    Transposed,
    /// Matrices of e4m3, and sums. The output is the sums after a product.
    Sums {
        columns: usize,
        /// Whether the product is added to the sums of the input.
        accumulate: bool,
    },
}

#[derive(Clone, Debug)]
pub struct Contents {
    pub input: Vec<u8>,
    pub output: Vec<u8>,
}

impl Data {
    pub fn contents(self) -> Contents {
        match self {
            Self::Matrix | Self::Transposed => Contents {
                input: matrix(false),
                output: matrix(matches!(self, Self::Transposed)),
            },
            Self::Sums {
                columns,
                accumulate,
            } => {
                let product = e4m3::Product::random(columns);
                Contents {
                    input: product.bytes(),
                    output: product.sums(accumulate),
                }
            }
        }
    }
}

/// Returns a matrix of integers that bf16 can represent. Within a row or a column, all integers differ.
fn matrix(transposed: bool) -> Vec<u8> {
    let element = |i: usize| {
        let (row, column) = if transposed {
            (i % 64, i / 64)
        } else {
            (i / 64, i % 64)
        };
        let value = (row * 67 + column * 3 + 1) % 251;
        ((value as f32).to_bits() >> 16) as u16
    };
    (0..64 * 64)
        .flat_map(|i| element(i).to_le_bytes())
        .collect()
}
