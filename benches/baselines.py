#!/usr/bin/env python3
"""What ag_gemm is held against: NCCL then cuBLAS, and PyTorch's fused operator over symmetric memory.

    torchrun --nproc-per-node 8 benches/baselines.py > baselines.jsonl
    cargo bench --bench ag_gemm -- --baselines baselines.jsonl

A line of JSON per shape and variant: the median over calls of the slowest rank's time, beside that of cuBLAS alone on
the gathered matrix, in blocks that take turns. N is that of one rank, as for the benchmark.
"""
import argparse
import json
import os
import signal
import statistics
import time

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# M, N over all ranks, K: those of the benchmark.
SHAPES = [
    (1024, 4096, 4096),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 16384, 16384),
    (32768, 32768, 32768),
    (8192, 57344, 8192),
    (16384, 106496, 16384),
]
BLOCK_US = 20_000


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", metavar="MxNxK", help="M over all ranks, N of one")
    parser.add_argument("--b-layout", choices=["kn", "nk"], default="kn")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--limit-s", type=int, default=300, help="the processes end then, whatever happens")
    return parser.parse_args()


def block(call, barrier, calls, hold_s):
    """Times of `calls` calls in ms on this rank, and how long the host took to enqueue them.

    The GPU sleeps for `hold_s` first: what Python takes to launch is not measured.
    """
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    dist.barrier()
    torch.cuda._sleep(int(hold_s * 1.9e9))  # cycles
    started = time.perf_counter()
    for start, end in events:
        barrier()  # all ranks go on at once
        start.record()
        call()
        end.record()
    host_s = time.perf_counter() - started
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events], host_s


def measure(calls_by_name, barrier, calls, rounds):
    """Medians in µs, by name."""
    hold_s = {name: block(call, barrier, calls, 0)[1] for name, call in calls_by_name.items()}
    times = {name: [] for name in calls_by_name}
    for _ in range(rounds):
        for name, call in calls_by_name.items():
            own, _ = block(call, barrier, calls, min(1.2 * hold_s[name], 0.5))
            slowest = torch.tensor(own, device="cuda", dtype=torch.float64)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            times[name] += slowest.tolist()
    return {name: statistics.median(values) * 1e3 for name, values in times.items()}


def check(name, found, expected):
    error = (found.float() - expected.float()).norm() / expected.float().norm()
    if not error < 4e-3:
        raise RuntimeError(f"{name} differs from cuBLAS by {error.item():.1e}")


def shape(m, n, k, layout, rounds):
    """The lines for one shape."""
    group = dist.group.WORLD.group_name
    random = lambda *size: torch.randn(size, device="cuda", dtype=torch.bfloat16)
    own = symm.empty(m // WORLD, k, device="cuda", dtype=torch.bfloat16)
    handle = symm.rendezvous(own, group=group)
    own.copy_(random(m // WORLD, k))
    b = random(n, k).t() if layout == "nk" else random(k, n)
    whole, gathered = (torch.empty(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c, alone = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    dist.all_gather_into_tensor(whole, own)

    def cublas():
        torch.mm(whole, b, out=alone)

    def nccl():
        dist.all_gather_into_tensor(gathered, own)
        torch.mm(gathered, b, out=c)

    def fused():
        return torch.ops.symm_mem.fused_all_gather_matmul(own, [b], 0, group)[1][0]

    cublas(), nccl()
    rows = slice(0, m, m // 64 | 1)
    check("NCCL+cuBLAS", c[rows], alone[rows])
    check("torch symm_mem", fused()[rows], alone[rows])
    calls = max(6, min(40, int(BLOCK_US / (2 * m * n * k / 740e6))))
    barrier = lambda: handle.barrier(channel=0)
    names = {"cuBLAS": cublas, "NCCL+cuBLAS": nccl, "torch symm_mem": fused}
    us = measure(names, barrier, calls, rounds)
    for variant in list(names)[1:]:
        yield dict(variant=variant, us=round(us[variant], 2), cublas_us=round(us["cuBLAS"], 2))


def main():
    flags = arguments()
    signal.alarm(flags.limit_s)
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", RANK)))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    if flags.shape:
        shapes = [tuple(int(size) for size in text.split("x")) for text in flags.shape]
    else:
        shapes = [(m, n // WORLD, k) for m, n, k in SHAPES]
    for m, n, k in shapes:
        line = dict(op="ag_gemm", world=WORLD, m=m, n=n, k=k, b_layout=flags.b_layout)
        for timed in shape(m, n, k, flags.b_layout, flags.rounds):
            if RANK == 0:
                print(json.dumps(line | timed), flush=True)
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
