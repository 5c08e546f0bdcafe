"""What definitions of operators in torch's library have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import _groups
from ._errors import error
from ._groups import Group
from ._operators import Operator, declare, dtype_name

LIBRARY = torch.library.Library("mkernel", "FRAGMENT")
"""The operators of ``torch.ops.mkernel``."""


def define(schema: str, function: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Define an operator for tensors on GPUs and on the CPU, and its fake implementation."""
    name = schema.split("(", 1)[0]
    # A transposed weight must not become a copy.
    LIBRARY.define(schema, tags=(torch.Tag.needs_fixed_stride_order,))
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, function, device)
    torch.library.register_fake(f"mkernel::{name}", fake, lib=LIBRARY)


def differentiate(name: str, setup: Callable[..., None], backward: Callable[..., Any]) -> None:
    """Define the backward pass of an operator."""
    torch.library.register_autograd(f"mkernel::{name}", backward, setup_context=setup, lib=LIBRARY)


def not_differentiable(name: str, reason: str) -> None:
    """Let the backward pass of an operator raise an error."""

    def backward(ctx: Any, *_: Any) -> Any:
        raise error("configuration", f"{name} has no backward pass: {reason}")

    differentiate(name, lambda ctx, inputs, output: None, backward)


def find(group: str, tensor: torch.Tensor) -> Group:
    """Return the group of a call with a tensor."""
    device = tensor.device.index if tensor.is_cuda else None
    found = _groups.find(group, device)
    if tensor.is_cuda != (found.device is not None):
        where = "simulated GPUs, which take tensors of the CPU" if found.device is None else f"cuda:{found.device}"
        raise error("operands", f"a tensor is on {tensor.device}, but the group {group!r} has {where}")
    return found


def is_eager(tensor: torch.Tensor) -> bool:
    """Return whether an operator can be called without torch's dispatcher, which takes most of the time of the host.

    Gradients, traces, fake tensors and modes such as that of a profiler of FLOPs need the dispatcher.
    """
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
    )


def bucket(rows: int) -> int:
    """Return the most rows of the operator for a call: a power of two, so that few operators serve all numbers of rows."""
    return 1 << max(0, rows - 1).bit_length()


def own_rows(group: Group, total: Any) -> Any:
    """Return this rank's part of a number of rows, which may be symbolic."""
    if isinstance(total, int):
        return group.rows(total)
    shard = -(-total // group.world)
    return torch.sym_max(0, torch.sym_min(shard, total - group.rank * shard))


def declaration(op: str, options: dict[str, Any], more: str) -> str:
    """Return the declaration of an operator, with the options that the caller wrote."""
    text = declare(op, options)
    return f"{text}, {more}" if more else text


def options_text(options: dict[str, Any]) -> str:
    """Return options as text, as operators of torch take them."""
    return declare("", options).removeprefix('op = "", ') if options else ""


class Tensors:
    """The tensors of a call. All mistakes in the tensors are reported at once."""

    def __init__(self, group: Group) -> None:
        self._device = torch.device("cpu") if group.device is None else torch.device("cuda", group.device)
        self._kept: list[torch.Tensor] = []
        self._tuples: list[tuple[str, int, int, str]] = []
        self._mistakes: list[str] = []

    def read(self, name: str, tensor: torch.Tensor | None, shape: tuple[int, ...]) -> None:
        """Add an operand, a copy if it is not contiguous. An operand that is None is left out."""
        if tensor is not None and self._fits(name, tensor, shape):
            self._add(name, tensor.contiguous())

    def write(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
        """Add a result, which must be contiguous."""
        if not self._fits(name, tensor, shape):
            return
        if not tensor.is_contiguous():
            self._mistakes.append(f"{name}: the strides are {tensor.stride()}. Pass a contiguous tensor")
        self._add(name, tensor)

    def call(self, operator: Operator, rows: int | None = None) -> None:
        """Call an operator with the tensors."""
        operator.call(self._tuples, rows)

    def kinds(self) -> list[tuple[str, int, str]]:
        """Return the name, the number of elements and their type of each tensor."""
        return [(name, elems, dtype) for name, _, elems, dtype in self._tuples]

    def addresses(self) -> list[int]:
        """Return the addresses of the tensors, or of their copies."""
        return [address for _, address, _, _ in self._tuples]

    def mistake(self, text: str) -> None:
        """Add a mistake that the caller has found."""
        self._mistakes.append(text)

    def check(self) -> None:
        """Raise an error with all mistakes so far."""
        if self._mistakes:
            raise error("operands", "\n".join(self._mistakes))

    def _fits(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> bool:
        if tensor.device != self._device:
            self._mistakes.append(f"{name}: it is on {tensor.device}. Use .to({str(self._device)!r})")
        if tuple(tensor.shape) != shape:
            self._mistakes.append(f"{name}: its shape is {tuple(tensor.shape)}, but this call takes {shape}")
        return not self._mistakes

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        self._kept.append(tensor)
        self._tuples.append((name, tensor.data_ptr(), tensor.numel(), dtype_name(tensor)))
