"""Experts that are divided among the ranks of a group: expert parallelism."""

from __future__ import annotations

import torch
from torch.nn import functional

from .. import _define, ops
from .._errors import error
from .._groups import DEFAULT, find

Tensor = torch.Tensor


class Experts(torch.nn.Module):
    """The experts of a layer: ``down(silu(gate) * up)``, for tokens that a router has given to experts.

    Of E experts, rank r of W has the experts r·E/W and following. On one host, a call is one launch of ``moe_layer``. On several
    hosts, tokens travel to the ranks of their experts by ``dispatch_gemm``, which computes the gate and up projections too, and
    return by ``combine``.

    Args:
        gate_up: ``[E/W, 2 * intermediate, hidden]``: the gate and up projections of this rank's experts.
        down: ``[E/W, hidden, intermediate]``.
        replicated: Whether every rank passes the same tokens and gets all results. Otherwise the tokens of each rank are its own,
            and all ranks pass equally many.
    """

    def __init__(self, gate_up: Tensor, down: Tensor, *, replicated: bool = False, group: str = DEFAULT) -> None:
        super().__init__()
        local, columns, hidden = gate_up.shape
        if columns % 2 or tuple(down.shape) != (local, hidden, columns // 2):
            shapes = f"gate_up has the shape {tuple(gate_up.shape)}, and down {tuple(down.shape)}"
            raise error("operands", f"{shapes}. Pass [experts, 2 * I, H] and [experts, H, I]")
        self.gate_up, self.down = torch.nn.Parameter(gate_up, False), torch.nn.Parameter(down, False)
        self.replicated, self.group = replicated, group
        ranks = find(group)
        self.experts, self.hosts = local * ranks.world, ranks.hosts

    @classmethod
    def from_whole(cls, gate_up: Tensor, down: Tensor, *, replicated: bool = False, group: str = DEFAULT) -> Experts:
        """Create the module with this rank's part of the weights of all experts, which all ranks have."""
        ranks, experts = find(group), gate_up.shape[0]
        if experts % ranks.world:
            raise error("configuration", f"{ranks.world} ranks cannot share {experts} experts")
        own = experts // ranks.world
        part = slice(ranks.rank * own, (ranks.rank + 1) * own)
        return cls(gate_up[part].detach().clone(), down[part].detach().clone(), replicated=replicated, group=group)

    def forward(self, tokens: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tensor:
        """Return the sum of the experts' outputs for each token, weighted by the router.

        Args:
            tokens: ``[T, hidden]``, bf16 or fp16.
            topk_ids: ``[T, top_k]``, of any integer type: the experts of each token, none twice.
            topk_weights: ``[T, top_k]``: the router's weights.

        Returns:
            ``[T, hidden]``.
        """
        if torch.is_grad_enabled() and (tokens.requires_grad or topk_weights.requires_grad):
            raise error("configuration", "Experts have no backward pass. Call them under torch.no_grad()")
        ids, weights = topk_ids.int(), topk_weights.float()
        if not self.replicated:
            return self._own(tokens, ids, weights, None)
        ranks, total = _define.find(self.group, tokens), tokens.shape[0]
        shard, own = -(-total // ranks.world), ranks.rows(total)
        count = torch.full((1,), own, dtype=torch.int32, device=tokens.device)
        parts = [_part(tensor, ranks.rank * shard, own, shard) for tensor in (tokens, ids, weights)]
        return ops.all_gather(self._own(*parts, count)[:own], rows=total, group=self.group)

    def _own(self, tokens: Tensor, ids: Tensor, weights: Tensor, count: Tensor | None) -> Tensor:
        """Return the sums of this rank's tokens."""
        gate_up, down = self.gate_up.transpose(1, 2), self.down.transpose(1, 2)
        if self.hosts == 1:
            return ops.moe_layer(tokens, ids, weights, gate_up, down, num_tokens=count, group=self.group)
        hidden, offsets, indices = ops.dispatch_gemm(tokens, ids, gate_up, num_tokens=count, swiglu=True, group=self.group)
        # Rows behind those of the last expert are undefined, before and after.
        rows = torch._grouped_mm(hidden, down, offs=offsets[1:])
        return ops.combine(rows, indices, weights, self.experts, num_tokens=count, group=self.group)


def _part(tensor: Tensor, first: int, rows: int, padded: int) -> Tensor:
    """Return some rows, padded with zeros."""
    return functional.pad(tensor[first : first + rows], (0, 0, 0, padded - rows))
