"""Operators of e4m3 with scales, on simulated GPUs beside torch in fp64, eager and compiled."""

import mkernel
import pytest
import torch
from reference import assert_near, shard, tensor

E4M3 = torch.float8_e4m3fn
OPS = torch.ops.mkernel


def blocks(size):
    return -(-size // 128)


def e4m3(seed, rank, shape):
    return tensor(seed, rank, shape).to(E4M3)


def numbers(seed, rank, *shape):
    """Return random scales."""
    return tensor(seed, rank, shape, torch.float32).abs() + 0.5


def rows_with_scales(kind, seed, rank, m, k):
    """Return ``[m, k]`` of a rank and its scales. One scale of all elements is the same on all ranks."""
    shapes = {"tensor": (1,), "row": (m, 1), "block": (m, blocks(k))}
    return e4m3(seed, rank, (m, k)), numbers(seed + 1, 0 if kind == "tensor" else rank, *shapes[kind])


def weight_with_scales(kind, seed, rank, *shape, halves=1):
    """Return a weight ``[..., n, k]`` of a rank and its scales. Blocks begin with each of the halves of n."""
    *lead, n, k = shape
    shapes = {"tensor": lead or [1], "row": (*lead, n), "block": (*lead, halves * blocks(n // halves), blocks(k))}
    return e4m3(seed, rank, shape), numbers(seed + 1, rank, *shapes[kind])


def exact_rows(x, scales):
    """Return rows in fp64, whose scales have the shape ``[1]``, ``[m, 1]`` or ``[m, ⌈k/128⌉]``."""
    wide = scales.double()
    return x.double() * (wide if wide.shape[-1] == 1 else wide.repeat_interleave(128, -1)[..., : x.shape[-1]])


def exact_weight(w, scales, halves=1):
    """Return a weight in fp64."""
    if scales.dim() < w.dim():
        return w.double() * scales.double().reshape(*scales.shape, *[1] * (w.dim() - scales.dim()))
    parts = [part.repeat_interleave(128, -2)[..., : w.shape[-2] // halves, :] for part in scales.chunk(halves, -2)]
    return exact_rows(w, torch.cat(parts, -2))


def of_transposed(scales):
    """Return the scales of a weight ``[n, k]`` as operators take them, with the transposed weight."""
    return scales.t() if scales.dim() > 1 else scales


def gated(x):
    gate, up = x.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def quantised(x, size):
    """Return elements of e4m3 and fp32 scales of ``size`` elements of a row each, which divides the row, of a tensor."""
    parts = x.float().unflatten(-1, (-1, size))
    scales = parts.abs().amax(-1, keepdim=True) * (1 / 448)
    return (parts * (1 / scales)).to(E4M3).flatten(-2), scales[..., 0]


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


GEMMS = [
    (1, "ag_gemm", "tensor"),
    (1, "gemm_rs", "row"),
    (1, "gemm_ar", "block"),
    (2, "gemm", "row"),
    (2, "ag_gemm", "row"),
    (2, "ag_gemm", "block"),
    (2, "gemm_rs", "block"),
    (2, "gemm_ar", "tensor"),
]


@pytest.mark.parametrize(("world", "op", "kind"), GEMMS)
def test_gemms(world, op, kind):
    m, n, k = 11, 144, 272
    rows = {"rows": m} if op == "ag_gemm" else {}

    def eager(a, w, bias, a_scales, b_scales):
        return getattr(mkernel, op)(a, w.t(), bias, a_scales=a_scales, b_scales=b_scales, **rows)

    graph = compiled(eager)

    def rank(group):
        own, bias = shard(m, group.rank, world), tensor(0, 0, (n,)) if world == 1 else None
        lefts = [rows_with_scales(kind, 1, rank, m, k) for rank in range(world)]
        rights = [weight_with_scales(kind, 3, rank, n, k) for rank in range(world)]
        (a, a_scales), (w, scales) = lefts[group.rank], rights[group.rank]
        exact = exact_rows(a, a_scales) @ exact_weight(w, scales).t()
        if op == "ag_gemm":
            # The rows of all ranks are those of rank 0.
            whole, of_whole = lefts[0]
            exact = exact_rows(whole, of_whole) @ exact_weight(w, scales).t()
            a, a_scales = whole[own], of_whole if kind == "tensor" else of_whole[own]
        elif op != "gemm":
            exact = sum(exact_rows(*left) @ exact_weight(*right).t() for left, right in zip(lefts, rights, strict=True))
            exact = exact[own] if op == "gemm_rs" else exact
        args = (a, w, bias, a_scales, of_transposed(scales))
        result = eager(*args)
        assert result.dtype == torch.bfloat16
        assert_near(result, exact if bias is None else exact + bias.double())
        assert torch.equal(graph(*args), result)
        # Calls of equal sizes are repeated without checks, with other scales.
        if bias is None:
            assert torch.equal(eager(a, w, None, 2 * a_scales, args[-1]), 2 * result)
            with pytest.raises(mkernel.Error, match="b_scales: missing beside a_scales"):
                eager(a, w, None, a_scales, None)
        with torch.no_grad():
            out = torch.empty_like(result)
            options = {"a_scales": a_scales, "b_scales": of_transposed(scales), "out": out, **rows}
            assert getattr(mkernel, op)(a, w.t(), bias, **options) is out and torch.equal(out, result)

    mkernel.run(rank, world)


def test_a_gated_product_and_a_norm():
    m, n, k = 5, 272, 144

    def rank(group):
        a, a_scales = rows_with_scales("block", 1, group.rank, m, k)
        w, scales = weight_with_scales("block", 3, group.rank, n, k, halves=2)
        y = mkernel.gemm(a, w.t(), activation="swiglu", a_scales=a_scales, b_scales=scales.t(), out_dtype=torch.float32)
        exact = gated(exact_rows(a, a_scales) @ exact_weight(w, scales, 2).t())
        assert ((y.double() - exact).abs() <= 1e-3 * exact.abs().max()).all()
        lefts = [rows_with_scales("row", 5, rank, m, k) for rank in range(2)]
        rights = [weight_with_scales("row", 7, rank, n, k) for rank in range(2)]
        (a, a_scales), (w, scales) = lefts[group.rank], rights[group.rank]
        residual, weight = tensor(9, 0, (m, n)), tensor(10, 0, (n,))
        y, z = mkernel.gemm_ar_rms_norm(a, w.t(), residual, weight, a_scales=a_scales, b_scales=scales)
        exact = sum(exact_rows(*left) @ exact_weight(*right).t() for left, right in zip(lefts, rights, strict=True))
        assert_near(z, exact + residual.double())
        assert_near(y, z.double() * (z.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double())

    mkernel.run(rank, 2)


@pytest.mark.parametrize(("world", "kind", "size"), [(1, "block", 128), (2, "row", 256)])
def test_normalised_rows_are_the_left_factor_of_a_product(world, kind, size):
    n = 256

    def eager(x, residual, weight, w, b_scales):
        y, scales, z = mkernel.all_reduce_rms_norm(x, residual, weight, 1e-5, result_scales=kind)
        product = mkernel.gemm(y.flatten(0, 1), w.t(), a_scales=scales.flatten(0, 1), b_scales=b_scales)
        return y, scales, z, product

    graph = compiled(eager)

    def rank(group):
        x, residual, weight = tensor(1, group.rank, (2, 3, n)), tensor(2, 0, (2, 3, n)), tensor(3, 0, (n,))
        w, b_scales = weight_with_scales(kind, 4, 0, 16, n)
        plain, expected_z = mkernel.all_reduce_rms_norm(x, residual, weight, 1e-5)
        expected_y, expected_scales = quantised(plain, size)
        args = (x, residual, weight, w, of_transposed(b_scales))
        with torch.no_grad():
            y, scales, z, product = eager(*args)
        assert y.dtype == E4M3 and torch.equal(y.view(torch.uint8), expected_y.view(torch.uint8))
        assert torch.equal(scales, expected_scales) and torch.equal(z, expected_z)
        exact = exact_rows(y, scales).flatten(0, 1) @ exact_weight(w, b_scales).t()
        assert_near(product, exact)
        for result, repeated in zip((y, scales, z, product), graph(*args), strict=True):
            assert torch.equal(result.view(torch.uint8), repeated.view(torch.uint8))

    mkernel.run(rank, world)


def choices(tokens, experts, top_k):
    """Return experts of each token. The first token has none."""
    orders = [torch.randperm(experts, generator=torch.Generator().manual_seed(t)) for t in range(tokens)]
    ids = torch.stack(orders)[:, :top_k].int()
    ids[0] = -1
    return ids


@pytest.mark.parametrize(("world", "kind", "swiglu"), [(1, "block", True), (2, "row", False), (2, "tensor", False)])
def test_dispatch_gemm(world, kind, swiglu):
    tokens, hidden, columns, experts, top_k = 6, 144, 272, 4, 2
    local, ids = experts // world, choices(tokens, experts, top_k)

    def eager(x, ids, w, a_scales, b_scales):
        return mkernel.dispatch_gemm(x, ids, w.transpose(1, 2), swiglu=swiglu, a_scales=a_scales, b_scales=b_scales)

    graph = compiled(eager)
    lefts = [rows_with_scales(kind, 1, rank, tokens, hidden) for rank in range(world)]
    halves = 2 if swiglu else 1
    rights = [weight_with_scales(kind, 3, rank, local, columns, hidden, halves=halves) for rank in range(world)]

    def rank(group):
        (x, a_scales), (w, scales) = lefts[group.rank], rights[group.rank]
        args = (x, ids, w, a_scales, scales.transpose(1, 2) if kind == "block" else scales)
        rows, offsets, indices = eager(*args)
        assert rows.dtype == torch.bfloat16
        repeated = graph(*args)
        count = int(offsets[-1])
        assert torch.equal(repeated[0][:count], rows[:count]) and torch.equal(repeated[2], indices)
        return rows, indices

    results = mkernel.run(rank, world)
    weights = torch.cat([exact_weight(*right, halves) for right in rights])
    for (x, a_scales), (_, indices) in zip(lefts, results, strict=True):
        assert (indices[0] == -1).all()
        for token in range(1, tokens):
            for expert, index in zip(ids[token], indices[token], strict=True):
                source = results[int(expert) // local][0]
                exact = weights[expert] @ exact_rows(x, a_scales)[token]
                row = source[int(index) % source.shape[0]]
                assert_near(row, gated(exact) if swiglu else exact)


@pytest.mark.parametrize("world", [1, 2])
def test_moe_layer(world):
    tokens, hidden, intermediate, experts, top_k = 6, 144, 256, 2, 1
    local, ids = experts // world, choices(tokens, experts, top_k)

    def eager(x, router, gate_up, down, *scales):
        weights, names = (gate_up.transpose(1, 2), down.transpose(1, 2)), ("a_scales", "b_scales", "down_scales")
        return mkernel.moe_layer(x, ids, router, *weights, **dict(zip(names, scales, strict=True)))

    def apart(x, router, gate_up, down, a_scales, b_scales, down_scales):
        scales = {"a_scales": a_scales, "b_scales": b_scales, "result_scales": "block"}
        rows, of_rows, *lists = mkernel.dispatch_gemm(x, ids, gate_up.transpose(1, 2), swiglu=True, **scales)
        scales = {"a_scales": of_rows, "b_scales": down_scales}
        return mkernel.gemm_combine(rows, *lists, router, down.transpose(1, 2), **scales)

    graph = compiled(eager)

    def rank(group):
        x, a_scales = rows_with_scales("block", 1, group.rank, tokens, hidden)
        router = numbers(3, group.rank, tokens, top_k)
        ups = [weight_with_scales("block", 4, rank, local, 2 * intermediate, hidden, halves=2) for rank in range(world)]
        downs = [weight_with_scales("block", 6, rank, local, hidden, intermediate) for rank in range(world)]
        (gate_up, b_scales), (down, down_scales) = ups[group.rank], downs[group.rank]
        scales = (a_scales, b_scales.transpose(1, 2), down_scales.transpose(1, 2))
        y = eager(x, router, gate_up, down, *scales)
        assert y.dtype == torch.bfloat16 and not y[0].any()
        assert torch.equal(graph(x, router, gate_up, down, *scales), y)
        assert torch.equal(apart(x, router, gate_up, down, *scales), y)
        of_up, of_down = (torch.cat([exact_weight(*given, h) for given in w]) for w, h in ((ups, 2), (downs, 1)))
        chosen = ids[1:, 0].long()
        hidden_rows = gated(torch.einsum("th,tnh->tn", exact_rows(x, a_scales)[1:], of_up[chosen]))
        hidden_rows = exact_rows(*quantised(hidden_rows, 128))
        exact = torch.einsum("tk,tok->to", hidden_rows, of_down[chosen]) * router[1:].double()
        # Few elements are between two numbers of e4m3, and are rounded to the other one.
        assert (y[1:].double() - exact).norm() <= 0.01 * exact.norm()

    mkernel.run(rank, world)


@pytest.mark.parametrize(("kind", "gather_dim", "replicated"), [("row", 0, False), ("row", 1, True), ("tensor", 0, False)])
def test_signatures_of_symmetric_memory_that_gather(kind, gather_dim, replicated):
    shape, k, columns = (3, 2), 144, (16, 24)
    whole_shape = tuple(2 * size if dim == gather_dim else size for dim, size in enumerate(shape))

    def eager(a, a_scale, weights, scales, bias, group):
        args = (gather_dim, group, [bias, None], [None, None], [torch.bfloat16, torch.float32], [True, False])
        return OPS.fused_all_gather_scaled_matmul(a, [w.t() for w in weights], a_scale, scales, *args)

    graph = compiled(eager)

    def rank(group):
        whole = e4m3(1, 0, (*whole_shape, k))
        of_whole = numbers(2, 0, *whole_shape, 1) if kind == "row" else numbers(2, 0, 1)
        a = whole.view(torch.uint8).chunk(2, gather_dim)[group.rank].contiguous().view(E4M3)
        own = of_whole if kind == "tensor" or replicated else of_whole.chunk(2, gather_dim)[group.rank].contiguous()
        rights = [weight_with_scales(kind, 3 + i, group.rank, n, k) for i, n in enumerate(columns)]
        bias = tensor(9, 0, (columns[0],))
        scales = [scales.view(1, -1) for _, scales in rights]
        args = (a, own, [w for w, _ in rights], scales, bias, group.name)
        gathered, products = eager(*args)
        assert torch.equal(gathered.view(torch.uint8), whole.view(torch.uint8))
        for i, (product, right) in enumerate(zip(products, rights, strict=True)):
            exact = exact_rows(whole, of_whole) @ exact_weight(*right).t()
            assert product.dtype == (torch.float32 if i else torch.bfloat16)
            assert_near(product.bfloat16(), exact if i else exact + bias.double())
        for product, repeated in zip(products, graph(*args)[1], strict=True):
            assert torch.equal(product, repeated)

    mkernel.run(rank, 2)


@pytest.mark.parametrize(("kind", "dim", "op"), [("row", 1, "avg"), ("tensor", 0, "sum")])
def test_signatures_of_symmetric_memory_that_scatter(kind, dim, op):
    shape, k, n = (4, 2), 144, 16

    def eager(a, w, a_scale, b_scale, group):
        # As torch's compiler pass calls it, which reshapes A to a matrix.
        args = (op, dim, 0, group, [*shape, n], None, None, torch.bfloat16)
        return OPS.fused_scaled_matmul_reduce_scatter(a.flatten(0, 1), w.t(), a_scale, b_scale, *args)

    graph = compiled(eager)

    def rank(group):
        lefts = [rows_with_scales(kind, 1, rank, shape[0] * shape[1], k) for rank in range(2)]
        rights = [weight_with_scales(kind, 3, rank, n, k) for rank in range(2)]
        exact = sum(exact_rows(*left) @ exact_weight(*right).t() for left, right in zip(lefts, rights, strict=True))
        exact = (exact / 2 if op == "avg" else exact).view(*shape, n).chunk(2, dim)[group.rank]
        (a, a_scale), (w, b_scale) = lefts[group.rank], rights[group.rank]
        args = (a.view(*shape, k), w, a_scale, b_scale.view(1, -1), group.name)
        part = eager(*args)
        assert_near(part, exact)
        assert torch.equal(graph(*args), part)

    mkernel.run(rank, 2)


def test_arguments_of_symmetric_memory_that_cannot_be_taken():
    def rank(group):
        a, b, scale = torch.ones(4, 64).to(E4M3), torch.ones(8, 64).to(E4M3).t(), torch.ones(1)

        def gather(
            a=a, b=b, a_scale=scale, b_scale=scale, result_scale=None, out_dtype=torch.bfloat16, dim=0, biases=(None,)
        ):
            args = ([b], a_scale, [b_scale], dim, group.name, list(biases), [result_scale], [out_dtype], [False])
            return OPS.fused_all_gather_scaled_matmul(a, *args)

        def scatter(out_dtype=torch.bfloat16, op="sum", dim=0, shape=(4, 8), bias=None):
            args = (a, b, scale, scale, op, dim, 0, group.name, list(shape), bias, None, out_dtype)
            return OPS.fused_scaled_matmul_reduce_scatter(*args)

        for call, given, expected in (
            (gather, {"a": a.bfloat16()}, "A has elements of torch.bfloat16. Use torch.float8_e4m3fn"),
            (gather, {"a": a[:, :8]}, r"Pass \[16, N\]"),
            (gather, {"b": b.contiguous()}, r"Bs\[0\] is contiguous.*Pass weight.t()"),
            (gather, {"b_scale": torch.ones(2, 3)}, "For scales of blocks, call mkernel.ag_gemm"),
            (gather, {"b_scale": torch.ones(1, 8)}, r"Pass \(4, 1\) or \(8, 1\), or one scale for B"),
            (gather, {"a_scale": torch.ones(4, 1)}, "A_scale has the shape .* Pass one scale, as B has"),
            (gather, {"result_scale": scale}, r"result_scales\[0\] is given.*Pass None"),
            (gather, {"out_dtype": None}, r"out_dtypes\[0\] = None, which means the type of A. Use torch.bfloat16"),
            (gather, {"dim": 1}, "gather_dim = 1 .* Use a dimension before the last one"),
            (gather, {"biases": ()}, "biases has 0 elements. Pass one for each of 1 Bs"),
            (scatter, {"out_dtype": torch.float16}, "out_dtype = torch.float16. Use torch.bfloat16"),
            (scatter, {"op": "max"}, "reduce_op = 'max'. Use 'sum' or 'avg'"),
            (scatter, {"dim": 1}, "orig_scatter_dim = 1"),
            (scatter, {"shape": (3, 8)}, r"output_shape = \(3, 8\). Pass dimensions of 4 rows, and then 8 columns"),
            (scatter, {"bias": torch.ones(8)}, "add the sum of the biases to the result"),
        ):
            with pytest.raises(ValueError, match=expected):
                call(**given)
        with pytest.raises(ValueError) as raised:
            gather(out_dtype=None, result_scale=scale, b=b.contiguous())
        assert len(str(raised.value).splitlines()) == 3

    mkernel.run(rank, 2)


MISTAKES = [
    ({"a_scales": 1}, "b_scales: missing beside a_scales. Pass the scales of all factors, or none"),
    (
        {"a_scales": 1, "b_scales": (3,)},
        r"b_scales: its shape is \(3,\). Pass \(1,\) or \(\) for one scale of all elements, \(24,\)",
    ),
    ({"a_scales": (7,), "b_scales": (24,)}, r"a_scales: its shape is \(7,\). Pass \(20,\) or \(20, 1\)"),
    ({"a_scales": 1, "b_scales": 1, "dtype": torch.float64}, "b_scales: its elements are torch.float64. Use torch.float32"),
    (
        {"a_scales": 1, "b_scales": 1, "of": torch.bfloat16},
        "the factor has elements of torch.bfloat16. Use torch.float8_e4m3fn",
    ),
    ({"is_kn": True}, r"b: its shape is \(64, 24\), contiguous along the last dimension.*Pass the transposed view"),
    ({"a_scales": 1, "b_scales": 1, "out_dtype": torch.float16}, "output: fp16 is not possible here; use bf16 or fp32"),
]


@pytest.mark.parametrize(("given", "expected"), MISTAKES)
def test_mistakes_are_refused(given, expected):
    shapes = {name: given[name] for name in ("a_scales", "b_scales") if name in given}
    of = given.get("of", E4M3)

    def rank(group):
        a, b = torch.ones(20, 64).to(of), torch.ones(24, 64).to(of).t()
        b = b.contiguous() if "is_kn" in given else b
        scales = {name: torch.ones(shape, dtype=given.get("dtype", torch.float32)) for name, shape in shapes.items()}
        with pytest.raises(mkernel.Error, match=expected) as raised:
            mkernel.gemm(a, b, out_dtype=given.get("out_dtype"), **scales)
        assert raised.value.kind in ("operands", "configuration")

    mkernel.run(rank, 1)


def test_all_mistakes_are_reported_at_once():
    def rank(group):
        a, b, scale = torch.ones(20, 64).to(E4M3), torch.ones(64, 24).to(E4M3), torch.ones(1)
        with pytest.raises(mkernel.Error) as raised:
            mkernel.gemm(a, b, a_scales=scale.double(), b_scales=torch.ones(5))
        assert [line.split(":")[0] for line in str(raised.value).splitlines()] == ["b", "b_scales"]
        weights = [torch.ones(2, n, k).to(E4M3).transpose(1, 2) for n, k in ((256, 64), (64, 128))]
        ids, router = torch.zeros(20, 1, dtype=torch.int32), torch.ones(20, 1)
        with pytest.raises(mkernel.Error, match="b_scales and down_scales: missing beside a_scales"):
            mkernel.moe_layer(a, ids, router, *weights, a_scales=torch.ones(20, 1))

    mkernel.run(rank, 1)


def test_gradients_are_refused():
    def rank(group):
        a, b = torch.ones(4, 64).to(E4M3), torch.ones(8, 64).to(E4M3).t()
        scales = {"a_scales": torch.ones(1, requires_grad=True), "b_scales": torch.ones(1)}
        with pytest.raises(mkernel.Error, match=r"gemm of torch.float8_e4m3fn has no backward pass. Train with bf16"):
            mkernel.gemm(a, b, **scales).sum().backward()

    mkernel.run(rank, 1)
