"""``ring_attention`` of new rows over cached rows."""

from __future__ import annotations

from typing import Any

import torch

from ._define import Tensors, declaration, define, find, not_differentiable, options_text
from ._errors import error
from ._groups import DEFAULT
from ._operators import DTYPES

Tensor = torch.Tensor

_ARGS = (
    "Tensor q, Tensor k, Tensor v, Tensor cached_rows, SymInt? seq=None, bool causal=False, str placement='contiguous', "
    "float? scale=None, str group='default', str options=''"
)


def _fake(q, k, v, cached_rows, seq=None, causal=False, placement="contiguous", scale=None, group=DEFAULT, options=""):
    batch, rows, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((batch, heads, rows), dtype=torch.float32)


def _call(q, k, v, cached_rows, seq=None, causal=False, placement="contiguous", scale=None, group=DEFAULT, options=""):
    ranks = find(group, q)
    if q.dim() != 4 or k.dim() != 4:
        shapes = f"q has the shape {tuple(q.shape)}, and k {tuple(k.shape)}"
        raise error("operands", f"ring_attention_cached: {shapes}. Pass [batch, rows, heads, head_dim]")
    (batch, rows, heads, head_dim), kv_heads = q.shape, k.shape[2]
    length, parts = (rows * ranks.world if seq is None else seq), 2 if placement == "zigzag" else 1
    room = parts * -(-length // (parts * ranks.world))
    cached = k.shape[1] - room
    if rows > room or cached < 1:
        reason = f"q has {rows} rows of each sequence, and k {k.shape[1]}, but a rank has up to {room} of {length} new rows"
        raise error("operands", f"ring_attention_cached: {reason}. Pass k and v with the cached rows and {room} rows more")
    o, lse = _fake(q, k, v, cached_rows)
    tensors = Tensors(ranks)
    tensors.read("q", q, (batch, rows, heads, head_dim))
    for name, tensor in (("k", k), ("v", v)):
        tensors.read(name, tensor, (batch, cached + room, kv_heads, head_dim))
    tensors.read("cached_rows", cached_rows, (ranks.world, batch))
    tensors.write("o", o, tuple(q.shape))
    tensors.write("lse", lse, (batch, heads, rows))
    tensors.check()
    most = f"..={length}"
    declared = {"batch": batch, "seq": most, "cached": cached, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    dtype = DTYPES.get(str(q.dtype), str(q.dtype))
    declared |= {"dtype": dtype, "causal": causal, "placement": placement, "scale": scale}
    key = ("ring_attention_cached", *declared.items(), options)
    tensors.call(ranks.cached(key, lambda: declaration("ring_attention", declared, options)))
    return o, lse


define(f"ring_attention_cached({_ARGS}) -> (Tensor, Tensor)", _call, _fake)
not_differentiable("ring_attention_cached", "the operator computes the forward pass alone")


def ring_attention_cached(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cached_rows: Tensor,
    *,
    seq: int | None = None,
    causal: bool = False,
    placement: str = "contiguous",
    scale: float | None = None,
    group: str = DEFAULT,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Attend with new rows of sequences to rows that ranks have cached, and to the new rows.

    The operator computes the forward pass alone. It reads the numbers of cached rows on the GPU, so one captured graph serves a cache
    that grows. The new rows of a call may become cached rows of the next call where they are.

    Args:
        q: bf16 or fp16 ``[batch, rows, heads, head_dim]``: the queries of this rank's new rows.
        k: ``[batch, C + R, kv_heads, head_dim]``: in each sequence the cached rows of this rank, up to C, and right behind them the new
            rows. R is ``ceil(seq / W)``, or with ``"zigzag"`` ``2 * ceil(seq / 2W)``. Rows behind the new ones are not read.
        v: Like ``k``: the values.
        cached_rows: int32 ``[W, batch]``: how many cached rows each rank has of each sequence, the same on all ranks.
        seq: The new rows of a sequence over all ranks. The default is W times the rows of ``q``, for W ranks.
        causal: Whether a new row attends to no later new rows. Every new row attends to all cached rows.
        placement: See :func:`ring_attention`, which has the remaining arguments too.

    Returns:
        The output, like ``q``, and the logarithms of the sums of exponentials of the scores, fp32 ``[batch, heads, rows]``.
    """
    text = options_text(options)
    return torch.ops.mkernel.ring_attention_cached(q, k, v, cached_rows, seq, causal, placement, scale, group, text)
