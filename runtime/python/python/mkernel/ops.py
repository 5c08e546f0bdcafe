"""The operators. Each is an operator of ``torch.ops.mkernel`` too, which ``torch.compile`` and ``torch.export`` keep."""

from ._all_reduce_norm import all_reduce_rms_norm
from ._attention import ring_attention
from ._cached_attention import ring_attention_cached
from ._collectives import all_gather, all_reduce, all_to_all, broadcast, reduce_scatter
from ._experts import combine, dispatch_gemm, gemm_combine, moe_layer, moe_layer_from_logits
from ._gemm_norms import gemm_ar_rms_norm, gemm_rs_rms_norm
from ._gemms import ag_gemm, gemm, gemm_ar, gemm_rs
from ._packed_attention import ring_attention_packed
from ._symm_mem import fused_all_gather_matmul, fused_matmul_reduce_scatter
from ._symm_mem_scaled import fused_all_gather_scaled_matmul, fused_scaled_matmul_reduce_scatter
from ._symmetric import empty_symmetric

__all__ = [
    "ag_gemm",
    "all_gather",
    "all_reduce",
    "all_reduce_rms_norm",
    "all_to_all",
    "broadcast",
    "combine",
    "dispatch_gemm",
    "empty_symmetric",
    "fused_all_gather_matmul",
    "fused_all_gather_scaled_matmul",
    "fused_matmul_reduce_scatter",
    "fused_scaled_matmul_reduce_scatter",
    "gemm",
    "gemm_ar",
    "gemm_ar_rms_norm",
    "gemm_combine",
    "gemm_rs",
    "gemm_rs_rms_norm",
    "moe_layer",
    "moe_layer_from_logits",
    "reduce_scatter",
    "ring_attention",
    "ring_attention_cached",
    "ring_attention_packed",
]
