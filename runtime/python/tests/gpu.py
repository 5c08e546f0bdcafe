"""Checks and measures the package on GPUs, one process per GPU, beside NCCL in the same process group.

    python runtime/python/tests/gpu.py --world 4
    torchrun --nproc-per-node 4 runtime/python/tests/gpu.py
    python runtime/python/tests/gpu.py --world 2 --threads --shapes 20

It prints a line for each check, and a table of times on rank 0. The exit code is 0 if every check is passed. With ``--simulated``
it makes the checks that need no GPU on simulated ones, to test the script itself.
"""

from __future__ import annotations

import argparse
import math
import os
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))

import mkernel
from gpu_checks import CHECKS
from gpu_times import measure_device, measure_host


def make_checks(group, options):
    """Make all checks. After an error that ends the group, none can follow."""
    failed = []
    for name, (check, needs_no_nccl) in CHECKS.items():
        if not (dist.is_initialized() or needs_no_nccl) or (options.only and name not in options.only):
            continue
        started = time.monotonic()
        try:
            check(group, options.shapes)
            print(f"rank {group.rank}: ok {name} ({time.monotonic() - started:.1f} s)", flush=True)
        except Exception:
            print(f"rank {group.rank}: FAILED {name}\n{traceback.format_exc()}", flush=True)
            failed.append(name)
            if not options.simulated:
                # The ranks would not meet in the next check.
                break
    return failed


def rank_of_process(options):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("nccl", device_id=device)
    started = time.monotonic()
    group = mkernel.init()
    mkernel.all_reduce(torch.ones(8, device=device))
    group.synchronize()
    if rank == 0:
        print(f"first result after {time.monotonic() - started:.1f} s; torch {torch.__version__}; {group}", flush=True)
    if options.die:
        die(group, device, world)
        return
    failed = make_checks(group, options)
    if not failed and not options.no_times:
        host, device_times = measure_host(group), measure_device(group)
        if rank == 0:
            print("| host time of a call | µs |\n|---|---|")
            for name, us in host.items():
                print(f"| {name} | {us:.1f} |")
            print(
                "| operator | M, N, K per rank | mkernel µs | NCCL and cuBLAS µs | torch symm_mem µs |\n|---|---|---|---|---|"
            )
            for op, size, *times in device_times:
                print(
                    f"| {op} | {', '.join(map(str, size))} | {' | '.join('' if math.isnan(us) else f'{us:.1f}' for us in times)} |"
                )
    if not failed:
        group.barrier()
    group.close()
    if failed:
        os._exit(1)
    dist.destroy_process_group()


def die(group, device, world):
    """The last rank ends without a word, and the others are told so."""
    if group.rank == world - 1:
        os._exit(0)
    x, started = torch.ones(1 << 20, device=device), time.monotonic()
    try:
        while time.monotonic() - started < 60:
            mkernel.all_reduce(x)
            group.synchronize()
        print(f"rank {group.rank}: FAILED death: no error")
    except mkernel.Error as failure:
        is_named = failure.rank == world - 1 and failure.kind in ("rank lost", "timeout")
        print(
            f"rank {group.rank}: {'ok' if is_named else 'FAILED'} death ({time.monotonic() - started:.1f} s): {failure.kind}: {failure}"
        )
    sys.stdout.flush()
    os._exit(0)


def start(world, arguments):
    """Start a process per rank, and return the worst exit code."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, __file__, *arguments]
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
    processes = [subprocess.Popen(command, env=os.environ | common | rank) for rank in ranks]
    codes = [process.wait() for process in processes]
    return max(abs(code) for code in codes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=int, default=0, help="ranks; by default all GPUs, or 2 simulated ones")
    parser.add_argument("--shapes", type=int, default=100, help="random shapes of each operator")
    parser.add_argument("--only", nargs="*", choices=list(CHECKS), help="the checks to make")
    parser.add_argument("--no-times", action="store_true", help="do not measure")
    parser.add_argument("--simulated", action="store_true", help="use simulated GPUs, in threads")
    parser.add_argument("--threads", action="store_true", help="make the checks that need no NCCL in threads of one process")
    parser.add_argument("--die", action="store_true", help="end one rank, and check the errors of the others")
    options = parser.parse_args()
    if options.simulated:
        failed = mkernel.run(lambda group: make_checks(group, options), options.world or 2)
        return int(any(failed))
    if options.threads:
        devices = range(options.world or torch.cuda.device_count())
        return int(any(mkernel.run(lambda group: make_checks(group, options), devices=devices)))
    if "RANK" in os.environ:
        rank_of_process(options)
        return 0
    world = options.world or torch.cuda.device_count()
    code = start(world, sys.argv[1:])
    if not options.die and not options.only and world > 1:
        code = max(code, start(world, [*sys.argv[1:], "--die"]))
    return code


if __name__ == "__main__":
    sys.exit(main())
