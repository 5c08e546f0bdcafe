"""``moe_layer``, ``dispatch_gemm``, ``gemm_combine`` and ``combine``: a layer of experts that are divided among the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import torch

from ._define import Tensors, declaration, define, find, not_differentiable, options_text
from ._errors import error
from ._groups import DEFAULT
from ._operators import dtype_name
from ._scales import E4M3, Factor, blocks, check_layout, read_scales, result_dtype

if TYPE_CHECKING:
    from ._groups import Group

Tensor = torch.Tensor

_DISPATCH_ARGS = (
    "Tensor tokens, Tensor topk_ids, Tensor weight, Tensor? num_tokens=None, SymInt? max_rows=None, bool swiglu=False, "
    "str group='default', str options='', Tensor? a_scales=None, Tensor? b_scales=None"
)
_COMBINE_ARGS = (
    "Tensor rows, Tensor row_indices, Tensor topk_weights, SymInt experts, Tensor? num_tokens=None, str group='default', "
    "str options=''"
)
_GEMM_COMBINE_ARGS = (
    "Tensor rows, Tensor expert_offsets, Tensor row_indices, Tensor topk_weights, Tensor weight, Tensor? num_tokens=None, "
    "str group='default', str options='', Tensor? a_scales=None, Tensor? b_scales=None"
)

_LAYER_OPTIONS = (
    "Tensor? num_tokens=None, SymInt? max_rows=None, str group='default', str options='', Tensor? a_scales=None, "
    "Tensor? b_scales=None, Tensor? down_scales=None"
)
_LAYER_ARGS = f"Tensor tokens, Tensor topk_ids, Tensor topk_weights, Tensor gate_up, Tensor down, {_LAYER_OPTIONS}"
_ROUTED_LAYER_ARGS = (
    f"Tensor tokens, Tensor logits, Tensor gate_up, Tensor down, SymInt top_k, Tensor? score_bias=None, {_LAYER_OPTIONS}"
)


class _Choices(NamedTuple):
    """The experts of tokens and their weights: given by the caller, or written by a kernel that reads logits."""

    ids: Tensor
    weights: Tensor
    logits: Tensor | None = None
    score_bias: Tensor | None = None

    @classmethod
    def from_logits(cls, tokens: Tensor, logits: Tensor, top_k: Any, score_bias: Tensor | None) -> _Choices:
        """Return choices that a kernel writes."""
        shape = (tokens.shape[0], top_k)
        ids, weights = (tokens.new_empty(shape, dtype=dtype) for dtype in (torch.int32, torch.float32))
        return cls(ids, weights, logits, score_bias)

    def add(self, tensors: Tensors, experts: int) -> dict[str, Any]:
        """Add the tensors to a call. Returns the options of the router."""
        if self.logits is None:
            tensors.read("topk_ids", self.ids, tuple(self.ids.shape))
            tensors.read("topk_weights", self.weights, tuple(self.ids.shape))
            return {}
        tensors.read("logits", self.logits, (self.ids.shape[0], experts))
        tensors.read("score_bias", self.score_bias, (experts,))
        tensors.write("topk_ids", self.ids, tuple(self.ids.shape))
        tensors.write("topk_weights", self.weights, tuple(self.ids.shape))
        return {"logits": dtype_name(self.logits), "score_bias": self.score_bias is not None}


def _max_rows(world: int, local_experts: Any, tokens: Any, top_k: Any) -> Any:
    """Return the most rows that a rank's experts can get: no expert gets a token twice."""
    return world * tokens * torch.sym_min(top_k, local_experts)


def _dispatch_fake(tokens, topk_ids, weight, num_tokens=None, max_rows=None, swiglu=False, group=DEFAULT, *_):
    ranks = find(group, tokens)
    if tokens.dim() != 2 or topk_ids.dim() != 2 or weight.dim() != 3:
        shapes = f"tokens {tuple(tokens.shape)}, topk_ids {tuple(topk_ids.shape)}, weight {tuple(weight.shape)}"
        raise error("operands", f"dispatch_gemm: the shapes are {shapes}. Pass [T, H], [T, top_k] and [experts, H, N]")
    local_experts, _, columns = weight.shape
    rows = max_rows
    if rows is None:
        rows = _max_rows(ranks.world, local_experts, *topk_ids.shape)
    return (
        tokens.new_empty((rows, columns // 2 if swiglu else columns), dtype=result_dtype(tokens.dtype)),
        topk_ids.new_empty((local_experts + 1,)),
        topk_ids.new_empty(topk_ids.shape),
    )


def _dispatch_fake_e4m3(*args):
    rows, *lists = _dispatch_fake(*args)
    scales = rows.new_empty((rows.shape[0], blocks(rows.shape[1])), dtype=torch.float32)
    return rows.new_empty(rows.shape, dtype=E4M3), scales, *lists


def _dispatch(*args):
    rows, *lists = results = _dispatch_fake(*args)
    _call_dispatch({"c": rows}, lists, None, *args)
    return results


def _dispatch_e4m3(*args):
    rows, scales, *lists = results = _dispatch_fake_e4m3(*args)
    _call_dispatch({"c": rows, "c_scales": scales}, lists, "block", *args)
    return results


def _call_dispatch(
    written,
    lists,
    result_scales,
    tokens,
    topk_ids,
    weight,
    num_tokens=None,
    max_rows=None,
    swiglu=False,
    group=DEFAULT,
    options="",
    a_scales=None,
    b_scales=None,
):
    ranks = find(group, tokens)
    (most, hidden), top_k, (local_experts, _, columns) = tokens.shape, topk_ids.shape[1], weight.shape
    rows, is_kn = written["c"], weight.is_contiguous()
    tensors = Tensors(ranks)
    tensors.read("tokens", tokens, (most, hidden))
    tensors.read("num_tokens", _count(num_tokens, tokens), (1,))
    tensors.read("topk_ids", topk_ids, (most, top_k))
    _read_weight(tensors, "b", weight, is_kn, (local_experts, hidden, columns))
    check_layout(tensors, "weight", weight, is_kn)
    left, right = Factor("a_scales", tokens, a_scales, is_right=False), Factor("b_scales", weight, b_scales, is_gated=swiglu)
    scales = read_scales(tensors, left, right)
    for name, result in (written | dict(zip(("expert_offsets", "row_indices"), lists, strict=True))).items():
        tensors.write(name, result, tuple(result.shape))
    tensors.check()
    declared = {
        "experts": local_experts * ranks.world,
        "top_k": top_k,
        "max_tokens": most,
        "hidden": hidden,
        "intermediate": rows.shape[1],
        "dtype": dtype_name(tokens),
        "scales": scales,
        "b_layout": "kn" if is_kn else "nk",
        "swiglu": swiglu,
        "max_rows": rows.shape[0],
        "result_scales": result_scales,
    }
    _call("dispatch_gemm", tensors, ranks, declared, options)


def _combine_fake(rows, row_indices, topk_weights, experts, num_tokens=None, group=DEFAULT, options=""):
    return rows.new_empty((row_indices.shape[0], rows.shape[1]))


def _combine(rows, row_indices, topk_weights, experts, num_tokens=None, group=DEFAULT, options=""):
    ranks = find(group, rows)
    if rows.dim() != 2 or row_indices.dim() != 2:
        shapes = f"rows {tuple(rows.shape)}, row_indices {tuple(row_indices.shape)}"
        raise error("operands", f"combine: the shapes are {shapes}. Pass [max_rows, H] and [T, top_k]")
    (max_rows, hidden), (most, top_k) = rows.shape, row_indices.shape
    result = _combine_fake(rows, row_indices, topk_weights, experts)
    tensors = Tensors(ranks)
    tensors.read("rows", rows, (max_rows, hidden))
    tensors.read("num_tokens", _count(num_tokens, row_indices), (1,))
    tensors.read("row_indices", row_indices, (most, top_k))
    tensors.read("topk_weights", topk_weights, (most, top_k))
    tensors.write("c", result, (most, hidden))
    tensors.check()
    declared = {
        "experts": experts,
        "top_k": top_k,
        "max_tokens": most,
        "hidden": hidden,
        "dtype": dtype_name(rows),
        "max_rows": max_rows,
    }
    _call("combine", tensors, ranks, declared, options)
    return result


def _gemm_combine_fake(rows, expert_offsets, row_indices, topk_weights, weight, *_):
    return rows.new_empty((row_indices.shape[0], weight.shape[2]), dtype=result_dtype(rows.dtype))


def _gemm_combine(
    rows,
    expert_offsets,
    row_indices,
    topk_weights,
    weight,
    num_tokens=None,
    group=DEFAULT,
    options="",
    a_scales=None,
    b_scales=None,
):
    ranks = find(group, rows)
    if rows.dim() != 2 or row_indices.dim() != 2 or weight.dim() != 3:
        shapes = f"rows {tuple(rows.shape)}, row_indices {tuple(row_indices.shape)}, weight {tuple(weight.shape)}"
        raise error("operands", f"gemm_combine: the shapes are {shapes}. Pass [max_rows, I], [T, top_k] and [experts, I, H]")
    (max_rows, intermediate), (most, top_k), (local_experts, _, hidden) = rows.shape, row_indices.shape, weight.shape
    result = _gemm_combine_fake(rows, expert_offsets, row_indices, topk_weights, weight)
    is_kn = weight.is_contiguous()
    tensors = Tensors(ranks)
    tensors.read("a", rows, (max_rows, intermediate))
    tensors.read("expert_offsets", expert_offsets, (local_experts + 1,))
    tensors.read("num_tokens", _count(num_tokens, row_indices), (1,))
    tensors.read("row_indices", row_indices, (most, top_k))
    tensors.read("topk_weights", topk_weights, (most, top_k))
    _read_weight(tensors, "b", weight, is_kn, (local_experts, intermediate, hidden))
    check_layout(tensors, "weight", weight, is_kn)
    scales = read_scales(tensors, Factor("a_scales", rows, a_scales, is_right=False), Factor("b_scales", weight, b_scales))
    tensors.write("c", result, (most, hidden))
    tensors.check()
    declared = {
        "experts": local_experts * ranks.world,
        "top_k": top_k,
        "max_tokens": most,
        "hidden": hidden,
        "intermediate": intermediate,
        "dtype": dtype_name(rows),
        "scales": scales,
        "b_layout": "kn" if is_kn else "nk",
        "max_rows": max_rows,
    }
    _call("gemm_combine", tensors, ranks, declared, options)
    return result


def _layer_fake(tokens, *_):
    return tokens.new_empty(tokens.shape, dtype=result_dtype(tokens.dtype))


def _layer(tokens, topk_ids, topk_weights, gate_up, down, *args):
    return _call_layer(_Choices(topk_ids, topk_weights), tokens, gate_up, down, *args)


def _routed_layer_fake(tokens, logits, gate_up, down, top_k, score_bias=None, *_):
    chosen = _Choices.from_logits(tokens, logits, top_k, score_bias)
    return _layer_fake(tokens), chosen.ids, chosen.weights


def _routed_layer(tokens, logits, gate_up, down, top_k, score_bias=None, *args):
    chosen = _Choices.from_logits(tokens, logits, top_k, score_bias)
    return _call_layer(chosen, tokens, gate_up, down, *args), chosen.ids, chosen.weights


def _call_layer(
    choices,
    tokens,
    gate_up,
    down,
    num_tokens=None,
    max_rows=None,
    group=DEFAULT,
    options="",
    a_scales=None,
    b_scales=None,
    down_scales=None,
):
    ranks = find(group, tokens)
    if tokens.dim() != 2 or choices.ids.dim() != 2 or gate_up.dim() != 3 or down.dim() != 3:
        shapes = f"tokens {tuple(tokens.shape)}, topk_ids {tuple(choices.ids.shape)}, gate_up {tuple(gate_up.shape)}"
        shapes += f", down {tuple(down.shape)}"
        wanted = "[T, H], [T, top_k], [experts, H, 2 * I] and [experts, I, H]"
        raise error("operands", f"moe_layer: the shapes are {shapes}. Pass {wanted}")
    (most, hidden), top_k, (local_experts, _, columns) = tokens.shape, choices.ids.shape[1], gate_up.shape
    result = _layer_fake(tokens)
    is_kn, intermediate = gate_up.is_contiguous(), columns // 2
    tensors = Tensors(ranks)
    tensors.read("tokens", tokens, (most, hidden))
    tensors.read("num_tokens", _count(num_tokens, tokens), (1,))
    router = choices.add(tensors, local_experts * ranks.world)
    _read_weight(tensors, "b", gate_up, is_kn, (local_experts, hidden, 2 * intermediate))
    _read_weight(tensors, "down", down, is_kn, (local_experts, intermediate, hidden))
    check_layout(tensors, "gate_up", gate_up, is_kn)
    scales = read_scales(
        tensors,
        Factor("a_scales", tokens, a_scales, is_right=False),
        Factor("b_scales", gate_up, b_scales, is_gated=True),
        Factor("down_scales", down, down_scales),
    )
    tensors.write("c", result, (most, hidden))
    tensors.check()
    declared = {
        "experts": local_experts * ranks.world,
        "top_k": top_k,
        "max_tokens": most,
        "hidden": hidden,
        "intermediate": intermediate,
        "dtype": dtype_name(tokens),
        "scales": scales,
        "b_layout": "kn" if is_kn else "nk",
        "swiglu": True,
        "max_rows": _max_rows(ranks.world, local_experts, most, top_k) if max_rows is None else max_rows,
    } | router
    _call("moe_layer", tensors, ranks, declared, options)
    return result


def _call(op: str, tensors: Tensors, ranks: Group, declared: dict[str, Any], options: str) -> None:
    """Call an operator, which is prepared for the first call with these options."""
    key = (op, *declared.values(), options)
    tensors.call(ranks.cached(key, lambda: declaration(op, declared, options)))


def _read_weight(tensors: Tensors, name: str, weight: Tensor, is_kn: bool, shape: tuple[int, int, int]) -> None:
    """Add the weights of experts, whose shape is [experts, K, N], as an operand."""
    experts, k, n = shape
    if is_kn:
        tensors.read(name, weight, shape)
    else:
        tensors.read(name, weight.transpose(1, 2), (experts, n, k))


def _count(num_tokens: Tensor | None, of: Tensor) -> Tensor:
    """Return the number of tokens as a tensor, by default that of all rows."""
    if num_tokens is None:
        return torch.full((1,), of.shape[0], dtype=torch.int32, device=of.device)
    return num_tokens


define(f"dispatch_gemm({_DISPATCH_ARGS}) -> (Tensor, Tensor, Tensor)", _dispatch, _dispatch_fake)
define(f"dispatch_gemm_e4m3({_DISPATCH_ARGS}) -> (Tensor, Tensor, Tensor, Tensor)", _dispatch_e4m3, _dispatch_fake_e4m3)
define(f"combine({_COMBINE_ARGS}) -> Tensor", _combine, _combine_fake)
define(f"gemm_combine({_GEMM_COMBINE_ARGS}) -> Tensor", _gemm_combine, _gemm_combine_fake)
define(f"moe_layer({_LAYER_ARGS}) -> Tensor", _layer, _layer_fake)
define(f"moe_layer_from_logits({_ROUTED_LAYER_ARGS}) -> (Tensor, Tensor, Tensor)", _routed_layer, _routed_layer_fake)
not_differentiable("moe_layer", "the operator computes the forward pass alone")
not_differentiable("moe_layer_from_logits", "the operator computes the forward pass alone")
not_differentiable("dispatch_gemm", "the operator computes the forward pass alone")
not_differentiable("dispatch_gemm_e4m3", "the operator computes the forward pass alone")
not_differentiable("gemm_combine", "the operator computes the forward pass alone")
not_differentiable("combine", "the operator computes the forward pass alone")


def moe_layer(
    tokens: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    *,
    num_tokens: Tensor | None = None,
    max_rows: int | None = None,
    a_scales: Tensor | None = None,
    b_scales: Tensor | None = None,
    down_scales: Tensor | None = None,
    group: str = DEFAULT,
    **options: Any,
) -> Tensor:
    """Apply a whole layer of experts in one launch: ``down(silu(gate) * up)``, summed with the router's weights.

    Of E experts, rank r of W has the experts r·E/W and following. All ranks pass tensors of equal shapes. The ranks are on one node.

    Args:
        tokens: bf16, fp16 or e4m3 (``torch.float8_e4m3fn``) ``[T, H]``. The first ``num_tokens`` rows are read.
        topk_ids: int32 ``[T, top_k]``: the experts of each token, none twice. The id -1 is no choice.
        topk_weights: fp32 ``[T, top_k]``: the router's weights.
        gate_up: ``[E/W, H, 2 * I]``, or a transposed ``[E/W, 2 * I, H]``: the gate and up projections of this rank's experts.
        down: ``[E/W, I, H]``, or a transposed ``[E/W, H, I]``, transposed if ``gate_up`` is.
        num_tokens: int32 ``[1]``: the number of tokens, in memory that the kernel reads. The default is T.
        max_rows: The most rows that the experts of a rank can get. The default has room for every possible choice.
        a_scales: fp32 ``[T, ⌈H/128⌉]``, for e4m3, which needs scales and transposed weights: a scale for each 128 elements of a token.
            I is a multiple of 128 then.
        b_scales: fp32 ``[E/W, ⌈H/128⌉, 2 * I/128]``: a scale for each block of 128×128 of ``gate_up``.
        down_scales: fp32 ``[E/W, I/128, ⌈H/128⌉]``: a scale for each block of ``down``.
        group: The name of the group.
        options: Options of the operator, such as ``tile_n=128``.

    Returns:
        ``[T, H]``, bf16 if tokens are e4m3. A token without any choice gets zeros. Rows behind ``num_tokens`` are undefined.

    Raises:
        Error: Of kind ``"values"``, from the next :meth:`Group.check` or :meth:`Group.synchronize`, if an id is not possible.
    """
    args = (tokens, topk_ids, topk_weights, gate_up, down, num_tokens, max_rows, group, options_text(options))
    return torch.ops.mkernel.moe_layer(*args, a_scales, b_scales, down_scales)


def moe_layer_from_logits(
    tokens: Tensor,
    logits: Tensor,
    gate_up: Tensor,
    down: Tensor,
    top_k: int,
    *,
    scores: Literal["softmax", "sigmoid"],
    score_bias: Tensor | None = None,
    num_tokens: Tensor | None = None,
    max_rows: int | None = None,
    a_scales: Tensor | None = None,
    b_scales: Tensor | None = None,
    down_scales: Tensor | None = None,
    group: str = DEFAULT,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply a whole layer of experts, which the kernel chooses from the router's logits.

    Args:
        tokens: See :func:`moe_layer`, as for the arguments that are not listed here.
        logits: fp32, or bf16 or fp16 as the result, ``[T, E]``: the router's logits.
        top_k: The number of experts of a token: the experts with the greatest scores.
        scores: The scores of a token's experts: ``"softmax"`` or ``"sigmoid"`` of its logits.
        score_bias: fp32 ``[E]``, which is added to scores for the choice of experts. Weights are scores without the bias.
        options: Options of the operator, such as ``renormalise=True``, ``groups=8``, ``top_groups=4`` and ``score_scale=2.5``.

    Returns:
        ``[T, H]``, as from :func:`moe_layer`. int32 ``[T, top_k]``: the experts of each token, the best expert first. fp32 ``[T, top_k]``:
        the weights of these experts. Rows behind ``num_tokens`` are undefined.
    """
    options = {"scores": scores} | options
    args = (tokens, logits, gate_up, down, top_k, score_bias, num_tokens, max_rows, group, options_text(options))
    return torch.ops.mkernel.moe_layer_from_logits(*args, a_scales, b_scales, down_scales)


@overload
def dispatch_gemm(
    tokens: Tensor,
    topk_ids: Tensor,
    weight: Tensor,
    *,
    num_tokens: Tensor | None = None,
    max_rows: int | None = None,
    swiglu: bool = False,
    a_scales: Tensor | None = None,
    b_scales: Tensor | None = None,
    result_scales: Literal["none"] = "none",
    group: str = DEFAULT,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]: ...


@overload
def dispatch_gemm(
    tokens: Tensor,
    topk_ids: Tensor,
    weight: Tensor,
    *,
    num_tokens: Tensor | None = None,
    max_rows: int | None = None,
    swiglu: bool = False,
    a_scales: Tensor | None = None,
    b_scales: Tensor | None = None,
    result_scales: Literal["block"],
    group: str = DEFAULT,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...


def dispatch_gemm(
    tokens,
    topk_ids,
    weight,
    *,
    num_tokens=None,
    max_rows=None,
    swiglu=False,
    a_scales=None,
    b_scales=None,
    result_scales="none",
    group=DEFAULT,
    **options,
):
    """Send tokens to their experts, and multiply them by the weights there.

    Of E experts, rank r of W has the experts r·E/W and following. All ranks pass tensors of equal shapes.

    Args:
        tokens: bf16, fp16 or e4m3 (``torch.float8_e4m3fn``) ``[T, H]``. The first ``num_tokens`` rows are read.
        topk_ids: int32 ``[T, top_k]``: the experts of each token, none twice. The id -1 is no choice.
        weight: ``[E/W, H, N]``, or a transposed ``[E/W, N, H]``: the weights of this rank's experts.
        num_tokens: int32 ``[1]``: the number of tokens, in memory that the kernel reads. The default is T.
        max_rows: The most rows that the experts of a rank can get. The default has room for every possible choice.
        swiglu: Whether the first half of the N columns is the gate and the second half the up projection. The
            result is ``silu(gate) * up``.
        a_scales: fp32, for e4m3, which needs a transposed ``weight``: one scale ``[1]``, the same on all ranks; one for each token,
            ``[T]`` or ``[T, 1]``; or one for each 128 elements of a token, ``[T, ⌈H/128⌉]``.
        b_scales: fp32, with ``a_scales``: ``[E/W]``; one for each column of an expert, ``[E/W, N]`` or ``[E/W, 1, N]``; or one for
            each block of 128×128, ``[E/W, ⌈H/128⌉, ⌈N/128⌉]``. With ``swiglu``, blocks of gate and up are separate.
        result_scales: ``"block"`` for rows of e4m3, in which 128 elements share a scale. The default is ``"none"``.
        group: The name of the group.
        options: Options of the operator, such as ``tile_n=128``.

    Returns:
        ``[max_rows, N]``, or N/2 columns with ``swiglu``, bf16 if tokens are e4m3: rows grouped by expert. Rows behind the last one are undefined.
        With ``result_scales``, the rows are e4m3, and their fp32 scales ``[max_rows, ⌈columns/128⌉]`` come next.
        int32 ``[E/W + 1]``: the first row of each expert, and the end of the last expert's rows. int32 ``[T, top_k]``: the rows of
        each token, for :func:`combine`.

    Raises:
        Error: Of kind ``"values"``, from the next :meth:`Group.check` or :meth:`Group.synchronize`, if an id is not possible.
    """
    args = (tokens, topk_ids, weight, num_tokens, max_rows, swiglu, group, options_text(options))
    if result_scales not in ("none", "block"):
        raise error("configuration", f"dispatch_gemm: result_scales is {result_scales!r}. Use 'block' or 'none'")
    operators = torch.ops.mkernel
    operator = operators.dispatch_gemm if result_scales == "none" else operators.dispatch_gemm_e4m3
    return operator(*args, a_scales, b_scales)


def combine(
    rows: Tensor,
    row_indices: Tensor,
    topk_weights: Tensor,
    experts: int,
    *,
    num_tokens: Tensor | None = None,
    group: str = DEFAULT,
    **options: Any,
) -> Tensor:
    """Return the outputs of the experts to their tokens, as sums weighted by the router.

    Args:
        rows: bf16 or fp16 ``[max_rows, H]``: the outputs of the experts for the rows of :func:`dispatch_gemm`.
        row_indices: int32 ``[T, top_k]``, from :func:`dispatch_gemm`.
        topk_weights: fp32 ``[T, top_k]``: the router's weights.
        experts: The number of experts over all ranks.
        num_tokens: See :func:`dispatch_gemm`.

    Returns:
        ``[T, H]``. A token without any choice gets zeros.
    """
    args = (rows, row_indices, topk_weights, experts, num_tokens, group, options_text(options))
    return torch.ops.mkernel.combine(*args)


def gemm_combine(
    rows: Tensor,
    expert_offsets: Tensor,
    row_indices: Tensor,
    topk_weights: Tensor,
    weight: Tensor,
    *,
    num_tokens: Tensor | None = None,
    a_scales: Tensor | None = None,
    b_scales: Tensor | None = None,
    group: str = DEFAULT,
    **options: Any,
) -> Tensor:
    """Multiply the rows of experts by the experts' weights, and return the results to their tokens, as sums weighted by the router.

    The function is the mirror of :func:`dispatch_gemm`, whose results it takes as they are. The ranks are on one node.

    Args:
        rows: bf16, fp16 or e4m3 (``torch.float8_e4m3fn``) ``[max_rows, I]``, from :func:`dispatch_gemm`.
        expert_offsets: int32 ``[E/W + 1]``, from the same call.
        row_indices: int32 ``[T, top_k]``, from the same call.
        topk_weights: fp32 ``[T, top_k]``: the router's weights.
        weight: ``[E/W, I, H]``, or a transposed ``[E/W, H, I]``: the down projections of this rank's experts.
        num_tokens: See :func:`dispatch_gemm`.
        a_scales: fp32, for e4m3, which needs a transposed ``weight``: one scale ``[1]``; one for each row, ``[max_rows]`` or
            ``[max_rows, 1]``; or one for each 128 elements of a row, ``[max_rows, ⌈I/128⌉]``, as :func:`dispatch_gemm` returns.
        b_scales: fp32, with ``a_scales``: ``[E/W]``, ``[E/W, H]`` or ``[E/W, ⌈I/128⌉, ⌈H/128⌉]``.
        group: The name of the group.
        options: Options of the operator, such as ``tile_n=128``.

    Returns:
        ``[T, H]``, bf16 if rows are e4m3. A token without any choice gets zeros. Rows behind ``num_tokens`` are undefined.

    Raises:
        Error: Of kind ``"values"``, from the next :meth:`Group.check` or :meth:`Group.synchronize`, if an index or an offset is not
            possible.
    """
    args = (rows, expert_offsets, row_indices, topk_weights, weight, num_tokens, group, options_text(options))
    return torch.ops.mkernel.gemm_combine(*args, a_scales, b_scales)
