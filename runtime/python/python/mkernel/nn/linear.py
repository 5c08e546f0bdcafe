"""Linear layers whose weights are divided among the ranks of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from .. import ops
from .._errors import error
from .._groups import DEFAULT, find

Tensor = torch.Tensor


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
        sequence_dim: int = 0,
        group: str = DEFAULT,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__()
        shape, self.world = [out_features, in_features], find(group).world
        shape[self.SHARDED] = _share(shape[self.SHARDED], self.world)
        self.in_features, self.out_features = in_features, out_features
        self.sequence_parallel, self.sequence_dim, self.group = sequence_parallel, sequence_dim, group
        self.weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        of_bias = shape[0] if bias else None
        self.bias = None if of_bias is None else torch.nn.Parameter(torch.zeros(of_bias, device=device, dtype=dtype))
        # The whole layer decides on the bounds.
        torch.nn.init.uniform_(self.weight, -(in_features**-0.5), in_features**-0.5)

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, *, group: str = DEFAULT, **options: Any) -> Any:
        """Create the layer with this rank's part of a layer that all ranks have. ``options`` are those of the constructor."""
        return cls.from_linears([linear], group=group, **options)

    @classmethod
    def from_linears(cls, layers: Sequence[torch.nn.Linear], *, group: str = DEFAULT, **options: Any) -> Any:
        """Create one layer with this rank's parts of layers that have the same input, one after the other along the outputs."""
        first, ranks = layers[0], find(group)
        for layer in layers:
            _share((layer.out_features, layer.in_features)[cls.SHARDED], ranks.world)
        options = {"group": group, "device": first.weight.device, "dtype": first.weight.dtype, **options}
        out_features = sum(layer.out_features for layer in layers)
        made = cls(first.in_features, out_features, first.bias is not None, **options)
        with torch.no_grad():
            made.weight.copy_(torch.cat([layer.weight.chunk(ranks.world, cls.SHARDED)[ranks.rank] for layer in layers]))
            if made.bias is not None:
                biases = [layer.bias.chunk(ranks.world)[ranks.rank] if cls.SHARDED == 0 else layer.bias for layer in layers]
                made.bias.copy_(torch.cat(biases))
        return made

    def _rows(self, x: Tensor) -> Tensor:
        """Return the input as rows in the order of the sequence."""
        return x.movedim(self.sequence_dim, 0).flatten(0, -2)

    def _sequence(self, rows: Tensor, x: Tensor) -> Tensor:
        """Return rows in the order of the sequence as an output for the input ``x``."""
        shape = x.movedim(self.sequence_dim, 0).shape[1:-1]
        return rows.unflatten(0, (-1, *shape)).movedim(0, self.sequence_dim)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{sizes}, sequence_parallel={self.sequence_parallel}, group={self.group!r}"


class ColumnParallelLinear(_Linear):
    """A linear layer whose outputs are divided among the ranks: ``weight`` is ``[out_features / W, in_features]``.

    With ``sequence_parallel``, the input is this rank's part along ``sequence_dim``, by default the first dimension:
    ``[rows, ..., in_features]``. The output is ``[W * rows, ..., out_features / W]``: one ``ag_gemm``. Otherwise the input is the
    whole sequence, and the backward pass adds up the ranks' gradients of the input by a ``gemm_ar``.
    """

    SHARDED = 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.sequence_parallel:
            return apply(_Column, x, self.weight, self.bias, self.group)
        return self._sequence(ops.ag_gemm(self._rows(x), self.weight.t(), self.bias, group=self.group), x)


class RowParallelLinear(_Linear):
    """A linear layer whose inputs are divided among the ranks: ``weight`` is ``[out_features, in_features / W]``.

    With ``sequence_parallel``, the input is ``[rows, ..., in_features / W]``, and the output this rank's part along
    ``sequence_dim``, by default the first dimension: ``[rows / W, ..., out_features]``, one ``gemm_rs``. Otherwise every rank gets
    all rows: one ``gemm_ar``. The bias is added once, and its gradient is that of all rows.
    """

    SHARDED = 1

    def forward(self, x: Tensor) -> Tensor:
        if not self.sequence_parallel:
            return apply(_Row, x, self.weight, self.bias, self.group)
        rows = x.shape[self.sequence_dim]
        if rows % self.world:
            reason = f"x has {rows} rows, which {self.world} ranks cannot share. Pad dimension {self.sequence_dim}"
            raise error("operands", reason)
        bias = None if self.bias is None else apply(_SumOfGradients, self.bias, self.group)
        return self._sequence(ops.gemm_rs(self._rows(x), self.weight.t(), bias, group=self.group), x)


def apply(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    """Apply a function. Without gradients its forward pass alone is called, which saves most of the time of the host."""
    return function.apply(*args) if torch.is_grad_enabled() else function.forward(*args)


class _Product(torch.autograd.Function):
    """The base of both products: what their backward passes need."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, ctx.group = inputs
        ctx.save_for_backward(x, weight)


class OfGroup(torch.autograd.Function):
    """The base of functions of a tensor and the name of a group, whose backward passes need the group alone."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.group = inputs


class _Column(_Product):
    """A product of an input that all ranks have. The gradient of the input is summed over the ranks."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, group: str) -> Tensor:
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        of_x = ops.gemm_ar(rows, weight, group=ctx.group).view(x.shape) if ctx.needs_input_grad[0] else None
        return of_x, *_of_parameters(ctx, rows, x), None


class _Row(_Product):
    """The sum of the ranks' products. Every rank gets all rows, and the gradients of the rows are equal on all ranks."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, group: str) -> Tensor:
        y = ops.gemm_ar(x.flatten(0, -2), weight.t(), bias, group=group)
        return y.view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = grad @ weight if ctx.needs_input_grad[0] else None
        return of_x, *_of_parameters(ctx, grad.flatten(0, -2), x), None


class _SumOfGradients(OfGroup):
    """A parameter that all ranks have. Each rank uses it for its own rows, so its gradient is summed over the ranks."""

    @staticmethod
    def forward(parameter: Tensor, group: str) -> Tensor:
        return parameter.view_as(parameter)

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
