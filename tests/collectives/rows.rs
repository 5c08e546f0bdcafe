//! Tests of calls that give their rows in a wrong way: every rank gets an error that names the mistake.

use mkernel::cudarc::driver::CudaStream;
use mkernel::half::bf16;
use mkernel::spec::{CollectiveConfig, CollectiveOp, CollectiveShape, Protocol};
use mkernel::{Communicator, Error, ErrorKind, KernelConfig, Operand, Operator};
use mkernel_testing::jobs::{Backend, Machine};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MAX_ROWS: u64 = 12;
const COLS: u64 = 264;

/// Runs `body` on every rank with an operator that takes up to [`MAX_ROWS`] rows, and its stream.
fn on_ranks(
    (nodes, local_world): (u32, u32),
    (op, protocol): (CollectiveOp, Option<Protocol>),
    seed: u64,
    body: impl Fn(&Communicator, &Operator, &Arc<CudaStream>) -> Result<(), Error> + Sync,
) -> Vec<Result<(), String>> {
    let machine = Machine {
        world: nodes * local_world,
        sms: 3,
        skew: 60,
    };
    let config = CollectiveConfig {
        protocol,
        ..CollectiveConfig::new(op)
    };
    let config = KernelConfig {
        nodes,
        ..KernelConfig::new(machine.world, config)
    };
    let shape = CollectiveShape {
        m: MAX_ROWS,
        n: COLS,
    };
    let outcomes = machine.run_ranks(Backend::Simulated { seed }, |ranks, _| {
        let operator = ranks.prepare(&config, shape)?;
        ranks.set_timeout(Duration::from_secs(60));
        Ok(body(ranks, &operator, &ranks.context().default_stream())?)
    });
    outcomes.expect("communicators")
}

/// Makes a call with this number of rows, which is passed in memory.
fn call(
    ranks: &Communicator,
    operator: &Operator,
    stream: &Arc<CudaStream>,
    rows: i32,
) -> Result<(), Error> {
    let x = stream.clone_htod(&[bf16::ONE; (MAX_ROWS * COLS) as usize]);
    let y = stream.alloc_zeros::<bf16>((MAX_ROWS * COLS) as usize);
    let (x, mut y) = (x.expect("memory"), y.expect("memory"));
    let rows = stream.clone_htod(&[rows]).expect("memory");
    let call = operator.call(stream).read(Operand::X, &x);
    call.write(Operand::Y, &mut y).rows_in(&rows).launch()?;
    ranks.synchronize(stream)
}

/// The error comes at once, not at a deadline, and from every rank.
#[test]
fn different_rows_are_an_error_that_names_two_ranks() {
    use CollectiveOp::{AllGather, AllReduce, ReduceScatter};
    let kinds = [
        ((1, 2), (AllReduce, Some(Protocol::Ll))),
        ((1, 4), (AllGather, Some(Protocol::Ll))),
        ((1, 4), (AllReduce, Some(Protocol::Simple))),
        ((1, 4), (ReduceScatter, Some(Protocol::Simple))),
        ((2, 2), (AllReduce, None)),
        ((2, 1), (AllGather, None)),
    ];
    let seeds = (0..6).flat_map(|seed| kinds.map(|(topology, kind)| (topology, kind, seed)));
    for (topology, kind, seed) in seeds {
        let started = Instant::now();
        let outcomes = on_ranks(topology, kind, seed, |ranks, operator, stream| {
            let rows = if ranks.rank() == 1 { 7 } else { 12 };
            let error = call(ranks, operator, stream, rows).expect_err("different rows");
            assert_ne!(error.kind(), ErrorKind::Simulation, "{error}");
            Err(error)
        });
        for (rank, outcome) in outcomes.into_iter().enumerate() {
            let failure = outcome.expect_err("different rows");
            let is_named = failure.contains("with 7 rows") || failure.contains("with 7. Give");
            // A rank of another node that has no contact to rank 1 only knows who does.
            let is_far = topology == (2, 2) && rank == 2;
            let is_named = is_named || is_far && failure.contains("its own error has the cause");
            assert!(is_named, "{topology:?} {kind:?}, rank {rank}: {failure}");
        }
        let took = started.elapsed();
        assert!(took < Duration::from_secs(30), "{took:?}");
    }
}

/// The communicator can be used after that.
#[test]
fn more_rows_than_prepared_are_an_error_of_their_call() {
    for topology in [(1, 1), (1, 4), (2, 2)] {
        let outcomes = on_ranks(
            topology,
            (CollectiveOp::AllReduce, None),
            0,
            |ranks, operator, stream| {
                let error = call(ranks, operator, stream, 13).expect_err("too many rows");
                assert_eq!(error.kind(), ErrorKind::Values, "{error}");
                let text = error.to_string();
                assert!(text.contains("call 1: the call has 13 rows"), "{text}");
                let error = call(ranks, operator, stream, -1).expect_err("too many rows");
                assert_eq!(error.kind(), ErrorKind::Values, "{error}");
                call(ranks, operator, stream, 12)
            },
        );
        for outcome in outcomes {
            assert_eq!(outcome, Ok(()), "{topology:?}");
        }
    }
}

#[test]
fn rows_that_the_host_knows_are_checked_before_the_launch() {
    let outcomes = on_ranks(
        (1, 2),
        (CollectiveOp::AllGather, None),
        0,
        |ranks, operator, stream| {
            assert_eq!(operator.plan().max_rows(), Some(MAX_ROWS));
            let own = stream
                .alloc_zeros::<bf16>((MAX_ROWS / 2 * COLS) as usize)
                .expect("memory");
            let mut all = stream
                .alloc_zeros::<bf16>((5 * COLS) as usize)
                .expect("memory");
            let mut launch = |rows: Option<u64>| {
                let call = operator
                    .call(stream)
                    .read(Operand::X, &own)
                    .write(Operand::Y, &mut all);
                match rows {
                    Some(rows) => call.rows(rows).launch(),
                    None => call.launch(),
                }
            };
            let refused = |result: Result<(), Error>, part: &str| {
                let error = result.expect_err(part);
                assert_eq!(error.kind(), ErrorKind::Operands);
                assert!(error.to_string().contains(part), "{error}");
            };
            refused(
                launch(Some(13)),
                "gives 13 rows, but the operator was prepared for 12",
            );
            refused(
                launch(Some(6)),
                "1320 elements, but 6 rows of 264 columns are 1584",
            );
            refused(launch(None), "12 rows of 264 columns are 3168");
            // X is longer than the call needs.
            launch(Some(5))?;
            launch(Some(0))?;
            ranks.synchronize(stream)
        },
    );
    for outcome in outcomes {
        assert_eq!(outcome, Ok(()));
    }
}
