"""Checks of `gpu.py`. Each gets a group and a number of random sizes."""

from __future__ import annotations

import gc
import math
import os
import random
import sys

import mkernel
import mkernel.nn
import mkernel.ops
import torch
import torch.distributed as dist
from reference import assert_close, assert_near, shard, tensor

DTYPES = [torch.bfloat16, torch.float16]
SIMULATED = "--simulated" in sys.argv


def device_of(group):
    return "cpu" if group.device is None else f"cuda:{group.device}"


def beside_nccl(group):
    """Let NCCL use the GPUs and the stream of the calls."""
    if dist.is_initialized():
        x = torch.ones(1 << 16, device=device_of(group))
        dist.all_reduce(x)
        assert x[0] == group.world


def some(choose, count, most):
    """Return numbers of rows from a few buckets, so that few kernels are compiled for many sizes."""
    buckets = [most] if SIMULATED else [64, most // 4, most]
    return [choose.randint(bucket // 2 + 1, bucket) for bucket in (choose.choice(buckets) for _ in range(count))]


def check_gemms(group, count):
    choose = random.Random(1)
    most = 24 if SIMULATED else 4096
    device, world = device_of(group), group.world
    factors = [[8 * choose.randint(1, most // 8) for _ in range(2)] for _ in range(4)]
    for seed, m in enumerate(some(choose, count, most)):
        (n, k), dtype = factors[seed % 4], DTYPES[seed % 2]

        def of(kind, rank, *shape, seed=seed, dtype=dtype):
            return tensor(10 * seed + kind, rank, shape, dtype).to(device)

        a, b = [of(1, rank, m, k) for rank in range(world)], [of(2, rank, k, n) for rank in range(world)]
        bias, own, mine = of(3, 0, n), shard(m, group.rank, world), group.rank
        transposed = b[mine].t().contiguous().t()
        scale = math.sqrt(k * world)
        gathered = mkernel.ag_gemm(a[0][own], transposed, bias, activation="relu", rows=m)
        assert_close(gathered, (a[0].double() @ b[mine].double() + bias.double()).relu(), scale)
        beside_nccl(group)
        total = sum(x.double() @ y.double() for x, y in zip(a, b, strict=True))
        assert_close(mkernel.gemm_rs(a[mine], b[mine], bias), (total + bias.double())[own], scale)
        beside_nccl(group)
        assert_close(mkernel.gemm_ar(a[mine], transposed), total, scale)
        assert_close(mkernel.gemm(a[mine], b[mine]), a[mine].double() @ b[mine].double(), scale)
    group.synchronize()


def check_e4m3(group, count):
    """Factors whose blocks of 128×128 share a scale, and normalised rows of e4m3."""
    choose = random.Random(5)
    device, world, mine = device_of(group), group.world, group.rank
    n, k = (144, 272) if SIMULATED else (1040, 2064)
    for seed, m in enumerate(some(choose, count, 24 if SIMULATED else 4096)):

        def of(kind, rows, cols, seed=seed):
            """Return elements and scales of each rank, and their products in fp64."""
            x = [tensor(10 * seed + kind, rank, (rows, cols)).to(device).to(torch.float8_e4m3fn) for rank in range(world)]
            shape = (-(-rows // 128) if kind else rows, -(-cols // 128))
            scales = [tensor(10 * seed + kind + 5, rank, shape, torch.float32).abs().to(device) for rank in range(world)]
            wide = [scale.repeat_interleave(128, 0)[:rows] if kind else scale for scale in scales]
            wide = [scale.repeat_interleave(128, 1)[:, :cols].double() for scale in wide]
            return x, scales, [a.double() * b for a, b in zip(x, wide, strict=True)]

        (a, a_scales, of_a), (b, b_scales, of_b), own = of(0, m, k), of(1, n, k), shard(m, mine, world)
        right = {"b_scales": b_scales[mine].t()}
        gathered = mkernel.ag_gemm(a[0][own], b[mine].t(), rows=m, a_scales=a_scales[0][own], **right)
        assert_near(gathered, of_a[0] @ of_b[mine].t())
        total = sum(x @ y.t() for x, y in zip(of_a, of_b, strict=True))
        for op, part in ((mkernel.gemm_ar, slice(None)), (mkernel.gemm_rs, own)):
            assert_near(op(a[mine], b[mine].t(), a_scales=a_scales[mine], **right), total[part])
        x, weight = tensor(seed, mine, (m, k)).to(device), tensor(seed, 9, (k,)).to(device)
        expected, z = mkernel.all_reduce_rms_norm(x, gathered.new_zeros(m, k), weight)
        y, scales, also_z = mkernel.all_reduce_rms_norm(x, gathered.new_zeros(m, k), weight, result_scales="row")
        assert torch.equal(z, also_z)
        assert ((y.float() * scales - expected.float()).abs() <= expected.abs() / 16 + scales).all()
    group.synchronize()


def check_collectives(group, count):
    choose = random.Random(2)
    most = 24 if SIMULATED else 4096
    device, world = device_of(group), group.world
    widths = [8 * choose.randint(1, most // 8) for _ in range(3)]
    for seed, rows in enumerate(some(choose, count, most)):
        cols, dtype = widths[seed % 3], [*DTYPES, torch.float32][seed % 3]
        x = [tensor(seed, rank, (rows, cols), dtype).to(device) for rank in range(world)]
        total, mine, own = sum(part.double() for part in x), x[group.rank], shard(rows, group.rank, world)
        assert_close(mkernel.all_reduce(mine), total, world)
        beside_nccl(group)
        assert_close(mkernel.reduce_scatter(mine), total[own], world)
        assert torch.equal(mkernel.all_gather(x[0][own], rows=rows), x[0])
        parts = [part.repeat(world, 1).chunk(world)[group.rank] for part in x]
        assert torch.equal(mkernel.all_to_all(mine.repeat(world, 1)), torch.cat(parts))
        residual, weight = x[0] * 2, x[0][0].contiguous()
        y, z = mkernel.all_reduce_rms_norm(mine, residual, weight, 1e-5)
        exact = total + residual.double()
        assert_close(z, exact, 2 * world)
        norm = exact * (exact.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
        assert_close(y, norm, 4 * world)
    group.synchronize()


def check_attention(group, count):
    choose = random.Random(3)
    device, world = device_of(group), group.world
    for seed, part in enumerate(some(choose, count, 6 if SIMULATED else 300)):
        batch, kv_heads, size, heads = [(1, 2, 64, 6), (2, 1, 128, 3), (1, 4, 128, 8), (2, 1, 64, 1)][seed % 4]
        causal = bool(seed % 2)
        placement, chunks = ("zigzag", 2 * world) if causal else ("contiguous", world)
        seq = part * chunks
        q = tensor(seed, 0, (batch, seq, heads, size)).to(device)
        k, v = (tensor(seed, kind, (batch, seq, kv_heads, size)).to(device) for kind in (1, 2))
        order = torch.arange(seq, device=device).view(chunks, part)
        own = order[group.rank] if not causal else torch.cat([order[group.rank], order[chunks - 1 - group.rank]])
        o, lse = mkernel.ring_attention(q[:, own], k[:, own], v[:, own], causal=causal, placement=placement)
        whole = [x.double().transpose(1, 2) for x in (q, k, v)]
        whole[1:] = [x.repeat_interleave(heads // kv_heads, 1) for x in whole[1:]]
        scores = whole[0] @ whole[1].transpose(2, 3) / math.sqrt(size)
        if causal:
            hidden = torch.ones(seq, seq, dtype=torch.bool, device=device).triu(1)
            scores.masked_fill_(hidden, -math.inf)
        assert_close(o, (scores.softmax(-1) @ whole[2]).transpose(1, 2)[:, own], 1)
        assert_close(lse, scores.logsumexp(-1)[:, :, own], 8)
    group.synchronize()


def check_experts(group, count):
    choose = random.Random(4)
    device, world = device_of(group), group.world
    tokens = 12 if SIMULATED else 500
    for seed in range(count):
        local, top_k, hidden, columns = [(1, 1, 1024, 64), (2, 2, 64, 512), (4, 4, 512, 256), (3, 2, 256, 128)][seed % 4]
        experts, number = local * world, torch.tensor([choose.randint(0, tokens)], dtype=torch.int32, device=device)
        x = tensor(seed, group.rank, (tokens, hidden)).to(device)
        # Rows of random numbers, sorted: every token has different experts.
        ids = tensor(seed + 100, group.rank, (tokens, experts), torch.float32).argsort(1)[:, :top_k].int().to(device)
        weights = torch.stack([tensor(seed + 200, expert, (hidden, columns)) for expert in range(experts)]).to(device)
        router = tensor(seed + 300, group.rank, (tokens, top_k), torch.float32).sigmoid().to(device)
        own = weights[group.rank * local : (group.rank + 1) * local].contiguous()
        rows, _, indices = mkernel.dispatch_gemm(x, ids, own, num_tokens=number)
        y = mkernel.combine(rows, indices, router, experts, num_tokens=number)
        group.synchronize()
        all_experts = torch.einsum("th,ehc->tec", x.double(), weights.double())
        chosen = all_experts.gather(1, ids.long()[:, :, None].expand(-1, -1, columns))
        exact = (chosen * router.double()[:, :, None]).sum(1)
        assert_close(y[: int(number)], exact[: int(number)], math.sqrt(hidden) * top_k)


def check_layers(group, _):
    device, world = device_of(group), group.world
    features, hidden, rows = (64, 128, 2) if SIMULATED else (512, 2048, 64)
    up = torch.nn.Linear(features, hidden, device=device, dtype=torch.bfloat16)
    down = torch.nn.Linear(hidden, features, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        # The generator of torch is one for all threads.
        for kind, parameter in enumerate([*up.parameters(), *down.parameters()]):
            parameter.copy_(tensor(kind + 1, 0, tuple(parameter.shape)) / 16)
    x = tensor(0, 0, (rows * world, features)).to(device)
    down(torch.nn.functional.silu(up(x))).float().square().sum().backward()
    for sequence_parallel in (False, True):
        first = mkernel.nn.ColumnParallelLinear.from_linear(up, sequence_parallel=sequence_parallel)
        last = mkernel.nn.RowParallelLinear.from_linear(down, sequence_parallel=sequence_parallel)
        mine = x.chunk(world)[group.rank] if sequence_parallel else x
        last(torch.nn.functional.silu(first(mine))).float().square().sum().backward()
        for result, whole in (
            (first.weight.grad, up.weight.grad.chunk(world)[group.rank]),
            (last.bias.grad, down.bias.grad),
        ):
            torch.testing.assert_close(result.float(), whole.float(), rtol=0.03, atol=0.03 * whole.abs().max().item())
    group.synchronize()


def check_graphs(group, _):
    """A graph with calls of mkernel and of NCCL, replayed with other contents and another number of rows."""
    device, world = device_of(group), group.world
    a, b = (torch.zeros(shape, dtype=torch.bfloat16, device=device) for shape in ((64, 256), (256, 512)))
    rows, c = torch.tensor([64], dtype=torch.int32, device=device), torch.zeros(64, 512, dtype=torch.bfloat16, device=device)
    read_rows = group.prepare("gemm_ar", m="..=64", n=512, k=256)

    def call():
        read_rows(a=a, b=b, c=c, rows=rows)
        return mkernel.gemm_ar(a, b)

    # NCCL connects before the capture, too.
    dist.all_reduce(call())
    group.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call() * 2
        dist.all_reduce(y)
    for seed, count in enumerate((64, 3, 17)):
        parts = [(tensor(seed, rank, (64, 256)), tensor(seed + 10, rank, (256, 512))) for rank in range(world)]
        a.copy_(parts[group.rank][0])
        b.copy_(parts[group.rank][1])
        rows.fill_(count)
        c.zero_()
        graph.replay()
        group.synchronize()
        total = sum(x.double() @ w.double() for x, w in parts).to(device)
        assert_close(y, 2 * world * total, 2 * world * math.sqrt(256 * world))
        assert_close(c[:count], total[:count], math.sqrt(256 * world))
        assert not c[count:].any(), "rows that are not of the call were written"


def check_compile(group, _):
    def block(x, up, down):
        return mkernel.gemm_rs(torch.nn.functional.silu(mkernel.ag_gemm(x, up.t())), down.t())

    device = device_of(group)
    shapes = ((8, 256), (512, 256), (256, 512))
    args = [(tensor(kind, group.rank, shape) / 8).to(device) for kind, shape in enumerate(shapes)]
    eager, results = None, []
    for function in (block, torch.compile(block, fullgraph=True)):
        leaves = [arg.clone().requires_grad_() for arg in args]
        y = function(*leaves)
        y.float().square().sum().backward()
        results.append([y, *(leaf.grad for leaf in leaves)])
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(eager, compiled, rtol=0.05, atol=0.05 * eager.abs().max().item())
    group.synchronize()


def check_subgroups(group, _):
    world = group.world
    if world < 4:
        return
    halves = [dist.new_group(list(range(first, first + world // 2))) for first in (0, world // 2)]
    mine = halves[group.rank // (world // 2)]
    with mkernel.init(mine) as half:
        x = torch.full((8,), float(group.rank), device=device_of(group))
        y = mkernel.all_reduce(x, group=mine.group_name)
        half.synchronize()
        first = group.rank // (world // 2) * (world // 2)
        assert y[0] == sum(range(first, first + world // 2)), y


def check_groups_end(group, _):
    """Groups that are made 100 times leave neither threads, files nor memory behind."""

    def made():
        with mkernel.init(name="again") as again:
            mkernel.all_reduce(torch.ones(8, device=device_of(group)), group="again")
            again.synchronize()
            again.barrier()

    made()

    def counts():
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), torch.cuda.mem_get_info()[0]

    gc.collect()
    threads, files, free = counts()
    for _ in range(100):
        made()
    gc.collect()
    after = counts()
    assert after[0] <= threads + 1 and after[1] <= files + 4, (threads, files, after)
    # Other processes use this GPU's memory too.
    assert after[2] >= free - (64 << 20), (free, after[2])


CHECKS = {
    "gemms": (check_gemms, True),
    "e4m3": (check_e4m3, True),
    "collectives": (check_collectives, True),
    "attention": (check_attention, True),
    "experts": (check_experts, True),
    "layers": (check_layers, True),
    "graphs": (check_graphs, False),
    "compile": (check_compile, False),
    "subgroups": (check_subgroups, False),
    "groups_end": (check_groups_end, False),
}
