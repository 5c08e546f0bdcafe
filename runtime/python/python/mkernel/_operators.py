"""Operators that are prepared for some sizes, and called with tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _native
from ._errors import error

if TYPE_CHECKING:
    import torch

    from ._groups import Group

DTYPES = {
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float8_e4m3fn": "e4m3",
    "torch.float32": "fp32",
    "torch.int32": "int32",
}
"""Names of types of elements, by the names of torch's types."""

_OF_TORCH: dict[Any, str] = {}


class Operand(NamedTuple):
    """An operand of an operator: its rows and columns on this rank."""

    name: str
    rows: int
    cols: int
    dtype: str
    written: bool


class Operator:
    """An operator that :meth:`Group.prepare` has prepared. Call it with a tensor for each operand, by name::

        up = group.prepare("ag_gemm", m=4096, n=1024, k=8192, b_layout="nk")
        up(a=x, b=weight, c=y)

    Tensors are contiguous, and lie on the GPU of the group, or on the CPU if the GPU is simulated. A call is enqueued on torch's
    current stream and returns at once, or is captured into a graph. On a simulated GPU, the call waits for its end.
    """

    __slots__ = ("_group", "_native", "_rows", "_where")

    def __init__(self, group: Group, native: _native.Operator) -> None:
        self._group = group
        self._native = native
        self._rows = native.max_rows
        self._where = "cpu" if group.device is None else f"cuda:{group.device}"

    @property
    def id(self) -> str:
        """The name of the kernel."""
        return self._native.id

    @property
    def max_rows(self) -> int | None:
        """The most rows of a call, or None if calls do not give rows."""
        return self._rows

    def operands(self, rows: int | None = None) -> list[Operand]:
        """Return the operands of a call with ``rows`` rows, by default the most."""
        return [Operand(*operand) for operand in self._native.operands(rows)]

    def __call__(self, *, rows: int | torch.Tensor | None = None, **tensors: torch.Tensor | None) -> None:
        """Call the operator.

        Args:
            rows: The number of rows of this call, of an operator that was prepared with a size such as ``m="..=4096"``. An
                int32 tensor is read when the kernel starts, also by each replay of a graph.
            tensors: The operands, by name. An operand that is None is left out.

        Raises:
            Error: Of kind ``"operands"``, with all mistakes, or of the kind of an earlier failure.
        """
        given = [(name, tensor) for name, tensor in tensors.items() if tensor is not None]
        if rows is None or isinstance(rows, int):
            self.call(self._tuples(given), rows)
        else:
            self._check([("rows", rows)])
            self.call(self._tuples(given), None, rows.data_ptr())

    def bind(self, **tensors: torch.Tensor) -> Callable[..., None]:
        """Check tensors once, and return a function that calls the operator with them, with less work on the host.

        The function takes the number of rows, if calls give rows. It keeps the tensors alive.
        """
        given = list(tensors.items())
        tuples = self._tuples(given)

        def call(rows: int | None = None, *, _kept: object = given) -> None:
            self._native.call(self._group.stream(), tuples, rows)

        return call

    def _tuples(self, tensors: list[tuple[str, torch.Tensor]]) -> list[tuple[str, int, int, str]]:
        self._check(tensors)
        return [(name, tensor.data_ptr(), tensor.numel(), dtype_name(tensor)) for name, tensor in tensors]

    def call(self, tensors: list[tuple[str, int, int, str]], rows: int | None = None, rows_at: int | None = None) -> None:
        """Call the operator with tensors that were checked: name, address, number of elements, type of elements."""
        self._native.call(self._group.stream(), tensors, rows, rows_at)

    def _check(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        """Check devices and strides, which the native module does not see."""
        mistakes = []
        for name, tensor in tensors:
            if str(tensor.device) != self._where:
                mistakes.append(
                    f"operand {name}: it is on {tensor.device}, and the group on {self._where}. Use .to({self._where!r})"
                )
            if not tensor.is_contiguous():
                shape, strides = tuple(tensor.shape), tensor.stride()
                mistakes.append(f"operand {name}: its shape is {shape} and its strides are {strides}. Call .contiguous()")
            if name == "rows" and str(tensor.dtype) != "torch.int32":
                mistakes.append(f"operand rows: its elements are {tensor.dtype}. Use torch.int32")
        if mistakes:
            raise error("operands", "\n".join(mistakes))

    def __repr__(self) -> str:
        return repr(self._native)


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the name of the type of a tensor's elements, or torch's own if operators do not have the type."""
    dtype = tensor.dtype
    name = _OF_TORCH.get(dtype)
    if name is None:
        name = _OF_TORCH[dtype] = DTYPES.get(str(dtype), str(dtype))
    return name


def declare(op: str, options: dict[str, Any]) -> str:
    """Return the declaration of an operator, as the attribute ``fused_kernel`` has it."""
    given = {"op": op, **options}
    return ", ".join(f"{name} = {_value(value)}" for name, value in given.items() if value is not None)


def _value(value: Any) -> str:
    # torch.compile traces this, and no function of the module json.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    text = value if isinstance(value, str) else DTYPES.get(str(value), str(value))
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
