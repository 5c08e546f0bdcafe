"""Operators with the signatures of torch's symmetric memory, made of operators of mkernel."""

from __future__ import annotations

import torch

from ._collectives import all_gather
from ._define import LIBRARY, find
from ._errors import error
from ._gemms import ag_gemm, gemm_rs

Tensor = torch.Tensor


def fused_all_gather_matmul(
    A: Tensor, Bs: list[Tensor], gather_dim: int, group_name: str, *, return_A: bool = True
) -> tuple[Tensor | None, list[Tensor]]:
    """Gather ``A`` along a dimension, and multiply it by each of ``Bs``, as ``torch.ops.symm_mem`` does.

    Args:
        A: ``[..., K]``: this rank's part.
        Bs: Factors ``[K, N]``. The first product gathers while it multiplies. Later products use the gathered rows.
        gather_dim: The dimension of ``A`` along which ranks have parts. It is not the last one.
        group_name: The name of the group. A group that was made of a process group of torch has the name of the process group.
        return_A: Whether the gathered ``A`` is a result, which takes an ``all_gather``.

    Returns:
        The gathered ``A``, or None, and the products.
    """
    dim = _dim("gather_dim", gather_dim, A)
    first = A.movedim(dim, 0).contiguous()
    flat = first.flatten(0, -2)
    lead = (first.shape[0] * find(group_name, A).world, *first.shape[1:-1])
    gathered = all_gather(flat, group=group_name) if return_A or len(Bs) > 1 else None
    products = [ag_gemm(flat, b, group=group_name) if i == 0 else gathered @ b for i, b in enumerate(Bs)]
    results = [product.view(*lead, -1).movedim(0, dim) for product in products]
    return gathered.view(*lead, -1).movedim(0, dim) if return_A else None, results


def fused_matmul_reduce_scatter(A: Tensor, B: Tensor, reduce_op: str, scatter_dim: int, group_name: str) -> Tensor:
    """Multiply ``A`` by ``B``, and add up and scatter the products along a dimension, as ``torch.ops.symm_mem`` does.

    Args:
        A: ``[..., K]``. Its size along ``scatter_dim`` is a multiple of the number of ranks.
        B: ``[K, N]``.
        reduce_op: ``"sum"`` or ``"avg"``.
        scatter_dim: The dimension of the product along which ranks get parts. It is not the last one.
        group_name: The name of the group.

    Returns:
        This rank's part of the sum or mean.
    """
    dim, world = _dim("scatter_dim", scatter_dim, A), find(group_name, A).world
    if reduce_op not in ("sum", "avg"):
        raise error("operands", f"reduce_op = {reduce_op!r}. Use 'sum' or 'avg'")
    if A.shape[dim] % world:
        raise error("operands", f"A has {A.shape[dim]} elements along scatter_dim = {dim}, which {world} ranks cannot share")
    first = A.movedim(dim, 0).contiguous()
    product = gemm_rs(first.flatten(0, -2), B, group=group_name)
    part = product.view(first.shape[0] // world, *first.shape[1:-1], -1).movedim(0, dim)
    return part / world if reduce_op == "avg" else part


def _dim(name: str, dim: int, a: Tensor) -> int:
    found = dim + a.dim() if dim < 0 else dim
    if a.dim() < 2 or not 0 <= found < a.dim() - 1:
        raise error(
            "operands", f"{name} = {dim} for a tensor of shape {tuple(a.shape)}. Use a dimension before the last one"
        )
    return found


LIBRARY.define(
    "fused_all_gather_matmul(Tensor A, Tensor[] Bs, int gather_dim, str group_name, *, bool return_A=True) "
    "-> (Tensor?, Tensor[])"
)
LIBRARY.impl("fused_all_gather_matmul", fused_all_gather_matmul, "CompositeImplicitAutograd")
LIBRARY.define("fused_matmul_reduce_scatter(Tensor A, Tensor B, str reduce_op, int scatter_dim, str group_name) -> Tensor")
LIBRARY.impl("fused_matmul_reduce_scatter", fused_matmul_reduce_scatter, "CompositeImplicitAutograd")
