"""``ag_gemm``, ``gemm_rs``, ``gemm_ar`` and ``gemm``."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch

from ._collectives import all_gather, all_reduce
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
from ._scales import E4M3, Factor, blocks, check_layout, read_scales, result_dtype

Tensor = torch.Tensor

_ARGS = (
    "Tensor a, Tensor b, Tensor? bias=None, Tensor? residual=None, str activation='none', SymInt? rows=None, "
    "ScalarType? out_dtype=None, str group='default', str options='', Tensor? a_scales=None, Tensor? b_scales=None"
)
_OUT_ARGS = _ARGS + ", *, Tensor(a!) out"
_E4M3_ARGS = _ARGS.replace("ScalarType? out_dtype=None, ", "")

_COUNT = 11
"""How many arguments an operator has."""


def sizes_of(op: str, group: Group, a: Tensor, b: Tensor, rows: Any) -> tuple[Any, Any, Any]:
    """Return the rows over all ranks, and the rows that this rank has of A and C."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        shapes = f"a has the shape {tuple(a.shape)}, and b {tuple(b.shape)}"
        raise error("operands", f"{op}: {shapes}. Pass a [rows, K] and b [K, N]; the weight of a linear layer is b.t()")
    if op == "ag_gemm":
        total = a.shape[0] * group.world if rows is None else rows
        return total, own_rows(group, total), total
    total = a.shape[0] if rows is None else rows
    return total, total, own_rows(group, total) if op == "gemm_rs" else total


def _cols(b: Tensor, activation: str) -> Any:
    """Return the columns of C. With SwiGLU, b has those of the gate, and then those of up."""
    return b.shape[1] // 2 if activation == "swiglu" else b.shape[1]


def _fake(op: str) -> Any:
    def fake(a, b, bias=None, residual=None, activation="none", rows=None, out_dtype=None, group=DEFAULT, *_):
        _, _, own = sizes_of(op, find(group, a), a, b, rows)
        return a.new_empty((own, _cols(b, activation)), dtype=out_dtype or result_dtype(a.dtype))

    return fake


def _call(
    op: str,
    out: Tensor | None,
    a,
    b,
    bias=None,
    residual=None,
    activation="none",
    rows=None,
    out_dtype=None,
    group=DEFAULT,
    options="",
    a_scales=None,
    b_scales=None,
    of_result: Tensor | None = None,
) -> Tensor:
    """Call the operator. With ``of_result``, ``out`` is e4m3, and its scales are written there."""
    ranks = find(group, a)
    is_plain = (
        out is None and bias is None and residual is None and a.is_contiguous() and (a_scales is None) == (b_scales is None)
    )
    made, scales = None, ()
    if is_plain:
        made = (op, a.shape, b.shape, b.stride(), a.dtype, b.dtype, b.device, activation, rows, out_dtype, options)
        if a_scales is not None:
            made, scales = (*made, *_layout(a_scales), *_layout(b_scales)), (a_scales, b_scales)
        known = ranks.recall(made)
        if known is not None:
            return _repeat(known, a, b, scales)
    total, rows_of_a, rows_of_c = sizes_of(op, ranks, a, b, rows)
    (k, cols_of_b), n = b.shape, _cols(b, activation)
    is_kn = b.is_contiguous()
    weight = b if is_kn else b.t()
    output = out_dtype or (result_dtype(a.dtype) if out is None else out.dtype)
    result = a.new_empty((rows_of_c, n), dtype=output) if out is None else out
    tensors = Tensors(ranks)
    tensors.read("a", a, (rows_of_a, k))
    tensors.read("b", weight, (k, cols_of_b) if is_kn else (cols_of_b, k))
    tensors.read("bias", bias, (cols_of_b,))
    tensors.read("residual", residual, (rows_of_c, n))
    check_layout(tensors, "b", b, is_kn)
    kind_of_scales = read_scales(
        tensors,
        Factor("a_scales", a, a_scales, is_right=False),
        Factor("b_scales", b, b_scales, is_gated=activation == "swiglu"),
    )
    tensors.write("c", result, (rows_of_c, n))
    result_scales = None
    if of_result is not None:
        output, result_scales = result_dtype(a.dtype), "block"
        tensors.write("c_scales", of_result, (rows_of_c, blocks(n)))
    tensors.check()
    most = bucket(total)
    adds = (bias is not None, residual is not None)
    key = (op, most, n, k, a.dtype, output, is_kn, adds, activation, kind_of_scales, result_scales, options)

    def declared() -> str:
        sizes = {"m": f"..={most}", "n": n, "k": k, "b_layout": "kn" if is_kn else "nk", "buckets": 1}
        epilogue = {"bias": adds[0] or None, "residual": adds[1] or None}
        epilogue |= {"swiglu": True} if activation == "swiglu" else {"activation": activation}
        types = {"dtype": _name(a.dtype), "output": None if output == result_dtype(a.dtype) else _name(output)}
        types |= {"scales": kind_of_scales, "result_scales": result_scales}
        return declaration(op, sizes | types | epilogue, options)

    operator = ranks.cached(key, declared)
    tensors.call(operator, total)
    if is_plain and tensors.addresses()[:-1] == [tensor.data_ptr() for tensor in (a, b, *scales)]:
        ranks.remember(made, key, (operator, total, (rows_of_c, n), output, tensors.kinds()))
    return result


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _repeat(known: tuple[Any, ...], a: Tensor, b: Tensor, scales: tuple[Tensor, ...]) -> Tensor:
    """Repeat a call without checks, for tensors of the shapes, strides and types of an earlier call, which were not copied."""
    operator, total, shape, output, kinds = known
    (_, of_a, type_a), (_, of_b, type_b), (_, of_c, type_c) = kinds[0], kinds[1], kinds[-1]
    c = a.new_empty(shape, dtype=output)
    tensors = [
        ("a", a.data_ptr(), of_a, type_a),
        ("b", b.data_ptr(), of_b, type_b),
        ("c", c.data_ptr(), of_c, type_c),
    ]
    if scales:
        for tensor, (name, elems, dtype) in zip(scales, kinds[2:-1], strict=True):
            tensors.append((name, tensor.data_ptr(), elems, dtype))
    operator.call(tensors, total)
    return c


def _name(dtype: torch.dtype) -> str:
    return DTYPES.get(str(dtype), str(dtype))


def _fake_e4m3(op: str) -> Any:
    def fake(a, b, bias=None, residual=None, activation="none", rows=None, group=DEFAULT, *_):
        c = _fake(op)(a, b, bias, residual, activation, rows, E4M3, group)
        return c, a.new_empty((c.shape[0], blocks(c.shape[1])), dtype=torch.float32)

    return fake


def _call_e4m3(
    op: str, a, b, bias=None, residual=None, activation="none", rows=None, group=DEFAULT, *args
) -> tuple[Tensor, Tensor]:
    c, of_c = _fake_e4m3(op)(a, b, bias, residual, activation, rows, group)
    options, a_scales, b_scales = (*args, *("", None, None)[len(args) :])
    _call(op, c, a, b, bias, residual, activation, rows, None, group, options, a_scales, b_scales, of_c)
    return c, of_c


def _define(op: str) -> None:
    def function(a, b, *args, **kwargs):
        return _call(op, None, a, b, *args, **kwargs)

    def into(a, b, *args, out, **kwargs):
        _call(op, out, a, b, *args, **kwargs)

    define(f"{op}({_ARGS}) -> Tensor", function, _fake(op))
    define(f"{op}_out({_OUT_ARGS}) -> ()", into, lambda *args, out, **kwargs: None)


def _define_e4m3(op: str) -> None:
    """Define the operator whose results are e4m3."""
    define(f"{op}_e4m3({_E4M3_ARGS}) -> (Tensor, Tensor)", lambda a, b, *args: _call_e4m3(op, a, b, *args), _fake_e4m3(op))
    not_differentiable(f"{op}_e4m3", f"use {op}, and quantise its result by torch")


_OPS = ("ag_gemm", "gemm_rs", "gemm_ar", "gemm")
for _op in _OPS:
    _define(_op)
for _op in ("ag_gemm", "gemm"):
    _define_e4m3(_op)

# Looking up an overload takes a large part of the time of a call.
_OVERLOADS = {name: getattr(torch.ops.mkernel, name).default for op in _OPS for name in (op, f"{op}_out")}


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, _, residual, activation, _, _, group, *_ = inputs
    ctx.save_for_backward(a, b)
    ctx.group, ctx.activation = group, activation
    ctx.has_residual = residual is not None


def _needs(ctx: Any, index: int) -> bool:
    """Return whether an argument needs a gradient. torch leaves out arguments that have their default values."""
    return ctx.needs_input_grad[index : index + 1] == (True,)


def _backward(op: str, gradients: Any) -> Any:
    """Return the backward pass of an operator, for which ``gradients`` computes the gradients of A and B."""

    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        a, b = ctx.saved_tensors
        if a.dtype == E4M3:
            reason = f"{op} of torch.float8_e4m3fn has no backward pass. Train with bf16, or call it under torch.no_grad()"
            raise error("configuration", reason)
        if ctx.activation != "none":
            reason = f"{op} with activation = {ctx.activation!r} has no backward pass. Apply the activation by torch"
            raise error("configuration", reason)
        if op == "gemm_ar" and ctx.has_residual and _needs(ctx, 3):
            raise error("configuration", "gemm_ar has no gradient of its residual. Add the residual by torch")
        grad = grad.to(b.dtype).contiguous()
        of_a, of_b = gradients(grad, a, b, ctx)
        of_bias = grad.sum(0) if _needs(ctx, 2) else None
        of_residual = grad if _needs(ctx, 3) else None
        return (of_a, of_b, of_bias, of_residual, *[None] * (_COUNT - 4))

    return backward


def _of_ag_gemm(grad: Tensor, a: Tensor, b: Tensor, ctx: Any) -> tuple[Tensor | None, Tensor | None]:
    of_a = gemm_rs(grad, b.t(), group=ctx.group) if _needs(ctx, 0) else None
    of_b = all_gather(a, rows=grad.shape[0], group=ctx.group).t() @ grad if _needs(ctx, 1) else None
    return of_a, of_b


def _of_gemm_rs(grad: Tensor, a: Tensor, b: Tensor, ctx: Any) -> tuple[Tensor | None, Tensor | None]:
    rows = a.shape[0]
    of_a = ag_gemm(grad, b.t(), rows=rows, group=ctx.group) if _needs(ctx, 0) else None
    of_b = a.t() @ all_gather(grad, rows=rows, group=ctx.group) if _needs(ctx, 1) else None
    return of_a, of_b


def _of_gemm_ar(grad: Tensor, a: Tensor, b: Tensor, ctx: Any) -> tuple[Tensor | None, Tensor | None]:
    return _of_gemm(all_reduce(grad, group=ctx.group), a, b, ctx)


def _of_gemm(grad: Tensor, a: Tensor, b: Tensor, ctx: Any) -> tuple[Tensor | None, Tensor | None]:
    of_a = grad @ b.t() if _needs(ctx, 0) else None
    return of_a, a.t() @ grad if _needs(ctx, 1) else None


differentiate("ag_gemm", _setup, _backward("ag_gemm", _of_ag_gemm))
differentiate("gemm_rs", _setup, _backward("gemm_rs", _of_gemm_rs))
differentiate("gemm_ar", _setup, _backward("gemm_ar", _of_gemm_ar))
differentiate("gemm", _setup, _backward("gemm", _of_gemm))


def _public(op: str, out: Tensor | None, *args: Any) -> Tensor:
    if is_eager(args[0]) and is_eager(args[1]):
        return _call(op, out, *args)
    if out is None:
        return _OVERLOADS[op](*args)
    _OVERLOADS[f"{op}_out"](*args, out=out)
    return out


def _public_e4m3(op: str, out: Tensor | None, *args: Any) -> tuple[Tensor, Tensor]:
    *operands, out_dtype, group, options, a_scales, b_scales = args
    if out is not None or out_dtype is not None:
        raise error(
            "operands",
            f"{op}: out or out_dtype is given beside result_scales. Pass neither, since results are e4m3 and scales",
        )
    args = (*operands, group, options, a_scales, b_scales)
    if is_eager(args[0]) and is_eager(args[1]):
        return _call_e4m3(op, *args)
    return getattr(torch.ops.mkernel, f"{op}_e4m3")(*args)


def _with_scales(result_scales: str) -> Any:
    """Return the function for the option ``result_scales``."""
    if result_scales not in ("none", "block"):
        raise error(
            "configuration", f"result_scales is {result_scales!r}. Use 'block' or 'none': scales of rows need a norm"
        )
    return _public if result_scales == "none" else _public_e4m3


@overload
def ag_gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    a_scales: Tensor | None = None,
    b_scales: Tensor | None = None,
    result_scales: Literal["none"] = "none",
    activation: str = "none",
    rows: int | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    group: str = DEFAULT,
    **options: Any,
) -> Tensor: ...


@overload
def ag_gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    a_scales: Tensor | None = None,
    b_scales: Tensor | None = None,
    result_scales: Literal["block"],
    activation: str = "none",
    rows: int | None = None,
    group: str = DEFAULT,
    **options: Any,
) -> tuple[Tensor, Tensor]: ...


def ag_gemm(
    a,
    b,
    bias=None,
    residual=None,
    *,
    a_scales=None,
    b_scales=None,
    result_scales="none",
    activation="none",
    rows=None,
    out_dtype=None,
    out=None,
    group=DEFAULT,
    **options,
):
    """Gather the rows of ``a`` from all ranks, and multiply them by this rank's ``b``.

    The result is ``activation(gathered a @ b + bias) + residual``. With W ranks and M rows over all ranks:

    Args:
        a: ``[⌈M/W⌉, K]``, bf16, fp16 or e4m3 (``torch.float8_e4m3fn``): this rank's rows. The last ranks have fewer, or none.
        b: ``[K, N]``: this rank's columns of the factor. A transposed ``[N, K]``, such as the weight of a linear layer, is not
            copied, and e4m3 is always transposed.
        bias: ``[N]``.
        residual: ``[M, N]``.
        a_scales: fp32, for e4m3: one scale ``[1]``, the same on all ranks; one for each row of ``a``, ``[⌈M/W⌉]`` or ``[⌈M/W⌉, 1]``;
            or one for each 128 elements of a row, ``[⌈M/W⌉, ⌈K/128⌉]``. Elements are multiplied by their scales. Without scales,
            elements are the numbers.
        b_scales: fp32, with ``a_scales``: ``[1]``; one for each column of ``b``, ``[N]`` or ``[1, N]``; or one for each block of
            128×128, ``[⌈K/128⌉, ⌈N/128⌉]``, which is ``scales.t()`` of a linear layer's. With SwiGLU, ``[2 * N]`` or
            ``[⌈K/128⌉, 2 * ⌈N/128⌉]``.
        result_scales: ``"block"`` for a result of e4m3 in which 128 elements of a row share a scale. N is a multiple of 16 then, and neither
            ``out`` nor ``out_dtype`` is given. The default is ``"none"``.
        activation: ``"none"``, ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"``, or ``"swiglu"`` of :func:`ag_gemm` and
            :func:`gemm`: ``b`` has N columns of a gate and then N of up, and so has the bias, and ``silu(gate) * up`` has N.
        rows: M. The default is W times the rows of ``a``.
        out_dtype: ``torch.float32``, or the type of ``a``, which is the default; with e4m3, bf16, which bias and residual are too.
        out: Where the result is written.
        group: The name of the group.
        options: Options of the operator that the planner chooses otherwise, such as ``tile_m=128``.

    Returns:
        ``[M, N]``. With ``result_scales``, ``[M, N]`` of e4m3 and its fp32 scales, ``[M, ⌈N/128⌉]``, which :func:`gemm` takes as ``a`` and
        ``a_scales``.

    Raises:
        Error: Of kind ``"operands"`` or ``"configuration"``, with all mistakes.
    """
    args = (a, b, bias, residual, activation, rows, out_dtype, group, options_text(options), a_scales, b_scales)
    return _with_scales(result_scales)("ag_gemm", out, *args)


def gemm_rs(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    a_scales: Tensor | None = None,
    b_scales: Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    group: str = DEFAULT,
    **options: Any,
) -> Tensor:
    """Multiply ``a`` by this rank's ``b``, add up the products of all ranks, and return this rank's rows of the sum.

    Args:
        a: ``[M, K]``, bf16, fp16 or e4m3: this rank's part of the contracted dimension.
        b: ``[K, N]``, or a transposed ``[N, K]``: this rank's part of the factor.
        bias: ``[N]``, the same on all ranks. It is added once.
        residual: ``[⌈M/W⌉, N]``: this rank's rows.
        activation: See :func:`ag_gemm`, which has the remaining arguments too. Scales are those of this rank's ``a`` and ``b``.

    Returns:
        ``[⌈M/W⌉, N]``. The last ranks have fewer rows, or none.
    """
    args = (a, b, bias, residual, activation, None, out_dtype, group, options_text(options), a_scales, b_scales)
    return _public("gemm_rs", out, *args)


def gemm_ar(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    a_scales: Tensor | None = None,
    b_scales: Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    group: str = DEFAULT,
    **options: Any,
) -> Tensor:
    """Multiply ``a`` by this rank's ``b``, and add up the products of all ranks. Every rank gets the same bits.

    Args:
        a: ``[M, K]``, bf16, fp16 or e4m3: this rank's part of the contracted dimension.
        b: ``[K, N]``, or a transposed ``[N, K]``: this rank's part of the factor.
        bias: ``[N]``, the same on all ranks. It is added once.
        residual: ``[M, N]``, the same on all ranks. It is added once.
        activation: See :func:`ag_gemm`, which has the remaining arguments too. Scales are those of this rank's ``a`` and ``b``.

    Returns:
        ``[M, N]``.
    """
    args = (a, b, bias, residual, activation, None, out_dtype, group, options_text(options), a_scales, b_scales)
    return _public("gemm_ar", out, *args)


@overload
def gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    a_scales: Tensor | None = None,
    b_scales: Tensor | None = None,
    result_scales: Literal["none"] = "none",
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    group: str = DEFAULT,
    **options: Any,
) -> Tensor: ...


@overload
def gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    a_scales: Tensor | None = None,
    b_scales: Tensor | None = None,
    result_scales: Literal["block"],
    activation: str = "none",
    group: str = DEFAULT,
    **options: Any,
) -> tuple[Tensor, Tensor]: ...


def gemm(
    a,
    b,
    bias=None,
    residual=None,
    *,
    a_scales=None,
    b_scales=None,
    result_scales="none",
    activation="none",
    out_dtype=None,
    out=None,
    group=DEFAULT,
    **options,
):
    """Multiply ``a [M, K]`` by ``b [K, N]`` on this rank alone. See :func:`ag_gemm` for the arguments.

    The first call with a size prepares an operator, on all ranks together.

    Returns:
        ``[M, N]``.
    """
    args = (a, b, bias, residual, activation, None, out_dtype, group, options_text(options), a_scales, b_scales)
    return _with_scales(result_scales)("gemm", out, *args)
