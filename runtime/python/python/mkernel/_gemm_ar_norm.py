"""``gemm_ar`` with a residual and a norm: the end of a block of a transformer in one kernel."""

from __future__ import annotations

from typing import Any

import torch

from ._define import Tensors, bucket, declaration, define, find, is_eager, not_differentiable, options_text
from ._gemms import sizes_of
from ._groups import DEFAULT
from ._operators import DTYPES
from ._scales import Factor, check_layout, read_scales, result_dtype

Tensor = torch.Tensor

_ARGS = (
    "Tensor a, Tensor b, Tensor residual, Tensor weight, Tensor? bias=None, float eps=1e-6, str group='default', "
    "str options='', Tensor? a_scales=None, Tensor? b_scales=None"
)


def _fake(a, b, residual, weight, *_):
    shape, dtype = (a.shape[0], b.shape[1]), result_dtype(a.dtype)
    return a.new_empty(shape, dtype=dtype), a.new_empty(shape, dtype=dtype)


def _call(a, b, residual, weight, bias=None, eps=1e-6, group=DEFAULT, options="", a_scales=None, b_scales=None):
    ranks = find(group, a)
    rows, _, _ = sizes_of("gemm_ar_rms_norm", ranks, a, b, None)
    (k, n), is_kn = b.shape, b.is_contiguous()
    y, residual_out = _fake(a, b, residual, weight)
    tensors = Tensors(ranks)
    tensors.read("a", a, (rows, k))
    tensors.read("b", b if is_kn else b.t(), (k, n) if is_kn else (n, k))
    tensors.read("bias", bias, (n,))
    tensors.read("residual", residual, (rows, n))
    tensors.read("weight", weight, (n,))
    check_layout(tensors, "b", b, is_kn)
    scales = read_scales(tensors, Factor("a_scales", a, a_scales, is_right=False), Factor("b_scales", b, b_scales))
    tensors.write("c", y, (rows, n))
    tensors.write("residual_out", residual_out, (rows, n))
    tensors.check()
    most, dtype = bucket(rows), DTYPES.get(str(a.dtype), str(a.dtype))
    declared = {"m": f"..={most}", "n": n, "k": k, "b_layout": "kn" if is_kn else "nk", "buckets": 1, "dtype": dtype}
    declared |= {"bias": True} if bias is not None else {}
    declared |= {"scales": scales, "residual": True, "norm": "rms", "eps": eps}
    key = ("gemm_ar_rms_norm", *declared.items(), options)
    tensors.call(ranks.cached(key, lambda: declaration("gemm_ar", declared, options)), rows)
    return y, residual_out


define(f"gemm_ar_rms_norm({_ARGS}) -> (Tensor, Tensor)", _call, _fake)
not_differentiable("gemm_ar_rms_norm", "use gemm_ar, and torch for the residual and the norm")


def gemm_ar_rms_norm(
    a: Tensor,
    b: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    *,
    a_scales: Tensor | None = None,
    b_scales: Tensor | None = None,
    group: str = DEFAULT,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Multiply ``a`` by this rank's ``b``, add up the products of all ranks and a residual, and normalise the rows of the sum.

    Args:
        a: ``[M, K]``, bf16, fp16 or e4m3: this rank's part of the contracted dimension.
        b: ``[K, N]``, or a transposed ``[N, K]``: this rank's part of the factor.
        residual: ``[M, N]``, the same on all ranks.
        weight: ``[N]``: the weight of the norm, the same on all ranks.
        bias: ``[N]``, the same on all ranks. It is added once.
        eps: The number that the norm adds to the mean of squares.
        a_scales: With ``b_scales``, the scales of this rank's factors, if they are e4m3: see :func:`ag_gemm`.
        group: The name of the group.
        options: Options of the operator, such as ``tile_m=64``.

    Returns:
        The RMSNorm of the new residual, and the new residual, both ``[M, N]``, and bf16 if ``a`` is e4m3.
    """
    args = (a, b, residual, weight, bias, eps, group, options_text(options), a_scales, b_scales)
    return _call(*args) if is_eager(a) else torch.ops.mkernel.gemm_ar_rms_norm(*args)
