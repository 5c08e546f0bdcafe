//! The operators.

use super::option_type::choices;
use serde::{Deserialize, Serialize};

choices! {
    /// The operator: what is computed, and what crosses between ranks.
    #[non_exhaustive]
    pub enum Op {
        /// `C[M,N] = AllGather(A)[M,K] · B`: rank r has its ⌈M/W⌉ rows of A and its own B.
        AgGemm = "ag_gemm",
        /// `C = Σ_r A_r[M,K] · B_r`, whose ⌈M/W⌉ rows of rank r stay on rank r: a reduce-scatter. Every A_r and B_r has
        /// the sizes M, N and K.
        ///
        /// A rank adds the sums of its peers for its rows, rounded to the type of A, to its own sums in fp32, always in the
        /// same order, and rounds once more. The result has the same bits each time, and fewer roundings than a GEMM and
        /// NCCL make.
        GemmRs = "gemm_rs",
        /// `C[M,N] = Σ_r A_r[M,K] · B_r`, the whole sum on every rank, with the same bits on all ranks. The operator can
        /// also normalise the rows: see [`Epilogue`](crate::Epilogue).
        GemmAr = "gemm_ar",
        /// `C[M,N] = A[M,K] · B` on each rank, of its own A and B, without communication.
        ///
        /// No rank waits for another rank. Each rank makes calls on its own and, if calls give the rows, with its own number of
        /// rows.
        Gemm = "gemm",
        /// `O = softmax(scale · Q Kᵀ) V` over a whole sequence whose rows of Q, K and V are divided among the ranks,
        /// exactly; rank r gets its rows of O, and the logarithms of the sums of exponentials (LSE).
        RingAttention = "ring_attention",
        /// Each token goes to the ranks of its experts, which multiply the token by each expert's weight. Rows are ordered
        /// by expert, then by source rank and token. The indices of the rows are also results, for [`Self::Combine`].
        DispatchGemm = "dispatch_gemm",
        /// `C[T,H] = Σ_k w_k · A_k · B_expert`, the mirror of [`Self::DispatchGemm`]: each expert multiplies its rows by its weight,
        /// and the results return, weighted, to the tokens of the rows. The result of an expert is rounded once to the type of C;
        /// sums are in fp32, in the order of a token's choices.
        GemmCombine = "gemm_combine",
        /// A whole layer of experts in one launch: each token goes to the ranks of its experts, which apply `silu(gate) · up`
        /// and the down projection, and gets the weighted sum of the results back. The result of an expert is rounded once to
        /// the type of tokens; sums are in fp32, in the order of a token's choices.
        MoeLayer = "moe_layer",
        /// The weighted sum of the experts' results of each token, on the token's rank. Sums are in fp32 and in the same
        /// order each time. The results of one rank's experts for a token travel as one row of elements.
        Combine = "combine",
        /// `Y[M,N] = Σ_r X_r`: the whole sum on every rank, with the same bits on all ranks. Ranks add in fp32, in the
        /// order of ranks, and round once; on several nodes, the sums of other nodes are rounded as well.
        AllReduce = "all_reduce",
        /// `Y[M,N]`: the rows of all ranks, one behind the other; rank r passes its ⌈M/W⌉ rows as X.
        AllGather = "all_gather",
        /// The ⌈M/W⌉ rows of rank r of `Σ_r X_r[M,N]`, added up as in [`Self::AllReduce`].
        ReduceScatter = "reduce_scatter",
        /// `Y[M,N] = X_root`: every rank gets the tensor of one rank.
        Broadcast = "broadcast",
        /// Each rank sends each rank a shard of its `X[M,N]`: rank r gets rows `r·⌈M/W⌉ ..` of every X, at most ⌈M/W⌉ of each, one
        /// behind the other in the order of ranks. If W divides M, Y has M rows too.
        AllToAll = "all_to_all",
    }
}

impl Op {
    /// The operator called `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.name() == name)
    }
}
