"""Tensors in symmetric memory."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch

from ._groups import DEFAULT, find


def empty_symmetric(*size: int, dtype: torch.dtype = torch.bfloat16, group: str = DEFAULT) -> torch.Tensor:
    """Allocate a tensor at one offset of symmetric memory on all ranks. All ranks of the group call this.

    ``gemm_ar``, ``all_reduce``, ``all_gather`` and ``all_to_all`` take the tensor as ``out``, with ``symmetric_result=True``: ranks
    then store their parts of the result straight to each other's tensors. All ranks pass the same tensor, or the same part of it. ``ag_gemm`` takes
    it as ``a`` with ``symmetric_a=True``. Everything else takes it as any other tensor.

    As with other tensors of torch, the memory is that of the current stream. If another stream uses the tensor last, let this stream
    wait for that one before the tensor is dropped. The space is used again when all ranks have dropped the tensor.

    Args:
        size: The shape of the tensor.
        dtype: The type of the elements.
        group: The name of the group.

    Returns:
        The tensor, whose elements are 0.

    Raises:
        Error: If ranks allocate different sizes, or a GPU has no memory left.
    """
    ranks = find(group)
    bytes_ = math.prod(size) * dtype.itemsize
    # Symmetric memory cannot be empty.
    allocated = max(bytes_, 1)
    if ranks.device is None:
        buffer = type("_Buffer", (ctypes.c_uint8 * allocated,), {})()
        buffer.memory = ranks._native.allocate(0, allocated, ctypes.addressof(buffer))
        flat = torch.frombuffer(buffer, dtype=torch.uint8)
    else:
        memory = ranks._native.allocate(ranks.stream(), allocated)
        flat = torch.as_tensor(_Exported(memory), device=torch.device("cuda", ranks.device))
    return flat[:bytes_].view(dtype).view(size)


class _Exported:
    """Memory of a GPU as torch imports it. The tensor keeps this object."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.__cuda_array_interface__ = {
            "shape": (len(memory),),
            "typestr": "|u1",
            "data": (memory.address, False),
            "version": 3,
        }
