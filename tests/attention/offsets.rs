//! Tests of calls with wrong offsets of packed sequences: every rank gets an error that names the mistake, and kernels access
//! only their operands.

use mkernel::cudarc::driver::CudaSlice;
use mkernel::half::bf16;
use mkernel::spec::{AttentionConfig, AttentionOp, AttentionShape, Dim, Placement};
use mkernel::{Error, ErrorKind, KernelConfig, Operand};
use mkernel_testing::jobs::prepared::{
    Prepared, all_succeed, error_at_once, expect_wrong_values, on_ranks,
};
use mkernel_testing::lab::Random;

const SHAPE: AttentionShape = AttentionShape {
    batch: 4,
    seq: 300,
    heads: 2,
    kv_heads: 1,
    head_dim: 64,
};

/// The value of all elements of O before a call.
const UNWRITTEN: f32 = 77.0;

/// The SMs of a simulated GPU.
const SMS: u32 = 3;

/// Returns the configuration of an operator of packed sequences.
fn config(world: u32, causal: bool) -> KernelConfig {
    let config = AttentionConfig {
        batch: Dim::Static(SHAPE.batch),
        heads: Dim::Static(SHAPE.heads),
        kv_heads: Dim::Static(SHAPE.kv_heads),
        head_dim: Dim::Static(SHAPE.head_dim),
        causal,
        placement: Placement::Zigzag,
        packed: true,
        ..AttentionConfig::new(AttentionOp::RingAttention)
    };
    KernelConfig::new(world, config)
}

/// The operands of a call.
struct Operands {
    inputs: Vec<CudaSlice<bf16>>,
    o: CudaSlice<bf16>,
    lse: CudaSlice<f32>,
    offsets: CudaSlice<i32>,
}

impl Operands {
    fn new(Prepared { ranks, stream, .. }: &Prepared<'_>, offsets: &[i32]) -> Self {
        let rows = SHAPE.packed_rank_rows(ranks.world(), Placement::Zigzag);
        let elems = |heads: u64| (rows * heads * SHAPE.head_dim) as usize;
        let input = |heads| stream.clone_htod(&vec![bf16::ONE; elems(heads)]);
        let heads = [SHAPE.heads, SHAPE.kv_heads, SHAPE.kv_heads];
        let o = vec![bf16::from_f32(UNWRITTEN); elems(SHAPE.heads)];
        let lse = (rows * SHAPE.heads) as usize;
        Self {
            inputs: heads.map(|heads| input(heads).expect("memory")).into(),
            o: stream.clone_htod(&o).expect("memory"),
            lse: stream.alloc_zeros(lse).expect("memory"),
            offsets: stream.clone_htod(offsets).expect("memory"),
        }
    }

    fn call<'a>(&'a mut self, rank: &'a Prepared<'_>) -> mkernel::Call<'a> {
        rank.operator
            .call(&rank.stream)
            .read(Operand::Q, &self.inputs[0])
            .read(Operand::K, &self.inputs[1])
            .read(Operand::V, &self.inputs[2])
            .read(Operand::CuSeqlens, &self.offsets)
            .write(Operand::O, &mut self.o)
            .write(Operand::Lse, &mut self.lse)
    }
}

/// Makes a call with these offsets, and returns the number of rows of O that it has written.
fn call(rank: &Prepared<'_>, offsets: &[i32]) -> (usize, Result<(), Error>) {
    let mut operands = Operands::new(rank, offsets);
    let outcome = operands.call(rank).launch();
    let outcome = outcome.and_then(|()| rank.ranks.synchronize(&rank.stream));
    let o = rank.stream.clone_dtoh(&operands.o).expect("memory");
    let rows = o.chunks((SHAPE.heads * SHAPE.head_dim) as usize);
    let is_written = |row: &&[bf16]| row.iter().any(|x| *x != bf16::from_f32(UNWRITTEN));
    (rows.filter(is_written).count(), outcome)
}

/// Every rank returns the error at once, not at a deadline. The total number of rows is equal on all ranks.
#[test]
fn different_offsets_are_an_error_that_names_two_ranks() {
    let kinds = [(2, false), (2, true), (4, false), (4, true)];
    for (world, causal) in kinds {
        for seed in 0..3 {
            let outcomes = on_ranks(&config(world, causal), SHAPE, (SMS, seed), |rank| {
                let offsets = match rank.ranks.rank() {
                    1 => [0, 10, 20, 290, 300],
                    _ => [0, 10, 20, 289, 300],
                };
                let error = error_at_once(|| call(rank, &offsets).1);
                assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
                Err(error)
            });
            for (rank, outcome) in outcomes.into_iter().enumerate() {
                let failure = outcome.expect_err("different offsets");
                let is_named = failure.contains("rank 1 ")
                    && failure.contains("different offsets in cu_seqlens");
                assert!(is_named, "{world} {causal}, rank {rank}: {failure}");
            }
        }
    }
}

/// The call writes nothing, and the communicator stays usable.
#[test]
fn offsets_that_are_not_possible_are_an_error_of_their_call() {
    let wrong = [
        ([3, 10, 20, 30, 40], "offset 0 is 3, but the first one is 0"),
        (
            [-1, 10, 20, 30, 40],
            "offset 0 is -1, but the first one is 0",
        ),
        (
            [0, 10, 9, 30, 40],
            "offset 2 is 9, less than the previous offset 10",
        ),
        (
            [0, 10, 20, 30, 0],
            "offset 4 is 0, less than the previous offset 30",
        ),
        (
            [0, 10, 301, 301, 301],
            "offset 2 is 301, but the operator was prepared for 300",
        ),
        ([0, 10, -7, 30, 40], "offset 2 is -7, a negative number"),
        ([0, i32::MAX, i32::MIN, 0, 0], "offset 1 is 2147483647, but"),
    ];
    for world in [1, 4] {
        all_succeed(&config(world, true), SHAPE, (SMS, 0), |rank| {
            for (number, (offsets, part)) in wrong.iter().enumerate() {
                let (written, outcome) = call(rank, offsets);
                expect_wrong_values(outcome, number + 1, part);
                assert_eq!(written, 0, "{offsets:?}");
            }
            let offsets = [0, 10, 10, 290, 300];
            let (written, outcome) = call(rank, &offsets);
            let offsets: Vec<u64> = offsets.iter().map(|offset| *offset as u64).collect();
            let rows = Placement::Zigzag.packed_rows_of(world, rank.ranks.rank(), &offsets);
            assert_eq!(
                written as u64,
                rows.iter().map(|rows| rows.end - rows.start).sum::<u64>()
            );
            outcome
        });
    }
}

/// The simulator finds accesses outside of operands.
#[test]
fn random_offsets_do_no_harm() {
    all_succeed(&config(2, true), SHAPE, (SMS, 0), |rank| {
        let mut random = Random(5);
        for _ in 0..40 {
            let limit = [10, 80, 400, 1 << 32][random.below(4) as usize];
            let mut offsets: [i32; 5] = std::array::from_fn(|_| random.below(limit) as u32 as i32);
            if random.below(2) == 0 {
                offsets[0] = 0;
            }
            if random.below(2) == 0 {
                offsets.sort_unstable();
            }
            let are_possible = offsets[0] == 0 && offsets.is_sorted() && offsets[4] <= 300;
            let (_, outcome) = call(rank, &offsets);
            match outcome {
                Ok(()) => assert!(are_possible, "{offsets:?}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Values, "{error}");
                    assert!(!are_possible, "{offsets:?}: {error}");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn operands_of_packed_calls_are_checked_before_the_launch() {
    all_succeed(&config(2, false), SHAPE, (SMS, 0), |rank| {
        assert_eq!(rank.operator.plan().max_rows(), None);
        let mut operands = Operands::new(rank, &[0, 10, 20, 30]);
        let error = operands.call(rank).launch().expect_err("short");
        let text = error.to_string();
        assert!(text.contains("cu_seqlens"), "{text}");
        let mut operands = Operands::new(rank, &[0, 10, 20, 30, 40]);
        let call = operands.call(rank).rows(40);
        let error = call.launch().expect_err("rows");
        assert_eq!(error.kind(), ErrorKind::Operands, "{error}");
        operands.call(rank).launch()?;
        rank.ranks.synchronize(&rank.stream)
    });
}
