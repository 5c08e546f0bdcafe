//! Tests of wrong results in symmetric memory: at different places on different ranks, or outside of symmetric memory.

use mkernel::cudarc::driver::CudaStream;
use mkernel::spec::{CollectiveConfig, CollectiveOp, CollectiveShape, Dim, Dtype, Protocol};
use mkernel::{Communicator, Error, ErrorKind, KernelConfig, Operand, Operator, SymmetricSlice};
use mkernel_testing::jobs::{Backend, Machine};
use std::sync::Arc;
use std::time::Duration;

const ROWS: u64 = 8;
const COLS: u64 = 1032;
const ELEMS: usize = (ROWS * COLS) as usize;
const OPS: [CollectiveOp; 3] = [
    CollectiveOp::AllReduce,
    CollectiveOp::AllGather,
    CollectiveOp::AllToAll,
];

/// A rank with an operator whose result is in symmetric memory.
struct Rank<'a> {
    ranks: &'a Communicator,
    operator: Operator,
    stream: Arc<CudaStream>,
}

impl Rank<'_> {
    fn zeros(&self, elems: usize) -> SymmetricSlice<f32> {
        let tensor = self.ranks.alloc(&self.stream, elems);
        tensor.expect("all ranks allocate it")
    }

    fn x(&self) -> mkernel::cudarc::driver::CudaSlice<f32> {
        self.stream.clone_htod(&[1.0f32; ELEMS]).expect("memory")
    }

    fn call(&self, y: &mut SymmetricSlice<f32>) -> Result<(), Error> {
        let x = self.x();
        let call = self.operator.call(&self.stream).read(Operand::X, &x);
        call.write(Operand::Y, y).launch()?;
        self.ranks.synchronize(&self.stream)
    }

    fn call_with_rows(&self, y: &mut SymmetricSlice<f32>, rows: u64) -> Result<(), Error> {
        let x = self.x();
        let call = self.operator.call(&self.stream).read(Operand::X, &x);
        call.write(Operand::Y, y).rows(rows).launch()?;
        self.ranks.synchronize(&self.stream)
    }

    /// Makes a call with another tensor on rank 1, and checks its error.
    fn expect_different_places(
        &self,
        [y, other]: [&mut SymmetricSlice<f32>; 2],
        call: impl Fn(&mut SymmetricSlice<f32>) -> Result<(), Error>,
    ) {
        self.ranks.set_timeout(Duration::from_secs(60));
        let passed = match self.ranks.rank() {
            1 => other,
            _ => y,
        };
        let error = call(passed).expect_err("the places differ");
        let text = error.to_string();
        match &error {
            Error::DifferentPlaces { rank, peer, .. } => {
                assert!(*rank == 1 || *peer == 1, "{text}");
                assert_eq!(error.kind(), ErrorKind::Mismatch);
                assert!(text.contains("of extent 0"), "{text}");
            }
            // A rank that another rank has aborted names the other rank.
            Error::Timeout { aborted_by, .. } => assert!(aborted_by.is_some(), "{text}"),
            _ => panic!("{}: {text}", self.operator.plan().id),
        }
    }

    fn is_zero(&self, y: &SymmetricSlice<f32>) -> bool {
        let values = self.stream.clone_dtoh(y).expect("a copy");
        values.iter().all(|value| *value == 0.0)
    }
}

/// Runs `body` on each of four ranks.
fn on_ranks(op: CollectiveOp, seed: u64, body: impl Fn(Rank<'_>) + Sync) {
    on_ranks_with((op, Dim::Static(ROWS), Protocol::Simple), seed, body);
}

fn on_ranks_with(
    (op, m, protocol): (CollectiveOp, Dim, Protocol),
    seed: u64,
    body: impl Fn(Rank<'_>) + Sync,
) {
    let machine = Machine {
        world: 4,
        sms: 3,
        skew: 60,
    };
    let config = CollectiveConfig {
        m,
        n: Dim::Static(COLS),
        dtype: Dtype::Fp32,
        protocol: Some(protocol),
        symmetric_result: true,
        ..CollectiveConfig::new(op)
    };
    let config = KernelConfig::new(machine.world, config);
    let shape = CollectiveShape { m: ROWS, n: COLS };
    let outcome = machine.run(Backend::Simulated { seed }, |ranks| {
        let operator = ranks.prepare(&config, shape)?;
        let stream = ranks.default_stream();
        body(Rank {
            ranks,
            operator,
            stream,
        });
        Ok(())
    });
    outcome.expect("no failure");
}

/// No rank stores anything before it has compared the places of all ranks.
#[test]
fn another_tensor_on_one_rank_is_an_error_that_names_it() {
    for (op, seed) in OPS
        .into_iter()
        .flat_map(|op| (0..5).map(move |seed| (op, seed)))
    {
        on_ranks(op, seed, |rank| {
            let (mut y, mut other) = (rank.zeros(ELEMS), rank.zeros(ELEMS));
            rank.expect_different_places([&mut y, &mut other], |y| rank.call(y));
            rank.ranks.barrier().expect("all kernels have ended");
            assert!(
                rank.is_zero(&y) && rank.is_zero(&other),
                "{op}, seed {seed}"
            );
        });
    }
}

/// With rows at run time, ranks compare places also in calls of few rows, which travel as packets, since calls of more rows
/// may store to the results of other ranks.
#[test]
fn another_tensor_is_an_error_for_few_rows_too() {
    let cases = OPS
        .into_iter()
        .flat_map(|op| [1, ROWS].map(|rows| (op, rows)));
    for (seed, (op, rows)) in (0..).zip(cases) {
        on_ranks_with((op, Dim::Dynamic, Protocol::Ll), seed, |rank| {
            let (mut y, mut other) = (rank.zeros(ELEMS), rank.zeros(ELEMS));
            rank.call_with_rows(&mut y, rows).expect("the same tensor");
            let call = |y: &mut SymmetricSlice<f32>| rank.call_with_rows(y, rows);
            rank.expect_different_places([&mut y, &mut other], call);
        });
    }
}

/// A rank that has not begun the call may still use its result.
#[test]
fn no_rank_stores_to_an_absent_rank() {
    for op in OPS {
        on_ranks(op, 0, |rank| {
            let mut y = rank.zeros(ELEMS);
            rank.ranks.set_timeout(Duration::from_millis(50));
            if rank.ranks.rank() != 2 {
                let error = rank.call(&mut y).expect_err("rank 2 is absent");
                assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            }
            rank.ranks.barrier().expect("all kernels have ended");
            assert!(rank.is_zero(&y), "{op}");
        });
    }
}

#[test]
fn a_result_elsewhere_is_an_error_before_the_launch() {
    on_ranks(CollectiveOp::AllReduce, 0, |rank| {
        let x = rank.x();
        let mut slice = rank.stream.alloc_zeros::<f32>(ELEMS).expect("memory");
        let call = rank.operator.call(&rank.stream).read(Operand::X, &x);
        let error = call.write(Operand::Y, &mut slice).launch();
        let error = error.expect_err("it is not symmetric");
        assert_eq!(error.kind(), ErrorKind::Operands);
        let text = error.to_string();
        for part in [
            "operand y",
            "33024 bytes",
            "Communicator::alloc",
            "symmetric_result",
        ] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        // One tensor on all ranks is right, and so is one part of a longer tensor.
        rank.call(&mut rank.zeros(ELEMS)).expect("all take part");
        let mut longer = rank.zeros(ELEMS + 128);
        let mut view = longer.as_view_mut();
        let mut part = view.slice_mut(64..64 + ELEMS);
        let call = rank.operator.call(&rank.stream).read(Operand::X, &x);
        call.write(Operand::Y, &mut part).launch().expect("inside");
        rank.ranks.synchronize(&rank.stream).expect("all take part");
        let values = rank.stream.clone_dtoh(&longer).expect("a copy");
        let (before, rest) = values.split_at(64);
        let (sums, behind) = rest.split_at(ELEMS);
        assert!(sums.iter().all(|sum| *sum == 4.0));
        assert!(before.iter().chain(behind).all(|value| *value == 0.0));
        assert_eq!(rank.ranks.findings(), []);
    });
}
