#!/usr/bin/env python3
"""Measures the baselines of the operators: NCCL and cuBLAS, and operators of PyTorch.

    torchrun --nproc-per-node 8 benches/baselines.py --op ag_gemm > baselines.jsonl
    cargo bench --bench operators -- --op ag_gemm --baselines baselines.jsonl
    torchrun --nproc-per-node 8 benches/baselines.py --op dispatch_gemm
    torchrun --nproc-per-node 8 benches/baselines.py --op all_reduce
    torchrun --nproc-per-node 8 benches/baselines.py --op gemm_ar --chain --shape 16x8192x1024

    torchrun --nproc-per-node 8 benches/baselines.py --op ring_attention --seq 3072,6144
    cargo bench --bench attention -- --world 8 --seq 3072,6144

Prints a line of JSON per shape and variant: the median over calls of the time of the slowest rank, the median time of
cuBLAS alone on this rank's factors (all of A for ag_gemm), and the error against fp64, computed as in the benchmark. The
blocks of the variant and of cuBLAS take turns. N and K are per rank, as in the benchmark.

With --batch-invariant, GEMM operators also have the variant of batch_invariant.py: a Triton GEMM with one configuration, and then NCCL.
Set NCCL_ALGO=Tree, NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS, so that NCCL's sums do not depend on the batch either.

With --chain, each call of a GEMM operator reads the result of the previous call, calls take the weights in turn, and all
calls are in one CUDA graph. Times are per call. `cargo bench --bench chain` runs this.

For dispatch_gemm, grouped_mm is the product alone. With --taste zipf it is the product of the busiest rank, which is the
slowest.

For ring_attention, rows are per rank. The times are of cuDNN's attention of a rank's queries over all keys, alone and
after NCCL has gathered K and V. A mask is possible with one rank only, since torch has no mask for the rows of other
ranks. The errors are of random data of this script. accuracy.py compares errors of all kernels on one data set.
"""
import argparse
import json
import math
import os
import signal
import statistics
import time

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# The shapes of the benchmark as M, N, K. N (for ag_gemm) or K (for the others) is divided over the ranks.
GATHERED = [
    (1024, 4096, 4096),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 16384, 16384),
    (32768, 32768, 32768),
    (8192, 57344, 8192),
    (16384, 106496, 16384),
]
SUMMED = [
    (1, 8192, 8192),
    (16, 8192, 8192),
    (64, 8192, 8192),
    (256, 8192, 8192),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 16384, 16384),
    (32768, 32768, 32768),
    (8192, 8192, 28672),
    (16384, 16384, 53248),
]
SHAPES = {
    "ag_gemm": [(m, n // WORLD, k) for m, n, k in GATHERED],
    "gemm_rs": [(m, n, k // WORLD) for m, n, k in SUMMED],
    "gemm_ar": [(m, n, k // WORLD) for m, n, k in SUMMED],
    "gemm": [(m, n // WORLD, k) for m, n, k in GATHERED],
}
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]
BLOCK_US = 20_000


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", action="append", choices=[*SHAPES, *COLLECTIVES, "ring_attention", "dispatch_gemm"], help="[default: ag_gemm]")
    parser.add_argument("--shape", action="append", metavar="MxNxK", help="M of all ranks, N and K of one rank")
    parser.add_argument("--b-layout", choices=["kn", "nk"], default="kn")
    sizes = lambda text: [int(size) for size in text.split(",")]
    parser.add_argument("--seq", type=sizes, default=sizes("768,1536,3072,6144,12288"), help="rows on each rank")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, help="[default: the heads of Q]")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--kib", type=sizes, default=sizes("1,4,16,64,256,1024,4096,16384,65536,262144"), help="sizes of a collective's tensor in KiB")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64, 1024, 2048, 4096, 8192, 16384], help="tokens of each rank, for dispatch_gemm")
    parser.add_argument("--taste", choices=["even", "zipf"], default="even", help="how tokens choose experts, for dispatch_gemm")
    parser.add_argument("--seed", type=int, default=0, help="seed of the experts of tokens")
    parser.add_argument("--experts", type=int, help="experts over all ranks [default: 32 for each rank]")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--intermediate", type=int, default=2048)
    parser.add_argument("--batch-invariant", action="store_true", help="measure GEMM operators also with batch_invariant.py")
    parser.add_argument("--chain", action="store_true", help="time a chain of calls in a graph")
    parser.add_argument("--calls", type=int, default=20, help="calls of a chain")
    parser.add_argument("--weights", type=int, default=8, help="weights that the calls of a chain take in turn")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--limit-s", type=int, default=300, help="seconds after which the processes end, even if they hang")
    return parser.parse_args()


def block(call, barrier, calls, hold_s):
    """Returns the times of `calls` calls in ms on this rank, and how long the host took to enqueue them.

    The GPU first sleeps for `hold_s`, so that the time that Python takes to launch is not measured.
    """
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    dist.barrier()
    torch.cuda._sleep(int(hold_s * 1.9e9))  # cycles
    started = time.perf_counter()
    for start, end in events:
        barrier()  # all ranks continue at the same time
        start.record()
        call()
        end.record()
    host_s = time.perf_counter() - started
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events], host_s


def measure(calls_by_name, barrier, calls, rounds):
    """Returns the median times in µs by name."""
    hold_s = {name: block(call, barrier, calls, 0)[1] for name, call in calls_by_name.items()}
    times = {name: [] for name in calls_by_name}
    for round in range(rounds):
        # The clocks of a GPU depend on the previous block. The order alternates, so that each candidate runs after both
        # of its neighbours.
        for name, call in list(calls_by_name.items())[:: 1 if round % 2 == 0 else -1]:
            own, _ = block(call, barrier, calls, min(1.2 * hold_s[name], 0.5))
            slowest = torch.tensor(own, device="cuda", dtype=torch.float64)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            times[name] += slowest.tolist()
    return {name: statistics.median(values) * 1e3 for name, values in times.items()}


def error(found, expected):
    return ((found.double() - expected).norm() / expected.norm().clamp(min=1e-30)).item()


def random(*size):
    """Returns nearly normal numbers, each the sum of four numbers in -1/2 .. 1/2, as in the benchmark."""
    total = torch.rand(size, device="cuda").sub_(2)
    for _ in range(3):
        total += torch.rand(size, device="cuda")
    return total.to(torch.bfloat16)


def empty(*size):
    return torch.empty(size, device="cuda", dtype=torch.bfloat16)


class AgGemm:
    """C = AllGather(A) B."""

    def __init__(self, m, n, k, b):
        self.b, self.group = b, dist.group.WORLD.group_name
        self.own = symm.empty(m // WORLD, k, device="cuda", dtype=torch.bfloat16)
        self.handle = symm.rendezvous(self.own, group=self.group)
        self.own.copy_(random(m // WORLD, k))
        self.whole, self.gathered, self.c, self.alone = empty(m, k), empty(m, k), empty(m, n), empty(m, n)
        dist.all_gather_into_tensor(self.whole, self.own)
        self.rows = slice(0, m, m // 64 | 1)

    def cublas(self):
        torch.mm(self.whole, self.b, out=self.alone)

    def nccl(self, matmul=torch.mm):
        dist.all_gather_into_tensor(self.gathered, self.own)
        matmul(self.gathered, self.b, out=self.c)
        return self.c

    def torch_fused(self):
        return torch.ops.symm_mem.fused_all_gather_matmul(self.own, [self.b], 0, self.group)[1][0]

    def expected(self):
        return self.whole[self.rows].double() @ self.b.double()


class GemmAr:
    """C = sum over ranks of A B."""

    torch_fused = None

    def __init__(self, m, n, k, b):
        self.b, self.group = b, dist.group.WORLD.group_name
        self.a, self.c, self.alone = random(m, k), empty(m, n), empty(m, n)
        self.handle = symm.rendezvous(symm.empty(64, device="cuda"), group=self.group)
        self.rows = slice(0, m, m // 64 | 1)

    def cublas(self):
        torch.mm(self.a, self.b, out=self.alone)

    def nccl(self, matmul=torch.mm):
        matmul(self.a, self.b, out=self.c)
        dist.all_reduce(self.c)
        return self.c

    def expected(self):
        part = self.a[self.rows].double() @ self.b.double()
        dist.all_reduce(part)
        return part


class GemmRs(GemmAr):
    """Like GemmAr, but rank r keeps only its rows. NCCL requires equal shards, so M is rounded up."""

    def __init__(self, m, n, k, b):
        self.m = -(-m // WORLD) * WORLD
        super().__init__(self.m, n, k, b)
        self.shard = empty(self.m // WORLD, n)
        if self.m < 1024:  # torch's operator is for large M
            self.torch_fused = None

    def nccl(self, matmul=torch.mm):
        matmul(self.a, self.b, out=self.c)
        dist.reduce_scatter_tensor(self.shard, self.c)
        return self.shard

    def torch_fused(self):
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(self.a, self.b, "sum", 0, self.group)

    def expected(self):
        self.rows = slice(0, self.m // WORLD, self.m // WORLD // 64 | 1)
        for rank in range(WORLD):
            first = rank * (self.m // WORLD)
            part = self.a[first : first + self.m // WORLD][self.rows].double() @ self.b.double()
            dist.all_reduce(part)
            if rank == RANK:
                kept = part
        return kept


class Gemm(GemmAr):
    """C = A B on each rank."""

    def nccl(self, matmul=torch.mm):
        matmul(self.a, self.b, out=self.c)
        return self.c

    def expected(self):
        return self.a[self.rows].double() @ self.b.double()


class Attention:
    """O = softmax(Q K' / sqrt(D)) V of a rank's queries over the keys of all ranks, as [B, H, S, D]."""

    def __init__(self, flags, seq):
        self.causal, kv_heads = flags.causal, flags.kv_heads or flags.heads
        tensor = lambda heads: random(flags.batch, heads, seq, flags.head_dim)
        self.q, self.own = tensor(flags.heads), [tensor(kv_heads) for _ in "kv"]
        self.gathered = [empty(WORLD, *own.shape) for own in self.own]
        self.handle = symm.rendezvous(symm.empty(64, device="cuda"), group=dist.group.WORLD.group_name)
        self.whole = self.gather()

    def gather(self):
        if WORLD == 1:
            return self.own
        for own, gathered in zip(self.own, self.gathered):
            dist.all_gather_into_tensor(gathered, own)
        return [gathered.permute(1, 2, 0, 3, 4).flatten(2, 3) for gathered in self.gathered]

    def attend(self, k, v):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(self.q, k, v, is_causal=self.causal, enable_gqa=True)

    def cudnn(self):
        return self.attend(*self.whole)

    def nccl(self):
        return self.attend(*self.gather())

    def error(self, found):
        """Returns the error of six rows of the first and of the last head."""
        worst, total = 0.0, 0.0
        for at in (0, 0), (-1, -1):
            rows = torch.arange(6, device="cuda") * (self.q.shape[2] - 1) // 5
            k, v = (whole[at].double() for whole in self.whole)
            scores = self.q[at][rows].double() @ k.t() / self.q.shape[3] ** 0.5
            if self.causal:
                keys = torch.arange(k.shape[0], device="cuda")
                scores.masked_fill_(keys[None] > rows[:, None], float("-inf"))
            expected = scores.softmax(-1) @ v
            worst += (found[at][rows].double() - expected).square().sum().item()
            total += expected.square().sum().item()
        return (worst / total) ** 0.5


def attention(flags, seq):
    """Yields the lines for a number of rows on each rank."""
    if flags.causal and WORLD > 1:
        raise SystemExit("--causal is for one rank")
    case = Attention(flags, seq)
    batch, heads, _, dim = case.q.shape
    flops = 4 * batch * heads * seq * seq * WORLD * dim / (2 if flags.causal else 1)
    names = {"cuDNN": case.cudnn} | ({"NCCL+cuDNN": case.nccl} if WORLD > 1 else {})
    errors = {name: case.error(call()) for name, call in names.items()}
    if not max(errors.values()) < 1e-2:
        raise RuntimeError(f"{errors}")
    calls = max(6, min(40, int(BLOCK_US / (flops / 600e6))))
    us = measure(names, lambda: case.handle.barrier(channel=0), calls, flags.rounds)
    for variant, err in errors.items():
        tflops = round(flops / us[variant] / 1e6)
        yield dict(variant=variant, us=round(us[variant], 2), tflops=tflops, error=round(err, 6))


def choices(flags, tokens, experts, top_k):
    """Returns the experts of this rank's tokens. With the same --taste and --seed they are those of tokens.rs."""
    mask, state = (1 << 64) - 1, flags.seed

    def draw():
        nonlocal state
        state = x = (state + 0x9E3779B97F4A7C15) & mask
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) & mask
        x ^= x >> 31
        if flags.taste == "even":
            return x % experts
        return min(int(math.exp((x >> 11) / (1 << 53) * math.log(experts + 1))) - 1, experts - 1)

    for _ in range(RANK + 1):
        ids = []
        for _ in range(tokens):
            chosen = {}  # in order
            while len(chosen) < top_k:
                chosen[draw()] = None
            ids += chosen
    return torch.tensor(ids, device="cuda")


class Dispatch:
    """Sends tokens to experts by index_select and all-to-all, sorts rows by expert, and calls _grouped_mm.

    A token is sent once per expert.
    """

    def __init__(self, flags, tokens, experts, top_k):
        hidden, cols, local = flags.hidden, flags.intermediate, experts // WORLD
        ids = choices(flags, tokens, experts, top_k)
        self.token = ids.argsort() // top_k
        counts = torch.bincount(ids, minlength=experts)
        all_counts = torch.empty(WORLD, experts, device="cuda", dtype=counts.dtype)
        dist.all_gather_into_tensor(all_counts, counts)
        here = all_counts[:, RANK * local : (RANK + 1) * local]
        self.sent, self.received = counts.view(WORLD, local).sum(1).tolist(), here.sum(1).tolist()
        # Received rows are ordered by source and expert, but the product needs them ordered by expert.
        ends = here.flatten().cumsum(0).tolist()
        begins = [0] + ends[:-1]
        pieces = [(begins[s * local + e], ends[s * local + e]) for e in range(local) for s in range(WORLD)]
        self.by_expert = torch.cat([torch.arange(begin, end) for begin, end in pieces]).cuda()
        self.offsets = here.sum(0).cumsum(0).to(torch.int32)
        self.x, self.w = random(tokens, hidden), random(local * hidden, cols).view(local, hidden, cols)
        self.out, self.rows = empty(tokens * top_k, hidden), random(sum(self.received), hidden)
        self.handle = symm.rendezvous(symm.empty(64, device="cuda"), group=dist.group.WORLD.group_name)

    def alone(self):
        return torch._grouped_mm(self.rows, self.w, self.offsets)

    def nccl(self):
        """Computes the product only. The routing has been done before."""
        torch.index_select(self.x, 0, self.token, out=self.out)
        dist.all_to_all_single(self.rows, self.out, self.received, self.sent)
        return torch._grouped_mm(self.rows[self.by_expert], self.w, self.offsets)


def dispatch(flags):
    """Yields the lines of dispatch_gemm, one per number of tokens and variant."""
    experts = flags.experts or 32 * WORLD
    for tokens in flags.tokens:
        case = Dispatch(flags, tokens, experts, 8)
        names = {"grouped_mm": case.alone, "NCCL+grouped_mm": case.nccl}
        busiest = torch.tensor(case.rows.shape[0], device="cuda")
        dist.all_reduce(busiest, op=dist.ReduceOp.MAX)
        flops = 2 * busiest.item() * flags.hidden * flags.intermediate
        calls = max(6, min(40, int(BLOCK_US / (flops / 740e6 + 200))))
        us = measure(names, lambda: case.handle.barrier(channel=0), calls, flags.rounds)
        for variant, time_us in us.items():
            yield dict(op="dispatch_gemm", world=WORLD, tokens=tokens, rows=busiest.item(), experts=experts, variant=variant, us=round(time_us, 2))
        del case
        torch.cuda.empty_cache()


class Collective:
    """A collective of NCCL, and for all_reduce also of torch on symmetric memory. A graph has `calls` calls."""

    def __init__(self, op, elems, calls):
        self.group, self.calls, self.op = dist.group.WORLD.group_name, calls, op
        shard = elems // WORLD
        self.x = symm.empty(elems, device="cuda", dtype=torch.bfloat16)
        self.handle = symm.rendezvous(self.x, group=self.group)
        self.x.copy_(random(1, elems)[0])
        self.own = self.x[:shard]
        self.y = empty(elems if op != "reduce_scatter" else shard)

    def nccl(self):
        if self.op == "all_reduce":
            dist.all_reduce(self.x)
        elif self.op == "all_gather":
            dist.all_gather_into_tensor(self.y, self.own)
        elif self.op == "broadcast":
            dist.broadcast(self.x, 0)
        elif self.op == "all_to_all":
            dist.all_to_all_single(self.y, self.x)
        else:
            dist.reduce_scatter_tensor(self.y, self.x)

    def one_shot(self):
        torch.ops.symm_mem.one_shot_all_reduce(self.x, "sum", self.group)

    def two_shot(self):
        torch.ops.symm_mem.two_shot_all_reduce_(self.x, "sum", self.group)

    def graph(self, call):
        """Returns a function that makes `self.calls` calls. Values grow from call to call up to infinity, which does not
        affect the time."""
        if self.calls == 1:
            return call
        call()
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for _ in range(self.calls):
                call()
        return captured.replay


def collective(flags, op):
    """Yields the lines of a collective, one per size and variant."""
    for kib in flags.kib:
        elems, calls = kib * 512, 20 if kib <= 1024 else 1
        case = Collective(op, elems, calls)
        names = {"NCCL": case.nccl}
        if op == "all_reduce":
            names |= {"torch two-shot": case.two_shot} | ({"torch one-shot": case.one_shot} if kib <= 4096 else {})
        graphs = {name: case.graph(call) for name, call in names.items()}
        us = measure(graphs, lambda: case.handle.barrier(channel=0), 20, flags.rounds)
        for variant, time_us in us.items():
            yield dict(op=op, world=WORLD, kib=kib, variant=variant, us=round(time_us / calls, 2))
        del case, graphs
        torch.cuda.empty_cache()


class Chain:
    """A chain of calls as in decoding: each reads the result of the call before it, by the next of several weights.

    Each rank has as many rows as the others, as NCCL requires, so M is rounded up.
    """

    def __init__(self, op, m, n, k, layout, flags):
        self.op, self.group, self.calls = op, dist.group.WORLD.group_name, flags.calls
        self.m, self.n, self.k = -(-m // WORLD) * WORLD, n, k
        # Results stay as large as the first operand: 0.577 is the standard deviation of random().
        scale = 1 / (0.577 * (k if op == "ag_gemm" else WORLD * k) ** 0.5)
        weights = [random(n, k) if layout == "nk" else random(k, n) for _ in range(flags.weights)]
        self.weights = [(w * scale).t() if layout == "nk" else w * scale for w in weights]
        elems = self.m * max(n, k)
        self.first, self.results = random(1, elems)[0], [random(1, elems)[0] for _ in range(2)]
        self.shared = [symm.empty(self.m * n, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        self.handles = [symm.rendezvous(shared, group=self.group) for shared in self.shared]
        self.whole, self.sums = empty(self.m, k), None

    def of_call(self, call):
        """Returns the memory that a call reads and writes, and its weight."""
        read = self.first if call == 0 else self.results[(call + 1) % 2]
        return read, self.results[call % 2], self.weights[call % len(self.weights)]

    def cublas(self, call):
        read, written, weight = self.of_call(call)
        m, n, k = self.m, self.n, self.k
        torch.mm(read[: m * k].view(m, k), weight, out=written[: m * n].view(m, n))

    def nccl(self, call):
        read, written, weight = self.of_call(call)
        m, n, k = self.m, self.n, self.k
        if self.op == "ag_gemm":
            dist.all_gather_into_tensor(self.whole, read[: m // WORLD * k].view(m // WORLD, k))
            torch.mm(self.whole, weight, out=written[: m * n].view(m, n))
            return
        own = self.shared[call % 2]
        if self.op == "gemm_ar":
            own = written[: m * n]
        torch.mm(read[: m * k].view(m, k), weight, out=own.view(m, n))
        if self.op == "gemm_ar":
            dist.all_reduce(own)
        else:
            dist.reduce_scatter_tensor(written[: m // WORLD * n], own)

    def product(self, call, before):
        """Multiplies the result of the call before it into symmetric memory, or random rows if it is too short."""
        m, n, k = self.m, self.n, self.k
        read = self.first if call == 0 or n < k else before
        shared, weight = self.shared[call % 2], self.weights[call % len(self.weights)]
        torch.mm(read.view(-1)[: m * k].view(m, k), weight, out=shared.view(m, n))
        return shared

    def one_shot(self, call):
        """The sums are in new memory of each call."""
        shared = self.product(call, self.sums)
        self.sums = torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", self.group)

    def two_shot(self, call):
        """The sums replace the products."""
        shared = self.product(call, self.shared[(call + 1) % 2])
        torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", self.group)

    def graph(self, call):
        for index in range(self.calls):  # the libraries allocate their memory
            call(index)
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for index in range(self.calls):
                call(index)
        return captured.replay


def chain(op, m, n, k, flags):
    """Yields the lines of a chain, one per variant."""
    case = Chain(op, m, n, k, flags.b_layout, flags)
    names = {"cuBLAS": case.cublas, "NCCL": case.nccl}
    if op == "gemm_ar":
        names |= {"torch two-shot": case.two_shot} | ({"torch one-shot": case.one_shot} if m <= 1024 else {})
    graphs = {name: case.graph(call) for name, call in names.items()}
    us = measure(graphs, lambda: case.handles[0].barrier(channel=0), 30, flags.rounds)
    for variant, time_us in us.items():
        yield dict(variant=variant, us=round(time_us / flags.calls, 2))


OPERATORS = {"ag_gemm": AgGemm, "gemm_rs": GemmRs, "gemm_ar": GemmAr, "gemm": Gemm}


def shape(op, m, n, k, layout, rounds, batch_invariant):
    """Yields the lines for one shape."""
    case = OPERATORS[op](m, n, k, random(n, k).t() if layout == "nk" else random(k, n))
    names = {"cuBLAS": case.cublas, "NCCL+cuBLAS": case.nccl, "torch symm_mem": case.torch_fused}
    if batch_invariant:
        from batch_invariant import matmul

        names["batch-invariant Triton"] = lambda: case.nccl(matmul)
    names = {name: call for name, call in names.items() if call}
    case.cublas()
    expected = case.expected()
    errors = {name: error(names[name]()[case.rows], expected) for name in list(names)[1:]}
    if not max(errors.values()) < 8e-3:
        raise RuntimeError(f"{errors}")
    calls = max(6, min(40, int(BLOCK_US / (2 * m * n * k / 740e6))))
    us = measure(names, lambda: case.handle.barrier(channel=0), calls, rounds)
    for variant, err in errors.items():
        yield dict(variant=variant, us=round(us[variant], 2), cublas_us=round(us["cuBLAS"], 2), error=round(err, 6))


def main():
    flags = arguments()
    signal.alarm(flags.limit_s)
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", RANK)))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    ops = flags.op or ["ag_gemm"]
    for seq in flags.seq if "ring_attention" in ops else []:
        line = dict(op="ring_attention", world=WORLD, seq=seq, causal=flags.causal)
        for timed in attention(flags, seq):
            if RANK == 0:
                print(json.dumps(line | timed), flush=True)
        torch.cuda.empty_cache()
    for line in dispatch(flags) if "dispatch_gemm" in ops else []:
        if RANK == 0:
            print(json.dumps(line), flush=True)
    for op in [op for op in ops if op in COLLECTIVES]:
        for line in collective(flags, op):
            if RANK == 0:
                print(json.dumps(line), flush=True)
    for op in [op for op in ops if op in SHAPES]:
        given = [tuple(int(size) for size in text.split("x")) for text in flags.shape or []]
        for m, n, k in given or SHAPES[op]:
            line = dict(op=op, world=WORLD, m=m, n=n, k=k, b_layout=flags.b_layout)
            timed_lines = chain(op, m, n, k, flags) if flags.chain else shape(op, m, n, k, flags.b_layout, flags.rounds, flags.batch_invariant)
            for timed in timed_lines:
                if RANK == 0:
                    print(json.dumps(line | timed), flush=True)
            torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
