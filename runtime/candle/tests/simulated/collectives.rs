//! Collectives of whole tensors.

use crate::ranks::{expect_equal, expect_near, on_ranks, random};
use candle_core::{DType, Result, Tensor};
use mkernel_candle::{all_gather, all_reduce, all_reduce_rms_norm, all_to_all, reduce_scatter};

fn addend(rank: usize, shape: &[usize], dtype: DType) -> Result<Tensor> {
    random(10 + rank as u64, shape)?.to_dtype(dtype)
}

fn sum(world: usize, shape: &[usize]) -> Result<Tensor> {
    let addends = (0..world).map(|rank| addend(rank, shape, DType::F32));
    addends.reduce(|sum, next| sum? + next?).expect("a rank")
}

#[test]
fn tensors_of_any_shape_are_added_up() -> Result<()> {
    for (world, shape, dtype) in [
        (2, vec![2, 3, 16], DType::BF16),
        (2, vec![2, 3, 16], DType::F16),
        (4, vec![24], DType::F32),
        (2, vec![4, 6], DType::F32),
    ] {
        let results = on_ranks(world, |ranks| {
            all_reduce(ranks, &addend(ranks.rank(), &shape, dtype)?)
        });
        for y in &results {
            assert_eq!(y.dtype(), dtype);
            expect_near(y, &sum(world as usize, &shape)?, "the sum")?;
            expect_equal(y, &results[0], "the same bits")?;
        }
    }
    Ok(())
}

#[test]
fn rows_are_gathered_and_reduced() -> Result<()> {
    let (rows, cols) = (5, 16);
    let all = random(9, &[rows, cols])?;
    let results = on_ranks(2, |ranks| {
        let own = [all.narrow(0, 0, 3)?, all.narrow(0, 3, 2)?];
        let gathered = all_gather(ranks, &own[ranks.rank()], rows)?;
        let x = addend(ranks.rank(), &[rows, cols], DType::BF16)?;
        Ok((gathered, reduce_scatter(ranks, &x)?))
    });
    let sum = sum(2, &[rows, cols])?;
    for (rank, (gathered, reduced)) in results.iter().enumerate() {
        expect_equal(gathered, &all, "all rows")?;
        let own = sum.narrow(0, 3 * rank, 3 - rank)?;
        expect_near(reduced, &own, "the sum of own rows")?;
    }
    Ok(())
}

#[test]
fn rows_are_exchanged() -> Result<()> {
    let results = on_ranks(2, |ranks| {
        all_to_all(ranks, &addend(ranks.rank(), &[6, 16], DType::BF16)?)
    });
    for (rank, y) in results.iter().enumerate() {
        let from = |source| addend(source, &[6, 16], DType::BF16)?.narrow(0, 3 * rank, 3);
        let expected = Tensor::cat(&[from(0)?, from(1)?], 0)?;
        expect_equal(y, &expected, "own rows of both ranks")?;
    }
    Ok(())
}

#[test]
fn tensors_of_similar_numbers_of_rows_share_an_operator() -> Result<()> {
    let counts = on_ranks(2, |ranks| {
        for rows in [5, 8, 6, 7] {
            let shape = [rows, 16];
            let y = all_reduce(ranks, &addend(ranks.rank(), &shape, DType::BF16)?)?;
            expect_near(&y, &sum(2, &shape)?, "the sum")?;
        }
        Ok(ranks.operator_count())
    });
    assert_eq!(counts, [1, 1]);
    Ok(())
}

#[test]
fn sums_are_normalised_behind_a_residual() -> Result<()> {
    for (world, shape, dtype) in [
        (1, vec![3, 16], DType::F32),
        (2, vec![2, 3, 16], DType::BF16),
        (4, vec![5, 24], DType::F32),
    ] {
        let (residual, weight) = (random(7, &shape)?, random(8, &shape[shape.len() - 1..])?);
        let results = on_ranks(world, |ranks| {
            let x = addend(ranks.rank(), &shape, dtype)?;
            let others = (&residual.to_dtype(dtype)?, &weight.to_dtype(dtype)?);
            all_reduce_rms_norm(ranks, &x, others, 1e-2)
        });
        let z = (sum(world as usize, &shape)? + residual.to_dtype(DType::F32)?)?;
        let mean = z.sqr()?.mean_keepdim(shape.len() - 1)?;
        let y = z
            .broadcast_div(&(mean + f64::from(1e-2f32))?.sqrt()?)?
            .broadcast_mul(&weight.to_dtype(DType::F32)?)?;
        for (normalised, residual_out) in &results {
            expect_near(residual_out, &z, "the new residual")?;
            expect_near(normalised, &y, "the norm")?;
            expect_equal(normalised, &results[0].0, "the same bits")?;
            expect_equal(residual_out, &results[0].1, "the same bits")?;
        }
    }
    Ok(())
}
