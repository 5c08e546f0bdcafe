"""Tensor and expert parallelism for models of Hugging Face transformers."""

from __future__ import annotations

import re
from typing import Any

import torch

from .. import ops
from .._define import find
from .._errors import error
from .._groups import DEFAULT, Group
from .blocks import BlockEnd, fuse_norms
from .experts import Experts
from .linear import ColumnParallelLinear, OfGroup, RowParallelLinear, apply

Tensor = torch.Tensor

_SEQUENCE_DIM = 1
"""The dimension of the sequence in activations of transformers."""


def parallelize(model: Any, *, sequence_parallel: bool = False, group: str = DEFAULT) -> Any:
    """Divide the layers of a model of transformers among the ranks of a group, as the model's own plan says.

    All ranks pass the same model, with the same weights, and then the same inputs. Every rank gets the whole output, and
    outputs have equal bits on all ranks. The layers that the plan calls ``colwise`` and that have the same input, such as the
    projections of queries, keys and values, become one :class:`ColumnParallelLinear`. Layers that the plan calls ``rowwise`` become a
    :class:`RowParallelLinear`. Experts are divided whole, as :class:`Experts`. Models of Llama, Mistral, Qwen and Qwen-MoE kind are
    supported, with transformers 5.

    Without gradients and without ``sequence_parallel``, the last product of a block also adds the residual and computes the next norm
    (``gemm_ar_rms_norm``), in calls of up to 1024 tokens.

    Parameters that every rank has get the gradients that they have without ranks. Models with experts have no backward pass.
    Call this before an optimizer is made, and move the model to its device first.

    Args:
        model: A model such as ``LlamaForCausalLM``, in bf16 or fp16. It is changed in place.
        sequence_parallel: Whether ranks have parts of the sequence between the blocks, whose first and last products are then
            ``ag_gemm`` and ``gemm_rs``. The number of positions of a call must be a multiple of the number of ranks, so
            this is for training and prefill. Otherwise the last product of a block is a ``gemm_ar``.
        group: The name of the group.

    Returns:
        The model.

    Raises:
        Error: Of kind ``"configuration"``, with all mistakes, if the model has no plan or the ranks cannot share its layers.
            The model is not changed then.
    """
    ranks = find(group, next(model.parameters()))
    plan, layers, norm = _anatomy(model)
    columns, rows, experts = _divided(model, plan)
    _check(model, ranks, columns)
    options = {"sequence_parallel": sequence_parallel, "sequence_dim": _SEQUENCE_DIM, "group": group}
    parents: dict[str, list[str]] = {}
    for name in columns:
        parent, _, own = name.rpartition(".")
        parents.setdefault(parent, []).append(own)
    for parent, names in parents.items():
        _fuse(model.get_submodule(parent), names, options)
    for name in rows:
        _replace(model, name, BlockEnd.from_linear(model.get_submodule(name), **options))
    for name in experts:
        whole = model.get_submodule(name)
        own = Experts.from_whole(whole.gate_up_proj, whole.down_proj, replicated=not sequence_parallel, group=group)
        _replace(model, name, own)
    partial = [model.get_submodule(parent) for parent in parents]
    if sequence_parallel:
        partial = [*layers, norm]
        layers[0].register_forward_pre_hook(lambda _, args, kwargs: _own_rows(args, kwargs, group), with_kwargs=True)
        norm.register_forward_hook(lambda _, __, output: apply(_AllRows, output, group))
    else:
        fuse_norms(layers, norm)
    _sum_gradients(partial, group)
    _divide_head(model, plan, ranks)
    return model


def _anatomy(model: Any) -> tuple[dict[str, str], Any, Any]:
    """Return the plan of a model, its layers and its last norm."""
    base = getattr(model, "base_model", model)
    prefix = "" if base is model else f"{model.base_model_prefix}."
    of_base = getattr(getattr(base, "config", None), "base_model_tp_plan", None) or {}
    plan = {prefix + name: style for name, style in of_base.items()}
    plan |= getattr(type(model), "_tp_plan", None) or {}
    layers, norm = getattr(base, "layers", None), getattr(base, "norm", None)
    if not plan or not layers or norm is None:
        reason = f"{type(model).__name__} has no plan for tensor parallelism, or no layers. Build it of ColumnParallelLinear and RowParallelLinear"
        raise error("configuration", reason)
    return plan, layers, norm


def _divided(model: Any, plan: dict[str, str]) -> tuple[list[str], list[str], list[str]]:
    """Return the names of the layers that are divided along their outputs, and along their inputs, and of experts."""
    by_style: dict[str, list[str]] = {"colwise": [], "rowwise": [], "moe_tp_experts": []}
    unknown = []
    for name, module in model.named_modules():
        style = next((style for pattern, style in plan.items() if _matches(pattern, name)), None)
        if style in ("colwise", "rowwise") and not isinstance(module, torch.nn.Linear):
            unknown.append(f"{name} is {style} in the plan, but {type(module).__name__} is no torch.nn.Linear")
        elif style == "moe_tp_experts" and not (hasattr(module, "gate_up_proj") and hasattr(module, "down_proj")):
            unknown.append(f"{name} has no gate_up_proj and down_proj")
        elif style in by_style:
            by_style[style].append(name)
    if unknown:
        raise error("configuration", "\n".join(unknown))
    return by_style["colwise"], by_style["rowwise"], by_style["moe_tp_experts"]


def _check(model: Any, ranks: Group, columns: list[str]) -> None:
    """Raise an error with all sizes of the model that the ranks cannot share."""
    config, mistakes = model.config, []
    sizes = ("num_attention_heads", "num_key_value_heads", "num_experts")
    for size in sizes:
        value = getattr(config, size, None) or 0
        if value % ranks.world:
            mistakes.append(f"{size} = {value}, which {ranks.world} ranks cannot share")
    for name in columns:
        features = model.get_submodule(name).out_features
        if features % ranks.world:
            mistakes.append(f"{name}: {ranks.world} ranks cannot share {features} features")
    if mistakes:
        raise error("configuration", "\n".join(mistakes))


def _fuse(parent: torch.nn.Module, names: list[str], options: dict[str, Any]) -> None:
    """Compute the column-parallel layers of a module by one product, before the module's forward function runs.

    The layers have the module's input in common, so the product takes the place of the input, and each layer picks its columns.
    """
    layers = [getattr(parent, name) for name in names]
    parent.columns = ColumnParallelLinear.from_linears(layers, **options)
    first = 0
    for name, layer in zip(names, layers, strict=True):
        own = layer.out_features // parent.columns.world
        setattr(parent, name, _Columns(first, first + own))
        first += own
    parent.register_forward_pre_hook(_multiply, with_kwargs=True)


def _multiply(parent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return _on_states(args, kwargs, parent.columns)


def _on_states(args: tuple[Any, ...], kwargs: dict[str, Any], function: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Apply a function to the hidden states among the arguments of a module."""
    if args:
        return (function(args[0]), *args[1:]), kwargs
    return args, kwargs | {"hidden_states": function(kwargs["hidden_states"])}


class _Columns(torch.nn.Module):
    """The place of a layer whose columns are a part of a product."""

    def __init__(self, first: int, end: int) -> None:
        super().__init__()
        self.first, self.end = first, end

    def forward(self, product: Tensor) -> Tensor:
        return product[..., self.first : self.end]

    def extra_repr(self) -> str:
        return f"{self.first}:{self.end}"


def _own_rows(args: Any, kwargs: Any, group: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return _on_states(args, kwargs, lambda states: apply(_OwnRows, states, group))


class _OwnRows(OfGroup):
    """This rank's part of a sequence that every rank has. Every rank gets the gradients of all parts."""

    @staticmethod
    def forward(x: Tensor, group: str) -> Tensor:
        return _part(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gather(grad, ctx.group), None


class _AllRows(OfGroup):
    """The sequence whose parts the ranks have. Its gradient is equal on all ranks."""

    @staticmethod
    def forward(x: Tensor, group: str) -> Tensor:
        return _gather(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _part(grad, ctx.group), None


def _part(x: Tensor, group: str) -> Tensor:
    ranks, rows = find(group, x), x.shape[_SEQUENCE_DIM]
    if rows % ranks.world:
        reason = f"the sequence has {rows} positions, which {ranks.world} ranks cannot share"
        raise error("operands", f"{reason}. Pad it, or parallelize the model without sequence_parallel")
    return x.chunk(ranks.world, _SEQUENCE_DIM)[ranks.rank].contiguous()


def _gather(x: Tensor, group: str) -> Tensor:
    return ops.all_gather(x.movedim(_SEQUENCE_DIM, 0).contiguous(), group=group).movedim(0, _SEQUENCE_DIM).contiguous()


def _sum_gradients(modules: list[torch.nn.Module], group: str) -> None:
    """Sum the gradients of parameters that every rank has, but uses for a part of the heads or of the sequence only."""
    for module in modules:
        divided = {id(own) for child in module.modules() if isinstance(child, _OURS) for own in child.parameters()}
        for parameter in module.parameters():
            if id(parameter) not in divided and parameter.requires_grad:
                parameter.register_hook(lambda grad: ops.all_reduce(grad, group=group))


_OURS = (ColumnParallelLinear, RowParallelLinear, Experts)


def _divide_head(model: Any, plan: dict[str, str], ranks: Group) -> None:
    """Divide the columns of the last product, if it has weights of its own and the ranks can share them."""
    head = getattr(model, "lm_head", None)
    if not isinstance(head, torch.nn.Linear) or plan.get("lm_head") not in ("colwise_rep", "colwise_gather_output"):
        return
    if head.weight is model.get_input_embeddings().weight or head.out_features % (8 * ranks.world):
        return
    model.lm_head = _Head.from_linear(head, group=ranks.name)


class _Head(ColumnParallelLinear):
    """A column-parallel layer of whose output every rank gets all columns."""

    def forward(self, x: Tensor) -> Tensor:
        return apply(_AllColumns, super().forward(x), self.group)


class _AllColumns(OfGroup):
    """The columns of all ranks. Their gradients are equal on all ranks."""

    @staticmethod
    def forward(x: Tensor, group: str) -> Tensor:
        rows, own = x.flatten(0, -2).shape
        parts = ops.all_gather(x.reshape(rows, own), group=group).view(-1, rows, own)
        return parts.movedim(0, 1).reshape(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ranks = find(ctx.group, grad)
        return grad.chunk(ranks.world, -1)[ranks.rank].contiguous(), None


def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", r"\d+"), name) is not None


def _replace(model: torch.nn.Module, name: str, module: torch.nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, module)
