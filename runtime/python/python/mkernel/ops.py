"""The operators. Each is an operator of ``torch.ops.mkernel`` too, which ``torch.compile`` and ``torch.export`` keep."""

from ._collectives import all_gather, all_reduce, all_reduce_rms_norm, reduce_scatter
from ._gemms import ag_gemm, gemm, gemm_ar, gemm_rs

__all__ = [
    "ag_gemm",
    "all_gather",
    "all_reduce",
    "all_reduce_rms_norm",
    "gemm",
    "gemm_ar",
    "gemm_rs",
    "reduce_scatter",
]
