//! Attention over a sequence that is divided among the ranks.

use crate::ranks::{expect_near, on_ranks, random};
use candle_core::{D, DType, Device, Result, Tensor};
use mkernel::spec::Placement;
use mkernel_candle::{AttentionOptions, ring_attention};

const BATCH: usize = 2;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 64;
const SEQ: usize = 32;

/// Q, K and V of the whole sequence, `[B, S, H, D]`.
fn whole() -> Result<[Tensor; 3]> {
    Ok([
        random(20, &[BATCH, SEQ, HEADS, DIM])?,
        random(21, &[BATCH, SEQ, KV_HEADS, DIM])?,
        random(22, &[BATCH, SEQ, KV_HEADS, DIM])?,
    ])
}

/// Attention in f32, `[B, S, H, D]`, and the logarithms of the sums, `[B, H, S]`.
fn expected(causal: bool) -> Result<(Tensor, Tensor)> {
    let [q, k, v] = whole()?;
    let by_head = |x: &Tensor, repeat: usize| {
        let x = x.to_dtype(DType::F32)?.transpose(1, 2)?.contiguous()?;
        let (b, heads, s, d) = x.dims4()?;
        let x = x.unsqueeze(2)?.expand((b, heads, repeat, s, d))?;
        x.contiguous()?.reshape((b, heads * repeat, s, d))
    };
    let (q, groups) = (by_head(&q, 1)?, HEADS / KV_HEADS);
    let (k, v) = (by_head(&k, groups)?, by_head(&v, groups)?);
    let scores = (q.matmul(&k.t()?.contiguous()?)? / (DIM as f64).sqrt())?;
    let hidden = (0..SEQ * SEQ).map(|i| {
        if causal && i % SEQ > i / SEQ {
            f32::NEG_INFINITY
        } else {
            0.0
        }
    });
    let mask = Tensor::from_iter(hidden, &Device::Cpu)?.reshape((1, 1, SEQ, SEQ))?;
    let weights = scores.broadcast_add(&mask)?.exp()?;
    let sums = weights.sum_keepdim(D::Minus1)?;
    let o = weights.broadcast_div(&sums)?.matmul(&v)?;
    Ok((
        o.transpose(1, 2)?.contiguous()?,
        sums.log()?.squeeze(D::Minus1)?,
    ))
}

#[test]
fn ranks_attend_to_the_whole_sequence() -> Result<()> {
    for (world, causal, placement, lse) in [
        (2, false, Placement::Contiguous, true),
        (2, true, Placement::Zigzag, false),
        (4, true, Placement::Contiguous, true),
    ] {
        let positions = |rank: usize| -> Vec<u32> {
            let chunk_rows = SEQ as u32 / (world * placement.segments());
            let chunks =
                (0..placement.segments()).map(|s| placement.chunk_of(world, rank as u32, s));
            chunks
                .flat_map(|chunk| chunk * chunk_rows..(chunk + 1) * chunk_rows)
                .collect()
        };
        let rows = |x: &Tensor, dim, rank| {
            x.index_select(&Tensor::new(positions(rank), &Device::Cpu)?, dim)
        };
        let options = AttentionOptions {
            causal,
            placement,
            lse,
            ..AttentionOptions::default()
        };
        let results = on_ranks(world, |ranks| {
            let [q, k, v] = whole()?;
            let own = |x| rows(x, 1, ranks.rank());
            ring_attention(ranks, (&own(&q)?, &own(&k)?, &own(&v)?), SEQ, options)
        });
        let (o, expected_lse) = expected(causal)?;
        for (rank, (found_o, found_lse)) in results.iter().enumerate() {
            let what = format!("rank {rank} of {world}, {placement:?}");
            expect_near(found_o, &rows(&o, 1, rank)?, &what)?;
            assert_eq!(found_lse.is_some(), lse, "{what}");
            if let Some(found_lse) = found_lse {
                expect_near(found_lse, &rows(&expected_lse, 2, rank)?, &what)?;
            }
        }
    }
    Ok(())
}
