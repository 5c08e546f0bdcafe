"""Gradients beside those of torch for the same computation on one device."""

import math

import mkernel
import pytest
import torch
from reference import WORLDS, assert_close, shard, tensor

M, N, K = 12, 32, 64


def inputs(world):
    a, b = tensor(0, 0, (M, K)), [tensor(1, rank, (K, N)) for rank in range(world)]
    return a, b, tensor(2, 0, (N,))


def leaf(x):
    return x.detach().clone().requires_grad_()


@pytest.mark.parametrize("world", WORLDS)
def test_ag_gemm(world):
    def rank(group):
        a, b, bias = inputs(world)
        own, mine = shard(M, group.rank, world), group.rank
        grads = [tensor(3, rank, (M, N)) for rank in range(world)]
        x, w, v = leaf(a[own]), leaf(b[mine].t()), leaf(bias)
        mkernel.ag_gemm(x, w.t(), v, rows=M).backward(grads[mine])
        of_a = sum(g.double() @ w.double().t() for g, w in zip(grads, b, strict=True))
        scale = math.sqrt(N * world)
        assert_close(x.grad, of_a[own], scale)
        assert_close(w.grad, (a.double().t() @ grads[mine].double()).t(), math.sqrt(M))
        assert_close(v.grad, grads[mine].double().sum(0), math.sqrt(M))

    mkernel.run(rank, world)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("op", ["gemm_rs", "gemm_ar"])
def test_sums(world, op):
    def rank(group):
        _, b, bias = inputs(world)
        a = [tensor(4, rank, (M, K)) for rank in range(world)]
        own, mine = shard(M, group.rank, world), group.rank
        x, w, v = leaf(a[mine]), leaf(b[mine]), leaf(bias)
        y = getattr(mkernel, op)(x, w, v)
        if op == "gemm_rs":
            whole = tensor(5, 0, (M, N))
            y.backward(whole[own])
            of_sum, of_bias = whole.double(), whole[own].double().sum(0)
        else:
            grads = [tensor(5, rank, (M, N)) for rank in range(world)]
            y.backward(grads[mine])
            of_sum, of_bias = sum(g.double() for g in grads), grads[mine].double().sum(0)
        assert_close(x.grad, of_sum @ b[mine].double().t(), math.sqrt(N) * world)
        assert_close(w.grad, a[mine].double().t() @ of_sum, math.sqrt(M) * world)
        assert_close(v.grad, of_bias, math.sqrt(M))

    mkernel.run(rank, world)


@pytest.mark.parametrize("world", WORLDS)
def test_collectives(world):
    def rank(group):
        own, mine = shard(M, group.rank, world), group.rank
        grads = [tensor(6, rank, (M, 8), torch.float32) for rank in range(world)]
        total = sum(g.double() for g in grads)
        x = leaf(tensor(7, mine, (M, 8), torch.float32))
        mkernel.all_reduce(x).backward(grads[mine])
        assert_close(x.grad, total, world)
        x = leaf(x[own])
        mkernel.all_gather(x, rows=M).backward(grads[mine])
        assert_close(x.grad, total[own], world)
        x = leaf(tensor(7, mine, (M, 8), torch.float32))
        mkernel.reduce_scatter(x).backward(grads[0][own])
        assert torch.equal(x.grad, grads[0])
        x, grads = leaf(tensor(7, mine, (4 * world, 8), torch.float32)), [g.repeat(4 * world, 1)[: 4 * world] for g in grads]
        mkernel.all_to_all(x).backward(grads[mine])
        assert torch.equal(x.grad, torch.cat([g.chunk(world)[mine] for g in grads]))

    mkernel.run(rank, world)


def test_gradients_of_collectives_are_those_of_finite_differences():
    """The gradient of a linear function is exact at any distance, so fp32 is precise enough."""

    def rank(group):
        def of_all(x):
            y = mkernel.all_gather(mkernel.reduce_scatter(x), rows=x.shape[0])
            return (y * mkernel.all_reduce(x)).sum() / 2

        x = leaf(tensor(8, group.rank, (4, 8), torch.float32))
        of_all(x).backward()
        direction = [tensor(9, rank, (4, 8), torch.float32) for rank in range(2)]
        step = direction[group.rank] / 8
        with torch.no_grad():
            change = of_all(x + step) - of_all(x - step)
        # Every rank's loss depends on the tensors of all ranks.
        changes = mkernel.all_reduce(change.repeat(8))[0]
        slopes = mkernel.all_reduce((x.grad * step).sum().repeat(8))[0] * 2
        assert math.isclose(changes.item(), slopes.item(), rel_tol=1e-4)

    mkernel.run(rank, 2)


def test_what_has_no_gradient_says_so():
    def rank(group):
        a, b = leaf(torch.ones(4, 64).bfloat16()), torch.ones(64, 8).bfloat16()
        with pytest.raises(mkernel.Error, match="Apply the activation by torch"):
            mkernel.ag_gemm(a, b, activation="silu").sum().backward()
        with pytest.raises(mkernel.Error, match="no gradient of its residual"):
            mkernel.gemm_ar(a, b, None, leaf(torch.ones(4, 8).bfloat16())).sum().backward()
        q = leaf(torch.ones(1, 2, 1, 64).bfloat16())
        o, _ = mkernel.ring_attention(q, q, q)
        with pytest.raises(mkernel.Error, match="the forward pass alone"):
            o.sum().backward()

    mkernel.run(rank, 1)
