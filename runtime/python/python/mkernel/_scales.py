"""Scales of e4m3: fp32 numbers by which the elements of a product's factors are multiplied."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ._define import Tensors

Tensor = torch.Tensor

E4M3 = torch.float8_e4m3fn
_BLOCK = 128
_KINDS = {
    "tensor": "for one scale of all elements",
    "row": "for one scale of each row of the left factor and each column of the right one",
    "block": "for one scale of 1×128 elements of the left factor and 128×128 of the right one",
}


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of products of elements of a type, unless the caller asks for another type."""
    return torch.bfloat16 if dtype == E4M3 else dtype


def blocks(size: int) -> int:
    """Return the number of scales for a dimension if 128 elements share a scale."""
    return -(-size // _BLOCK)


def scales_per_row(kind: str, cols: int) -> int:
    """Return the number of scales of a row of a result, by the value of the option ``result_scales``."""
    return blocks(cols) if kind == "block" else 1


class Factor(NamedTuple):
    """A factor of a product, and its scales."""

    name: str
    """The name of the operand with the scales."""
    elements: Tensor
    """``[M, K]`` on the left, ``[..., K, N]`` on the right."""
    scales: Tensor | None
    is_right: bool = True
    is_gated: bool = False
    """Whether the columns of a right factor are a gate and an up projection, whose blocks are separate."""

    def shapes(self) -> dict[str, list[tuple[int, ...]]]:
        """Return the shapes of scales, by the value of the option ``scales``. The first shape has the fewest dimensions."""
        *lead, rows, cols = self.elements.shape
        if not self.is_right:
            return {"tensor": [(1,), ()], "row": [(rows,), (rows, 1)], "block": [(rows, blocks(cols))]}
        in_blocks = 2 * blocks(cols // 2) if self.is_gated else blocks(cols)
        return {
            "tensor": [tuple(lead)] if lead else [(1,), ()],
            "row": [(*lead, cols), (*lead, 1, cols)],
            "block": [(*lead, blocks(rows), in_blocks)],
        }

    def kind(self) -> str | None:
        """Return the value of the option ``scales`` for the shape of the scales, or None if there is none."""
        return next((kind for kind, shapes in self.shapes().items() if tuple(self.scales.shape) in shapes), None)


def read_scales(tensors: Tensors, left: Factor, *right: Factor) -> str | None:
    """Add the scales of the factors as operands, and return the option ``scales``, or None without scales.

    The shape of the first right factor's scales determines the option, because it is the same on all ranks.
    """
    factors = (left, *right)
    given, missing = ([factor.name for factor in factors if (factor.scales is None) is absent] for absent in (False, True))
    if given and missing:
        tensors.mistake(
            f"{' and '.join(missing)}: missing beside {' and '.join(given)}. Pass the scales of all factors, or none"
        )
    if not given or missing:
        return None
    kind = right[0].kind()
    for factor in factors if kind else right[:1]:
        _read(tensors, factor, kind)
    return kind


def check_layout(tensors: Tensors, name: str, factor: Tensor, is_kn: bool) -> None:
    """Note a mistake if elements of e4m3 are not contiguous along K."""
    if is_kn and factor.dtype == E4M3:
        reason = f"its shape is {tuple(factor.shape)}, contiguous along the last dimension"
        remedy = "Pass the transposed view of a contiguous [N, K], such as weight.t()"
        tensors.mistake(f"{name}: {reason}, but tensor cores take e4m3 only where K is contiguous. {remedy}")


def _read(tensors: Tensors, factor: Factor, kind: str | None) -> None:
    name, scales = factor.name, factor.scales
    if factor.elements.dtype != E4M3:
        tensors.mistake(
            f"{name}: the factor has elements of {factor.elements.dtype}. Use torch.float8_e4m3fn, or pass no scales"
        )
    if scales.dtype != torch.float32:
        tensors.mistake(f"{name}: its elements are {scales.dtype}. Use torch.float32")
    shapes = factor.shapes()
    possible = shapes if kind is None else {kind: shapes[kind]}
    if not any(tuple(scales.shape) in shapes for shapes in possible.values()):
        texts = [f"{' or '.join(map(str, shapes))} {_KINDS[kind]}" for kind, shapes in possible.items()]
        tensors.mistake(f"{name}: its shape is {tuple(scales.shape)}. Pass {', '.join(texts)}")
        return
    shape = shapes[kind][0]
    if kind == "block" and factor.is_right:
        # Kernels take the scales of a right factor as they take the factor: transposed.
        scales, shape = scales.transpose(-1, -2), (*shape[:-2], shape[-1], shape[-2])
    tensors.read(name, scales.reshape(shape), shape)
