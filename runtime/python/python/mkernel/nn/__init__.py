"""Layers whose weights or tokens are divided among the ranks of a group.

A block of a transformer under tensor parallelism has a :class:`ColumnParallelLinear` first and a :class:`RowParallelLinear`
last. With ``sequence_parallel``, ranks have parts of the sequence outside of the block. Otherwise, every rank has the whole
sequence, and its gradients are equal on all ranks. :func:`parallelize` divides the layers of a model of transformers.
"""

from .experts import Experts
from .linear import ColumnParallelLinear, RowParallelLinear
from .parallelize import parallelize

__all__ = ["ColumnParallelLinear", "Experts", "RowParallelLinear", "parallelize"]
