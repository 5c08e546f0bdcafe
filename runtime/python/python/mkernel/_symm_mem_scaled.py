"""Operators of e4m3 with the signatures of torch's symmetric memory, made of operators of mkernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ._collectives import STEP, all_gather
from ._define import LIBRARY, define, find
from ._gemms import ag_gemm, gemm, gemm_rs
from ._scales import E4M3

Tensor = torch.Tensor
Shape = tuple[int, ...]

_K_STEP = 16
_DTYPES = {6: torch.float32, 15: torch.bfloat16}
"""Types by their numbers in ``c10::ScalarType``, which torch's dispatcher passes in lists."""


def fused_all_gather_scaled_matmul(
    A: Tensor,
    Bs: list[Tensor],
    A_scale: Tensor,
    B_scales: list[Tensor],
    gather_dim: int,
    group_name: str,
    biases: list[Tensor | None],
    result_scales: list[Tensor | None],
    out_dtypes: list[torch.dtype | None],
    use_fast_accum: list[bool],
) -> tuple[Tensor, list[Tensor]]:
    """Gather ``A`` of e4m3 along a dimension, and multiply it by each of ``Bs``, as ``torch.ops.symm_mem`` does.

    Args:
        A: ``[..., K]``: this rank's part. K is a multiple of 16.
        Bs: Transposed factors ``[K, N]``. The first product gathers while it multiplies. Later products use the gathered rows.
        A_scale: fp32: one scale, the same on all ranks, or a scale for each row, ``[..., 1]``, of ``A`` or of the gathered ``A``.
        B_scales: fp32, for each of ``Bs`` one scale if ``A`` has one, or else ``[1, N]``.
        gather_dim: The dimension of ``A`` along which ranks have parts. It is not the last one.
        group_name: The name of the group. A group that was made of a process group of torch has the name of the process group.
        biases: For each of ``Bs`` a bf16 ``[N]``, or None.
        result_scales: None for each of ``Bs``, since results are not quantised.
        out_dtypes: For each of ``Bs`` ``torch.bfloat16`` or ``torch.float32``.
        use_fast_accum: A permission for each of ``Bs``, which is not used: products of each 128 of K are added up in fp32.

    Returns:
        The gathered ``A``, and the products.

    Raises:
        ValueError: If an argument cannot be taken, with all mistakes and their remedies.
    """
    out_dtypes = [_DTYPES.get(dtype, dtype) for dtype in out_dtypes]
    ranks, mistakes = find(group_name, A), []
    for name, given in (
        ("B_scales", B_scales),
        ("biases", biases),
        ("result_scales", result_scales),
        ("out_dtypes", out_dtypes),
        ("use_fast_accum", use_fast_accum),
    ):
        if len(given) != len(Bs):
            mistakes.append(f"{name} has {len(given)} elements. Pass one for each of {len(Bs)} Bs")
    dim = gather_dim + A.dim() if gather_dim < 0 else gather_dim
    mistakes += _of_dim("gather_dim", gather_dim, dim, A.shape) + _of_factor("A", A)
    _raise(mistakes)
    whole = list(A.shape[:-1])
    whole[dim] *= ranks.world
    rows, all_rows = (*A.shape[:-1], 1), (*whole, 1)
    for i, (b, b_scale) in enumerate(zip(Bs, B_scales, strict=True)):
        mistakes += _of_right(f"Bs[{i}]", b, A, f"B_scales[{i}]", b_scale)
        mistakes += _of_left_scale(A_scale, b_scale, (rows, all_rows))
        mistakes += _of_result(f"[{i}]", result_scales[i], out_dtypes[i])
    _raise(mistakes)
    first = A.movedim(dim, 0).contiguous()
    flat, lead = first.flatten(0, -2), (first.shape[0] * ranks.world, *first.shape[1:-1])
    # Bits travel unchanged, and collectives have no e4m3.
    gathered = all_gather(flat.view(torch.bfloat16), group=group_name).view(E4M3)
    own, of_all = _scales_of_rows(A_scale, rows, dim, group_name, len(Bs) > 1)
    products = []
    for i, (b, b_scale) in enumerate(zip(Bs, B_scales, strict=True)):
        args = {"bias": biases[i], "out_dtype": out_dtypes[i], "group": group_name, "b_scales": _flat(b_scale)}
        product = gemm(gathered, b, a_scales=of_all, **args) if i else ag_gemm(flat, b, a_scales=own, **args)
        products.append(product.view(*lead, -1).movedim(0, dim))
    return gathered.view(*lead, -1).movedim(0, dim), products


def fused_scaled_matmul_reduce_scatter(
    A: Tensor,
    B: Tensor,
    A_scale: Tensor,
    B_scale: Tensor,
    reduce_op: str,
    orig_scatter_dim: int,
    scatter_dim_after_maybe_reshape: int,
    group_name: str,
    output_shape: list[int] | None,
    bias: Tensor | None = None,
    result_scale: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """Multiply ``A`` by ``B``, both of e4m3, and add up and scatter the products, as ``torch.ops.symm_mem`` does.

    Args:
        A: ``[..., K]``. K is a multiple of 16.
        B: A transposed ``[K, N]``.
        A_scale: fp32: one scale, or ``[..., 1]``, a scale for each row of ``A``.
        B_scale: fp32: one scale if ``A`` has one, or else ``[1, N]``.
        reduce_op: ``"sum"`` or ``"avg"``.
        orig_scatter_dim: The dimension of ``output_shape`` along which ranks get parts. It is not the last one.
        scatter_dim_after_maybe_reshape: The same dimension of ``A``. It does not change the result.
        group_name: The name of the group.
        output_shape: The shape of a product before the scatter, ``[..., N]``. The default is that of ``A @ B``.
        bias: None. torch adds the biases of all ranks.
        result_scale: None, since results are not quantised.
        out_dtype: ``torch.bfloat16`` or ``torch.float32``.
        use_fast_accum: A permission, which is not used: products of each 128 of K are added up in fp32.

    Returns:
        This rank's part of the sum or mean.

    Raises:
        ValueError: If an argument cannot be taken, with all mistakes and their remedies.
    """
    world, mistakes = find(group_name, A).world, _of_factor("A", A)
    _raise(mistakes)
    mistakes += _of_right("B", B, A, "B_scale", B_scale)
    mistakes += _of_left_scale(A_scale, B_scale, ((*A.shape[:-1], 1),)) + _of_result("", result_scale, out_dtype)
    if bias is not None:
        mistakes.append("bias: torch adds the bias of each rank. Pass None, and add the sum of the biases to the result")
    if reduce_op not in ("sum", "avg"):
        mistakes.append(f"reduce_op = {reduce_op!r}. Use 'sum' or 'avg'")
    after = scatter_dim_after_maybe_reshape
    mistakes += _of_dim("scatter_dim_after_maybe_reshape", after, after, A.shape)
    _raise(mistakes)
    shape = (*A.shape[:-1], B.shape[1]) if output_shape is None else tuple(output_shape)
    dim, rows = orig_scatter_dim, math.prod(A.shape[:-1])
    if math.prod(shape[:-1]) != rows or shape[-1:] != (B.shape[1],):
        mistakes.append(f"output_shape = {shape}. Pass dimensions of {rows} rows, and then {B.shape[1]} columns")
    mistakes += _of_dim("orig_scatter_dim", dim, dim, shape)
    if not mistakes and shape[dim] % world:
        mistakes.append(
            f"output_shape = {shape} has {shape[dim]} elements along orig_scatter_dim = {dim}. Pad A to {world} parts"
        )
    _raise(mistakes)
    first = A.reshape(*shape[:-1], A.shape[-1]).movedim(dim, 0)
    a_scales = _flat(A_scale) if A_scale.numel() == 1 else A_scale.reshape(shape[:-1]).movedim(dim, 0).flatten()
    scales = {"a_scales": a_scales, "b_scales": _flat(B_scale)}
    product = gemm_rs(first.contiguous().flatten(0, -2), B, out_dtype=out_dtype, group=group_name, **scales)
    part = product.view(shape[dim] // world, *first.shape[1:-1], -1).movedim(0, dim)
    return part / world if reduce_op == "avg" else part


def _scales_of_rows(scale: Tensor, rows: Shape, dim: int, group: str, gathers: bool) -> tuple[Tensor, Tensor | None]:
    """Return the scales of this rank's rows and, if they are needed, those of all rows, both in the order of rows."""
    if scale.numel() == 1:
        return _flat(scale), _flat(scale)
    in_order = scale.movedim(dim, 0).reshape(-1)
    if tuple(scale.shape) != rows:
        return torch.ops.mkernel.own_part(in_order, group), in_order
    count = in_order.shape[0]
    if not gathers:
        return in_order, None
    padded = torch.nn.functional.pad(in_order, (0, -count % STEP)).view(1, -1)
    return in_order, all_gather(padded, group=group)[:, :count].reshape(-1)


def _flat(scale: Tensor) -> Tensor:
    return scale.reshape(-1)


def _raise(mistakes: list[str]) -> None:
    if mistakes:
        raise ValueError("\n".join(dict.fromkeys(mistakes)))


def _of_dim(name: str, given: int, dim: int, shape: Sequence[int]) -> list[str]:
    is_right = 0 <= dim < len(shape) - 1
    return [] if is_right else [f"{name} = {given} for the shape {tuple(shape)}. Use a dimension before the last one"]


def _of_factor(name: str, factor: Tensor) -> list[str]:
    mistakes = []
    if factor.dtype != E4M3:
        mistakes.append(f"{name} has elements of {factor.dtype}. Use torch.float8_e4m3fn")
    if factor.dim() < 2:
        mistakes.append(f"{name} has the shape {tuple(factor.shape)}. Pass a matrix")
    return mistakes


def _of_right(name: str, b: Tensor, a: Tensor, scale_name: str, scale: Tensor) -> list[str]:
    """Return the mistakes in a right factor and its scales."""
    mistakes, k = _of_factor(name, b), a.shape[-1]
    if b.dim() != 2 or b.shape[0] != k or k % _K_STEP:
        wanted = f"[{-(-k // _K_STEP) * _K_STEP}, N], and A with the same number of columns: a multiple of {_K_STEP}"
        return [*mistakes, f"{name} has the shape {tuple(b.shape)}, and A {tuple(a.shape)}. Pass {wanted}"]
    if b.is_contiguous():
        mistakes.append(f"{name} is contiguous, but tensor cores take e4m3 only where K is contiguous. Pass weight.t()")
    n = b.shape[1]
    if scale.numel() != 1 and tuple(scale.shape) not in ((n,), (1, n)):
        blocks = "For scales of blocks, call mkernel.ag_gemm or mkernel.gemm_rs"
        mistakes.append(f"{scale_name} has the shape {tuple(scale.shape)}. Pass (1,) or {(1, n)}. {blocks}")
    return [*mistakes, *_of_type(scale_name, scale)]


def _of_left_scale(scale: Tensor, of_right: Tensor, rows: tuple[Shape, ...]) -> list[str]:
    """Return the mistakes in the scales of A, of which there is one if the right factor has one."""
    is_right = scale.numel() == 1 if of_right.numel() == 1 else tuple(scale.shape) in rows
    if is_right:
        return _of_type("A_scale", scale)
    wanted = "one scale, as B has" if of_right.numel() == 1 else f"{' or '.join(map(str, rows))}, or one scale for B"
    return [*_of_type("A_scale", scale), f"A_scale has the shape {tuple(scale.shape)}. Pass {wanted}"]


def _of_type(name: str, scale: Tensor) -> list[str]:
    return [] if scale.dtype == torch.float32 else [f"{name} has elements of {scale.dtype}. Use torch.float32"]


def _of_result(index: str, scale: Tensor | None, dtype: Any) -> list[str]:
    mistakes = []
    if scale is not None:
        mistakes.append(f"result_scale{'s' if index else ''}{index} is given, but results are not quantised. Pass None")
    if dtype not in (torch.bfloat16, torch.float32):
        of_none = ", which means the type of A" if dtype is None else ""
        name = f"out_dtype{'s' if index else ''}{index}"
        mistakes.append(f"{name} = {dtype}{of_none}. Use torch.bfloat16 or torch.float32")
    return mistakes


# A graph that ranks of one process share must not have the number of a rank.
define(
    "own_part(Tensor x, str group) -> Tensor",
    lambda x, group: x.chunk(find(group, x).world)[find(group, x).rank].clone(),
    lambda x, group: x.new_empty((x.shape[0] // find(group, x).world, *x.shape[1:])),
)
LIBRARY.define(
    "fused_all_gather_scaled_matmul(Tensor A, Tensor[] Bs, Tensor A_scale, Tensor[] B_scales, int gather_dim, str group_name, "
    "Tensor?[] biases, Tensor?[] result_scales, ScalarType?[] out_dtypes, bool[] use_fast_accum) -> (Tensor, Tensor[])"
)
LIBRARY.impl("fused_all_gather_scaled_matmul", fused_all_gather_scaled_matmul, "CompositeImplicitAutograd")
LIBRARY.define(
    "fused_scaled_matmul_reduce_scatter(Tensor A, Tensor B, Tensor A_scale, Tensor B_scale, str reduce_op, "
    "int orig_scatter_dim, int scatter_dim_after_maybe_reshape, str group_name, SymInt[]? output_shape, Tensor? bias=None, "
    "Tensor? result_scale=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor"
)
LIBRARY.impl("fused_scaled_matmul_reduce_scatter", fused_scaled_matmul_reduce_scatter, "CompositeImplicitAutograd")
