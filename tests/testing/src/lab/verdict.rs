//! The outcome of a comparison with a reference, and the epilogue that the reference applies.

use super::View;
use mkernel::cudarc::driver::DeviceRepr;
use mkernel::spec::{Activation, Dtype, Epilogue};

/// The limit of ‖C − reference‖ / ‖reference‖.
///
/// Rounding to bf16 costs 1.7e-3, and rounding of partial sums costs another 1.7e-3. In a matrix of only eight
/// elements, the error can be three times that. Single wrong elements are counted in [`Verdict::wrong`].
pub const MAX_RELATIVE_ERROR: f64 = 1e-2;

/// The outcome of [`Lab::check`](super::Lab::check), summed over the elements of C that it compared.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// ‖C − reference‖ / ‖reference‖.
    pub relative_error: f64,
    /// The number of elements that are wrong or were not written.
    pub wrong: u64,
    /// The number of elements between the rows that were written, which no kernel may do.
    pub stray: u64,
    /// The index of the first wrong element.
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

    /// Returns whether the result is right.
    pub fn is_right(&self) -> bool {
        self.wrong == 0 && self.stray == 0 && self.relative_error < MAX_RELATIVE_ERROR
    }

    /// Returns the square root of the ratio, or 0 if nothing was compared.
    fn ratio(error2: u64, reference2: u64) -> f64 {
        match f64::from_bits(reference2) {
            0.0 => 0.0,
            reference2 => (f64::from_bits(error2) / reference2).sqrt(),
        }
    }
}

/// The epilogue that turns a product into C, with its operands.
#[derive(Clone, Copy, Default)]
pub struct Finish<'a> {
    /// The epilogue.
    pub epilogue: Epilogue,
    /// The bias, if the epilogue adds one.
    pub bias: Option<&'a View>,
    /// The residual, if the epilogue adds one.
    pub residual: Option<&'a View>,
}

/// [`Finish`] in the layout of `struct Finish` in kernels.cu.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawFinish {
    bias: u64,
    residual: u64,
    residual_stride: u64,
    activation: u32,
    is_fp32: u32,
    is_swiglu: u32,
}

// SAFETY: the struct consists of plain numbers, and its layout agrees with kernels.cu.
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
            is_fp32: u32::from(self.epilogue.output == Some(Dtype::Fp32)),
            is_swiglu: u32::from(self.epilogue.swiglu),
        }
    }
}
