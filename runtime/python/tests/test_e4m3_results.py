"""Operators with results of e4m3, on simulated GPUs: each bit of the results is that of the results of fp32 or bf16, quantised by torch."""

import mkernel
import pytest
import torch
from reference import shard, tensor
from test_e4m3 import E4M3, choices, compiled, of_transposed, quantised, rows_with_scales, weight_with_scales


def same(left, right):
    return left.dtype == right.dtype and torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def blocks_of(x):
    """Return rows of fp32 as e4m3 and the scales of their blocks. The last block may be short."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % 128))
    y, scales = quantised(padded, 128)
    return y[..., : x.shape[-1]].contiguous(), scales


@pytest.mark.parametrize(("world", "op", "swiglu"), [(1, "gemm", True), (1, "gemm", False), (2, "ag_gemm", True)])
def test_products(world, op, swiglu):
    m, n, k = 5, 272, 144
    activation, cols, halves = ("swiglu", 2 * n, 2) if swiglu else ("relu", n, 1)

    def eager(a, w, bias, a_scales, b_scales):
        product = getattr(mkernel, op)
        scales = {"a_scales": a_scales, "b_scales": b_scales}
        return product(a, w.t(), bias, activation=activation, result_scales="block", **scales)

    graph = compiled(eager)

    def rank(group):
        a, a_scales = rows_with_scales("block", 1, group.rank, m, k)
        w, scales = weight_with_scales("block", 3, group.rank, cols, k, halves=halves)
        bias, b_scales = tensor(5, 0, (cols,)), of_transposed(scales)
        options = {"a_scales": a_scales, "b_scales": b_scales, "out_dtype": torch.float32}
        plain = getattr(mkernel, op)(a, w.t(), bias, activation=activation, **options)
        expected, expected_scales = blocks_of(plain)
        with torch.no_grad():
            y, y_scales = eager(a, w, bias, a_scales, b_scales)
        assert same(y, expected) and torch.equal(y_scales, expected_scales)
        repeated, repeated_scales = graph(a, w, bias, a_scales, b_scales)
        assert same(repeated, y) and torch.equal(repeated_scales, y_scales)
        # The result is the left factor of the next product.
        down, down_scales = weight_with_scales("block", 6, 0, 32, n)
        assert mkernel.gemm(y, down.t(), a_scales=y_scales, b_scales=down_scales.t()).shape == (y.shape[0], 32)

    mkernel.run(rank, world)


@pytest.mark.parametrize(("world", "op", "kind"), [(1, "gemm_ar", "block"), (2, "gemm_ar", "row"), (2, "gemm_rs", "block")])
def test_norms_of_products(world, op, kind):
    m, n, k = 6, 256, 64

    def eager(a, w, residual, weight):
        return getattr(mkernel, f"{op}_rms_norm")(a, w.t(), residual, weight, eps=1e-5, result_scales=kind)

    graph = compiled(eager)

    def rank(group):
        a, w, weight = tensor(1, group.rank, (m, k)), tensor(2, group.rank, (n, k)), tensor(4, 0, (n,))
        residual = tensor(3, 0, (m, n))
        if op == "gemm_rs":
            residual = residual[shard(m, group.rank, world)]
        plain, expected_z = getattr(mkernel, f"{op}_rms_norm")(a, w.t(), residual, weight, eps=1e-5)
        with torch.no_grad():
            y, scales, z = eager(a, w, residual, weight)
        assert y.dtype == E4M3 and y.shape == plain.shape and torch.equal(z, expected_z)
        assert scales.shape == (z.shape[0], 1 if kind == "row" else n // 128)
        # The kernel quantises fp32, and ``plain`` is rounded to bf16.
        wide = y.float() * scales.repeat_interleave(n // scales.shape[1], -1)
        assert ((wide - plain.float()).abs() <= plain.float().abs() * 2**-4 + scales.max() * 2**-9).all()
        for result, repeated in zip((y, scales, z), graph(a, w, residual, weight), strict=True):
            assert same(result, repeated)

    mkernel.run(rank, world)


@pytest.mark.parametrize(("world", "kind"), [(1, "block"), (2, "row")])
def test_rows_of_experts(world, kind):
    tokens, hidden, columns, experts, top_k = 6, 144, 272, 4, 2
    local, ids = experts // world, choices(tokens, experts, top_k)
    lefts = [rows_with_scales(kind, 1, rank, tokens, hidden) for rank in range(world)]
    rights = [weight_with_scales(kind, 3, rank, local, 2 * columns, hidden, halves=2) for rank in range(world)]

    def eager(x, w, a_scales, b_scales):
        scales = {"a_scales": a_scales, "b_scales": b_scales}
        return mkernel.dispatch_gemm(x, ids, w.transpose(1, 2), swiglu=True, result_scales="block", **scales)

    graph = compiled(eager)

    def rank(group):
        (x, a_scales), (w, scales) = lefts[group.rank], rights[group.rank]
        b_scales = scales.transpose(1, 2) if kind == "block" else scales
        options = {"a_scales": a_scales, "b_scales": b_scales}
        plain, offsets, indices = mkernel.dispatch_gemm(x, ids, w.transpose(1, 2), swiglu=True, **options)
        y, y_scales, own_offsets, own_indices = eager(x, w, a_scales, b_scales)
        assert torch.equal(own_offsets, offsets) and torch.equal(own_indices, indices)
        count = int(offsets[-1])
        assert y.dtype == E4M3 and y_scales.shape == (y.shape[0], 3)
        wide = (y.float() * y_scales.repeat_interleave(128, -1)[:, :columns])[:count]
        near = plain[:count].float()
        assert ((wide - near).abs() <= near.abs() * 2**-4 + y_scales[:count].max() * 2**-9).all()
        repeated, repeated_scales, *_ = graph(x, w, a_scales, b_scales)
        assert same(repeated[:count], y[:count]) and torch.equal(repeated_scales[:count], y_scales[:count])

    mkernel.run(rank, world)


def test_mistakes_are_named():
    def rank(group):
        a, b = tensor(1, 0, (4, 64)), tensor(2, 0, (64, 256))
        with pytest.raises(mkernel.Error, match="out or out_dtype is given beside result_scales"):
            mkernel.gemm(a, b, result_scales="block", out_dtype=torch.float32)
        with pytest.raises(mkernel.Error, match=r"'row'.*scales of rows need a norm"):
            mkernel.gemm(a, b, result_scales="row")
        with pytest.raises(mkernel.Error, match="it only with a norm"):
            mkernel.gemm_ar(a, b, result_scales="block")
        with pytest.raises(mkernel.Error, match="not a multiple of 16"):
            mkernel.gemm(a, tensor(3, 0, (64, 24)), result_scales="block")
        with pytest.raises(mkernel.Error, match="result_scales is 'row'"):
            mkernel.dispatch_gemm(a, choices(4, 2, 1), tensor(4, 0, (2, 64, 256)), result_scales="row")

    mkernel.run(rank, 1)
