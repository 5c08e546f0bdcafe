"""Linear layers whose weights are divided among the ranks of a group: tensor parallelism.

A block of a transformer has a :class:`ColumnParallelLinear` first and a :class:`RowParallelLinear` last. With
``sequence_parallel``, ranks have parts of the sequence outside of the block. Otherwise, every rank has the whole sequence, and
its gradients are equal on all ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from . import ops
from ._errors import error
from ._groups import DEFAULT, find

Tensor = torch.Tensor

__all__ = ["ColumnParallelLinear", "RowParallelLinear"]


class _Linear(torch.nn.Module):
    """The base of both layers: a part of the weight, and perhaps a bias."""

    SHARDED: int
    """The dimension of the weight that is divided among the ranks."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        sequence_parallel: bool = False,
        group: str = DEFAULT,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__()
        shape, self.world = [out_features, in_features], find(group).world
        shape[self.SHARDED] = _share(shape[self.SHARDED], self.world)
        self.in_features, self.out_features = in_features, out_features
        self.sequence_parallel, self.group = sequence_parallel, group
        self.weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        of_bias = shape[0] if bias else None
        self.bias = None if of_bias is None else torch.nn.Parameter(torch.zeros(of_bias, device=device, dtype=dtype))
        # The whole layer decides on the bounds.
        torch.nn.init.uniform_(self.weight, -(in_features**-0.5), in_features**-0.5)

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, *, sequence_parallel: bool = False, group: str = DEFAULT) -> Any:
        """Create the layer with this rank's part of a layer that all ranks have."""
        weight, ranks = linear.weight, find(group)
        made = cls(
            linear.in_features,
            linear.out_features,
            linear.bias is not None,
            sequence_parallel=sequence_parallel,
            group=group,
            device=weight.device,
            dtype=weight.dtype,
        )
        with torch.no_grad():
            made.weight.copy_(weight.chunk(ranks.world, cls.SHARDED)[ranks.rank])
            if made.bias is not None:
                bias = linear.bias
                made.bias.copy_(bias.chunk(ranks.world)[ranks.rank] if cls.SHARDED == 0 else bias)
        return made

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{sizes}, sequence_parallel={self.sequence_parallel}, group={self.group!r}"


class ColumnParallelLinear(_Linear):
    """A linear layer whose outputs are divided among the ranks: ``weight`` is ``[out_features / W, in_features]``.

    With ``sequence_parallel``, the input is this rank's part along the first dimension, ``[rows, ..., in_features]``, and the output
    ``[W * rows, ..., out_features / W]``: one ``ag_gemm``. Otherwise the input is the whole sequence, and the backward pass
    adds up the ranks' gradients of the input by a ``gemm_ar``.
    """

    SHARDED = 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.sequence_parallel:
            return _Column.apply(x, self.weight, self.bias, self.group)
        y = ops.ag_gemm(x.flatten(0, -2), self.weight.t(), self.bias, group=self.group)
        return y.unflatten(0, (-1, *x.shape[1:-1]))


class RowParallelLinear(_Linear):
    """A linear layer whose inputs are divided among the ranks: ``weight`` is ``[out_features, in_features / W]``.

    With ``sequence_parallel``, the input is ``[rows, ..., in_features / W]``, and the output this rank's part along the first
    dimension, ``[rows / W, ..., out_features]``: one ``gemm_rs``. Otherwise every rank gets all rows: one ``gemm_ar``. The bias is
    added once, and its gradient is that of all rows.
    """

    SHARDED = 1

    def forward(self, x: Tensor) -> Tensor:
        if not self.sequence_parallel:
            return _Row.apply(x, self.weight, self.bias, self.group)
        if x.shape[0] % self.world:
            reason = f"x has {x.shape[0]} rows, which {self.world} ranks cannot share. Pad the first dimension"
            raise error("operands", reason)
        bias = None if self.bias is None else _SumOfGradients.apply(self.bias, self.group)
        y = ops.gemm_rs(x.flatten(0, -2), self.weight.t(), bias, group=self.group)
        return y.unflatten(0, (-1, *x.shape[1:-1]))


class _Column(torch.autograd.Function):
    """A product of an input that all ranks have. The gradient of the input is summed over the ranks."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, group: str) -> Tensor:
        return functional.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, ctx.group = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        of_x = ops.gemm_ar(rows, weight, group=ctx.group).view(x.shape) if ctx.needs_input_grad[0] else None
        return of_x, *_of_parameters(ctx, rows, x), None


class _Row(torch.autograd.Function):
    """The sum of the ranks' products. Every rank gets all rows, and the gradients of the rows are equal on all ranks."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, group: str) -> Tensor:
        y = ops.gemm_ar(x.flatten(0, -2), weight.t(), bias, group=group)
        return y.view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, ctx.group = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = grad @ weight if ctx.needs_input_grad[0] else None
        return of_x, *_of_parameters(ctx, grad.flatten(0, -2), x), None


class _SumOfGradients(torch.autograd.Function):
    """A parameter that all ranks have. Each rank uses it for its own rows, so its gradient is summed over the ranks."""

    @staticmethod
    def forward(parameter: Tensor, group: str) -> Tensor:
        return parameter.view_as(parameter)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.group = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ops.all_reduce(grad, group=ctx.group), None


def _of_parameters(ctx: Any, rows: Tensor, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of the weight and the bias."""
    of_weight = rows.t() @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None
    return of_weight, rows.sum(0) if ctx.needs_input_grad[2] else None


def _share(features: int, world: int) -> int:
    if features % world:
        raise error("configuration", f"{world} ranks cannot share {features} features. Pad them")
    return features // world
