"""A training step of a model of transformers whose layers are divided among the ranks, beside a step of the whole model.

python examples/python/train_step.py --simulated 2 --sequence-parallel
torchrun --nproc-per-node 2 examples/python/train_step.py
"""

import copy

import mkernel
import mkernel.nn
import torch

from model import arguments, prompt_of, run


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--positions", type=int, default=16)
    parser.add_argument("--sequence-parallel", action="store_true", help="divide the sequence between the blocks")
    args = parser.parse_args()
    run(args, step)


def step(args, group: mkernel.Group, whole: torch.nn.Module) -> None:
    ids = prompt_of(args, whole, args.positions)
    model = mkernel.nn.parallelize(copy.deepcopy(whole), sequence_parallel=args.sequence_parallel)
    losses, norms = [], []
    for one in (whole, model):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.5)
        loss = one(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        group.synchronize()
        after = one(input_ids=ids, labels=ids).loss
        losses.append((loss.item(), after.item()))
        norms.append(one.get_input_embeddings().weight.grad.float().norm().item())
    print(
        f"rank {group.rank}: loss {losses[1][0]:.4f}, after a step {losses[1][1]:.4f}; "
        f"of the whole model {losses[0][0]:.4f} and {losses[0][1]:.4f}"
    )
    for own, expected in zip(losses[1], losses[0], strict=True):
        assert abs(own - expected) < 0.01 * expected
    assert abs(norms[1] - norms[0]) < 0.02 * norms[0], norms


if __name__ == "__main__":
    main()
