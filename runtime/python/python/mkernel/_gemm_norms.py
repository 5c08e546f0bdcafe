"""``gemm_ar`` and ``gemm_rs`` with a residual and a norm: the end of a block of a transformer in one kernel."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch

from ._define import Tensors, bucket, declaration, define, find, is_eager, not_differentiable, options_text
from ._gemms import sizes_of
from ._groups import DEFAULT
from ._operators import dtype_name
from ._scales import E4M3, Factor, check_layout, read_scales, result_dtype, scales_per_row

Tensor = torch.Tensor

_ARGS = (
    "Tensor a, Tensor b, Tensor residual, Tensor weight, Tensor? bias=None, float eps=1e-6, str group='default', "
    "str options='', Tensor? a_scales=None, Tensor? b_scales=None"
)


def _fake(op: str) -> Any:
    def fake(a, b, residual, weight, bias=None, eps=1e-6, group=DEFAULT, *_):
        _, _, own = sizes_of(op, find(group, a), a, b, None)
        like = a.new_empty((own, b.shape[1]), dtype=result_dtype(a.dtype))
        return like, torch.empty_like(like)

    return fake


def _fake_e4m3(op: str) -> Any:
    def fake(
        a, b, residual, weight, bias=None, eps=1e-6, group=DEFAULT, options="", a_scales=None, b_scales=None, scales="row"
    ):
        y, residual_out = _fake(op)(a, b, residual, weight, bias, eps, group)
        rows, n = y.shape
        of_rows = y.new_empty((rows, scales_per_row(scales, n)), dtype=torch.float32)
        return y.new_empty(y.shape, dtype=E4M3), of_rows, residual_out

    return fake


def _call(
    op: str,
    results: dict[str, Tensor],
    result_scales: str | None,
    a,
    b,
    residual,
    weight,
    bias,
    eps,
    group,
    options,
    *scales,
):
    ranks = find(group, a)
    total, rows_of_a, rows_of_c = sizes_of(op, ranks, a, b, None)
    (k, n), is_kn = b.shape, b.is_contiguous()
    tensors = Tensors(ranks)
    tensors.read("a", a, (rows_of_a, k))
    tensors.read("b", b if is_kn else b.t(), (k, n) if is_kn else (n, k))
    tensors.read("bias", bias, (n,))
    tensors.read("residual", residual, (rows_of_c, n))
    tensors.read("weight", weight, (n,))
    check_layout(tensors, "b", b, is_kn)
    of_a, of_b = scales
    kind = read_scales(tensors, Factor("a_scales", a, of_a, is_right=False), Factor("b_scales", b, of_b))
    for name, result in results.items():
        tensors.write(name, result, tuple(result.shape))
    tensors.check()
    most, dtype = bucket(total), dtype_name(a)
    declared = {"m": f"..={most}", "n": n, "k": k, "b_layout": "kn" if is_kn else "nk", "buckets": 1, "dtype": dtype}
    declared |= {"bias": True} if bias is not None else {}
    declared |= {"scales": kind, "residual": True, "norm": "rms", "eps": eps, "result_scales": result_scales}
    key = (f"{op}_rms_norm", *declared.items(), options)
    tensors.call(ranks.cached(key, lambda: declaration(op, declared, options)), total)


def _function(op: str) -> Any:
    def function(a, b, residual, weight, bias=None, eps=1e-6, group=DEFAULT, options="", a_scales=None, b_scales=None):
        y, residual_out = results = _fake(op)(a, b, residual, weight, bias, eps, group)
        written = {"c": y, "residual_out": residual_out}
        _call(op, written, None, a, b, residual, weight, bias, eps, group, options, a_scales, b_scales)
        return results

    return function


def _function_e4m3(op: str) -> Any:
    def function(
        a,
        b,
        residual,
        weight,
        bias=None,
        eps=1e-6,
        group=DEFAULT,
        options="",
        a_scales=None,
        b_scales=None,
        result_scales="row",
    ):
        args = (a, b, residual, weight, bias, eps, group, options, a_scales, b_scales)
        y, of_rows, residual_out = results = _fake_e4m3(op)(*args, result_scales)
        written = {"c": y, "c_scales": of_rows, "residual_out": residual_out}
        _call(op, written, result_scales, *args)
        return results

    return function


_OPS = ("gemm_ar", "gemm_rs")
_FUNCTIONS = {op: (_function(op), _function_e4m3(op)) for op in _OPS}
for _op, (_plain, _e4m3) in _FUNCTIONS.items():
    define(f"{_op}_rms_norm({_ARGS}) -> (Tensor, Tensor)", _plain, _fake(_op))
    define(f"{_op}_rms_norm_e4m3({_ARGS}, str result_scales='row') -> (Tensor, Tensor, Tensor)", _e4m3, _fake_e4m3(_op))
    for _name in (f"{_op}_rms_norm", f"{_op}_rms_norm_e4m3"):
        not_differentiable(_name, f"use {_op}, and torch for the residual and the norm")


def _public(op: str, result_scales: str, *args: Any) -> Any:
    plain, e4m3 = _FUNCTIONS[op]
    if result_scales == "none":
        return plain(*args) if is_eager(args[0]) else getattr(torch.ops.mkernel, f"{op}_rms_norm")(*args)
    args = (*args, result_scales)
    return e4m3(*args) if is_eager(args[0]) else getattr(torch.ops.mkernel, f"{op}_rms_norm_e4m3")(*args)


@overload
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
    result_scales: Literal["none"] = "none",
    group: str = DEFAULT,
    **options: Any,
) -> tuple[Tensor, Tensor]: ...


@overload
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
    result_scales: Literal["row", "block"],
    group: str = DEFAULT,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]: ...


def gemm_ar_rms_norm(
    a,
    b,
    residual,
    weight,
    bias=None,
    eps=1e-6,
    *,
    a_scales=None,
    b_scales=None,
    result_scales="none",
    group=DEFAULT,
    **options,
):
    """Multiply ``a`` by this rank's ``b``, add up the products of all ranks and a residual, and normalise the rows of the sum.

    Args:
        a: ``[M, K]``, bf16, fp16 or e4m3: this rank's part of the contracted dimension.
        b: ``[K, N]``, or a transposed ``[N, K]``: this rank's part of the factor.
        residual: ``[M, N]``, the same on all ranks.
        weight: ``[N]``: the weight of the norm, the same on all ranks.
        bias: ``[N]``, the same on all ranks. It is added once.
        eps: The number that the norm adds to the mean of squares.
        a_scales: With ``b_scales``, the scales of this rank's factors, if they are e4m3: see :func:`ag_gemm`.
        result_scales: ``"row"`` or ``"block"`` to quantise the normalised rows to e4m3 (``torch.float8_e4m3fn``), with a scale for
            each row or for each 128 elements of a row. N is a multiple of 16 then. The default is ``"none"``.
        group: The name of the group.
        options: Options of the operator, such as ``tile_m=64``.

    Returns:
        The RMSNorm of the new residual, and the new residual, both ``[M, N]``, and bf16 if ``a`` is e4m3. With ``result_scales``, the
        RMSNorm as e4m3, its fp32 scales, ``[M, 1]`` or ``[M, ⌈N/128⌉]``, and the new residual. :func:`gemm` takes the first two as
        ``a`` and ``a_scales``.
    """
    args = (a, b, residual, weight, bias, eps, group, options_text(options), a_scales, b_scales)
    return _public("gemm_ar", result_scales, *args)


@overload
def gemm_rs_rms_norm(
    a: Tensor,
    b: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    *,
    a_scales: Tensor | None = None,
    b_scales: Tensor | None = None,
    result_scales: Literal["none"] = "none",
    group: str = DEFAULT,
    **options: Any,
) -> tuple[Tensor, Tensor]: ...


@overload
def gemm_rs_rms_norm(
    a: Tensor,
    b: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    *,
    a_scales: Tensor | None = None,
    b_scales: Tensor | None = None,
    result_scales: Literal["row", "block"],
    group: str = DEFAULT,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]: ...


def gemm_rs_rms_norm(
    a,
    b,
    residual,
    weight,
    bias=None,
    eps=1e-6,
    *,
    a_scales=None,
    b_scales=None,
    result_scales="none",
    group=DEFAULT,
    **options,
):
    """Multiply as :func:`gemm_rs`, add a residual, and normalise this rank's rows of the sum.

    Args:
        a: ``[M, K]``, bf16, fp16 or e4m3: this rank's part of the contracted dimension.
        residual: ``[⌈M/W⌉, N]``: this rank's rows.
        weight: See :func:`gemm_ar_rms_norm`, which has the remaining arguments too.

    Returns:
        The results of :func:`gemm_ar_rms_norm`, of this rank's rows. :func:`ag_gemm` takes quantised rows and their scales as ``a`` and
        ``a_scales``.
    """
    args = (a, b, residual, weight, bias, eps, group, options_text(options), a_scales, b_scales)
    return _public("gemm_rs", result_scales, *args)
