"""Random tensors of ranks, and comparisons with results in fp64."""

import random

import torch

WORLDS = [1, 2, 4]


def tensor(seed: int, rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return a tensor of a rank, which every rank can make."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randn(shape, generator=generator).to(dtype)


def shard(rows: int, rank: int, world: int) -> slice:
    """Return the rows that belong to a rank."""
    part = -(-rows // world)
    return slice(min(rows, rank * part), min(rows, (rank + 1) * part))


def sizes(seed: int, count: int, *most: int) -> list[tuple[int, ...]]:
    """Return random sizes: rows up to the first number, and multiples of 8 up to the others."""
    choose = random.Random(seed)
    return [(choose.randint(1, most[0]), *(8 * choose.randint(1, n // 8) for n in most[1:])) for _ in range(count)]


def assert_close(result: torch.Tensor, expected: torch.Tensor, scale: float) -> None:
    """Compare with a result in fp64, of sums of numbers of size 1 whose size is about ``scale``."""
    step = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-18}[result.dtype]
    assert result.shape == expected.shape
    if result.numel():
        error = (result.double() - expected).abs().max().item()
        assert error <= 8 * step * scale, f"{error} > {8 * step * scale}"


def assert_near(result: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare with a result in fp64. Scales of factors make the size of elements differ from row to row."""
    assert_close(result, expected, expected.abs().max().item() / 4 if expected.numel() else 1)
