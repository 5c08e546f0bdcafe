//! Attention with Q, K and V in one matrix.

use mkernel::Operand;
use mkernel::half::bf16;
use mkernel::operands::Strided;
use mkernel::spec::{AttentionConfig, AttentionOp, AttentionShape, Placement};
use mkernel::{Communicator, KernelConfig, Operator};
use mkernel_testing::jobs::{Backend, Machine};
use mkernel_testing::lab::{Failure, Random};

const SHAPE: AttentionShape = AttentionShape {
    batch: 2,
    seq: 301,
    heads: 2,
    kv_heads: 1,
    head_dim: 64,
};
/// The columns of Q, of K and of V, and of a row of all three.
const COLS: [usize; 3] = [128, 64, 64];
const ALL_COLS: usize = 256;
/// The row stride of O in a wider matrix, and the first column of O.
const O_STRIDE: usize = 160;
const O_FIRST: usize = 16;
const UNWRITTEN: bf16 = bf16::from_f32_const(77.0);

/// The rows of Q on a rank.
fn rows(ranks: &Communicator, operator: &Operator) -> usize {
    let specs = operator.plan().operands_in_call(SHAPE.seq);
    let q = specs.iter().find(|spec| spec.operand == Operand::Q);
    q.map_or(0, |spec| spec.rows.on(ranks.rank()) as usize)
}

/// Calls the operator on one matrix of random elements, and on copies of its columns. O of the first call lies in a wider matrix,
/// and must have the bits of the second call.
fn compare(ranks: &Communicator) -> Result<(), Failure> {
    let config = AttentionConfig {
        causal: true,
        placement: Placement::Zigzag,
        lse: false,
        ..AttentionConfig::new(AttentionOp::RingAttention)
    };
    let operator = ranks.prepare(&KernelConfig::new(ranks.world(), config), SHAPE)?;
    let (stream, rows) = (ranks.default_stream(), rows(ranks, &operator));
    let mut random = Random(u64::from(ranks.rank()));
    let number = |_| bf16::from_f32(random.below(256) as f32 / 128.0 - 1.0);
    let fused: Vec<bf16> = (0..rows * ALL_COLS).map(number).collect();
    let qkv = stream.clone_htod(&fused)?;
    let unwritten = vec![UNWRITTEN; rows * O_STRIDE];
    let mut wide = stream.clone_htod(&unwritten)?;
    let columns = |offset| Strided {
        slice: &qkv,
        offset,
        stride: ALL_COLS,
    };
    let (q, k, v) = (columns(0), columns(COLS[0]), columns(COLS[0] + COLS[1]));
    let mut o = Strided {
        slice: &mut wide,
        offset: O_FIRST,
        stride: O_STRIDE,
    };
    let call = operator.call(&stream).read(Operand::Q, &q);
    let call = call.read(Operand::K, &k).read(Operand::V, &v);
    call.write(Operand::O, &mut o).launch()?;
    ranks.synchronize(&stream)?;

    let dense = |first: usize, cols: usize| {
        let rows = fused.chunks(ALL_COLS);
        let part: Vec<bf16> = rows
            .flat_map(|row| row[first..first + cols].to_vec())
            .collect();
        stream.clone_htod(&part)
    };
    let q = dense(0, COLS[0])?;
    let k = dense(COLS[0], COLS[1])?;
    let v = dense(COLS[0] + COLS[1], COLS[2])?;
    let mut o = stream.alloc_zeros::<bf16>(rows * COLS[0])?;
    let call = operator.call(&stream).read(Operand::Q, &q);
    let call = call.read(Operand::K, &k).read(Operand::V, &v);
    call.write(Operand::O, &mut o).launch()?;
    ranks.synchronize(&stream)?;

    let mut expected = unwritten;
    let o = stream.clone_dtoh(&o)?;
    for (row, to) in o.chunks(COLS[0]).zip(expected.chunks_mut(O_STRIDE)) {
        to[O_FIRST..O_FIRST + COLS[0]].copy_from_slice(row);
    }
    assert!(stream.clone_dtoh(&wide)? == expected && o.iter().any(|x| *x != bf16::ZERO));
    Ok(())
}

#[test]
fn a_fused_matrix_has_the_bits_of_its_columns() {
    for world in [1, 2, 4] {
        let machine = Machine {
            world,
            sms: 3,
            skew: 60,
        };
        let done = machine.run(Backend::Simulated { seed: 1 }, compare);
        done.unwrap_or_else(|error| panic!("{world} ranks: {error}"));
    }
}
