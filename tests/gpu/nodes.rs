//! Tests of operators on several nodes. Groups of GPUs of this host act as nodes, and emulated NICs carry out puts by peer
//! copies.

use crate::attention::{run_with_any_pattern, spec};
use crate::back_to_back::{Skew, calls};
use crate::compile::{compile, expect_plans};
use crate::experts;
use crate::graphs::replays;
use crate::processes::{RankProcesses, call_until_a_rank_is_lost};
use crate::ranks::{GemmProblem, compute, on_ranks, prepare, seed, worlds, worlds_of_whole_gpus};
use crate::runs::run_times;
use mkernel::spec::Placement::{Contiguous, Zigzag};
use mkernel::{
    Communicator,
    network::Faults,
    spec::{Activation, BLayout, Dtype, Epilogue, GemmOp, GemmShape, Tuning},
};
use mkernel_testing::jobs::attention::{AttentionJob, InputKind};
use mkernel_testing::jobs::{Backend, for_each_in_parallel};
use mkernel_testing::lab::{Failure, Lab, Random, TimeLimit};
use std::time::Duration;

const TASK: &str = "MKERNEL_TEST_TASK";
const DEADLINE: Duration = Duration::from_secs(2);
const MARGIN: Duration = Duration::from_secs(8);
const START: Duration = Duration::from_secs(60);

/// Returns numbers of ranks and of nodes: two nodes, and a node for each rank.
pub fn topologies() -> Vec<(u32, u32)> {
    let mut all = Vec::new();
    for world in worlds(2) {
        all.push((world, 2));
        if world > 2 {
            all.push((world, world));
        }
    }
    all
}

fn problem(op: GemmOp, (m, n, k): (u64, u64, u64), layout: BLayout, nodes: u32) -> GemmProblem {
    GemmProblem {
        op,
        shape: GemmShape { m, n, k },
        layout,
        epilogue: Epilogue::default(),
        tuning: Tuning::default(),
        nodes,
    }
}

/// Returns problems with shards that end inside tiles, partial tiles, ranks without rows, several waves of tiles, and
/// epilogues.
fn problems(op: GemmOp, nodes: u32) -> Vec<GemmProblem> {
    let finished = Epilogue {
        bias: true,
        residual: true,
        activation: Activation::GeluTanh,
        output: Some(Dtype::Fp32),
        ..Epilogue::default()
    };
    let plain = |shape, layout| problem(op, shape, layout, nodes);
    let mut all = vec![
        plain((1, 8, 8), BLayout::Nk),
        plain((9, 136, 1000), BLayout::Kn),
        plain((777, 328, 392), BLayout::Kn),
        plain((1024, 512, 4096), BLayout::Nk),
        plain((2048, 1096, 520), BLayout::Kn),
        plain((4096, 2056, 1032), BLayout::Nk),
        plain((8192, 2048, 2048), BLayout::Kn),
        GemmProblem {
            epilogue: finished,
            ..plain((1000, 1032, 520), BLayout::Kn)
        },
    ];
    for (m, n) in [(128, 256), (128, 128), (64, 256), (64, 128)] {
        let tuning = Tuning {
            tile_m: Some(m),
            tile_n: Some(n),
            comm_ctas: op.communicates().then_some(2),
            ..Tuning::default()
        };
        all.push(GemmProblem {
            tuning,
            ..plain((1531, 584, 456), BLayout::Nk)
        });
    }
    all
}

#[test]
#[ignore = "needs GPUs"]
fn every_shape_is_right() {
    let _limit = TimeLimit::start("nodes: shapes", Duration::from_secs(300));
    let seed = seed();
    for (world, nodes) in topologies() {
        let all: Vec<GemmProblem> = GemmOp::ALL
            .into_iter()
            .flat_map(|op| problems(op, nodes))
            .collect();
        let specs: Vec<_> = all.iter().map(|problem| problem.spec(world)).collect();
        compile(&specs);
        let errors = on_ranks(world, |ranks| {
            let lab = Lab::new(&ranks.default_stream())?;
            let mut seeds = Random(seed);
            let mut worst = 0f64;
            for problem in &all {
                let checked = check(ranks, &lab, *problem, seeds.draw());
                worst = worst.max(checked.map_err(|error| format!("{problem:?}: {error}"))?);
            }
            Ok(worst)
        });
        let worst = errors.into_iter().fold(0.0, f64::max);
        let count = all.len();
        println!("{world} ranks, {nodes} nodes: {count} cases, largest relative error {worst:.2e}");
    }
}

fn check(ranks: &Communicator, lab: &Lab, problem: GemmProblem, seed: u64) -> Result<f64, Failure> {
    let (operator, operands) = prepare(ranks, lab, problem, 8)?;
    compute(ranks, lab, &operator, &operands, (3, seed))
}

#[test]
#[ignore = "needs GPUs"]
fn hundreds_of_calls_out_of_step_are_right() {
    let _limit = TimeLimit::start("nodes: calls back to back", Duration::from_secs(300));
    let seed = seed();
    for (world, nodes) in topologies() {
        for op in GemmOp::ALL {
            let large = problem(op, (2048, 1032, 520), BLayout::Nk, nodes);
            on_ranks(world, |ranks| calls(ranks, large, Skew::Random, seed));
            let few = problem(op, (9, 264, 136), BLayout::Kn, nodes);
            on_ranks(world, |ranks| {
                calls(ranks, few, Skew::Always { rank: 1 }, seed)
            });
        }
    }
}

#[test]
#[ignore = "needs GPUs"]
fn graphs_are_replayed() {
    let _limit = TimeLimit::start("nodes: a replayed graph", Duration::from_secs(240));
    let seed = seed();
    for (world, nodes) in topologies() {
        for op in GemmOp::ALL {
            let replayed = problem(op, (2048, 264, 520), BLayout::Nk, nodes);
            on_ranks(world, |ranks| replays(ranks, replayed, seed));
        }
    }
}

/// Returns jobs of attention with partial tiles, masks, both placements, ranks without rows, and several puts per head.
fn attention(world: u32, nodes: u32) -> Vec<AttentionJob> {
    let rows = |of_rank: u64| of_rank * u64::from(world);
    let job = |sizes| AttentionJob::new(world, sizes, 0).across(nodes, Faults::default());
    vec![
        job([1, rows(512), 8, 8, 128]),
        job([2, rows(400) + 1, 4, 4, 128]).bhsd(),
        job([1, rows(384), 16, 2, 128]).causal(Contiguous),
        job([1, rows(512), 8, 2, 128]).causal(Zigzag),
        job([3, rows(333) - 1, 4, 1, 64]).causal(Zigzag).bhsd(),
        job([1, rows(300), 4, 4, 64]).zigzag(),
        job([2, 1, 3, 3, 64]),
        job([1, rows(256), 4, 2, 128])
            .causal(Zigzag)
            .inputs(InputKind::NotFinite),
        job([1, rows(2200), 2, 1, 128]).pushed_by(2),
        job([4, rows(40), 64, 64, 64]),
    ]
}

#[test]
#[ignore = "needs GPUs"]
fn attention_is_right() {
    let _limit = TimeLimit::start("nodes: attention", Duration::from_secs(480));
    for (world, nodes) in topologies() {
        let jobs = attention(world, nodes);
        compile(&jobs.iter().map(spec).collect::<Vec<_>>());
        for_each_in_parallel(&jobs, |job| {
            job.compute();
        });
        for job in &jobs {
            let name = format!("{:?}", job.config);
            run_times(2, name, || job.run_on(Backend::Gpus));
        }
        println!("{world} ranks, {nodes} nodes: {} jobs", jobs.len());
    }
}

#[test]
#[ignore = "needs GPUs"]
fn attention_out_of_step_and_in_graphs_is_right() {
    let _limit = TimeLimit::start("nodes: attention out of step", Duration::from_secs(240));
    for (world, nodes) in topologies() {
        run_with_any_pattern(world, nodes);
    }
}

#[test]
#[ignore = "needs GPUs"]
fn experts_are_right() {
    let _limit = TimeLimit::start("nodes: experts", Duration::from_secs(240));
    for (world, nodes) in topologies() {
        experts::are_right(world, nodes);
    }
}

#[test]
#[ignore = "needs GPUs"]
fn experts_out_of_step_and_in_graphs_are_right() {
    let _limit = TimeLimit::start("nodes: experts out of step", Duration::from_secs(240));
    for (world, nodes) in topologies() {
        experts::are_right_with_any_pattern(world, nodes);
    }
}

/// Checks without a GPU that all jobs are possible.
#[test]
fn every_job_of_attention_on_nodes_has_a_plan() {
    for (world, nodes) in [(2, 2), (4, 2), (4, 4), (8, 2), (8, 8)] {
        for job in attention(world, nodes) {
            expect_plans(&spec(&job), &job.config);
        }
    }
}

/// All other processes get an error in time that names the killed rank.
#[test]
#[ignore = "needs GPUs"]
fn a_killed_process_ends_all_nodes_in_time() {
    let _limit = TimeLimit::start("nodes: a killed process", Duration::from_secs(240));
    if std::env::var(TASK).is_ok() {
        return call_until_something_fails().unwrap_or_else(|error| panic!("{error}"));
    }
    let world = *worlds_of_whole_gpus(2).last().expect("a world");
    for victim in [1, 0] {
        let name = "nodes::a_killed_process_ends_all_nodes_in_time";
        let mut processes = RankProcesses::start(world, name, "go on");
        processes.expect_line("calling", 0..world, START);
        processes.children[victim as usize].kill().expect("killed");
        let others = (0..world).filter(|rank| *rank != victim);
        let named = format!("gave up: rank {victim}: ");
        processes.expect_line(&named, others.clone(), DEADLINE + MARGIN);
        processes.expect_ends(others, MARGIN);
    }
}

fn call_until_something_fails() -> Result<(), Failure> {
    let ranks = Communicator::from_env()?;
    let lab = Lab::new(&ranks.default_stream())?;
    ranks.set_timeout(DEADLINE);
    let mut prepared = Vec::new();
    for op in GemmOp::ALL {
        let problem = problem(op, (2048, 264, 520), BLayout::Nk, 2);
        let (operator, operands) = prepare(&ranks, &lab, problem, 0)?;
        compute(&ranks, &lab, &operator, &operands, (5, 7))?;
        prepared.push((operator, operands));
    }
    call_until_a_rank_is_lost(&ranks, &lab, &prepared)
}
