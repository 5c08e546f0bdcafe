//! Kernels of several nodes: ranks of this host are put into nodes, between which emulated NICs carry puts by peer copies.

use crate::back_to_back::{Skew, calls};
use crate::graphs::replays;
use crate::lab::{Failure, Lab, Random, TimeLimit};
use crate::processes::{Job, lost};
use crate::ranks::{Problem, compute, launch, on_ranks, prepare, seed, worlds};
use mkernel::{Activation, BLayout, Communicator, Dtype, Epilogue, GemmOp, GemmShape, Tuning};
use std::time::Duration;

const TASK: &str = "MKERNEL_TEST_TASK";
const DEADLINE: Duration = Duration::from_secs(2);
const MARGIN: Duration = Duration::from_secs(8);
const START: Duration = Duration::from_secs(60);

/// Ranks and nodes: two nodes, and a node for each rank.
fn topologies() -> Vec<(u32, u32)> {
    let mut all = Vec::new();
    for world in worlds(2) {
        all.push((world, 2));
        if world > 2 {
            all.push((world, world));
        }
    }
    all
}

fn problem(op: GemmOp, (m, n, k): (u64, u64, u64), layout: BLayout, nodes: u32) -> Problem {
    Problem {
        op,
        shape: GemmShape { m, n, k },
        layout,
        epilogue: Epilogue::default(),
        tuning: Tuning::default(),
        nodes,
    }
}

/// Shards of whole tiles and of parts of them, tails, ranks without rows, more than a wave of tiles, epilogues.
fn problems(op: GemmOp, nodes: u32) -> Vec<Problem> {
    let finished = Epilogue {
        bias: true,
        residual: true,
        activation: Activation::GeluTanh,
        output: Dtype::Fp32,
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
        Problem {
            epilogue: finished,
            ..plain((1000, 1032, 520), BLayout::Kn)
        },
    ];
    for (m, n) in [(128, 256), (128, 128), (64, 256), (64, 128)] {
        let tuning = Tuning {
            tile_m: Some(m),
            tile_n: Some(n),
            comm_ctas: Some(2),
            ..Tuning::default()
        };
        all.push(Problem {
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
        let all: Vec<Problem> = GemmOp::ALL
            .into_iter()
            .flat_map(|op| problems(op, nodes))
            .collect();
        let errors = on_ranks(world, |ranks| {
            let lab = Lab::new(&ranks.context().default_stream())?;
            let mut seeds = Random(seed);
            let mut worst = 0f64;
            for problem in &all {
                let checked = check(ranks, &lab, *problem, seeds.next());
                worst = worst.max(checked.map_err(|error| format!("{problem:?}: {error}"))?);
            }
            Ok(worst)
        });
        let worst = errors.into_iter().fold(0.0, f64::max);
        let count = all.len();
        println!("{world} ranks, {nodes} nodes: {count} cases, largest relative error {worst:.2e}");
    }
}

fn check(ranks: &Communicator, lab: &Lab, problem: Problem, seed: u64) -> Result<f64, Failure> {
    let (operator, operands) = prepare(ranks, lab, problem, 8)?;
    compute(ranks, lab, &operator, &operands, (3, seed))
}

#[test]
#[ignore = "needs GPUs"]
fn hundreds_of_calls_of_ranks_out_of_step() {
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

/// Every process gets an error in time that names who was killed.
#[test]
#[ignore = "needs GPUs"]
fn a_killed_process_ends_all_nodes_in_time() {
    let _limit = TimeLimit::start("nodes: a killed process", Duration::from_secs(240));
    if std::env::var(TASK).is_ok() {
        return call_until_something_fails().unwrap_or_else(|error| panic!("{error}"));
    }
    let (world, _) = *topologies().last().expect("a topology");
    for victim in [1, 0] {
        let name = "nodes::a_killed_process_ends_all_nodes_in_time";
        let mut job = Job::start(world, name, "go on");
        job.expect_line("calling", 0..world, START);
        job.children[victim as usize].kill().expect("killed");
        let others = (0..world).filter(|rank| *rank != victim);
        let named = format!("gave up: rank {victim}: ");
        job.expect_line(&named, others.clone(), DEADLINE + MARGIN);
        job.expect_ends(others, MARGIN);
    }
}

fn call_until_something_fails() -> Result<(), Failure> {
    let ranks = Communicator::from_env()?;
    let lab = Lab::new(&ranks.context().default_stream())?;
    ranks.set_timeout(DEADLINE);
    let mut prepared = Vec::new();
    for op in GemmOp::ALL {
        let problem = problem(op, (2048, 264, 520), BLayout::Nk, 2);
        let (operator, operands) = prepare(&ranks, &lab, problem, 0)?;
        compute(&ranks, &lab, &operator, &operands, (5, 7))?;
        prepared.push((operator, operands));
    }
    for call in 0u64.. {
        let failure = prepared
            .iter()
            .try_for_each(|(operator, operands)| launch(operator, &lab.stream, &operands.raw()))
            .and_then(|()| ranks.synchronize(&lab.stream));
        match failure {
            Ok(()) if call == 50 => println!("calling"),
            Ok(()) => {}
            Err(error) => {
                println!("gave up: {}: {error}", lost(&error)?);
                break;
            }
        }
    }
    Ok(())
}
