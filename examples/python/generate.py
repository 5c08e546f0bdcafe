"""Greedy decoding by a model of transformers whose layers are divided among the ranks.

python examples/python/generate.py --simulated 2
torchrun --nproc-per-node 2 examples/python/generate.py --model llama-8b
"""

import copy
import tempfile
import time

import mkernel
import mkernel.nn
import torch
import torch.distributed as dist
import transformers

from decoder import Decoder
from model import arguments, prompt_of, run


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--prompt", type=int, default=8, help="tokens of the prompt")
    parser.add_argument("--new", type=int, default=8, help="tokens to generate")
    parser.add_argument("--tp-plan", action="store_true", help="let transformers divide the layers, by NCCL, for comparison")
    parser.add_argument("--eager", action="store_true", help="decode by transformers' generate, without a CUDA graph")
    parser.add_argument("--compile", action="store_true", help="compile the decoding step by torch.compile")
    args = parser.parse_args()
    run(args, generate)


@torch.no_grad()
def generate(args, group: mkernel.Group, whole: torch.nn.Module) -> None:
    device, prompt = whole.device, prompt_of(args, whole.eval(), args.prompt)
    is_small = whole.config.hidden_size < 1024
    expected = copy.deepcopy(whole)(input_ids=prompt).logits if is_small else None

    model = by_transformers(whole, group) if args.tp_plan else mkernel.nn.parallelize(whole)
    if expected is not None:
        error = (model(input_ids=prompt).logits - expected).float().norm() / expected.float().norm()
        print(f"rank {group.rank}: logits differ from those of one process by {error:.1e}")
        assert error < 0.03
    prefill = seconds(device, lambda: model(input_ids=prompt, logits_to_keep=1))
    tokens, decoding = decode_eagerly(args, model, prompt) if args.eager else decode(args, model, prompt)
    if group.rank == 0:
        print(f"tokens {tokens[0].tolist()}")
        if device.type == "cuda":
            rate = args.batch * args.new / decoding
            print(f"prefill of {args.batch} x {args.prompt} tokens {1e3 * prefill:.2f} ms, decoding {rate:.1f} tokens/s")


def decode(args, model: torch.nn.Module, prompt: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return new tokens, and the time of the steps after the first token."""
    decoder = Decoder(model, args.prompt + args.new + 1, args.compile)

    def sequence() -> tuple[torch.Tensor, float]:
        first = decoder.prefill(prompt)
        synchronize(prompt.device)
        start = time.perf_counter()
        steps = [decoder.step().clone() for _ in range(args.new)]
        synchronize(prompt.device)
        return torch.cat([first, *steps], 1), time.perf_counter() - start

    sequences = [sequence() for _ in range(1 if prompt.device.type == "cpu" else 4)]
    return sequences[-1][0], min(time for _, time in sequences)


def decode_eagerly(args, model: torch.nn.Module, prompt: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return new tokens, and the time of the steps after the first token."""
    options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}

    def sequence(new: int) -> torch.Tensor:
        return model.generate(prompt, max_new_tokens=new, min_new_tokens=new, **options)

    first, whole = (seconds(prompt.device, lambda new=new: sequence(new)) for new in (1, args.new + 1))
    return sequence(args.new + 1)[:, args.prompt :], whole - first


def seconds(device: torch.device, function) -> float:
    """Return the shortest time of three calls of a function, after an untimed call."""
    times = []
    for _ in range(1 if device.type == "cpu" else 4):
        synchronize(device)
        start = time.perf_counter()
        function()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[1:] or times)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def by_transformers(whole: torch.nn.Module, group: mkernel.Group) -> torch.nn.Module:
    """Return the model divided by the plan of transformers, over NCCL."""
    folders = [tempfile.mkdtemp()]
    if group.rank == 0:
        whole.save_pretrained(folders[0])
    dist.broadcast_object_list(folders)
    dist.barrier()
    del whole
    return transformers.AutoModelForCausalLM.from_pretrained(folders[0], tp_plan="auto", dtype=torch.bfloat16).eval()


if __name__ == "__main__":
    main()
