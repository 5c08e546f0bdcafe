"""Operators on simulated GPUs beside torch in fp64."""

import math

import mkernel
import pytest
import torch
from reference import WORLDS, assert_close, shard, sizes, tensor

DTYPES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("seed", range(3))
def test_gemms(world, seed):
    (m, n, k), dtype = sizes(seed, 1, 40, 128, 128)[0], DTYPES[seed % 2]

    def rank(group):
        def all_ranks(kind, shape):
            return [tensor(seed * 10 + kind, rank, shape, dtype) for rank in range(world)]

        rows = tensor(seed * 10, 0, (m, k), dtype)
        a, b, bias = all_ranks(1, (m, k)), all_ranks(2, (k, n)), tensor(seed * 10 + 3, 0, (n,), dtype)
        own, mine = shard(m, group.rank, world), b[group.rank]
        scale = math.sqrt(k * world)
        gathered = mkernel.ag_gemm(rows[own], mine, rows=m)
        assert_close(gathered, rows.double() @ mine.double(), scale)
        # A transposed weight, a bias and an activation.
        weight = mine.t().contiguous()
        activated = mkernel.ag_gemm(rows[own], weight.t(), bias, activation="relu", rows=m, out_dtype=torch.float32)
        exact = (rows.double() @ mine.double() + bias.double()).relu()
        assert activated.dtype == torch.float32
        assert_close(activated, exact, scale)
        total = sum(a[rank].double() @ b[rank].double() for rank in range(world))
        residual = rows.double()[:, :1].expand(m, n).to(dtype).contiguous()
        assert_close(mkernel.gemm_rs(a[group.rank], mine, bias), (total + bias.double())[own], scale)
        out = torch.empty((m, n), dtype=dtype)
        summed = mkernel.gemm_ar(a[group.rank], mine, None, residual, out=out)
        assert summed is out
        assert_close(out, total + residual.double(), scale)
        assert_close(mkernel.gemm(a[group.rank], mine), a[group.rank].double() @ mine.double(), scale)
        return bytes(out.view(torch.uint8).flatten().tolist())

    assert len(set(mkernel.run(rank, world, seed=seed))) == 1, "all ranks have the same bits"


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32])
def test_collectives(world, dtype):
    def rank(group):
        for seed, (rows, cols) in enumerate(sizes(1, 3, 30, 64)):
            x = [tensor(seed, rank, (rows, cols), dtype) for rank in range(world)]
            total, mine = sum(part.double() for part in x), x[group.rank]
            own = shard(rows, group.rank, world)
            assert_close(mkernel.all_reduce(mine), total, world)
            assert_close(mkernel.reduce_scatter(mine), total[own], world)
            assert torch.equal(mkernel.all_gather(x[0][own], rows=rows), x[0])
            in_place = mine.clone()
            mkernel.all_reduce(in_place, out=in_place)
            assert_close(in_place, total, world)
            residual, weight = tensor(seed + 50, 0, (rows, cols), dtype), tensor(seed + 60, 0, (cols,), dtype)
            y, next_residual = mkernel.all_reduce_rms_norm(mine, residual, weight, 1e-5)
            z = total + residual.double()
            assert_close(next_residual, z, world)
            norm = z * (z.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
            assert_close(y, norm, 2 * world)

    mkernel.run(rank, world)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_gemm_ar_with_a_norm(world):
    def rank(group):
        for seed, (rows, n, k) in enumerate(sizes(7, 3, 20, 128, 128)):
            a, b = (
                [tensor(i, rank, shape) for rank in range(world)] for i, shape in ((seed, (rows, k)), (seed + 10, (n, k)))
            )
            residual, weight, bias = (tensor(seed + 20, i, shape) for i, shape in enumerate(((rows, n), (n,), (n,))))
            product = sum(x.double() @ y.double().t() for x, y in zip(a, b, strict=True))
            for extra in (None, bias):
                y, z = mkernel.gemm_ar_rms_norm(a[group.rank], b[group.rank].t(), residual, weight, extra, 1e-5)
                exact = product + residual.double() + (0 if extra is None else extra.double())
                assert_close(z, exact, math.sqrt(k) * world)
                norm = z.double() * (z.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
                assert_close(y, norm, 2)

    mkernel.run(rank, world)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_broadcast(world):
    def rank(group):
        for root in range(world):
            x = tensor(root, group.rank, (3, 40))
            expected = tensor(root, root, (3, 40))
            assert torch.equal(mkernel.broadcast(x, root), expected)
            assert mkernel.broadcast(x, root, out=x) is x and torch.equal(x, expected)

    mkernel.run(rank, world)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_all_to_all(world):
    def rank(group):
        for seed, (rows, dtype) in enumerate([(1, torch.bfloat16), (5, torch.float32), (64, torch.float16)]):
            x = [tensor(seed, source, (world * rows, 3, 8), dtype) for source in range(world)]
            expected = torch.cat([part.chunk(world)[group.rank] for part in x])
            assert torch.equal(mkernel.all_to_all(x[group.rank]), expected)
            out = torch.empty_like(expected)
            assert mkernel.all_to_all(x[group.rank], out=out) is out and torch.equal(out, expected)
        with pytest.raises(mkernel.Error, match="y overlaps x"):
            mkernel.all_to_all(out, out=out)
        if world > 1:
            with pytest.raises(mkernel.Error, match="cannot be divided equally"):
                mkernel.all_to_all(out[:1])

    mkernel.run(rank, world)


def test_tensors_of_any_shape():
    def rank(group):
        x = torch.ones(2, 3, 4, dtype=torch.float32) * (group.rank + 1)
        assert torch.equal(mkernel.all_reduce(x), torch.full_like(x, 3))
        y = mkernel.all_gather(x.repeat(1, 1, 2))
        assert y.shape == (4, 3, 8) and torch.equal(y[2:], torch.full((2, 3, 8), 2.0))
        assert mkernel.reduce_scatter(y).shape == (2, 3, 8)

    mkernel.run(rank, 2)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(("causal", "placement"), [(False, "contiguous"), (True, "zigzag")])
def test_ring_attention(world, causal, placement):
    batch, rows, heads, kv_heads, size = 2, 24, 4, 2, 64

    def rank(group):
        q = tensor(0, 0, (batch, rows, heads, size))
        k, v = (tensor(kind, 0, (batch, rows, kv_heads, size)) for kind in (1, 2))
        chunks = torch.arange(rows).chunk(2 * world if placement == "zigzag" else world)
        own = chunks[group.rank]
        if placement == "zigzag":
            own = torch.cat([own, chunks[2 * world - 1 - group.rank]])
        o, lse = mkernel.ring_attention(q[:, own], k[:, own], v[:, own], causal=causal, placement=placement)
        whole = [x.double().transpose(1, 2) for x in (q, k, v)]
        whole[1:] = [x.repeat_interleave(heads // kv_heads, 1) for x in whole[1:]]
        scores = whole[0] @ whole[1].transpose(2, 3) / math.sqrt(size)
        if causal:
            scores.masked_fill_(torch.ones(rows, rows, dtype=torch.bool).triu(1), -math.inf)
        expected = (scores.softmax(-1) @ whole[2]).transpose(1, 2)
        assert_close(o, expected[:, own], 1)
        assert_close(lse, scores.logsumexp(-1)[:, :, own], 4)

    mkernel.run(rank, world)


@pytest.mark.parametrize("world", [1, 2])
def test_packed_attention(world):
    lengths, most, heads, size = (20, 1, 13), 40, 2, 64

    def rank(group):
        room = (most + len(lengths) * (world - 1)) // world
        whole = [[tensor(kind, i, (rows, heads, size)) for i, rows in enumerate(lengths)] for kind in range(3)]

        def mine(sequence):
            part = -(-len(sequence) // world)
            return sequence[group.rank * part : (group.rank + 1) * part]

        own = [torch.cat([mine(sequence) for sequence in sequences]) for sequences in whole]
        padded = [torch.nn.functional.pad(x, (0, 0, 0, 0, 0, room - len(x))) for x in own]
        offsets = torch.tensor([0, *lengths]).cumsum(0).int()
        o, lse = mkernel.ring_attention_packed(*padded, offsets, seq=most, causal=True)
        outputs, sums = [], []
        for q, k, v in zip(*whole, strict=True):
            scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) / math.sqrt(size)
            scores.masked_fill_(torch.ones(len(q), len(q), dtype=torch.bool).triu(1), -math.inf)
            outputs.append(mine(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.double())))
            sums.append(mine(scores.logsumexp(-1).t()))
        rows = len(own[0])
        assert_close(o[:rows], torch.cat(outputs), 1)
        assert_close(lse[:, :rows], torch.cat(sums).t(), 4)
        with pytest.raises(mkernel.Error, match="q has 7 rows, but a rank has room for"):
            mkernel.ring_attention_packed(*(x[:7] for x in padded), offsets, seq=most)

    mkernel.run(rank, world)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_attention_over_a_cache(world):
    """Parts of a prompt attend to the parts before them, which stay where they are."""
    batch, heads, kv_heads, size, parts, room = 2, 4, 2, 64, (12, 8, 4), 24

    def rank(group):
        total = sum(parts)
        q = tensor(0, 0, (batch, total, heads, size))
        k, v = (tensor(kind, 0, (batch, total, kv_heads, size)) for kind in (1, 2))
        whole = [x.double().transpose(1, 2) for x in (q, k, v)]
        whole[1:] = [x.repeat_interleave(heads // kv_heads, 1) for x in whole[1:]]
        scores = whole[0] @ whole[1].transpose(2, 3) / math.sqrt(size)
        scores.masked_fill_(torch.ones(total, total, dtype=torch.bool).triu(1), -math.inf)
        expected = (scores.softmax(-1) @ whole[2]).transpose(1, 2)
        caches = [x.new_full((batch, room + total, kv_heads, size), math.nan) for x in (k, v)]
        done, cached = 0, 0
        for rows in parts:
            own = torch.arange(done, done + rows).chunk(world)[group.rank]
            for cache, x in zip(caches, (k, v), strict=True):
                cache[:, cached : cached + len(own)] = x[:, own]
            numbers = torch.full((world, batch), cached, dtype=torch.int32)
            given = [cache[:, : room + len(own)] for cache in caches]
            o, lse = mkernel.ring_attention_cached(q[:, own], *given, numbers, causal=True)
            assert_close(o, expected[:, own], 1)
            assert_close(lse, scores.logsumexp(-1)[:, :, own], 4)
            done, cached = done + rows, cached + len(own)
        with pytest.raises(mkernel.Error, match="Pass k and v with the cached rows and 3 rows more"):
            mkernel.ring_attention_cached(q[:, :3], k[:, :3], v[:, :3], numbers)

    mkernel.run(rank, world)


@pytest.mark.parametrize("world", [1, 2])
def test_experts(world):
    tokens, hidden, columns, experts, top_k = 9, 64, 64, 4, 2

    def rank(group):
        x = tensor(0, group.rank, (tokens, hidden))
        weights = [tensor(1, expert, (columns, hidden)) for expert in range(experts)]
        local = experts // world
        own = torch.stack(weights[group.rank * local : (group.rank + 1) * local])
        choices = [torch.randperm(experts, generator=torch.Generator().manual_seed(t))[:top_k] for t in range(tokens)]
        ids = torch.stack(choices).int()
        router = tensor(2, group.rank, (tokens, top_k), torch.float32).sigmoid()
        rows, offsets, indices = mkernel.dispatch_gemm(x, ids, own.transpose(1, 2))
        assert offsets[-1] == sum(int((ids // local == group.rank).sum()) for _ in range(world))
        y = mkernel.combine(rows, indices, router, experts)
        exact = torch.zeros(tokens, columns, dtype=torch.double)
        for token in range(tokens):
            for weight, expert in zip(router[token], ids[token], strict=True):
                exact[token] += weight.double() * (weights[expert].double() @ x[token].double())
        assert_close(y, exact, math.sqrt(hidden) * top_k)
        # A token without a choice, and fewer tokens than there is room for.
        ids[0], count = -1, torch.tensor([tokens - 1], dtype=torch.int32)
        rows, _, indices = mkernel.dispatch_gemm(x, ids, own.transpose(1, 2), num_tokens=count, max_rows=64)
        y = mkernel.combine(rows, indices, router, experts, num_tokens=count)
        assert torch.equal(y[0], torch.zeros_like(y[0]))
        assert_close(y[1 : tokens - 1], exact[1 : tokens - 1], math.sqrt(hidden) * top_k)

    mkernel.run(rank, world)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_moe_layer(world, is_transposed):
    tokens, hidden, intermediate, experts, top_k = 9, 64, 40, 4, 2

    def rank(group):
        x = tensor(0, group.rank, (tokens, hidden))
        ups = torch.stack([tensor(1, expert, (2 * intermediate, hidden)) for expert in range(experts)])
        downs = torch.stack([tensor(2, expert, (hidden, intermediate)) for expert in range(experts)])
        own = slice(group.rank * experts // world, (group.rank + 1) * experts // world)
        choices = [torch.randperm(experts, generator=torch.Generator().manual_seed(t))[:top_k] for t in range(tokens)]
        ids = torch.stack(choices).int()
        ids[0] = -1
        router = tensor(3, group.rank, (tokens, top_k), torch.float32).sigmoid()
        weights = ups[own].transpose(1, 2), downs[own].transpose(1, 2)
        if not is_transposed:
            weights = [weight.contiguous() for weight in weights]
        count = torch.tensor([tokens - 1], dtype=torch.int32)
        y = mkernel.moe_layer(x, ids, router, *weights, num_tokens=count, max_rows=64)
        exact = torch.zeros(tokens, hidden, dtype=torch.double)
        for token in range(1, tokens):
            for weight, expert in zip(router[token], ids[token], strict=True):
                gate, up = (ups[expert].double() @ x[token].double()).chunk(2)
                h = torch.nn.functional.silu(gate) * up
                exact[token] += weight.double() * (downs[expert].double() @ h)
        assert torch.equal(y[0], torch.zeros_like(y[0]))
        scale = float(exact.abs().max())
        assert_close(y[1 : tokens - 1], exact[1 : tokens - 1], scale)
        rows, offsets, indices = mkernel.dispatch_gemm(x, ids, weights[0], num_tokens=count, max_rows=64, swiglu=True)
        apart = mkernel.gemm_combine(rows, offsets, indices, router, weights[1], num_tokens=count)
        assert torch.equal(apart[: tokens - 1], y[: tokens - 1])

    mkernel.run(rank, world)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_moe_layer_from_logits(world, scores):
    tokens, hidden, intermediate, experts, top_k = 9, 64, 40, 8, 2

    def rank(group):
        x = tensor(0, group.rank, (tokens, hidden))
        own = slice(group.rank * experts // world, (group.rank + 1) * experts // world)
        gate_up, down = (
            tensor(1, 0, (experts, hidden, 2 * intermediate))[own],
            tensor(2, 0, (experts, intermediate, hidden))[own],
        )
        logits = tensor(3, group.rank, (tokens, experts), torch.float32)
        bias = tensor(4, 0, (experts,), torch.float32) if scores == "sigmoid" else None
        options = {"scores": scores, "score_bias": bias, "renormalise": scores == "sigmoid"}
        y, ids, weights = mkernel.moe_layer_from_logits(x, logits, gate_up, down, top_k, **options)
        exact = logits.double().softmax(1) if scores == "softmax" else logits.double().sigmoid()
        chosen = (exact if bias is None else exact + bias.double()).topk(top_k, 1).indices
        assert torch.equal(ids.long(), chosen)
        expected = exact.gather(1, chosen)
        if scores == "sigmoid":
            expected /= expected.sum(1, keepdim=True)
        assert (weights.double() - expected).abs().max() < 1e-5
        assert torch.equal(y, mkernel.moe_layer(x, ids, weights, gate_up, down))
        strided = tensor(5, 0, (tokens, 2 * experts), torch.float32)[:, :experts]
        mkernel.moe_layer_from_logits(x, strided, gate_up, down, top_k, scores=scores)

    mkernel.run(rank, world)


@pytest.mark.parametrize("gather_dim", [0, 1])
def test_signatures_of_symmetric_memory(gather_dim):
    def rank(group):
        shapes = (4, 6, 64) if gather_dim == 0 else (6, 4, 64)
        shards = [tensor(0, rank, shapes) for rank in range(2)]
        bs = [tensor(1, group.rank, (64, 32)), tensor(2, group.rank, (64, 40))]
        whole = torch.cat(shards, gather_dim)
        op = torch.ops.mkernel.fused_all_gather_matmul
        gathered, products = op(shards[group.rank], bs, gather_dim, group.name)
        assert torch.equal(gathered, whole)
        for product, b in zip(products, bs, strict=True):
            assert_close(product, whole.double() @ b.double(), 8)
        alone, _ = op(shards[group.rank], bs[:1], gather_dim, group.name, return_A=False)
        assert alone is None
        a, b = [tensor(3, rank, whole.shape) for rank in range(2)], [tensor(4, rank, (64, 32)) for rank in range(2)]
        mean = sum(x.double() @ y.double() for x, y in zip(a, b, strict=True)) / 2
        op = torch.ops.mkernel.fused_matmul_reduce_scatter
        part = op(a[group.rank], b[group.rank], "avg", gather_dim, group.name)
        assert_close(part, mean.chunk(2, gather_dim)[group.rank], 12)

    mkernel.run(rank, 2)


def test_prepared_operators_take_rows_of_each_call():
    def rank(group):
        operator = group.prepare("all_gather", m="..=16", n=8, dtype=torch.float32, name="rows")
        assert operator.max_rows == 16
        assert operator.operands(6) == [
            ("x", group.rows(6), 8, "fp32", False),
            ("y", 6, 8, "fp32", True),
        ]
        for rows in (16, 6, torch.tensor([10], dtype=torch.int32)):
            count = int(rows)
            # With rows that the kernel reads, there is room for the most.
            room = 16 if isinstance(rows, torch.Tensor) else count
            x, y = torch.full((group.rows(room), 8), float(group.rank)), torch.zeros(room, 8)
            operator(x=x, y=y, rows=rows)
            expected = torch.arange(count) // -(-count // 2)
            assert torch.equal(y[:count, 0], expected.float())

    mkernel.run(rank, 2)


def test_bound_tensors_are_read_by_each_call():
    def rank(group):
        x, y = torch.ones(4, 8), torch.zeros(4, 8)
        call = group.prepare("all_reduce", m="..=4", n=8, dtype="fp32").bind(x=x, y=y)
        for factor in (1, 3):
            x.fill_(factor)
            call(4)
            assert torch.equal(y, torch.full_like(y, 2 * factor))

    mkernel.run(rank, 2)


def test_operators_that_were_not_used_for_longest_are_dropped(monkeypatch):
    monkeypatch.setattr(mkernel.Group, "MAX_OPERATORS", 2)
    monkeypatch.setattr(mkernel.Group, "MAX_CALLS", 2)

    def rank(group):
        a, prepared = torch.ones(8, 64, dtype=torch.bfloat16), []
        for columns in (8, 16, 8, 8, 24, 8, 16):
            b = torch.ones(64, columns, dtype=torch.bfloat16)
            # A call that cannot be made again without checks, on one of the ranks.
            mine = a.t().contiguous().t() if group.rank else a
            assert (mkernel.gemm_ar(mine, b) == 128).all()
            prepared.append([operator.operands()[2].cols for operator in group._operators.values()])
        return prepared

    order = [[8], [8, 16], [16, 8], [16, 8], [8, 24], [24, 8], [8, 16]]
    assert mkernel.run(rank, 2) == [order, order]


def test_products_of_e4m3_with_scales():
    def rank(group):
        generator = torch.Generator().manual_seed(group.rank)
        a, b = (torch.randn(rows, 144, generator=generator).to(torch.float8_e4m3fn) for rows in (20, 24))
        a_scales, b_scales = (torch.rand(rows, generator=generator) + 0.5 for rows in (20, 24))
        c = torch.empty(20, 24, dtype=torch.bfloat16)
        product = group.prepare("gemm", m=20, n=24, k=144, b_layout="nk", dtype=torch.float8_e4m3fn, scales="row")
        product(a=a, b=b, a_scales=a_scales, b_scales=b_scales, c=c)
        scaled = a.double() * a_scales[:, None] @ (b.double() * b_scales[:, None]).T
        assert_close(c, scaled, 144)
        # Without scales, and with the type of results.
        product = mkernel.gemm(a, b.t(), group=group.name)
        assert product.dtype == torch.bfloat16
        assert_close(product, a.double() @ b.double().T, 144)

    mkernel.run(rank, 2)
