"""``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast`` and ``all_to_all``."""

from __future__ import annotations

import math
from typing import Any

import torch

from ._define import (
    Tensors,
    bucket,
    declaration,
    define,
    differentiate,
    find,
    is_eager,
    not_differentiable,
    options_text,
    own_rows,
)
from ._errors import error
from ._groups import DEFAULT, Group
from ._operators import DTYPES

Tensor = torch.Tensor

STEP = 8
"""Rows have a multiple of this number of elements."""


def _flat(op: str, x: Tensor) -> tuple[int, int]:
    """Return the rows and columns of a tensor whose first dimension is that of rows."""
    cols = math.prod(x.shape[1:])
    if x.dim() == 0 or cols == 0 or cols % STEP:
        raise error(
            "operands",
            f"{op}: the shape is {tuple(x.shape)}, whose rows do not have a multiple of {STEP} elements. Pad them",
        )
    return x.shape[0], cols


def _any_shape(op: str, x: Tensor) -> tuple[int, int]:
    """Return the rows and columns as which the elements of a tensor are added up."""
    elems, last = x.numel(), x.shape[-1] if x.dim() else 0
    if last and last % STEP == 0:
        return elems // last, last
    if elems % STEP:
        raise error(
            "operands",
            f"{op}: the shape is {tuple(x.shape)}, but the number of elements must be a multiple of {STEP}. Pad it",
        )
    return elems // STEP, STEP


def call_collective(
    op: str,
    group: Group,
    operands: dict[str, tuple[Tensor, tuple[int, ...]]],
    results: dict[str, tuple[Tensor, tuple[int, ...]]],
    size: tuple[int, int],
    more: str,
    **epilogue: Any,
) -> None:
    """Call the operator for the rows, columns and elements of operand ``x``. Each tensor is given with its shape in this call."""
    tensors = Tensors(group)
    for name, (tensor, shape) in operands.items():
        tensors.read(name, tensor, shape)
    for name, (tensor, shape) in results.items():
        tensors.write(name, tensor, shape)
    tensors.check()
    (rows, cols), dtype = size, operands["x"][0].dtype
    most = bucket(rows)

    def declared() -> str:
        sizes = {"m": f"..={most}", "n": cols, "dtype": DTYPES.get(str(dtype), str(dtype)), "buckets": 1}
        return declaration(op, sizes | epilogue, more)

    key = (op, most, cols, dtype, tuple(epilogue.items()), more)
    tensors.call(group.cached(key, declared), rows)


def _all_reduce(x: Tensor, group: str, options: str, out: Tensor) -> Tensor:
    shape = tuple(x.shape)
    ranks, size = find(group, x), _any_shape("all_reduce", x)
    call_collective("all_reduce", ranks, {"x": (x, shape)}, {"y": (out, shape)}, size, options)
    return out


def _all_gather(x: Tensor, rows: int | None, group: str, options: str, out: Tensor | None) -> Tensor:
    ranks, (own, cols) = find(group, x), _flat("all_gather", x)
    total = own * ranks.world if rows is None else rows
    shape = (total, *x.shape[1:])
    result = x.new_empty(shape) if out is None else out
    mine = (ranks.rows(total), *x.shape[1:])
    call_collective("all_gather", ranks, {"x": (x, mine)}, {"y": (result, shape)}, (total, cols), options)
    return result


def _reduce_scatter(x: Tensor, group: str, options: str, out: Tensor | None) -> Tensor:
    ranks, (total, cols) = find(group, x), _flat("reduce_scatter", x)
    shape = (ranks.rows(total), *x.shape[1:])
    result = x.new_empty(shape) if out is None else out
    call_collective("reduce_scatter", ranks, {"x": (x, tuple(x.shape))}, {"y": (result, shape)}, (total, cols), options)
    return result


def _broadcast(x: Tensor, root: int, group: str, options: str, out: Tensor) -> Tensor:
    shape = tuple(x.shape)
    ranks, size = find(group, x), _any_shape("broadcast", x)
    call_collective("broadcast", ranks, {"x": (x, shape)}, {"y": (out, shape)}, size, options, root=root)
    return out


def _all_to_all(x: Tensor, group: str, options: str, out: Tensor) -> Tensor:
    ranks, size, shape = find(group, x), _flat("all_to_all", x), tuple(x.shape)
    if size[0] % ranks.world:
        raise error(
            "operands",
            f"all_to_all: the shape is {shape}, whose rows cannot be divided equally among {ranks.world} ranks. Pad them",
        )
    # Simulated GPUs have copies of tensors, so only GPUs would find it.
    if x.numel() and out.data_ptr() == x.data_ptr():
        raise error("operands", "all_to_all: y overlaps x. Pass separate memory")
    call_collective("all_to_all", ranks, {"x": (x, shape)}, {"y": (out, shape)}, size, options)
    return out


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


define(
    "all_reduce(Tensor x, str group='default', str options='') -> Tensor",
    lambda x, group=DEFAULT, options="": _all_reduce(x, group, options, _like(x)),
    lambda x, group=DEFAULT, options="": _like(x),
)
define(
    "all_reduce_out(Tensor x, str group='default', str options='', *, Tensor(a!) out) -> ()",
    lambda x, group=DEFAULT, options="", *, out: (_all_reduce(x, group, options, out), None)[1],
    lambda x, group=DEFAULT, options="", *, out: None,
)
define(
    "all_gather(Tensor x, SymInt? rows=None, str group='default', str options='') -> Tensor",
    lambda x, rows=None, group=DEFAULT, options="": _all_gather(x, rows, group, options, None),
    lambda x, rows=None, group=DEFAULT, options="": x.new_empty(
        (x.shape[0] * find(group, x).world if rows is None else rows, *x.shape[1:])
    ),
)
define(
    "all_gather_out(Tensor x, SymInt? rows=None, str group='default', str options='', *, Tensor(a!) out) -> ()",
    lambda x, rows=None, group=DEFAULT, options="", *, out: (_all_gather(x, rows, group, options, out), None)[1],
    lambda x, rows=None, group=DEFAULT, options="", *, out: None,
)
define(
    "reduce_scatter(Tensor x, str group='default', str options='') -> Tensor",
    lambda x, group=DEFAULT, options="": _reduce_scatter(x, group, options, None),
    lambda x, group=DEFAULT, options="": x.new_empty((own_rows(find(group, x), x.shape[0]), *x.shape[1:])),
)
define(
    "reduce_scatter_out(Tensor x, str group='default', str options='', *, Tensor(a!) out) -> ()",
    lambda x, group=DEFAULT, options="", *, out: (_reduce_scatter(x, group, options, out), None)[1],
    lambda x, group=DEFAULT, options="", *, out: None,
)
define(
    "broadcast(Tensor x, int root=0, str group='default', str options='') -> Tensor",
    lambda x, root=0, group=DEFAULT, options="": _broadcast(x, root, group, options, _like(x)),
    lambda x, root=0, group=DEFAULT, options="": _like(x),
)
define(
    "broadcast_out(Tensor x, int root=0, str group='default', str options='', *, Tensor(a!) out) -> ()",
    lambda x, root=0, group=DEFAULT, options="", *, out: (_broadcast(x, root, group, options, out), None)[1],
    lambda x, root=0, group=DEFAULT, options="", *, out: None,
)
not_differentiable("broadcast", "use all_reduce of the root's tensor and zeros of the other ranks")
define(
    "all_to_all(Tensor x, str group='default', str options='') -> Tensor",
    lambda x, group=DEFAULT, options="": _all_to_all(x, group, options, _like(x)),
    lambda x, group=DEFAULT, options="": _like(x),
)
define(
    "all_to_all_out(Tensor x, str group='default', str options='', *, Tensor(a!) out) -> ()",
    lambda x, group=DEFAULT, options="", *, out: (_all_to_all(x, group, options, out), None)[1],
    lambda x, group=DEFAULT, options="", *, out: None,
)


def _setup_reduce(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.group, _ = inputs


def _setup_gather(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, _, ctx.group, _ = inputs


def _setup_scatter(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.group, _ = inputs
    ctx.rows = x.shape[0]


differentiate("all_reduce", _setup_reduce, lambda ctx, grad: (all_reduce(grad, group=ctx.group), None, None))
differentiate("all_gather", _setup_gather, lambda ctx, grad: (reduce_scatter(grad, group=ctx.group), None, None, None))
differentiate(
    "reduce_scatter", _setup_scatter, lambda ctx, grad: (all_gather(grad, rows=ctx.rows, group=ctx.group), None, None)
)
differentiate("all_to_all", _setup_reduce, lambda ctx, grad: (all_to_all(grad, group=ctx.group), None, None))


def all_reduce(x: Tensor, *, out: Tensor | None = None, group: str = DEFAULT, **options: Any) -> Tensor:
    """Add up the tensors of all ranks. Every rank gets the same bits.

    Args:
        x: bf16, fp16 or fp32, of any shape with a multiple of 8 elements, the same on all ranks.
        out: Where the result is written. It may be ``x``.
        group: The name of the group.
        options: Options of the operator, such as ``protocol="simple"``.

    Returns:
        A tensor of the shape of ``x``.
    """
    text = options_text(options)
    if is_eager(x):
        return _all_reduce(x, group, text, _like(x) if out is None else out)
    if out is None:
        return torch.ops.mkernel.all_reduce(x, group, text)
    torch.ops.mkernel.all_reduce_out(x, group, text, out=out)
    return out


def all_gather(
    x: Tensor, *, rows: int | None = None, out: Tensor | None = None, group: str = DEFAULT, **options: Any
) -> Tensor:
    """Return the rows of all ranks, in the order of ranks.

    Args:
        x: bf16, fp16 or fp32 ``[⌈rows/W⌉, ...]``: this rank's rows, each with a multiple of 8 elements. The last ranks have
            fewer rows, or none.
        rows: The number of rows over all ranks. The default is W times the rows of ``x``.
        out: Where the result is written.

    Returns:
        ``[rows, ...]``.
    """
    text = options_text(options)
    if is_eager(x):
        return _all_gather(x, rows, group, text, out)
    if out is None:
        return torch.ops.mkernel.all_gather(x, rows, group, text)
    torch.ops.mkernel.all_gather_out(x, rows, group, text, out=out)
    return out


def reduce_scatter(x: Tensor, *, out: Tensor | None = None, group: str = DEFAULT, **options: Any) -> Tensor:
    """Add up the tensors of all ranks, and return this rank's rows of the sum.

    Args:
        x: bf16, fp16 or fp32 ``[rows, ...]``, each row with a multiple of 8 elements.
        out: Where the result is written.

    Returns:
        ``[⌈rows/W⌉, ...]``. The last ranks have fewer rows, or none.
    """
    text = options_text(options)
    if is_eager(x):
        return _reduce_scatter(x, group, text, out)
    if out is None:
        return torch.ops.mkernel.reduce_scatter(x, group, text)
    torch.ops.mkernel.reduce_scatter_out(x, group, text, out=out)
    return out


def broadcast(x: Tensor, root: int = 0, *, out: Tensor | None = None, group: str = DEFAULT, **options: Any) -> Tensor:
    """Return the tensor of one rank.

    Args:
        x: bf16, fp16 or fp32, of any shape with a multiple of 8 elements, the same on all ranks. Only that of ``root`` is read.
        root: The rank whose tensor every rank gets.
        out: Where the result is written. It may be ``x``.

    Returns:
        A tensor of the shape of ``x``.
    """
    text = options_text(options)
    if is_eager(x):
        return _broadcast(x, root, group, text, _like(x) if out is None else out)
    if out is None:
        return torch.ops.mkernel.broadcast(x, root, group, text)
    torch.ops.mkernel.broadcast_out(x, root, group, text, out=out)
    return out


def all_to_all(x: Tensor, *, out: Tensor | None = None, group: str = DEFAULT, **options: Any) -> Tensor:
    """Send each rank an equal part of the rows, and return this rank's part of every rank's rows, in the order of ranks.

    Args:
        x: bf16, fp16 or fp32 ``[rows, ...]``, the same shape on all ranks. W divides the rows, and each row has a multiple of 8
            elements.
        out: Where the result is written. It may not be ``x``.

    Returns:
        A tensor of the shape of ``x``.
    """
    text = options_text(options)
    if is_eager(x):
        return _all_to_all(x, group, text, _like(x) if out is None else out)
    if out is None:
        return torch.ops.mkernel.all_to_all(x, group, text)
    torch.ops.mkernel.all_to_all_out(x, group, text, out=out)
    return out
