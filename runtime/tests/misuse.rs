//! Tests of programs whose ranks make different calls, on simulated GPUs of one and two nodes. Every rank that waits gets the
//! error that it would get on GPUs, which names the calls of each rank. The simulator reports no finding.

#![cfg(feature = "simulator")]

use mkernel::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use mkernel::cudarc::driver::{CudaSlice, CudaStream};
use mkernel::half::bf16;
use mkernel::testing::in_threads;
use mkernel::{
    Communicator, Error, ErrorKind, KernelConfig, Operand, Operator, Simulation,
    network::{Faults, NicModel, Transport},
    spec::{BLayout, Dim, GemmConfig, GemmOp, GemmShape, Tuning},
    testing::prepare_edited,
};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

const SHAPE: GemmShape = GemmShape {
    m: 256,
    n: 64,
    k: 64,
};
/// The nodes of a job and the ranks of each.
const JOBS: [(u32, u32); 4] = [(1, 2), (1, 4), (2, 1), (2, 2)];
/// The timeout of kernels, in simulated time.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The rank that makes the mistake.
const WRONG: u32 = 1;

/// A rank with two operators.
struct Rank {
    up: Operator,
    down: Operator,
    stream: Arc<CudaStream>,
    a: CudaSlice<bf16>,
    b: CudaSlice<bf16>,
    c: CudaSlice<bf16>,
    ranks: Communicator,
}

impl Rank {
    fn new(ranks: Communicator, nodes: u32) -> Self {
        let (nic, faults) = (NicModel::default(), Faults::default());
        ranks.set_transport(Transport::Emulated { nic, faults });
        ranks.set_timeout(TIMEOUT);
        // SAFETY: these tests use one stream for each rank.
        unsafe { ranks.context().disable_event_tracking() };
        let stream = ranks.context().new_stream().expect("a stream");
        let zeros = |elems: u64| stream.alloc_zeros(elems as usize).expect("allocated");
        Self {
            up: prepare(&ranks, nodes, GemmOp::AgGemm, Some("UpProjection")),
            down: prepare(&ranks, nodes, GemmOp::GemmRs, None),
            a: zeros(SHAPE.m * SHAPE.k),
            b: zeros(SHAPE.n * SHAPE.k),
            c: zeros(SHAPE.m * SHAPE.n),
            stream,
            ranks,
        }
    }

    fn rank(&self) -> u32 {
        self.ranks.rank()
    }

    fn call(&mut self) -> Result<(), Error> {
        self.up.launch(&self.stream, &self.a, &self.b, &mut self.c)
    }

    fn call_down(&mut self) -> Result<(), Error> {
        let (a, b, c) = (&self.a, &self.b, &mut self.c);
        self.down.launch(&self.stream, a, b, c)
    }

    fn wait(&self) -> Result<(), Error> {
        self.ranks.synchronize(&self.stream)
    }

    /// Waits until the calls of all ranks are complete. A call that fails earlier ends the calls of other ranks.
    fn wait_for_all(&self) {
        self.wait().expect("all ranks take part");
        self.ranks.barrier().expect("all ranks take part");
    }

    /// Waits for the calls, which cannot end, and returns the text of their error. Checks that the simulator has found nothing.
    fn failure(&self) -> String {
        let error = self.wait().expect_err("the ranks make different calls");
        assert_ne!(error.kind(), ErrorKind::Simulation, "{error}");
        assert_eq!(self.ranks.findings(), []);
        error.to_string()
    }
}

fn prepare(ranks: &Communicator, nodes: u32, op: GemmOp, name: Option<&str>) -> Operator {
    let config = config(ranks, nodes, op, name);
    ranks.prepare(&config, SHAPE).expect("prepared")
}

fn config(ranks: &Communicator, nodes: u32, op: GemmOp, name: Option<&str>) -> KernelConfig {
    let config = GemmConfig {
        m: Dim::Static(SHAPE.m),
        n: Dim::Static(SHAPE.n),
        k: Dim::Static(SHAPE.k),
        b_layout: BLayout::Nk,
        tuning: Tuning {
            comm_ctas: (op == GemmOp::AgGemm).then_some(1),
            ..Tuning::default()
        },
        ..GemmConfig::new(op)
    };
    KernelConfig {
        name: name.map(str::to_owned),
        nodes,
        ..KernelConfig::new(ranks.world(), config)
    }
}

/// Runs `body` on each rank of each job, and passes the results of the ranks to `check`, with the world.
fn in_all_jobs<T: Send>(body: impl Fn(Rank) -> T + Sync, check: impl Fn(u32, Vec<T>)) {
    in_jobs(&JOBS, body, check);
}

fn in_jobs<T: Send>(
    jobs: &[(u32, u32)],
    body: impl Fn(Rank) -> T + Sync,
    check: impl Fn(u32, Vec<T>),
) {
    for (seed, (nodes, local_world)) in (0..).zip(jobs.iter().copied()) {
        let simulation = Simulation {
            ranks: nodes * local_world,
            seed,
            sms: 4,
            ..Simulation::default()
        };
        let communicators = Communicator::simulated(&simulation).expect("simulated GPUs");
        let outcomes = in_threads(communicators, |ranks| body(Rank::new(ranks, nodes)));
        check(simulation.ranks, outcomes);
    }
}

/// The error of all ranks but `rank` if `rank` has left.
fn left(rank: u32, call: u32) -> String {
    format!(
        "rank {rank} has left and did not make call {call} of operator 1 (ag_gemm UpProjection). Every rank must make the \
         same calls; if rank {rank} left because of an error, that error is the cause"
    )
}

/// Rank 1 passes a C that is too short, returns the error, and so drops its communicator.
#[test]
fn a_rank_that_returns_an_error_has_left() {
    in_all_jobs(
        |mut rank| {
            if rank.rank() != WRONG {
                rank.call().expect("launched");
                return rank.failure();
            }
            let mut short = rank.stream.alloc_zeros::<bf16>(1).expect("allocated");
            let refused = rank.up.launch(&rank.stream, &rank.a, &rank.b, &mut short);
            let error = refused.expect_err("C is too short");
            assert_eq!(error.kind(), ErrorKind::Operands, "{error}");
            left(WRONG, 1)
        },
        |_, texts| {
            assert!(
                texts.iter().all(|text| *text == left(WRONG, 1)),
                "{texts:#?}"
            )
        },
    );
}

/// Rank 1 leaves after two calls, and the other ranks make a third call.
#[test]
fn a_rank_that_leaves_early_is_named() {
    in_all_jobs(
        |mut rank| {
            for _ in 0..2 {
                rank.call().expect("launched");
            }
            rank.wait_for_all();
            if rank.rank() == WRONG {
                return left(WRONG, 3);
            }
            rank.call().expect("launched");
            rank.failure()
        },
        |_, texts| {
            assert!(
                texts.iter().all(|text| *text == left(WRONG, 3)),
                "{texts:#?}"
            )
        },
    );
}

/// The error of ranks that differ in their first calls.
fn other_order(world: u32) -> String {
    let others = match world {
        2 => "rank 0",
        _ => "ranks 0, 2, 3",
    };
    let down = "operator 2 (gemm_rs_";
    format!(
        " The ranks have begun different calls. Operator 1 (ag_gemm UpProjection): call 1 on {others}; none on rank 1. \
         O{}",
        &down[1..]
    )
}

/// Rank 1 calls two operators in another order.
#[test]
fn another_order_of_calls_is_a_timeout_that_says_so() {
    in_jobs(
        &[(1, 2), (1, 4), (2, 2)],
        |mut rank| {
            let launched = match rank.rank() {
                WRONG => rank.call_down().and_then(|()| rank.call()),
                _ => rank.call().and_then(|()| rank.call_down()),
            };
            launched.expect("launched");
            let text = rank.failure();
            rank.ranks.barrier().expect("all ranks have failed");
            text
        },
        |world, texts| {
            let others = match world {
                2 => "rank 0",
                _ => "ranks 0, 2, 3",
            };
            for (rank, text) in (0..).zip(texts) {
                let own = match rank {
                    WRONG => "rank 1 was waiting in call 1 of operator 2 (gemm_rs_".to_owned(),
                    _ => format!(
                        "rank {rank} was waiting in call 1 of operator 1 (ag_gemm UpProjection) for "
                    ),
                };
                assert!(text.contains(&own), "{own:?} in {text:?}");
                let calls = other_order(world);
                assert!(text.contains(&calls), "{calls:?} in {text:?}");
                let of_down = format!("): none on {others}; call 1 on rank 1. ");
                assert!(text.contains(&of_down), "{of_down:?} in {text:?}");
            }
        },
    );
}

/// Rank 1 replays a graph once more than the other ranks, which have left or do nothing meanwhile.
#[test]
fn a_replay_too_many_is_named() {
    for others_leave in [true, false] {
        in_all_jobs(
            |mut rank| {
                rank.stream.synchronize().expect("uploaded");
                let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
                rank.stream.begin_capture(mode).expect("capturing");
                let call = rank.up.call(&rank.stream);
                let call = call.read(Operand::A, &rank.a).read(Operand::B, &rank.b);
                // SAFETY: the graph is destroyed before the operands.
                unsafe { call.write(Operand::C, &mut rank.c).capture() }.expect("captured");
                let graph = rank.stream.end_capture(CUgraphInstantiate_flags(0));
                let graph = graph.expect("captured").expect("a graph");
                for _ in 0..2 {
                    graph.launch().expect("replayed");
                }
                rank.wait_for_all();
                let text = (rank.rank() == WRONG).then(|| {
                    graph.launch().expect("replayed");
                    rank.failure()
                });
                if !others_leave {
                    rank.ranks.barrier().expect("all ranks come to the end");
                }
                text
            },
            |world, texts| {
                let text = texts.into_iter().flatten().next().expect("a text");
                if others_leave {
                    // The error names the rank that leaves first.
                    let mut others = (0..world).filter(|rank| *rank != WRONG);
                    assert!(others.any(|rank| text == left(rank, 3)), "{text}");
                    return;
                }
                let others = match world {
                    2 => "rank 0",
                    _ => "ranks 0, 2, 3",
                };
                let calls = format!(
                    " The ranks have begun different calls. Operator 1 (ag_gemm UpProjection): call 2 on {others}; call 3 on \
                     rank 1. "
                );
                assert!(text.contains(&calls), "{calls:?} in {text:?}");
            },
        );
    }
}

/// A kernel waits for more pushes than the ranks make. All ranks make the same calls, so the mistake is in the kernel.
#[test]
fn a_deadlock_of_a_kernel_is_a_finding() {
    in_jobs(
        &[(1, 2), (1, 4), (2, 2)],
        |mut rank| {
            let nodes = rank.up.plan().spec.topology().nodes;
            let config = config(&rank.ranks, nodes, GemmOp::AgGemm, Some("Planted"));
            let (wanted, too_many) = ("ctx.epoch * kArrivals}", "ctx.epoch * kArrivals + 1}");
            // SAFETY: the kernel accesses what it would access without the edit, and its waits have deadlines.
            let planted = unsafe {
                prepare_edited(&rank.ranks, &config, SHAPE, |text| {
                    assert!(text.contains(wanted), "the kernel has no {wanted:?}");
                    *text = text.replace(wanted, too_many);
                })
            };
            rank.up = planted.expect("prepared");
            rank.call().expect("launched");
            let error = rank.wait().expect_err("the kernels wait for each other");
            rank.ranks.barrier().expect("all ranks have failed");
            error
        },
        |_, errors| {
            for error in errors {
                let Error::Simulation { findings } = &error else {
                    panic!("{error}");
                };
                assert_eq!(findings[0].kind, "deadlock", "{error}");
            }
        },
    );
}

/// The thread of rank 1 panics while the other ranks wait for it.
#[test]
fn a_thread_that_panics_is_lost() {
    in_jobs(
        &[(1, 2), (1, 4)],
        |mut rank| {
            if rank.rank() == WRONG {
                let panicked = catch_unwind(AssertUnwindSafe(move || {
                    let _rank = rank;
                    resume_unwind(Box::new("it panics"));
                }));
                panicked.expect_err("it has panicked");
                return None;
            }
            // The launch is refused if the loss is known earlier.
            let refused = rank.call().err().map(|error| error.to_string());
            Some(refused.unwrap_or_else(|| rank.failure()))
        },
        |_, texts| {
            let expected = "rank 1 is lost: its thread has panicked, or its network has failed; the output of that rank has the \
                 cause";
            for text in texts.into_iter().flatten() {
                assert_eq!(text, expected);
            }
        },
    );
}

/// Rank 1 prepares an operator for another size.
#[test]
fn another_size_on_one_rank_is_said_in_words() {
    in_jobs(
        &[(1, 2)],
        |rank| {
            let m = SHAPE.m + u64::from(rank.rank() == WRONG);
            let config = GemmConfig {
                m: Dim::Static(m),
                n: Dim::Static(SHAPE.n),
                k: Dim::Static(SHAPE.k),
                ..GemmConfig::new(GemmOp::AgGemm)
            };
            let config = KernelConfig::new(rank.ranks.world(), config);
            let prepared = rank.ranks.prepare(&config, GemmShape { m, ..SHAPE });
            prepared.expect_err("the sizes differ").to_string()
        },
        |_, texts| {
            for text in texts {
                let start = "rank 1 is out of step with rank 0 (m: 257 instead of 256; ag_gemm_";
                assert!(text.starts_with(start), "{text}");
            }
        },
    );
}
