//! Layers and norms of e4m3 with scales.

use crate::ranks::{expect_equal, expect_near, on_ranks, product, random};
use candle_core::{D, DType, Device, Result, Tensor};
use mkernel::spec::Scales;
use mkernel_candle::{
    ColumnParallel, Factor, Ranks, RowParallel, all_reduce_rms_norm, all_reduce_rms_norm_e4m3,
};

const INPUTS: usize = 144;
const HIDDEN: usize = 256;
const ROWS: usize = 5;
const WEIGHT_BLOCK: usize = 128;

/// Returns a factor whose scales are of whole rows, or of blocks of `block_rows` rows and 128 columns, and its numbers in f32.
fn factor(
    kind: Scales,
    seed: u64,
    shape: [usize; 2],
    block_rows: usize,
) -> Result<(Factor, Tensor)> {
    let block = match kind {
        Scales::Row => [1, shape[1]],
        _ => [block_rows, 128],
    };
    let elements = random(seed, &shape)?.to_dtype(DType::F8E4M3)?;
    let of_scales = [0, 1].map(|dim| shape[dim].div_ceil(block[dim]));
    let scales = (random(seed + 100, &of_scales)?
        .to_dtype(DType::F32)?
        .abs()?
        + 0.5)?;
    let numbers = (elements.to_dtype(DType::F32)? * wide(&scales, shape, block)?)?;
    Ok((Factor::scaled(elements, scales)?, numbers))
}

/// Returns a scale for each element.
fn wide(scales: &Tensor, shape: [usize; 2], block: [usize; 2]) -> Result<Tensor> {
    let index = |dim: usize| {
        let of_element = (0..shape[dim]).map(|i| (i / block[dim]) as u32);
        Tensor::from_vec(of_element.collect(), shape[dim], &Device::Cpu)
    };
    scales
        .index_select(&index(0)?, 0)?
        .index_select(&index(1)?, 1)
}

/// Returns rows or columns of a factor with their scales. Each part has whole blocks, or the scales of whole rows.
fn part(factor: &Factor, dim: usize, first: usize, count: usize) -> Result<Factor> {
    let scales = factor.scales().expect("scales");
    let of_scale = factor.elements().dim(dim)?.div_ceil(scales.dim(dim)?);
    let scales = match scales.dim(dim)? {
        1 => scales.clone(),
        _ => scales.narrow(dim, first / of_scale, count.div_ceil(of_scale))?,
    };
    let elements = factor.elements().narrow(dim, first, count)?;
    Factor::scaled(elements.contiguous()?, scales.contiguous()?)
}

/// Returns the columns of this rank.
fn own_columns(ranks: &Ranks, factor: &Factor) -> Result<Factor> {
    let own = HIDDEN / ranks.world();
    part(factor, 1, ranks.rank() * own, own)
}

#[test]
fn every_rank_gets_the_sum_of_scaled_products() -> Result<()> {
    let (x, of_x) = factor(Scales::Row, 1, [ROWS, INPUTS], 1)?;
    let (u, of_u) = factor(Scales::Row, 2, [ROWS, HIDDEN], 1)?;
    let (w1, of_w1) = factor(Scales::Row, 3, [HIDDEN, INPUTS], WEIGHT_BLOCK)?;
    let (w2, of_w2) = factor(Scales::Row, 4, [INPUTS, HIDDEN], WEIGHT_BLOCK)?;
    let bias = random(5, &[INPUTS])?;
    for world in [1, 2] {
        let results = on_ranks(world, |ranks| {
            let up = ColumnParallel::shard(ranks, &w1, None)?;
            let down = RowParallel::shard(ranks, &w2, Some(&bias))?;
            let sum = down.forward_scaled(own_columns(ranks, &u)?)?;
            Ok((up.forward_scaled(&x)?, sum))
        });
        let sum = product(&of_u, &of_w2)?.broadcast_add(&bias.to_dtype(DType::F32)?)?;
        let (hidden, cols) = (product(&of_x, &of_w1)?, HIDDEN / world as usize);
        for (rank, (columns, found)) in results.iter().enumerate() {
            assert_eq!(columns.dtype(), DType::BF16);
            let what = format!("rank {rank} of {world}");
            expect_near(columns, &hidden.narrow(1, rank * cols, cols)?, &what)?;
            expect_near(found, &sum, &what)?;
            expect_equal(found, &results[0].1, &what)?;
        }
    }
    Ok(())
}

/// Weights have blocks of 128×128, and rows blocks of 1×128.
#[test]
fn scaled_rows_are_gathered_and_their_sums_scattered_and_normalised() -> Result<()> {
    let (x, of_x) = factor(Scales::Block, 1, [ROWS, INPUTS], 1)?;
    let (u, of_u) = factor(Scales::Block, 2, [ROWS, HIDDEN], 1)?;
    let (w1, of_w1) = factor(Scales::Block, 3, [HIDDEN, INPUTS], WEIGHT_BLOCK)?;
    let (w2, of_w2) = factor(Scales::Block, 4, [INPUTS, HIDDEN], WEIGHT_BLOCK)?;
    let (residual, weight) = (random(6, &[ROWS, INPUTS])?, random(7, &[INPUTS])?);
    // Of 5 rows, rank 0 has 3.
    let own = [(0, 3), (3, 2)];
    let results = on_ranks(2, |ranks| {
        let up = ColumnParallel::shard(ranks, &w1, None)?;
        let down = RowParallel::shard(ranks, &w2, None)?;
        let (first, count) = own[ranks.rank()];
        let gathered = up.forward_gathered(part(&x, 0, first, count)?, ROWS)?;
        let u = own_columns(ranks, &u)?;
        let (_, z) = down.forward_rms_norm(&u, (&residual, &weight), 1e-5)?;
        Ok((gathered, down.forward_scattered(&u)?, z))
    });
    let (hidden, sum) = (product(&of_x, &of_w1)?, product(&of_u, &of_w2)?);
    let z = (&sum + residual.to_dtype(DType::F32)?)?;
    for (rank, (gathered, scattered, found)) in results.iter().enumerate() {
        let (what, (first, count)) = (format!("rank {rank}"), own[rank]);
        expect_near(gathered, &hidden.narrow(1, rank * 128, 128)?, &what)?;
        expect_near(scattered, &sum.narrow(0, first, count)?, &what)?;
        expect_near(found, &z, &what)?;
    }
    Ok(())
}

#[test]
fn quantised_rows_of_a_norm_are_the_input_of_a_layer() -> Result<()> {
    let shape = [2, 3, HIDDEN];
    let (residual, norm) = (random(8, &shape)?, random(9, &[HIDDEN])?);
    // A gate and an up projection of 136 outputs each. Blocks of the up projection begin with its first row.
    let halves = [10, 11].map(|seed| factor(Scales::Block, seed, [136, HIDDEN], WEIGHT_BLOCK));
    let [(gate, of_gate), (up, of_up)] = halves.map(|half| half.expect("a factor"));
    let join = |parts: [&Tensor; 2]| Tensor::cat(&parts, 0);
    let scales = [&gate, &up].map(|half| half.scales().expect("scales"));
    let weight = Factor::scaled(join([gate.elements(), up.elements()])?, join(scales)?)?;
    let results = on_ranks(2, |ranks| {
        let x = random(12 + ranks.rank() as u64, &shape)?;
        let others = (&residual, &norm);
        let plain = all_reduce_rms_norm(ranks, &x, others, 1e-5)?;
        let (y, z) = all_reduce_rms_norm_e4m3(ranks, &x, others, (1e-5, Scales::Block))?;
        let layer = ColumnParallel::new(ranks, &weight, None)?;
        Ok((plain, (y.clone(), z), layer.forward_swiglu(y)?))
    });
    for ((plain, expected_z), (y, z), hidden) in &results {
        expect_equal(z, expected_z, "the new residual")?;
        let scales = y.scales().expect("scales");
        assert_eq!(scales.dims(), [2, 3, 2]);
        let parts = plain.to_dtype(DType::F32)?.reshape((2, 3, 2, 128))?;
        let greatest = parts.abs()?.max(D::Minus1)?;
        expect_near(scales, &(greatest / 448.0)?, "scales")?;
        let expected = parts.broadcast_div(&scales.unsqueeze(D::Minus1)?)?;
        let expected = expected.reshape(&shape[..])?.to_dtype(DType::F8E4M3)?;
        expect_near(
            &y.elements().to_dtype(DType::F32)?,
            &expected.to_dtype(DType::F32)?,
            "elements",
        )?;
        let numbers = y.elements().to_dtype(DType::F32)?.reshape((6, HIDDEN))?;
        let numbers = (numbers * wide(&scales.reshape((6, 2))?, [6, HIDDEN], [1, 128])?)?;
        let (gate, up) = (product(&numbers, &of_gate)?, product(&numbers, &of_up)?);
        let exact = (gate.silu()? * up)?.reshape((2, 3, 136))?;
        expect_near(hidden, &exact, "the product")?;
    }
    Ok(())
}

/// Checks that rows of e4m3 with scales of `block` elements are these rows, but for the rounding to 3 bits behind the leading bit.
fn expect_quantised(found: &Factor, rows: &Tensor, block: usize) -> Result<()> {
    let shape = rows.dims2()?;
    let scales = found.scales().expect("scales");
    let of_elements = wide(scales, shape.into(), [1, block])?;
    let numbers = (found.elements().to_dtype(DType::F32)? * &of_elements)?;
    let rows = rows.to_dtype(DType::F32)?;
    // bf16 is rounded too. The smallest elements are multiples of 2^-9.
    let allowed = ((rows.abs()? * 0.07)? + (of_elements / 512.0)?)?;
    let excess = ((numbers - rows)?.abs()? - allowed)?.flatten_all()?;
    let most = excess.max(0)?.to_scalar::<f32>()?;
    assert!(most <= 0.0, "{most} more than rounding explains");
    Ok(())
}

/// The hidden rows of an MLP, and the rows that the next MLP takes, are e4m3 where they are computed.
#[test]
fn products_are_the_inputs_of_layers() -> Result<()> {
    let (x, _) = factor(Scales::Block, 1, [ROWS, INPUTS], 1)?;
    let (w1, _) = factor(Scales::Block, 2, [2 * HIDDEN, INPUTS], WEIGHT_BLOCK)?;
    let (w2, _) = factor(Scales::Block, 3, [INPUTS, HIDDEN], WEIGHT_BLOCK)?;
    let (residual, weight) = (random(4, &[ROWS, INPUTS])?, random(5, &[INPUTS])?);
    for kind in [Scales::Block, Scales::Row] {
        let results = on_ranks(2, |ranks| {
            let up = ColumnParallel::new(ranks, &w1, None)?;
            let down = RowParallel::new(ranks, &w2, None)?;
            let (plain, hidden) = (up.forward_swiglu(&x)?, up.forward_swiglu_e4m3(&x)?);
            let others = (&residual, &weight);
            let normalised = down.forward_rms_norm(&hidden, others, 1e-5)?;
            let quantised = down.forward_rms_norm_e4m3(&hidden, others, (1e-5, kind))?;
            Ok(((plain, hidden), normalised, quantised))
        });
        for ((plain, hidden), (y, z), (quantised, also_z)) in &results {
            expect_quantised(hidden, plain, 128)?;
            let block = if kind == Scales::Row { INPUTS } else { 128 };
            expect_quantised(quantised, y, block)?;
            expect_equal(also_z, z, "the new residual")?;
        }
    }
    Ok(())
}
