"""Layers beside those of one device."""

import mkernel
import mkernel.nn
import pytest
import torch

FEATURES, HIDDEN = 64, 128


class Block(torch.nn.Module):
    def __init__(self, up, down):
        super().__init__()
        self.up, self.down = up, down

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.up(x)))


def close(result, expected):
    torch.testing.assert_close(result.float(), expected.float(), rtol=0.02, atol=0.02 * expected.abs().max().item())


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_block(world, sequence_parallel, compiled):
    torch._dynamo.reset()
    torch.manual_seed(0)
    whole = Block(torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Linear(HIDDEN, FEATURES)).bfloat16()
    x = torch.randn(8, 3, FEATURES).bfloat16().requires_grad_()
    y = whole(x)
    y.float().square().sum().backward()
    forward = torch.compile(Block.forward, fullgraph=True, backend="aot_eager") if compiled else Block.forward

    def rank(group):
        options = {"sequence_parallel": sequence_parallel}
        block = Block(
            mkernel.nn.ColumnParallelLinear.from_linear(whole.up, **options),
            mkernel.nn.RowParallelLinear.from_linear(whole.down, **options),
        )

        def part(tensor, dim=0):
            return tensor.chunk(world, dim)[group.rank]

        own = part if sequence_parallel else lambda tensor: tensor
        mine = own(x.detach()).clone().requires_grad_()
        result = forward(block, mine)
        result.float().square().sum().backward()
        close(result, own(y.detach()))
        close(mine.grad, own(x.grad))
        close(block.up.weight.grad, part(whole.up.weight.grad))
        close(block.up.bias.grad, part(whole.up.bias.grad))
        close(block.down.weight.grad, part(whole.down.weight.grad, 1))
        close(block.down.bias.grad, whole.down.bias.grad)

    mkernel.run(rank, world)


def test_sizes_that_ranks_cannot_share():
    def rank(group):
        with pytest.raises(mkernel.Error, match="2 ranks cannot share 63 features"):
            mkernel.nn.ColumnParallelLinear(FEATURES, 63)
        layer = mkernel.nn.RowParallelLinear(FEATURES, FEATURES, sequence_parallel=True)
        assert "sequence_parallel=True" in repr(layer)
        with pytest.raises(mkernel.Error, match="3 rows, which 2 ranks cannot share"):
            layer(torch.ones(3, FEATURES // 2).bfloat16())

    mkernel.run(rank, 2)
