"""Times of `gpu.py`: of calls on the host, and of operators on the device beside NCCL, cuBLAS and torch's symmetric memory."""

from __future__ import annotations

import math
import statistics
import sys
import time

import mkernel
import torch
import torch.distributed as dist
from gpu_checks import device_of


def device_us(group, function, calls=20):
    """Return the median time of a call in a chain of calls, in µs."""
    for _ in range(3):
        function()
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        dist.barrier()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            function()
        end.record()
        group.synchronize()
        times.append(start.elapsed_time(end) * 1000 / calls)
    return statistics.median(times)


def host_us(group, function, calls=200):
    """Return the median time that a call takes of the host, in µs."""
    times = []
    for _ in range(7):
        group.synchronize()
        dist.barrier()
        started = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - started) * 1e6 / calls)
    group.synchronize()
    return statistics.median(times)


def measure_host(group):
    device = device_of(group)
    a, b = (torch.ones(shape, dtype=torch.bfloat16, device=device) for shape in ((16, 256), (256, 256)))
    c, x = torch.empty(16, 256, dtype=torch.bfloat16, device=device), torch.ones(16, 256, device=device)
    operator = group.prepare("gemm_ar", m=16, n=256, k=256)
    bound = operator.bind(a=a, b=b, c=c)
    with torch.no_grad():
        cases = {
            "torch.ops.mkernel.gemm_ar": lambda: torch.ops.mkernel.gemm_ar(a, b),
            "torch.ops.mkernel.gemm_ar_out": lambda: torch.ops.mkernel.gemm_ar_out(a, b, out=c),
            "mkernel.gemm_ar": lambda: mkernel.gemm_ar(a, b),
            "prepared operator": lambda: operator(a=a, b=b, c=c),
            "bound operator": bound,
            "torch.matmul (cuBLAS)": lambda: a @ b,
            "dist.all_reduce (NCCL)": lambda: dist.all_reduce(x),
        }
        return {name: host_us(group, case) for name, case in cases.items()}


def measure_device(group):
    device, world = device_of(group), group.world
    name = dist.group.WORLD.group_name
    try:
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group

        enable_symm_mem_for_group(name)
        fused_ag, fused_rs = torch.ops.symm_mem.fused_all_gather_matmul, torch.ops.symm_mem.fused_matmul_reduce_scatter
    except (ImportError, AttributeError, RuntimeError):
        fused_ag = fused_rs = None
    rows = []

    def add(op, size, ours, theirs, symmetric):
        with torch.no_grad():
            times = [device_us(group, ours), device_us(group, theirs)]
            try:
                times.append(device_us(group, symmetric) if symmetric else math.nan)
            except RuntimeError as failure:
                print(f"symm_mem {op}: {failure}", file=sys.stderr)
                times.append(math.nan)
        rows.append((op, size, *times))

    def ones(*shape):
        return torch.randn(shape, dtype=torch.bfloat16, device=device) / 8

    for m, n, k in ((1024, 1024, 4096), (4096, 1024, 4096), (16384, 4096, 16384)):
        a, b, whole = ones(m // world, k), ones(n, k).t(), ones(m, k)
        add(
            "ag_gemm",
            (m, n, k),
            lambda a=a, b=b: torch.ops.mkernel.ag_gemm(a, b),
            lambda a=a, b=b, whole=whole: (dist.all_gather_into_tensor(whole, a), whole @ b),
            fused_ag and (lambda a=a, b=b: fused_ag(a, [b], 0, name, return_A=False)),
        )
    for m, n, k in ((16, 8192, 2048), (4096, 4096, 1024), (16384, 16384, 4096)):
        a, b = ones(m, k), ones(n, k).t()
        part = ones(m // world, n)
        add(
            "gemm_rs",
            (m, n, k),
            lambda a=a, b=b: torch.ops.mkernel.gemm_rs(a, b),
            lambda a=a, b=b, part=part: dist.reduce_scatter_tensor(part, a @ b),
            fused_rs and m >= 64 and (lambda a=a, b=b: fused_rs(a, b, "sum", 0, name)),
        )
        add(
            "gemm_ar",
            (m, n, k),
            lambda a=a, b=b: torch.ops.mkernel.gemm_ar(a, b),
            lambda a=a, b=b: dist.all_reduce(a @ b),
            None,
        )
        x = ones(m, n)
        add("all_reduce", (m, n), lambda x=x: torch.ops.mkernel.all_reduce(x), lambda x=x: dist.all_reduce(x.clone()), None)
    return rows
