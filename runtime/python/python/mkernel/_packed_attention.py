"""``ring_attention`` of packed sequences."""

from __future__ import annotations

from typing import Any

import torch

from ._define import Tensors, declaration, define, find, not_differentiable, options_text
from ._errors import error
from ._groups import DEFAULT
from ._operators import dtype_name

Tensor = torch.Tensor

_ARGS = (
    "Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, SymInt seq, bool causal=False, str placement='contiguous', "
    "float? scale=None, str group='default', str options=''"
)


def _fake(q, k, v, cu_seqlens, seq, causal=False, placement="contiguous", scale=None, group=DEFAULT, options=""):
    return q.new_empty(q.shape), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


def _call(q, k, v, cu_seqlens, seq, causal=False, placement="contiguous", scale=None, group=DEFAULT, options=""):
    ranks = find(group, q)
    if q.dim() != 3 or k.dim() != 3 or cu_seqlens.dim() != 1:
        shapes = f"q has the shape {tuple(q.shape)}, k {tuple(k.shape)}, and cu_seqlens {tuple(cu_seqlens.shape)}"
        raise error("operands", f"ring_attention_packed: {shapes}. Pass [rows, heads, head_dim], and the offsets")
    (rows, heads, head_dim), kv_heads = q.shape, k.shape[1]
    o, lse = _fake(q, k, v, cu_seqlens, seq)
    tensors = Tensors(ranks)
    tensors.read("q", q, (rows, heads, head_dim))
    for name, tensor in (("k", k), ("v", v)):
        tensors.read(name, tensor, (rows, kv_heads, head_dim))
    tensors.read("cu_seqlens", cu_seqlens, tuple(cu_seqlens.shape))
    tensors.write("o", o, tuple(q.shape))
    tensors.write("lse", lse, (heads, rows))
    tensors.check()
    dtype = dtype_name(q)
    declared = {"batch": cu_seqlens.shape[0] - 1, "seq": seq, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    declared |= {"packed": True, "dtype": dtype, "causal": causal, "placement": placement, "scale": scale}
    key = ("ring_attention_packed", *declared.items(), options)
    operator = ranks.cached(key, lambda: declaration("ring_attention", declared, options))
    wanted = next(operand.rows for operand in operator.operands() if operand.name == "lse") // heads
    if wanted != rows:
        reason = f"q has {rows} rows, but a rank has room for {wanted} of {seq} rows in {cu_seqlens.shape[0] - 1} sequences"
        raise error("operands", f"ring_attention_packed: {reason} with placement = {placement!r}. Pad q, k and v")
    tensors.call(operator)
    return o, lse


define(f"ring_attention_packed({_ARGS}) -> (Tensor, Tensor)", _call, _fake)
not_differentiable("ring_attention_packed", "the operator computes the forward pass alone")


def ring_attention_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    *,
    seq: int,
    causal: bool = False,
    placement: str = "contiguous",
    scale: float | None = None,
    group: str = DEFAULT,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Attend to sequences of different lengths, each of which is divided among the ranks as if it were alone.

    The operator computes the forward pass alone. It reads the offsets on the GPU, so one captured graph serves all lengths.

    Args:
        q: bf16 or fp16 ``[R, heads, head_dim]``: the queries of this rank's rows, a sequence after the other. With C chunks of a
            sequence, W or with ``"zigzag"`` 2W, and B sequences, R is ``(seq + B * (C - 1)) // C`` for each chunk of a rank.
            Rows behind those of a call are neither read nor written.
        k: The same with ``kv_heads`` heads: the keys of the same rows.
        v: Like ``k``: the values.
        cu_seqlens: int32 ``[B + 1]``: sequence i has the rows ``cu_seqlens[i]`` up to, but without, ``cu_seqlens[i + 1]``,
            counted over all ranks. A call with fewer sequences repeats the last offset.
        seq: The most rows that all sequences of a call together may have.
        causal: Whether a row attends to no later rows.
        placement: See :func:`ring_attention`, which has the remaining arguments too.

    Returns:
        The output, like ``q``, and the logarithms of the sums of exponentials of the scores, fp32 ``[heads, R]``.
    """
    text = options_text(options)
    return torch.ops.mkernel.ring_attention_packed(q, k, v, cu_seqlens, seq, causal, placement, scale, group, text)
