//! The types of elements of a GEMM.

use super::config::GemmConfig;
use crate::config::Dtype;

/// The types of elements of a GEMM. Accumulators, and sums that CTAs of one rank exchange, are fp32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmTypes {
    /// The type of A.
    pub a: Dtype,
    /// The type of B, of the same size as the type of A.
    pub b: Dtype,
    /// The type of partial sums that ranks exchange.
    pub partial: Dtype,
    /// The type of results of the epilogue: of C, or of the new residual if rows are normalised.
    pub c: Dtype,
    /// The type of the bias, the residual and the weight of a norm.
    pub addend: Dtype,
}

impl GemmTypes {
    /// Columns of A, and rows of B, in a stage: a line of the swizzle.
    #[must_use]
    pub const fn tile_k(&self) -> u32 {
        self.a.per_line()
    }
}

impl GemmConfig {
    /// The types of elements.
    #[must_use]
    pub const fn types(&self) -> GemmTypes {
        let (dtype, result) = (self.dtype, self.dtype.of_results());
        GemmTypes {
            a: dtype,
            b: dtype,
            partial: result,
            c: match self.epilogue.output {
                _ if self.epilogue.quantises_sums() => Dtype::E4m3,
                Some(output) => output,
                None => result,
            },
            addend: result,
        }
    }

    /// The type of the elements of the operand C.
    #[must_use]
    pub fn result_dtype(&self) -> Dtype {
        match self.epilogue.quantises() {
            true => Dtype::E4m3,
            false => self.types().c,
        }
    }
}
