//! The types of elements of operators with products of experts.

use super::config::DispatchConfig;
use crate::config::Dtype;

/// The types of elements of operators with products of experts. Accumulators, and sums that CTAs exchange, are fp32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DispatchTypes {
    /// The type of tokens, or of the rows of A.
    pub tokens: Dtype,
    /// The type of the experts' weights. Its size equals the size of the type of tokens.
    pub weights: Dtype,
    /// The type of C.
    pub c: Dtype,
    /// The type of logits, if the kernel reads logits.
    pub logits: Dtype,
}

impl DispatchTypes {
    /// Elements of a token, and rows of a weight, in a stage: a line of the swizzle.
    #[must_use]
    pub const fn tile_k(&self) -> u32 {
        self.tokens.per_line()
    }
}

impl DispatchConfig {
    /// The types of elements.
    #[must_use]
    pub const fn types(&self) -> DispatchTypes {
        DispatchTypes {
            tokens: self.dtype,
            weights: self.dtype,
            c: match self.quantises_results() {
                true => Dtype::E4m3,
                false => self.dtype.of_results(),
            },
            logits: match self.router.logits {
                Some(dtype) => dtype,
                None => self.dtype.of_results(),
            },
        }
    }
}
