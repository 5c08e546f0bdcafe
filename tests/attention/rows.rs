//! Tests of calls that give their rows in a wrong way: every rank gets an error that names the mistake.

use mkernel::cudarc::driver::{CudaSlice, CudaStream};
use mkernel::half::bf16;
use mkernel::spec::{AttentionConfig, AttentionOp, AttentionShape, Dim, Placement};
use mkernel::{Communicator, Error, ErrorKind, KernelConfig, Operand, Operator};
use mkernel_testing::jobs::{Backend, Machine};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MAX_ROWS: u64 = 300;
const DIM: u64 = 64;
const HEADS: u64 = 2;

/// Runs `body` on every rank with an operator that takes up to [`MAX_ROWS`] rows, and its stream.
fn on_ranks(
    (nodes, local_world): (u32, u32),
    (causal, kv_slots): (bool, Option<u32>),
    seed: u64,
    body: impl Fn(&Communicator, &Operator, &Arc<CudaStream>) -> Result<(), Error> + Sync,
) -> Vec<Result<(), String>> {
    let machine = Machine {
        world: nodes * local_world,
        sms: 3,
        skew: 60,
    };
    let mut config = AttentionConfig {
        heads: Dim::Static(HEADS),
        kv_heads: Dim::Static(HEADS),
        head_dim: Dim::Static(DIM),
        causal,
        ..AttentionConfig::new(AttentionOp::RingAttention)
    };
    if causal {
        config.placement = Placement::Zigzag;
    }
    config.tuning.kv_slots = kv_slots;
    let config = KernelConfig {
        nodes,
        ..KernelConfig::new(machine.world, config)
    };
    let shape = AttentionShape {
        batch: 1,
        seq: MAX_ROWS,
        heads: HEADS,
        kv_heads: HEADS,
        head_dim: DIM,
    };
    let outcomes = machine.run_ranks(Backend::Simulated { seed }, |ranks, _| {
        let operator = ranks.prepare(&config, shape)?;
        ranks.set_timeout(Duration::from_secs(60));
        Ok(body(ranks, &operator, &ranks.context().default_stream())?)
    });
    outcomes.expect("communicators")
}

/// The operands of a call, with room for the most rows of any rank.
struct Operands {
    inputs: Vec<CudaSlice<bf16>>,
    o: CudaSlice<bf16>,
    lse: CudaSlice<f32>,
}

impl Operands {
    fn new(stream: &Arc<CudaStream>) -> Self {
        let (rows, elems) = (MAX_ROWS * HEADS, (MAX_ROWS * HEADS * DIM) as usize);
        let input = |_| stream.clone_htod(&vec![bf16::ONE; elems]).expect("memory");
        Self {
            inputs: (0..3).map(input).collect(),
            o: stream.alloc_zeros(elems).expect("memory"),
            lse: stream.alloc_zeros(rows as usize).expect("memory"),
        }
    }

    fn call<'a>(
        &'a mut self,
        operator: &'a Operator,
        stream: &'a Arc<CudaStream>,
    ) -> mkernel::Call<'a> {
        operator
            .call(stream)
            .read(Operand::Q, &self.inputs[0])
            .read(Operand::K, &self.inputs[1])
            .read(Operand::V, &self.inputs[2])
            .write(Operand::O, &mut self.o)
            .write(Operand::Lse, &mut self.lse)
    }
}

/// Makes a call with this number of rows, which is passed in memory.
fn call(
    ranks: &Communicator,
    operator: &Operator,
    stream: &Arc<CudaStream>,
    rows: i32,
) -> Result<(), Error> {
    let mut operands = Operands::new(stream);
    let rows = stream.clone_htod(&[rows]).expect("memory");
    operands.call(operator, stream).rows_in(&rows).launch()?;
    ranks.synchronize(stream)
}

/// The error comes at once, not at a deadline, and from every rank.
#[test]
fn different_rows_are_an_error_that_names_two_ranks() {
    let kinds = [
        ((1, 2), (false, None)),
        ((1, 4), (false, None)),
        ((1, 4), (true, None)),
        ((1, 4), (false, Some(1))),
        ((2, 2), (false, None)),
        ((2, 1), (true, None)),
    ];
    let seeds = (0..3).flat_map(|seed| kinds.map(|(topology, kind)| (topology, kind, seed)));
    for (topology, kind, seed) in seeds {
        let started = Instant::now();
        let outcomes = on_ranks(topology, kind, seed, |ranks, operator, stream| {
            let rows = if ranks.rank() == 1 { 7 } else { 300 };
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
        let outcomes = on_ranks(topology, (false, None), 0, |ranks, operator, stream| {
            let error = call(ranks, operator, stream, 301).expect_err("too many rows");
            assert_eq!(error.kind(), ErrorKind::Values, "{error}");
            let text = error.to_string();
            assert!(text.contains("call 1: the call has 301 rows"), "{text}");
            let error = call(ranks, operator, stream, -1).expect_err("too many rows");
            assert_eq!(error.kind(), ErrorKind::Values, "{error}");
            call(ranks, operator, stream, 300)
        });
        for outcome in outcomes {
            assert_eq!(outcome, Ok(()), "{topology:?}");
        }
    }
}

#[test]
fn rows_that_the_host_knows_are_checked_before_the_launch() {
    let outcomes = on_ranks((1, 2), (false, None), 0, |ranks, operator, stream| {
        assert_eq!(operator.plan().max_rows(), Some(MAX_ROWS));
        let mut operands = Operands::new(stream);
        let of_rows = |rows: u64| (rows * HEADS * DIM) as usize;
        operands.inputs[0] = stream.alloc_zeros(of_rows(100)).expect("memory");
        let mut launch = |rows: Option<u64>| {
            let call = operands.call(operator, stream);
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
            launch(Some(301)),
            "gives 301 rows, but the operator was prepared for 300",
        );
        refused(
            launch(Some(202)),
            "12800 elements, but 101 rows of 128 columns are 12928",
        );
        refused(launch(None), "150 rows of 128 columns are 19200");
        launch(Some(200))?;
        launch(Some(0))?;
        ranks.synchronize(stream)
    });
    for outcome in outcomes {
        assert_eq!(outcome, Ok(()));
    }
}
