"""Decoder layers of transformers whose row-parallel products also add the residual and normalise the rows of the sum."""

from __future__ import annotations

import functools
from typing import Any

import torch

from .._gemm_norms import gemm_ar_rms_norm
from .linear import RowParallelLinear

Tensor = torch.Tensor

_MOST_ROWS = 1024
"""The most rows of a call whose products take in norms. With more rows, the parts of sums would take gigabytes."""

_LAYERS = {f"{kind}DecoderLayer" for kind in ("Llama", "Mistral", "Qwen2", "Qwen3", "Qwen3Moe")}
"""Classes of decoder layers whose blocks are a norm, attention or an MLP, and a sum."""


class BlockEnd(RowParallelLinear):
    """The last layer of a block. Its product adds the residual and normalises the sum, if the decoder layer asks for both."""

    _pending: tuple[Tensor, Any] | None = None
    _sum: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self._pending is None:
            return super().forward(x)
        residual, norm = self._pending
        normalised, added = gemm_ar_rms_norm(
            x.flatten(0, -2),
            self.weight.t(),
            residual.flatten(0, -2),
            norm.weight,
            self.bias,
            norm.variance_epsilon,
            group=self.group,
        )
        self._sum = added.view(residual.shape)
        return normalised.view(residual.shape)

    def run(self, block: Any, residual: Tensor, norm: Any) -> tuple[Any, Tensor]:
        """Run the block that ends with this layer. Return the normalised output of the block, and the sum that was normalised."""
        self._pending = residual, norm
        try:
            normalised = block()
        finally:
            self._pending = None
        added, self._sum = self._sum, None
        return normalised, added


def fuse_norms(layers: Any, last: Any) -> None:
    """Let the blocks of decoder layers end with the norm of the next block, in calls without gradients.

    Args:
        layers: The decoder layers. Only layers of known classes are changed.
        last: The norm behind the last layer.
    """
    followers = [*(layer.input_layernorm for layer in layers[1:]), last]
    for layer, follower in zip(layers, followers, strict=True):
        if type(layer).__name__ in _LAYERS:
            layer.forward = functools.partial(_forward, layer, follower)
            follower.forward = functools.partial(_normalise, follower)


def _forward(layer: Any, follower: Any, hidden_states: Tensor, **kwargs: Any) -> Tensor:
    """Run a decoder layer, as the layer's own class does."""
    attention, mlp, norm = layer.self_attn, layer.mlp, layer.post_attention_layernorm
    of_attention, of_mlp = attention.o_proj, getattr(mlp, "down_proj", None)
    is_few = 0 < hidden_states.shape[:-1].numel() <= _MOST_ROWS
    # A product and the norm behind it have one type of elements.
    has_type = norm.weight.dtype == follower.weight.dtype == hidden_states.dtype
    if torch.is_grad_enabled() or not (is_few and has_type) or not _can_end(of_attention, attention, norm):
        return type(layer).forward(layer, hidden_states, **kwargs)
    states = layer.input_layernorm(hidden_states)
    (states, _), residual = of_attention.run(lambda: attention(hidden_states=states, **kwargs), hidden_states, norm)
    if not _can_end(of_mlp, mlp, layer) or follower._forward_pre_hooks:
        return residual + mlp(states)
    states, output = of_mlp.run(lambda: mlp(states), residual, follower)
    follower.known = output, states
    return output


def _can_end(end: Any, *others: Any) -> bool:
    """Return whether a product can take in a norm: no hook sees or changes what lies between."""
    return isinstance(end, BlockEnd) and not any(module._forward_hooks for module in (end, *others))


def _normalise(norm: Any, hidden_states: Tensor) -> Tensor:
    """Normalise rows, unless the product that made the rows has normalised them."""
    known, norm.known = getattr(norm, "known", None), None
    if known is not None and known[0] is hidden_states:
        return known[1]
    return type(norm).forward(norm, hidden_states)
