"""``ring_attention``."""

from __future__ import annotations

from typing import Any

import torch

from ._define import Tensors, bucket, declaration, define, find, not_differentiable, options_text
from ._errors import error
from ._groups import DEFAULT
from ._operators import DTYPES

Tensor = torch.Tensor

_ARGS = (
    "Tensor q, Tensor k, Tensor v, SymInt? seq=None, bool causal=False, str placement='contiguous', float? scale=None, "
    "str group='default', str options=''"
)


def _fake(q, k, v, seq=None, causal=False, placement="contiguous", scale=None, group=DEFAULT, options=""):
    batch, rows, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((batch, heads, rows), dtype=torch.float32)


def _call(q, k, v, seq=None, causal=False, placement="contiguous", scale=None, group=DEFAULT, options=""):
    ranks = find(group, q)
    if q.dim() != 4 or k.dim() != 4:
        shapes = f"q has the shape {tuple(q.shape)}, and k {tuple(k.shape)}"
        raise error("operands", f"ring_attention: {shapes}. Pass [batch, rows, heads, head_dim]")
    batch, rows, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    length = rows * ranks.world if seq is None else seq
    o, lse = _fake(q, k, v)
    tensors = Tensors(ranks)
    tensors.read("q", q, tuple(q.shape))
    for name, tensor in (("k", k), ("v", v)):
        tensors.read(name, tensor, (batch, rows, kv_heads, head_dim))
    tensors.write("o", o, tuple(q.shape))
    tensors.write("lse", lse, (batch, heads, rows))
    tensors.check()
    most = bucket(length)
    of_call = {"causal": causal, "placement": placement, "scale": scale}
    sizes = {"batch": batch, "seq": f"..={most}", "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    dtype = DTYPES.get(str(q.dtype), str(q.dtype))
    key = ("ring_attention", *sizes.values(), dtype, *of_call.values(), options)
    operator = ranks.cached(key, lambda: declaration("ring_attention", sizes | {"dtype": dtype} | of_call, options))
    wanted = next(operand.rows for operand in operator.operands(length) if operand.name == "lse") // (batch * heads or 1)
    if wanted != rows:
        reason = f"q has {rows} rows of each sequence, but rank {ranks.rank} has {wanted} of the {length} rows"
        raise error("operands", f"ring_attention: {reason} with placement = {placement!r}. Pass these, or another seq")
    tensors.call(operator, length)
    return o, lse


define(f"ring_attention({_ARGS}) -> (Tensor, Tensor)", _call, _fake)
not_differentiable("ring_attention", "the operator computes the forward pass alone")


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    seq: int | None = None,
    causal: bool = False,
    placement: str = "contiguous",
    scale: float | None = None,
    group: str = DEFAULT,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Attend to a sequence that is divided among the ranks, exactly: context parallelism.

    The operator computes the forward pass alone.

    Args:
        q: bf16 or fp16 ``[batch, rows, heads, head_dim]``: the queries of this rank's rows. ``head_dim`` is 64 or 128.
        k: The same with ``kv_heads`` heads, a divisor of ``heads``: the keys of the same rows.
        v: Like ``k``: the values.
        seq: The rows of a sequence over all ranks. The default is W times the rows of ``q``, for W ranks.
        causal: Whether a row attends to no later rows.
        placement: The rows of the sequence that a rank has: ``"contiguous"`` or ``"zigzag"``. With a mask, only ``"zigzag"``
            gives all ranks equal work.
        scale: The factor by which scores are multiplied before the softmax. The default is 1/√head_dim.
        group: The name of the group.
        options: Options of the operator, such as ``kv_slots=4``.

    Returns:
        The output, like ``q``, and the logarithms of the sums of exponentials of the scores, fp32 ``[batch, heads, rows]``.
    """
    text = options_text(options)
    return torch.ops.mkernel.ring_attention(q, k, v, seq, causal, placement, scale, group, text)
