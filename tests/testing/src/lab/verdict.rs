//! What is expected of a result, and how it was.

use super::View;
use mkernel::cudarc::driver::DeviceRepr;
use mkernel::{Activation, Dtype, Epilogue};

/// The largest ‖C − reference‖ / ‖reference‖: rounding to bf16 costs 1.7e-3, rounded parts as much
/// again, and of eight elements three times that. What is wrong in single elements is counted apart.
pub const MAX_RELATIVE_ERROR: f64 = 1e-2;

/// Sums over the elements of C that a [`Lab::check`] looked at.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    pub relative_error: f64,
    /// Elements that are wrong, or were not written.
    pub wrong: u64,
    /// Elements between the rows that were written.
    pub stray: u64,
    pub first_wrong: u64,
}

impl Verdict {
    pub(super) const WORDS: usize = 5;

    pub(super) fn new(words: &[u64]) -> Self {
        Self {
            relative_error: Self::ratio(words[0], words[1]),
            wrong: words[2],
            stray: words[3],
            first_wrong: words[4],
        }
    }

    pub fn is_right(&self) -> bool {
        self.wrong == 0 && self.stray == 0 && self.relative_error < MAX_RELATIVE_ERROR
    }

    /// Of sums over nothing: 0.
    fn ratio(error2: u64, reference2: u64) -> f64 {
        match f64::from_bits(reference2) {
            0.0 => 0.0,
            reference2 => (f64::from_bits(error2) / reference2).sqrt(),
        }
    }
}

/// What becomes of a product before it is C.
#[derive(Clone, Copy, Default)]
pub struct Finish<'a> {
    pub epilogue: Epilogue,
    /// Those that the epilogue adds.
    pub bias: Option<&'a View>,
    pub residual: Option<&'a View>,
}

/// The same, as the kernel takes it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawFinish {
    bias: u64,
    residual: u64,
    residual_stride: u64,
    activation: u32,
    is_fp32: u32,
}

// SAFETY: plain numbers, laid out as in kernels.cu.
unsafe impl DeviceRepr for RawFinish {}

impl Finish<'_> {
    pub(super) fn raw(&self) -> RawFinish {
        let given = Activation::ALL
            .iter()
            .position(|a| *a == self.epilogue.activation);
        RawFinish {
            bias: self.bias.map_or(0, |bias| bias.address),
            residual: self.residual.map_or(0, |residual| residual.address),
            residual_stride: self.residual.map_or(0, |residual| residual.stride),
            activation: given.unwrap_or(0) as u32,
            is_fp32: u32::from(self.epilogue.output == Dtype::Fp32),
        }
    }
}
