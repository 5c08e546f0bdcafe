//! The types of elements of a GEMM.

use super::config::GemmConfig;
use crate::config::Dtype;

/// The types of elements of a GEMM. Sums in registers, and those that CTAs of a rank exchange, are fp32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmTypes {
    /// Of A.
    pub a: Dtype,
    /// Of B: as many bytes as those of A.
    pub b: Dtype,
    /// Of partial sums that ranks exchange.
    pub partial: Dtype,
    /// Of C.
    pub c: Dtype,
    /// Of bias, residual and weight of a norm.
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
        GemmTypes {
            a: Dtype::Bf16,
            b: Dtype::Bf16,
            partial: Dtype::Bf16,
            c: self.epilogue.output,
            addend: Dtype::Bf16,
        }
    }
}
