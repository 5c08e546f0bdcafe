"""Randomly initialised models of transformers, and the ranks on which the examples run them."""

import argparse
import copy
import os
from collections.abc import Callable

import mkernel
import torch
import torch.distributed as dist
import transformers

TOY = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
}
SIZES = {
    "llama": TOY,
    "qwen3-moe": TOY | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    # Llama 3 8B
    "llama-8b": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 8192,
    },
}


def arguments(description: str) -> argparse.ArgumentParser:
    """Return the arguments that the examples share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--simulated", type=int, metavar="RANKS", help="run on simulated GPUs, without torchrun")
    parser.add_argument("--model", choices=SIZES, default="llama")
    parser.add_argument("--layers", type=int, help="number of layers [default: of the model]")
    parser.add_argument("--batch", type=int, default=2)
    return parser


def create(args: argparse.Namespace, device: torch.device) -> torch.nn.Module:
    """Return the model of the arguments, with equal weights on all ranks."""
    sizes = SIZES[args.model] | ({"num_hidden_layers": args.layers} if args.layers else {})
    kind = transformers.Qwen3MoeConfig if args.model == "qwen3-moe" else transformers.LlamaConfig
    config = kind(**sizes, tie_word_embeddings=False)
    torch.manual_seed(0)
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def run(args: argparse.Namespace, function: Callable[[argparse.Namespace, mkernel.Group, torch.nn.Module], None]) -> None:
    """Call a function with a model for each rank: simulated ranks, or the rank of this process under torchrun."""
    if args.simulated:
        # The model is created once, since torch has one seed and one default type for all threads.
        whole = create(args, torch.device("cpu"))
        mkernel.run(lambda group: function(args, group, copy.deepcopy(whole)), args.simulated)
        return
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    with mkernel.init() as group:
        function(args, group, create(args, device))
        group.barrier()
    dist.destroy_process_group()


def prompt_of(args: argparse.Namespace, model: torch.nn.Module, positions: int) -> torch.Tensor:
    """Return random tokens, equal on all ranks."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, model.config.vocab_size, (args.batch, positions), generator=generator).to(model.device)
