//! The puts of schedules beside the puts that kernels make on simulated GPUs, which the fabric counts. A schedule therefore cannot
//! drift from its kernel.

use super::{code, run, stderr};
use mkernel_spec::schedule::{Routing, Way};
use mkernel_spec::{
    AttentionConfig, AttentionOp, CollectiveConfig, CollectiveOp, Device, Dim, GemmConfig, GemmOp,
    KernelConfig, KernelPlan, Problem, SizedSpec,
};

/// SMs of a simulated GPU.
const SMS: u32 = 4;
/// A run makes a call, and repeats it to compare results.
const CALLS: u64 = 2;

/// Puts and their bytes.
type Puts = (u64, u64);

/// The puts of each rank in a schedule.
fn planned(problem: &Problem, (nodes, world): (u32, u32)) -> Vec<Puts> {
    let config = KernelConfig {
        nodes,
        ..KernelConfig::new(world, *problem)
    };
    let spec = SizedSpec::validate(config).expect("a valid kernel");
    let plan = KernelPlan::new(&spec, &Device::simulated(SMS)).expect("a plan");
    let schedule = plan.schedule(Routing::default()).expect("a schedule");
    let of_rank = |rank| {
        let puts = schedule
            .messages(rank)
            .filter(|message| message.way != Way::Link);
        puts.fold((0, 0), |(puts, bytes), message| {
            (puts + 1, bytes + message.bytes)
        })
    };
    (0..world).map(of_rank).collect()
}

/// The puts of each rank that the fabric has counted.
fn counted(problem: &Problem, (nodes, world): (u32, u32)) -> Vec<Puts> {
    let mut args: Vec<String> = ["run", "--verbose", "--device=sim", "--calls=1", "--seed=1"]
        .map(str::to_owned)
        .into();
    args.push(format!("--op={}", problem.op()));
    for (field, dim) in problem.dims() {
        args.push(format!("--{}={dim}", field.name().replace('_', "-")));
    }
    args.extend([
        format!("--world={world}"),
        format!("--nodes={nodes}"),
        format!("--sms={SMS}"),
    ]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = run(&args);
    assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
    let lines = stderr(&output)
        .lines()
        .filter(|line| line.contains("DEBUG fabric: "));
    let mut ranks: Vec<(u32, Puts)> = lines.map(rank_and_puts).collect();
    ranks.sort_unstable();
    let numbers: Vec<u32> = ranks.iter().map(|(rank, _)| *rank).collect();
    assert_eq!(
        numbers,
        (0..world).collect::<Vec<_>>(),
        "{}",
        stderr(&output)
    );
    ranks.into_iter().map(|(_, puts)| puts).collect()
}

/// Reads a line such as `fabric: emulated to 1 peers: 4 puts of 512 bytes by … rank=0`.
fn rank_and_puts(line: &str) -> (u32, Puts) {
    let number_before = |word: &str| {
        let before = line.split_once(word).expect(line).0;
        before.rsplit(' ').next().expect(line).parse().expect(line)
    };
    let rank = line
        .rsplit_once("rank=")
        .expect(line)
        .1
        .parse()
        .expect(line);
    (rank, (number_before(" puts"), number_before(" bytes by")))
}

fn gemm(op: GemmOp, (m, n, k): (u64, u64, u64)) -> Problem {
    let [m, n, k] = [m, n, k].map(Dim::Static);
    GemmConfig {
        m,
        n,
        k,
        ..GemmConfig::new(op)
    }
    .into()
}

fn collective(op: CollectiveOp, m: u64, n: u64) -> Problem {
    let [m, n] = [m, n].map(Dim::Static);
    CollectiveConfig {
        m,
        n,
        ..CollectiveConfig::new(op)
    }
    .into()
}

fn attention(seq: u64) -> Problem {
    let [batch, seq, heads, head_dim] = [1, seq, 2, 64].map(Dim::Static);
    AttentionConfig {
        batch,
        seq,
        heads,
        kv_heads: heads,
        head_dim,
        ..AttentionConfig::new(AttentionOp::RingAttention)
    }
    .into()
}

/// Compares the puts on 3x1 simulated GPUs. With the variable `ALL_JOBS`, also on 2x1, 2x2 and 3x2.
fn compare(problem: impl Fn(u64) -> Problem) {
    let all = [(3, 3), (2, 2), (2, 4), (3, 6)];
    let count = std::env::var_os("ALL_JOBS").map_or(1, |_| all.len());
    for topology in all.into_iter().take(count) {
        let problem = problem(topology.1.into());
        let all_calls = |(puts, bytes): Puts| (CALLS * puts, CALLS * bytes);
        let planned: Vec<Puts> = planned(&problem, topology)
            .into_iter()
            .map(all_calls)
            .collect();
        assert!(planned.iter().all(|(puts, bytes)| *puts > 0 && *bytes > 0));
        assert_eq!(
            planned,
            counted(&problem, topology),
            "{} on {topology:?}",
            problem.op()
        );
    }
}

#[test]
fn ag_gemm() {
    compare(|world| gemm(GemmOp::AgGemm, (200 * world, 64, 64)));
}

#[test]
fn gemm_rs() {
    compare(|world| gemm(GemmOp::GemmRs, (128 * world, 512, 64)));
}

#[test]
fn gemm_ar() {
    compare(|_| gemm(GemmOp::GemmAr, (512, 512, 64)));
}

#[test]
fn gemm_ar_with_fewer_tiles_than_ranks() {
    compare(|_| gemm(GemmOp::GemmAr, (64, 192, 64)));
}

#[test]
fn all_gather() {
    compare(|world| collective(CollectiveOp::AllGather, 130 * world, 4096));
}

#[test]
fn reduce_scatter() {
    compare(|world| collective(CollectiveOp::ReduceScatter, 130 * world - 3, 4096));
}

#[test]
fn all_reduce() {
    compare(|world| collective(CollectiveOp::AllReduce, 130 * world, 4096));
}

#[test]
fn ring_attention() {
    compare(|world| attention(130 * world));
}
