//! Tests of calls with wrong numbers of rows: every rank gets an error that names the mistake.

use mkernel::cudarc::driver::{CudaSlice, CudaStream};
use mkernel::half::bf16;
use mkernel::spec::{AttentionConfig, AttentionOp, AttentionShape, Dim, Placement};
use mkernel::{ErrorKind, KernelConfig, Operand, Operator};
use mkernel_testing::jobs::each_in_one;
use mkernel_testing::jobs::prepared::{
    Prepared, all_succeed, error_at_once, expect_errors_with_rows, expect_refused, on_ranks,
};
use std::sync::Arc;

/// The SMs of a simulated GPU.
const SMS: u32 = 3;
const MAX_ROWS: u64 = 300;
const DIM: u64 = 64;
const HEADS: u64 = 2;

/// An operator that takes up to [`MAX_ROWS`] rows.
fn operator(
    (nodes, local_world): (u32, u32),
    (causal, kv_slots): (bool, Option<u32>),
) -> (KernelConfig, AttentionShape) {
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
        ..KernelConfig::new(nodes * local_world, config)
    };
    let shape = AttentionShape {
        batch: 1,
        seq: MAX_ROWS,
        heads: HEADS,
        kv_heads: HEADS,
        head_dim: DIM,
    };
    (config, shape)
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

/// Every rank returns the error at once, not at a deadline.
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
    let seeds = [0, 1, 2];
    let calls = |seed| kinds.map(|(topology, kind)| (topology, kind, seed)).into();
    for (topology, kind, seed) in each_in_one(&seeds, calls) {
        let (config, shape) = operator(topology, kind);
        let outcomes = on_ranks(&config, shape, (SMS, seed), |rank| {
            let rows = if rank.ranks.rank() == 1 { 7 } else { 300 };
            let error = error_at_once(|| rank.call_with_rows(rows));
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
        let (config, shape) = operator(topology, (false, None));
        all_succeed(&config, shape, (SMS, 0), |rank| rank.expect_most_rows(300));
    }
}

#[test]
fn rows_that_the_host_knows_are_checked_before_the_launch() {
    let (config, shape) = operator((1, 2), (false, None));
    all_succeed(&config, shape, (SMS, 0), |rank| {
        let Prepared {
            ranks,
            operator,
            stream,
        } = rank;
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
        expect_refused(
            launch(Some(301)),
            "gives 301 rows, but the operator was prepared for 300",
        );
        expect_refused(
            launch(Some(202)),
            "12800 elements, but 101 rows of 128 columns are 12928",
        );
        expect_refused(launch(None), "150 rows of 128 columns are 19200");
        launch(Some(200))?;
        launch(Some(0))?;
        ranks.synchronize(stream)
    });
}
