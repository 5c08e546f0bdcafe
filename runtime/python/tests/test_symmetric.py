"""Tensors in symmetric memory."""

import mkernel
import pytest
import torch


def part(seed, rank, shape):
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randn(shape, generator=generator).bfloat16()


@pytest.mark.parametrize("world", [1, 2, 4])
def test_results_are_stored_to_symmetric_tensors(world):
    def rank(group):
        rows, k, n = 64, 32, 64
        memory = mkernel.empty_symmetric(2, rows, n)
        assert memory.count_nonzero() == 0
        for seed, out in enumerate((memory[0], memory[1], memory[0])):
            a, b = part(seed, group.rank, (rows, k)), part(seed + 9, group.rank, (k, n))
            mkernel.gemm_ar(a, b, out=out, symmetric_result=True, shots=2)
            assert torch.equal(out, mkernel.gemm_ar(a, b, shots=2))
        y = mkernel.empty_symmetric(512, 64)
        x = part(3, group.rank, (512, 64))
        mkernel.all_reduce(x, out=y, symmetric_result=True)
        assert torch.equal(y, mkernel.all_reduce(x))
        # Other operators, and torch, take it as any other tensor.
        assert torch.equal(mkernel.all_gather(y[:8]), mkernel.all_gather(y[:8].clone()))
        return y

    results = mkernel.run(rank, world)
    assert all(torch.equal(result, results[0]) for result in results)


def test_rows_are_sent_from_a_symmetric_tensor():
    def rank(group):
        a = mkernel.empty_symmetric(16, 64)
        a.copy_(part(1, group.rank, (16, 64)))
        b = part(2, group.rank, (64, 32))
        assert torch.equal(mkernel.ag_gemm(a, b, symmetric_a=True), mkernel.ag_gemm(a.clone(), b))

    mkernel.run(rank, 2)


@pytest.mark.parametrize("differs", [False, True])
def test_other_tensors_are_refused(differs):
    """A tensor elsewhere is refused before the call, and different places are found by all ranks."""

    def rank(group):
        memory = mkernel.empty_symmetric(2, 256, 64)
        out = memory[group.rank] if differs else torch.empty(256, 64, dtype=torch.bfloat16)
        with pytest.raises(mkernel.Error) as raised:
            mkernel.all_reduce(part(1, group.rank, (256, 64)), out=out, symmetric_result=True)
        return str(raised.value)

    for text in mkernel.run(rank, 2):
        assert "symmetric memory" in text, text


def test_different_sizes_are_an_error():
    def rank(group):
        with pytest.raises(mkernel.Error) as raised:
            mkernel.empty_symmetric(8 + group.rank, 64)
        return str(raised.value)

    assert all("1024" in text and "1152" in text for text in mkernel.run(rank, 2))


def test_dropped_tensors_make_room():
    def rank(group):
        kept = mkernel.empty_symmetric(1 << 10)[:8]
        addresses = {group._native.allocate(0, 1 << 20).address for _ in range(20)}
        assert len(addresses) < 10
        # A part of a tensor keeps the memory of the whole.
        y = mkernel.empty_symmetric(256, 64)
        mkernel.all_reduce(torch.ones(256, 64, dtype=torch.bfloat16), out=y, symmetric_result=True)
        assert kept.count_nonzero() == 0 and torch.equal(y, torch.full_like(y, 2))

    mkernel.run(rank, 2)


def test_an_empty_tensor():
    assert mkernel.run(lambda _: mkernel.empty_symmetric(0, 8).shape, 1) == [(0, 8)]
