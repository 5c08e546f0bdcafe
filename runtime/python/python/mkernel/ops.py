"""The operators. Each is an operator of ``torch.ops.mkernel`` too, which ``torch.compile`` and ``torch.export`` keep."""

from ._attention import ring_attention
from ._collectives import all_gather, all_reduce, all_reduce_rms_norm, reduce_scatter
from ._experts import combine, dispatch_gemm
from ._gemms import ag_gemm, gemm, gemm_ar, gemm_rs
from ._symm_mem import fused_all_gather_matmul, fused_matmul_reduce_scatter

__all__ = [
    "ag_gemm",
    "all_gather",
    "all_reduce",
    "all_reduce_rms_norm",
    "combine",
    "dispatch_gemm",
    "fused_all_gather_matmul",
    "fused_matmul_reduce_scatter",
    "gemm",
    "gemm_ar",
    "gemm_rs",
    "reduce_scatter",
    "ring_attention",
]
