//! A layer of experts: dispatch, both products, and combine.

use crate::ranks::{expect_near, on_ranks, product, random};
use candle_core::{D, DType, Device, Result, Tensor};
use mkernel_candle::{Experts, ExpertsSizes, grouped_matmul};

const EXPERTS: usize = 8;
const TOP_K: usize = 2;
const HIDDEN: usize = 128;
const INTERMEDIATE: usize = 64;
const SIZES: ExpertsSizes = ExpertsSizes {
    experts: EXPERTS,
    top_k: TOP_K,
    max_tokens: 12,
    max_rows: None,
};

/// Ranks have different numbers of tokens. One token lacks a choice, and another token has no choice at all.
fn tokens(rank: usize) -> Result<Tensor> {
    random(30 + rank as u64, &[12 - 3 * rank, HIDDEN])
}

fn topk_ids(rank: usize) -> Result<Tensor> {
    let count = 12 - 3 * rank as i32;
    let ids = (0..count).flat_map(|t| match t {
        4 => [-1, 5],
        7 => [-1, -1],
        _ => [(3 * t) % 8, (3 * t + 1 + t % 7) % 8],
    });
    Tensor::from_iter(ids, &Device::Cpu)?.reshape((count as usize, TOP_K))
}

fn topk_weights(rank: usize) -> Result<Tensor> {
    let count = 12 - 3 * rank;
    let weights =
        (0..count).flat_map(|t| [0.25 + (t % 3) as f32 / 4.0, 0.75 - (t % 3) as f32 / 4.0]);
    Tensor::from_iter(weights, &Device::Cpu)?.reshape((count, TOP_K))
}

fn weights() -> Result<(Tensor, Tensor)> {
    let scaled = |seed, shape: &[usize]| random(seed, shape)? / 4.0;
    Ok((
        scaled(40, &[EXPERTS, 2 * INTERMEDIATE, HIDDEN])?,
        scaled(41, &[EXPERTS, HIDDEN, INTERMEDIATE])?,
    ))
}

/// The layer for the tokens of a rank, token by token.
fn expected(rank: usize) -> Result<Tensor> {
    let (up, down) = weights()?;
    let (tokens, ids) = (tokens(rank)?, topk_ids(rank)?.to_vec2::<i32>()?);
    let router = topk_weights(rank)?.to_vec2::<f32>()?;
    let rows = ids
        .iter()
        .zip(&router)
        .enumerate()
        .map(|(t, (ids, router))| {
            let x = tokens.narrow(0, t, 1)?;
            let mut sum = Tensor::zeros((1, HIDDEN), DType::F32, &Device::Cpu)?;
            for (id, weight) in ids.iter().zip(router).filter(|(id, _)| **id >= 0) {
                let u = product(&x, &up.get(*id as usize)?)?.chunk(2, D::Minus1)?;
                let hidden = (u[0].silu()? * &u[1])?.to_dtype(DType::BF16)?;
                let y = product(&hidden, &down.get(*id as usize)?)?;
                sum = (sum + (y * f64::from(*weight))?)?;
            }
            Ok(sum)
        });
    Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
}

#[test]
fn tokens_go_to_their_experts_and_back() -> Result<()> {
    for world in [1, 2] {
        let results = on_ranks(world, |ranks| {
            let (up, down) = weights()?;
            let local = EXPERTS / ranks.world();
            let own = |w: &Tensor| w.narrow(0, ranks.rank() * local, local)?.contiguous();
            let experts = Experts::new(ranks, SIZES, own(&up)?, true)?;
            let rank = ranks.rank();
            // The ids of candle's sort are u32.
            let ids = [DType::I32, DType::U32][rank];
            let ids = topk_ids(rank)?.to_dtype(ids)?;
            let dispatched = experts.dispatch(&tokens(rank)?, &ids)?;
            let outputs = grouped_matmul(&dispatched, &own(&down)?)?;
            experts.combine(&outputs, &dispatched, &topk_weights(rank)?)
        });
        for (rank, y) in results.iter().enumerate() {
            expect_near(y, &expected(rank)?, &format!("rank {rank} of {world}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_whole_layer_is_one_call() -> Result<()> {
    for world in [1, 2] {
        let results = on_ranks(world, |ranks| {
            let (up, down) = weights()?;
            let local = EXPERTS / ranks.world();
            let own = |w: &Tensor| w.narrow(0, ranks.rank() * local, local)?.contiguous();
            let experts = Experts::new(ranks, SIZES, own(&up)?, true)?;
            let rank = ranks.rank();
            let (ids, weights) = (topk_ids(rank)?, topk_weights(rank)?);
            let (tokens, down) = (tokens(rank)?, own(&down)?);
            let y = experts.layer(&tokens, &ids, &weights, &down)?;
            let dispatched = experts.dispatch(&tokens, &ids)?;
            let apart = experts.gemm_combine(&dispatched, &weights, &down)?;
            let [whole, apart] = [&y, &apart].map(|y| y.to_dtype(DType::F32)?.to_vec2::<f32>());
            assert_eq!(whole?, apart?);
            Ok(y)
        });
        for (rank, y) in results.iter().enumerate() {
            expect_near(y, &expected(rank)?, &format!("rank {rank} of {world}"))?;
        }
    }
    Ok(())
}

/// Both ranks have the same tokens. Only with `set_batch_invariant` do the sums not depend on the rank that has a token.
#[test]
fn sums_do_not_depend_on_the_rank_of_a_token() -> Result<()> {
    for is_invariant in [false, true] {
        let sums = on_ranks(2, |ranks| {
            ranks.set_batch_invariant(is_invariant);
            let (up, down) = weights()?;
            let own = |w: &Tensor| w.narrow(0, ranks.rank() * 4, 4)?.contiguous();
            let experts = Experts::new(ranks, SIZES, own(&up)?, true)?;
            let dispatched = experts.dispatch(&tokens(0)?, &topk_ids(0)?)?;
            let outputs = grouped_matmul(&dispatched, &own(&down)?)?;
            let sums = experts.combine(&outputs, &dispatched, &topk_weights(0)?)?;
            sums.to_dtype(DType::F32)?.to_vec2::<f32>()
        });
        assert_eq!(sums[0] == sums[1], is_invariant);
    }
    Ok(())
}
