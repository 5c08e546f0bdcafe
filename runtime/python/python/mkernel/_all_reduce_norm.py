"""``all_reduce`` with a residual and a norm, whose rows may be quantised."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch

from ._collectives import STEP, call_collective
from ._define import define, find, is_eager, not_differentiable, options_text
from ._errors import error
from ._groups import DEFAULT
from ._scales import E4M3, scales_per_row

Tensor = torch.Tensor

_ARGS = "Tensor x, Tensor residual, Tensor weight, float eps=1e-6, str group='default', str options=''"


def _fake(x, residual, weight, eps=1e-6, group=DEFAULT, options=""):
    return x.new_empty(x.shape), x.new_empty(x.shape)


def _fake_e4m3(x, residual, weight, eps=1e-6, group=DEFAULT, options="", result_scales="row"):
    shape = (*x.shape[:-1], scales_per_row(result_scales, x.shape[-1]))
    return x.new_empty(x.shape, dtype=E4M3), x.new_empty(shape, dtype=torch.float32), x.new_empty(x.shape)


def _call(x, residual, weight, eps=1e-6, group=DEFAULT, options=""):
    y, residual_out = results = _fake(x, residual, weight)
    _norm(x, residual, weight, eps, group, options, {"y": y, "residual_out": residual_out})
    return results


def _call_e4m3(x, residual, weight, eps=1e-6, group=DEFAULT, options="", result_scales="row"):
    y, y_scales, residual_out = results = _fake_e4m3(x, residual, weight, result_scales=result_scales)
    written = {"y": y, "y_scales": y_scales, "residual_out": residual_out}
    _norm(x, residual, weight, eps, group, options, written, result_scales=result_scales)
    return results


def _norm(x, residual, weight, eps, group, options, results: dict[str, Tensor], **epilogue: Any) -> None:
    shape, cols = tuple(x.shape), x.shape[-1] if x.dim() else 0
    if cols == 0 or cols % STEP:
        raise error(
            "operands",
            f"all_reduce_rms_norm: the shape is {shape}, whose rows do not have a multiple of {STEP} elements. Pad them",
        )
    operands = {"x": (x, shape), "residual": (residual, shape), "weight": (weight, (cols,))}
    written = {name: (tensor, tuple(tensor.shape)) for name, tensor in results.items()}
    epilogue |= {"residual": True, "norm": "rms", "eps": eps}
    call_collective("all_reduce", find(group, x), operands, written, (x.numel() // cols, cols), options, **epilogue)


define(f"all_reduce_rms_norm({_ARGS}) -> (Tensor, Tensor)", _call, _fake)
define(f"all_reduce_rms_norm_e4m3({_ARGS}, str result_scales='row') -> (Tensor, Tensor, Tensor)", _call_e4m3, _fake_e4m3)
for _op in ("all_reduce_rms_norm", "all_reduce_rms_norm_e4m3"):
    not_differentiable(_op, "use all_reduce, and torch for the residual and the norm")


@overload
def all_reduce_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    *,
    result_scales: Literal["none"] = "none",
    group: str = DEFAULT,
    **options: Any,
) -> tuple[Tensor, Tensor]: ...


@overload
def all_reduce_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    *,
    result_scales: Literal["row", "block"],
    group: str = DEFAULT,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]: ...


def all_reduce_rms_norm(x, residual, weight, eps=1e-6, *, result_scales="none", group=DEFAULT, **options):
    """Add up the tensors of all ranks and a residual, and normalise the rows of the sum, as at the end of a block of a transformer.

    Args:
        x: bf16, fp16 or fp32 ``[..., N]``: this rank's addend. N is a multiple of 8.
        residual: Like ``x``, the same on all ranks.
        weight: ``[N]``: the weight of the norm, the same on all ranks.
        eps: The number that the norm adds to the mean of squares.
        result_scales: ``"row"`` or ``"block"`` to quantise the normalised rows to e4m3 (``torch.float8_e4m3fn``), with a scale for
            each row or for each 128 elements of a row. N is a multiple of 16 then. The default is ``"none"``.
        group: The name of the group.
        options: Options of the operator, such as ``protocol="simple"``.

    Returns:
        The RMSNorm of the new residual, and the new residual, both like ``x``. With ``result_scales``, the RMSNorm as e4m3, its fp32
        scales, ``[..., 1]`` or ``[..., ⌈N/128⌉]``, and the new residual. :func:`gemm` and :func:`ag_gemm` take the first two as ``a``
        and ``a_scales``.

    Raises:
        Error: Of kind ``"operands"`` or ``"configuration"``, with all mistakes.
    """
    args = (x, residual, weight, eps, group, options_text(options))
    if result_scales == "none":
        return _call(*args) if is_eager(x) else torch.ops.mkernel.all_reduce_rms_norm(*args)
    args = (*args, result_scales)
    return _call_e4m3(*args) if is_eager(x) else torch.ops.mkernel.all_reduce_rms_norm_e4m3(*args)
