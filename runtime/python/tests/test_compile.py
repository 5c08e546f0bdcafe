"""The operators in graphs of torch."""

import mkernel.ops
import pytest
import torch
from reference import tensor
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

OPS = torch.ops.mkernel


def arguments():
    """Return arguments of each operator for one rank."""
    a, b = tensor(0, 0, (4, 64)), tensor(1, 0, (64, 8))
    x = tensor(2, 0, (4, 8), torch.float32)
    ids = torch.zeros(4, 1, dtype=torch.int32)
    q, keys = tensor(3, 0, (1, 4, 2, 64)), tensor(3, 1, (1, 6, 2, 64))
    for op in (OPS.ag_gemm, OPS.gemm_rs, OPS.gemm_ar, OPS.gemm):
        yield op.default, (a.clone().requires_grad_(), b, tensor(4, 0, (8,))), {}
    for op in (OPS.ag_gemm_out, OPS.gemm_rs_out, OPS.gemm_ar_out, OPS.gemm_out):
        yield op.default, (a, b), {"out": a.new_empty(4, 8)}
    for op in (OPS.all_reduce, OPS.all_gather, OPS.reduce_scatter, OPS.all_to_all):
        yield op.default, (x.clone().requires_grad_(),), {}
    yield OPS.broadcast.default, (x,), {}
    for op in (OPS.all_reduce_out, OPS.all_gather_out, OPS.reduce_scatter_out, OPS.broadcast_out, OPS.all_to_all_out):
        yield op.default, (x,), {"out": torch.empty_like(x)}
    yield OPS.all_reduce_rms_norm.default, (x, x, x[0].clone()), {}
    yield OPS.dispatch_gemm.default, (a, ids, b[None].contiguous()), {}
    gate_up, down = tensor(6, 0, (1, 64, 16)), tensor(7, 0, (1, 8, 64))
    yield OPS.moe_layer.default, (a, ids, torch.ones(4, 1), gate_up, down), {}
    yield (
        OPS.moe_layer_from_logits.default,
        (a, x, gate_up.repeat(8, 1, 1), down.repeat(8, 1, 1), 2),
        {"options": 'scores = "softmax"'},
    )
    offsets, indices = torch.tensor([0, 4]).int(), torch.arange(4).int()[:, None]
    yield OPS.gemm_combine.default, (tensor(8, 0, (4, 8)), offsets, indices, torch.ones(4, 1), down), {}
    yield OPS.combine.default, (tensor(5, 0, (4, 8)), ids + torch.arange(4).int()[:, None], torch.ones(4, 1), 1), {}
    yield OPS.ring_attention.default, (q, q, q), {}
    yield OPS.ring_attention_cached.default, (q, keys, keys, torch.ones(1, 1).int()), {}
    yield OPS.ring_attention_packed.default, (q[0], q[0], q[0], torch.tensor([0, 4]).int(), 4), {}
    yield OPS.gemm_ar_rms_norm.default, (a, b, x.bfloat16(), x[0].bfloat16()), {}
    yield OPS.own_part.default, (x, "default"), {}
    yield OPS.all_reduce_rms_norm_e4m3.default, (x.repeat(1, 2), x.repeat(1, 2), x[0].repeat(2)), {}
    narrow, one = [factor.to(torch.float8_e4m3fn) for factor in (a, b)], torch.ones(1)
    transposed = narrow[1].t().contiguous().t()
    yield OPS.gemm.default, (narrow[0], transposed), {"a_scales": one, "b_scales": one}
    scales = {"a_scales": torch.ones(4, 1), "b_scales": torch.ones(1, 8)}
    yield OPS.dispatch_gemm.default, (narrow[0], ids, transposed[None]), scales


@pytest.mark.parametrize("index", range(32))
def test_torch_finds_no_fault(index):
    def rank(group):
        op, args, kwargs = list(arguments())[index]
        utils = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
        if args[0].dtype == torch.float8_e4m3fn:
            # torch cannot compare tensors of e4m3 to find those that were written.
            utils = utils[1:]
        torch.library.opcheck(op, args, kwargs, test_utils=utils)

    assert len(list(arguments())) == 32
    mkernel.run(rank, 1)


def block(x, up, down, norm):
    """What a block of a transformer does under sequence parallelism."""
    hidden = torch.nn.functional.silu(mkernel.ag_gemm(x, up.t()))
    y = mkernel.gemm_rs(hidden, down.t(), stages=4, name="down") + x
    gathered = mkernel.all_gather(y)
    z, _ = mkernel.all_reduce_rms_norm(gathered, gathered, norm)
    return y, z


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_block_is_one_graph(dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend="aot_eager")

    def rank(group):
        up, down, norm = tensor(0, group.rank, (128, 64)), tensor(1, group.rank, (64, 128)), tensor(2, 0, (64,))
        for rows in (2, 3):
            x = tensor(3, group.rank, (rows, 64))
            for eager, result in zip(block(x, up, down, norm), compiled(x, up, down, norm), strict=True):
                assert torch.equal(eager, result)

    mkernel.run(rank, 2)


def test_inductor_and_gradients():
    torch._dynamo.reset()

    def loss(x, up, down):
        hidden = torch.nn.functional.silu(mkernel.ag_gemm(x, up.t()))
        return (mkernel.gemm_rs(hidden, down.t()) * 2).float().square().sum()

    compiled = torch.compile(loss, fullgraph=True)

    def rank(group):
        leaves = [tensor(kind, group.rank, shape) for kind, shape in enumerate([(2, 64), (128, 64), (64, 128)])]
        grads = []
        for function in (loss, compiled):
            args = [leaf.clone().requires_grad_() for leaf in leaves]
            function(*args).backward()
            grads.append([arg.grad for arg in args])
        for eager, result in zip(*grads, strict=True):
            torch.testing.assert_close(eager, result, rtol=0.05, atol=0.05 * eager.abs().max().item())

    mkernel.run(rank, 2)


def test_a_result_that_is_given_is_written():
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def function(a, b, out):
        mkernel.gemm_ar(a, b, out=out)
        return out + 1

    def rank(group):
        a, b, out = tensor(0, 0, (4, 64)), tensor(1, 0, (64, 8)), torch.zeros(4, 8, dtype=torch.bfloat16)
        result = function(a, b, out)
        assert torch.equal(out, mkernel.gemm_ar(a, b)) and torch.equal(result, out + 1)

    mkernel.run(rank, 1)


def test_export_keeps_the_operators():
    class Layer(torch.nn.Module):
        def forward(self, x, weight):
            return mkernel.ag_gemm(x, weight.t())

    def rank(group):
        args = (tensor(0, 0, (4, 64)), tensor(1, 0, (8, 64)))
        rows = torch.export.Dim("rows", max=64)
        program = torch.export.export(Layer(), args, dynamic_shapes=({0: rows}, None))
        assert any(node.target is OPS.ag_gemm.default for node in program.graph.nodes)
        x = tensor(2, 0, (7, 64))
        assert torch.equal(program.module()(x, args[1]), mkernel.ag_gemm(x, args[1].t()))

    mkernel.run(rank, 1)


class Seen(TorchDispatchMode):
    """A mode that notes the operators of mkernel."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "mkernel":
            self.names = [*getattr(self, "names", []), function.name()]
        return function(*args, **(kwargs or {}))


def test_calls_without_gradients_may_leave_out_the_dispatcher():
    def rank(group):
        a, b = (tensor(0, group.rank, shape) for shape in ((8, 64), (64, 64)))
        expected = mkernel.gemm_ar(a, b)
        with torch.no_grad():
            out = torch.empty_like(expected)
            assert torch.equal(mkernel.gemm_ar(a, b), expected)
            assert mkernel.gemm_ar(a, b, out=out) is out and torch.equal(out, expected)
            with Seen() as seen:
                assert torch.equal(mkernel.gemm_ar(a, b), expected)
            assert seen.names == ["mkernel::gemm_ar"]
            with FakeTensorMode() as mode:
                fake = mkernel.gemm_ar(mode.from_tensor(a), mode.from_tensor(b))
            assert isinstance(fake, FakeTensor) and fake.shape == expected.shape
            for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"):
                function = getattr(mkernel, name)
                result = function(a)
                with torch.enable_grad():
                    assert torch.equal(function(a, out=torch.empty_like(result)), result)
                assert torch.equal(function(a, out=torch.empty_like(result)), result)
            norms = mkernel.all_reduce_rms_norm(a, a, a[0])
            with torch.enable_grad():
                assert all(map(torch.equal, norms, mkernel.all_reduce_rms_norm(a, a, a[0])))

    mkernel.run(rank, 2)
