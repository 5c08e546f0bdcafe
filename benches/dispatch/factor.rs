//! Factors of products: random matrices of bf16, or of e4m3 with scales.

use super::{Case, operand};
use mkernel::cudarc::driver::{CudaSlice, CudaStream};
use mkernel::float8::F8E4M3;
use mkernel::half::bf16;
use mkernel::operands::RawOperand;
use mkernel::spec::{Dtype, Scales};
use mkernel_testing::jobs::experts::quantised;
use mkernel_testing::lab::{Failure, Lab, Matrix, Random};
use std::sync::{Arc, LazyLock};

/// The number of drawn elements of e4m3, which matrices repeat.
const DRAWN: usize = 1 << 22;
/// Columns that share a scale, and rows of a weight.
const BLOCK: u64 = 128;

/// The rows and columns of a factor, its first row among all rows of its seed, and the seed.
#[derive(Clone, Copy)]
pub struct Place {
    pub rows: u64,
    pub cols: u64,
    pub first_row: u64,
    pub seed: u64,
}

/// A factor in device memory.
pub enum Factor {
    Wide(Matrix),
    Narrow {
        cols: u64,
        elements: CudaSlice<F8E4M3>,
        scales: CudaSlice<f32>,
    },
}

impl Factor {
    pub fn operand(&self) -> RawOperand {
        match self {
            Self::Wide(matrix) => matrix.operand(),
            Self::Narrow { cols, elements, .. } => RawOperand {
                row_stride_elems: *cols,
                ..operand(elements)
            },
        }
    }

    /// The scales, or `None` for bf16.
    pub fn scales(&self) -> Option<RawOperand> {
        match self {
            Self::Wide(_) => None,
            Self::Narrow { cols, scales, .. } => Some(RawOperand {
                row_stride_elems: cols.div_ceil(BLOCK),
                ..operand(scales)
            }),
        }
    }
}

/// Random elements of e4m3, from -448 to 448.
static DRAWN_ELEMENTS: LazyLock<Vec<F8E4M3>> = LazyLock::new(|| {
    let mut random = Random(7);
    let element = |bits: u64| F8E4M3::from_f32(((bits >> 40) as f32 / 8_388_608.0 - 1.0) * 448.0);
    (0..DRAWN).map(|_| element(random.draw())).collect()
});

/// The index of the first element of a factor among the repeated elements.
fn first_element(place: Place) -> usize {
    ((place.first_row * place.cols + place.seed * 1_048_573) % DRAWN as u64) as usize
}

/// The scale of block `col` of columns in a row, or in a block of rows.
fn scale(row: u64, col: u64) -> f32 {
    (1.0 + ((row * 3 + col) % 7) as f32 / 8.0) / 448.0
}

fn upload(stream: &Arc<CudaStream>, place: Place) -> Result<CudaSlice<F8E4M3>, Failure> {
    let source = stream.clone_htod(&*DRAWN_ELEMENTS)?;
    let count = (place.rows * place.cols) as usize;
    let mut elements = stream.alloc_zeros::<F8E4M3>(count)?;
    let (mut done, mut from) = (0, first_element(place));
    while done < count {
        let some = (DRAWN - from).min(count - done);
        let mut to = elements.slice_mut(done..done + some);
        stream.memcpy_dtod(&source.slice(from..from + some), &mut to)?;
        (done, from) = (done + some, 0);
    }
    Ok(elements)
}

impl Case<'_> {
    /// The type of both factors, and their scales.
    pub fn factor_type(&self) -> (Dtype, Scales) {
        match self.flags.e4m3 {
            true => (Dtype::E4m3, Scales::Block),
            false => (Dtype::Bf16, Scales::None),
        }
    }

    /// A random factor. Rows of a weight share scales.
    pub fn factor(&self, place: Place, is_weight: bool) -> Result<Factor, Failure> {
        let lab: &Lab = self.lab;
        if !self.flags.e4m3 {
            let matrix = lab.matrix(place.rows, place.cols, 0)?;
            lab.fill(&matrix, place.first_row, place.seed)?;
            return Ok(Factor::Wide(matrix));
        }
        let share = if is_weight { BLOCK } else { 1 };
        let first = place.first_row / share;
        let rows = first..first + place.rows.div_ceil(share);
        let blocks = place.cols.div_ceil(BLOCK);
        let scales: Vec<f32> = rows
            .flat_map(|row| (0..blocks).map(move |col| scale(row, col)))
            .collect();
        Ok(Factor::Narrow {
            cols: place.cols,
            elements: upload(&lab.stream, place)?,
            scales: lab.stream.clone_htod(&scales)?,
        })
    }

    /// The elements of a factor on the host, multiplied by their scales.
    pub fn on_host(&self, place: Place, is_weight: bool) -> Result<Vec<f32>, Failure> {
        if !self.flags.e4m3 {
            let matrix = self.lab.matrix(place.rows, place.cols, 0)?;
            self.lab.fill(&matrix, place.first_row, place.seed)?;
            let elements: Vec<bf16> = self.lab.stream.clone_dtoh(&matrix.memory)?;
            return Ok(elements.into_iter().map(bf16::to_f32).collect());
        }
        // The first row of a weight is the first row of a block.
        let (share, first) = (if is_weight { BLOCK } else { 1 }, first_element(place));
        let mut values = Vec::with_capacity((place.rows * place.cols) as usize);
        for row in 0..place.rows {
            for col in 0..place.cols.div_ceil(BLOCK) {
                let scale = scale((place.first_row + row) / share, col);
                let begin = first + (row * place.cols + col * BLOCK) as usize;
                let count = BLOCK.min(place.cols - col * BLOCK) as usize;
                let element = |i: usize| DRAWN_ELEMENTS[i % DRAWN].to_f32();
                values.extend((begin..begin + count).map(|i| element(i) * scale));
            }
        }
        Ok(values)
    }

    /// A hidden row as the factor of the second product, which e4m3 quantises.
    pub fn as_factor(&self, row: Vec<f32>) -> Vec<f32> {
        if !self.flags.e4m3 {
            return row;
        }
        quantised(&row)
    }
}
