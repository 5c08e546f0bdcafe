//! Tests of traces of GEMM operators: right results, spans that fit their call, aligned clocks, and the overhead.

use crate::ranks::{GemmProblem, Operands, compute, launch, on_ranks, seed, worlds};
use mkernel::spec::abi::Activity;
use mkernel::spec::{BLayout, Epilogue, GemmOp, GemmShape, KernelConfig, Tuning};
use mkernel::trace::Trace;
use mkernel::{Communicator, Operator};
use mkernel_testing::lab::{Failure, Lab, TimeLimit};
use std::time::{Duration, Instant};

/// The calls of one measurement, and the number of measurements of each kernel.
const CALLS: u32 = 50;
const TURNS: usize = 9;

const SHAPE: GemmShape = GemmShape {
    m: 4096,
    n: 4096,
    k: 2048,
};

#[test]
#[ignore = "needs GPUs"]
fn gemms_are_traced() {
    let _limit = TimeLimit::start("traces of GEMMs", Duration::from_secs(300));
    let seed = seed();
    for op in GemmOp::ALL {
        let problem = GemmProblem {
            op,
            shape: SHAPE,
            layout: BLayout::Nk,
            epilogue: Epilogue::default(),
            tuning: Tuning::default(),
            nodes: 1,
        };
        for world in worlds(1) {
            let results = on_ranks(world, |ranks| trace(ranks, problem, seed));
            let (traces, ratios): (Vec<_>, Vec<_>) = results.into_iter().unzip();
            check(op, &traces);
            let ratio = ratios.into_iter().fold(0.0, f64::max);
            println!(
                "{op} on {world} GPUs: a call that is traced takes {ratio:.3} of the time of a call"
            );
        }
    }
}

/// Checks a kernel that is traced, and returns the trace of a call, and the time of such a call as a multiple of the time of a
/// call of the same kernel without a trace.
fn trace(ranks: &Communicator, problem: GemmProblem, seed: u64) -> Result<(Trace, f64), Failure> {
    let lab = Lab::new(&ranks.default_stream())?;
    let config = problem.config(ranks.world());
    let traced = KernelConfig {
        traced: true,
        ..config.clone()
    };
    let operators = [
        ranks.prepare(&config, problem.shape)?,
        ranks.prepare(&traced, problem.shape)?,
    ];
    let operands = Operands::new(ranks, &lab, problem, 0)?;
    for operator in &operators {
        compute(ranks, &lab, operator, &operands, (3, seed))?;
    }
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        for (operator, times) in operators.iter().zip(&mut times) {
            times.push(time(ranks, &lab, operator, &operands)?);
        }
    }
    let [plain, with_trace] = times.map(|mut times| {
        times.sort();
        times[TURNS / 2].as_secs_f64()
    });
    let trace = operators[1].trace()?;
    ranks.barrier()?;
    Ok((trace, with_trace / plain))
}

/// The time of calls back to back.
fn time(
    ranks: &Communicator,
    lab: &Lab,
    operator: &Operator,
    operands: &Operands,
) -> Result<Duration, Failure> {
    ranks.barrier()?;
    let started = Instant::now();
    for _ in 0..CALLS {
        launch(operator, &lab.stream, &operands.raw())?;
    }
    ranks.synchronize(&lab.stream)?;
    Ok(started.elapsed())
}

/// Every span lies in the call, every warp that multiplies has tiles, and the clocks of ranks that wait for each other are
/// aligned to some µs.
fn check(op: GemmOp, traces: &[Trace]) {
    for trace in traces {
        let (rank, step_ns) = (trace.rank, trace.clock_step_ns);
        let end_ns = trace
            .spans
            .iter()
            .map(|span| span.end_ns)
            .max()
            .unwrap_or(0);
        println!(
            "{op} rank {rank}: {} spans in {} ns, clock steps of {step_ns} ns, {} dropped",
            trace.spans.len(),
            end_ns.saturating_sub(trace.begin_ns),
            trace.dropped
        );
        let early = trace
            .spans
            .iter()
            .find(|span| span.begin_ns + 2 * step_ns < trace.begin_ns);
        assert_eq!(
            early, None,
            "{op} rank {rank}: a span before the call at {}",
            trace.begin_ns
        );
        assert!(
            end_ns - trace.begin_ns < 100_000_000,
            "{op}: a call of 100 ms"
        );
        let has = |activity| trace.spans.iter().any(|span| span.activity == activity);
        assert!(
            has(Activity::RunRole) && has(Activity::MultiplyTile),
            "{op} rank {rank}"
        );
    }
    for (rank, offset) in Trace::offsets(traces).iter().enumerate() {
        println!("{op} rank {rank}: {offset:?}");
        // Ranks of `gemm` do not wait for each other.
        let is_aligned = offset.error_ns.is_some_and(|error| error < 100_000);
        assert!(
            is_aligned || op == GemmOp::Gemm,
            "{op} rank {rank}: {offset:?}"
        );
    }
}
