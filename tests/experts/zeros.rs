//! The sign of zero in sums of rows.

use mkernel::half::bf16;
use mkernel::spec::{CombineConfig, CombineOp, CombineShape, Dim};
use mkernel::{KernelConfig, Operand};
use mkernel_testing::jobs::prepared::on_ranks;

const HIDDEN: u64 = 256;
const TOKENS: usize = 3;

/// Each token has a row of its own rank and one of another rank, if there are two ranks. All rows are -0.
fn sums_keep_the_sign(world: u32, low_latency_tokens: u32) {
    let shape = CombineShape {
        experts: u64::from(2 * world),
        top_k: 2,
        max_tokens: TOKENS as u64,
        hidden: HIDDEN,
    };
    let combine = CombineConfig {
        experts: Dim::Static(shape.experts),
        top_k: Dim::Static(shape.top_k),
        max_tokens: Dim::Static(shape.max_tokens),
        hidden: Dim::Static(shape.hidden),
        low_latency_tokens: Some(low_latency_tokens),
        ..CombineConfig::new(CombineOp::Combine)
    };
    let config = KernelConfig::new(world, combine);
    let outcomes = on_ranks(&config, shape, (8, 7), |prepared| {
        let (ranks, stream) = (prepared.ranks, &prepared.stream);
        let rank = ranks.rank();
        let specs = prepared.operator.plan().operands();
        let spec = |operand| {
            let mut found = specs.iter().filter(|spec| spec.operand == operand);
            found.next().expect("an operand of combine")
        };
        let rows = spec(Operand::Rows).rows.on(rank);
        let elems = (rows * HIDDEN) as usize;
        let row_of = |token: usize, choice: u32| {
            let owner = (rank + choice) % world;
            // Rows of different ranks, tokens and choices never coincide.
            let row = (2 * rank as usize + choice as usize) * TOKENS + token;
            owner as i32 * rows as i32 + row as i32
        };
        let indices = (0..TOKENS).flat_map(|token| [row_of(token, 0), row_of(token, 1)]);
        let indices: Vec<i32> = indices.collect();
        let upload = "memory";
        let values = stream
            .clone_htod(&vec![bf16::NEG_ZERO; elems])
            .expect(upload);
        let indices = stream.clone_htod(&indices).expect(upload);
        let weights = stream.clone_htod(&[0.5f32; 2 * TOKENS]).expect(upload);
        let tokens = stream.clone_htod(&[TOKENS as i32]).expect(upload);
        let poison = vec![bf16::NAN; TOKENS * HIDDEN as usize];
        let mut sums = stream.clone_htod(&poison).expect(upload);
        let call = prepared.operator.call(stream);
        let call = call.read(Operand::Rows, &values);
        let call = call.read(Operand::RowIndices, &indices);
        let call = call.read(Operand::TopkWeights, &weights);
        let call = call.read(Operand::NumTokens, &tokens);
        call.write(Operand::C, &mut sums).launch()?;
        ranks.synchronize(stream)?;
        let sums = stream.clone_dtoh(&sums).expect("results");
        let others = sums
            .iter()
            .filter(|x| x.to_bits() != bf16::NEG_ZERO.to_bits());
        assert_eq!(others.count(), 0, "rank {rank}: {:?}", &sums[..4]);
        Ok(())
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[test]
fn sums_of_negative_zeros_are_negative() {
    for world in [1, 2] {
        for low_latency_tokens in [0, 16] {
            sums_keep_the_sign(world, low_latency_tokens);
        }
    }
}
