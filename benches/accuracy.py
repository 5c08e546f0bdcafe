#!/usr/bin/env python3
"""Compares the errors against fp64 of ring_attention and of PyTorch's attention on one data set.

    python3 benches/accuracy.py cargo bench --bench attention -- --world 4 --seq 3072
    python3 benches/accuracy.py cargo bench --bench attention -- --world 4 --nodes 2 --seq 3072 --query-scale 8

Runs the benchmark, which writes the operands and results of its ranks to a folder (--dump). Then recomputes all rows of
all heads on one GPU: in fp64, and with cuDNN and FlashAttention through PyTorch. Prints a line per implementation with
the relative error of O over all ranks, |O - O64| / |O64|, the largest error of an element of O, and the largest error
of LSE. Exits with status 1 if the error of ring_attention exceeds the errors of both others.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

ROWS = 1024  # rows of queries per step of the reference in fp64
TOLERANCE = 1.02  # the largest ratio of the errors of two correct kernels, which round differently


def read(folder, about, name, heads, dtype=torch.bfloat16):
    """Returns all rows of the sequence, as [B, H, S, D]."""
    world, segments = len(about["chunks"]), len(about["chunks"][0])
    batch, dim = about["batch"], about["head_dim"]
    rows = about["seq"] // (world * segments)
    whole = [None] * (world * segments)
    for rank, chunks in enumerate(about["chunks"]):
        file = str(folder / f"{name}.{rank}")
        if name == "lse":
            size = batch * heads * rows * segments
            parts = torch.from_file(file, size=size, dtype=torch.float32).view(batch, heads, segments, rows).unbind(2)
        else:
            size = batch * rows * segments * heads * dim
            parts = torch.from_file(file, size=size, dtype=dtype).view(batch, segments, rows, heads, dim).unbind(1)
            parts = [part.transpose(1, 2) for part in parts]
        for chunk, part in zip(chunks, parts):
            whole[chunk] = part.cuda()
    return torch.cat(whole, 2)


def reference(q, k, v, causal):
    """Yields O and LSE of a head in fp64, some rows at a time."""
    k, v = k.double(), v.double()
    for first in range(0, q.shape[0], ROWS):
        rows = torch.arange(first, min(first + ROWS, q.shape[0]), device="cuda")
        scores = q[rows].double() @ k.t() / q.shape[1] ** 0.5
        if causal:
            scores.masked_fill_(torch.arange(k.shape[0], device="cuda")[None] > rows[:, None], float("-inf"))
        yield rows, scores.softmax(-1) @ v, scores.logsumexp(-1)


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*sys.argv[1:], "--rounds", "1", "--dump", folder], check=True)
        folder = pathlib.Path(folder)
        about = json.loads((folder / "about.json").read_text())
        heads, kv_heads = about["heads"], about["kv_heads"]
        q, o, lse = (read(folder, about, name, heads) for name in ("q", "o", "lse"))
        k, v = (read(folder, about, name, kv_heads).repeat_interleave(heads // kv_heads, 1) for name in "kv")
    causal = about["causal"]
    found = {"mkernel": (o, lse)}
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        found["cuDNN"] = scaled_dot_product_attention(q, k, v, is_causal=causal), None
    found["FlashAttention"] = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[:2]

    errors = {name: dict(square=0.0, largest=0.0, lse=0.0) for name in found}
    total = 0.0
    for at in [(batch, head) for batch in range(about["batch"]) for head in range(heads)]:
        for rows, expected, expected_lse in reference(q[at], k[at], v[at], causal):
            total += expected.square().sum().item()
            for name, (o, lse) in found.items():
                difference = o[at][rows].double() - expected
                of = errors[name]
                of["square"] += difference.square().sum().item()
                of["largest"] = max(of["largest"], difference.abs().max().item())
                if lse is not None:
                    of["lse"] = max(of["lse"], (lse[at][rows].double() - expected_lse).abs().max().item())
    print(f"{about['plan']}, all rows of all heads")
    print("                  relative    largest        LSE")
    for name, of in errors.items():
        of["relative"] = (of["square"] / total) ** 0.5
        of_lse = "" if found[name][1] is None else f"{of['lse']:.1e}"
        print(f"{name:<16}{of['relative']:>10.3e} {of['largest']:>10.1e} {of_lse:>10}")
    ours, *others = (of["relative"] for of in errors.values())
    if not ours <= TOLERANCE * max(others):
        sys.exit("mkernel is worse than both")


if __name__ == "__main__":
    main()
