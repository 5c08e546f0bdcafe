//! Tests of calls with wrong numbers of rows: every rank gets an error that names the mistake.

use mkernel::half::bf16;
use mkernel::spec::{CollectiveConfig, CollectiveOp, CollectiveShape, Protocol};
use mkernel::{ErrorKind, KernelConfig, Operand};
use mkernel_testing::jobs::collective::buckets::in_buckets;
use mkernel_testing::jobs::prepared::{
    Prepared, all_succeed, error_at_once, expect_errors_with_rows, expect_refused, on_ranks,
};
use mkernel_testing::jobs::{each_in_one, named};

/// The SMs of a simulated GPU.
const SMS: u32 = 3;
const MAX_ROWS: u64 = 12;
const COLS: u64 = 264;

/// An operator that takes up to [`MAX_ROWS`] rows.
fn operator(
    (nodes, local_world): (u32, u32),
    (op, protocol): (CollectiveOp, Option<Protocol>),
) -> (KernelConfig, CollectiveShape) {
    let config = CollectiveConfig {
        protocol,
        // The root of a broadcast is the rank with a different number of rows.
        root: (op == CollectiveOp::Broadcast).then_some(1),
        ..CollectiveConfig::new(op)
    };
    let config = KernelConfig {
        nodes,
        ..KernelConfig::new(nodes * local_world, config)
    };
    let shape = CollectiveShape {
        m: MAX_ROWS,
        n: COLS,
    };
    (config, shape)
}

/// Every rank returns the error at once, not at a deadline.
#[test]
fn different_rows_are_an_error_that_names_two_ranks() {
    use CollectiveOp::{AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter};
    let kinds = [
        ((1, 2), (AllReduce, Some(Protocol::Ll))),
        ((1, 4), (AllGather, Some(Protocol::Ll))),
        ((1, 4), (AllReduce, Some(Protocol::Simple))),
        ((1, 4), (ReduceScatter, Some(Protocol::Simple))),
        ((1, 4), (Broadcast, Some(Protocol::Ll))),
        ((1, 4), (Broadcast, Some(Protocol::Simple))),
        ((2, 2), (Broadcast, None)),
        ((2, 2), (AllReduce, None)),
        ((2, 1), (AllGather, None)),
        ((1, 4), (AllToAll, Some(Protocol::Ll))),
        ((1, 4), (AllToAll, Some(Protocol::Simple))),
        ((2, 2), (AllToAll, None)),
    ];
    let seeds = [0, 1];
    let calls = |seed| kinds.map(|(topology, kind)| (topology, kind, seed)).into();
    for (topology, kind, seed) in each_in_one(&seeds, calls) {
        let (config, shape) = operator(topology, kind);
        let outcomes = on_ranks(&config, shape, (SMS, seed), |rank| {
            let rows = if rank.ranks.rank() == 1 { 7 } else { 12 };
            let error = error_at_once(|| rank.call_with_rows(rows));
            assert_ne!(error.kind(), ErrorKind::Simulation, "{error}");
            Err(error)
        });
        expect_errors_with_rows(outcomes, &config, 7);
    }
}

/// The ranks run different buckets: one bucket has packets, and the other buckets have chunks.
#[test]
fn different_rows_in_different_buckets_are_an_error() {
    let jobs = [
        named(in_buckets(2), "protocols of rows"),
        named(in_buckets(4), "other protocols,"),
    ];
    for (seed, job) in (0..).zip(jobs) {
        let (config, shape) = (job.kernel(), job.shape());
        let most = i32::try_from(shape.m).expect("few rows");
        let outcomes = on_ranks(&config, shape, (job.machine.sms, seed), |rank| {
            assert!(rank.operator.plan().has_buckets(), "{config:?}");
            let rows = if rank.ranks.rank() == 1 { 7 } else { most };
            let error = rank.call_with_rows(rows).expect_err("different rows");
            assert_ne!(error.kind(), ErrorKind::Simulation, "{error}");
            Err(error)
        });
        expect_errors_with_rows(outcomes, &config, 7);
    }
}

/// The communicator stays usable.
#[test]
fn more_rows_than_prepared_are_an_error_of_their_call() {
    for topology in [(1, 1), (1, 4), (2, 2)] {
        let (config, shape) = operator(topology, (CollectiveOp::AllReduce, None));
        all_succeed(&config, shape, (SMS, 0), |rank| rank.expect_most_rows(12));
    }
}

#[test]
fn rows_that_the_host_knows_are_checked_before_the_launch() {
    let (config, shape) = operator((1, 2), (CollectiveOp::AllGather, None));
    all_succeed(&config, shape, (SMS, 0), |rank| {
        let Prepared {
            ranks,
            operator,
            stream,
        } = rank;
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
        expect_refused(
            launch(Some(13)),
            "gives 13 rows, but the operator was prepared for 12",
        );
        expect_refused(
            launch(Some(6)),
            "1320 elements, but 6 rows of 264 columns are 1584",
        );
        expect_refused(launch(None), "12 rows of 264 columns are 3168");
        // An empty view at the end of a slice has no word to read.
        let words = stream.clone_htod(&[5]).expect("memory");
        let mut most = stream
            .alloc_zeros::<bf16>((MAX_ROWS * COLS) as usize)
            .expect("memory");
        let call = operator
            .call(stream)
            .read(Operand::X, &own)
            .write(Operand::Y, &mut most);
        let empty = words.slice(1..);
        expect_refused(call.rows_in(&empty).launch(), "the rows is empty");
        // An X that is longer than the call needs is valid.
        launch(Some(5))?;
        launch(Some(0))?;
        ranks.synchronize(stream)
    });
}
