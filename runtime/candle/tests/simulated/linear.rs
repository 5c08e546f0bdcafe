//! Linear layers under tensor and sequence parallelism.

use crate::ranks::{expect_equal, expect_near, on_ranks, product, random};
use candle_core::{DType, Module, Result, Tensor};
use mkernel::spec::Activation;
use mkernel_candle::{ColumnParallel, RowParallel};

const INPUTS: usize = 64;
const HIDDEN: usize = 128;

/// Both layers of a feed-forward block, whole.
struct Whole {
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
}

impl Whole {
    fn new() -> Result<Self> {
        Ok(Self {
            w1: random(1, &[HIDDEN, INPUTS])?,
            b1: random(2, &[HIDDEN])?,
            w2: random(3, &[INPUTS, HIDDEN])?,
            b2: random(4, &[INPUTS])?,
        })
    }

    fn hidden(&self, x: &Tensor) -> Result<Tensor> {
        let u = product(x, &self.w1)?.broadcast_add(&self.b1.to_dtype(DType::F32)?)?;
        u.to_dtype(DType::BF16)
    }

    fn output(&self, x: &Tensor) -> Result<Tensor> {
        let y = product(&self.hidden(x)?, &self.w2)?;
        y.broadcast_add(&self.b2.to_dtype(DType::F32)?)
    }
}

#[test]
fn replicated_activations_give_every_rank_the_same_sum() -> Result<()> {
    let whole = Whole::new()?;
    for world in [1, 2, 4] {
        let x = random(5, &[2, 3, INPUTS])?;
        let results = on_ranks(world, |ranks| {
            let up = ColumnParallel::shard(ranks, &whole.w1, Some(&whole.b1))?;
            let down = RowParallel::shard(ranks, &whole.w2, Some(&whole.b2))?;
            let u = up.forward(&x)?;
            assert_eq!(u.dims(), [2, 3, HIDDEN / world as usize]);
            down.forward(&u)
        });
        let expected = whole.output(&x.reshape((6, INPUTS))?)?;
        let expected = expected.reshape((2, 3, INPUTS))?;
        for y in &results {
            expect_near(y, &expected, &format!("{world} ranks"))?;
            expect_equal(y, &results[0], &format!("{world} ranks"))?;
        }
    }
    Ok(())
}

#[test]
fn an_activation_is_applied_to_own_columns() -> Result<()> {
    let whole = Whole::new()?;
    for world in [1, 2, 4] {
        let x = random(5, &[2, 3, INPUTS])?;
        let results = on_ranks(world, |ranks| {
            let up = ColumnParallel::shard(ranks, &whole.w1, Some(&whole.b1))?;
            up.forward_activated(&x, Activation::Relu)
        });
        let expected = whole.hidden(&x.reshape((6, INPUTS))?)?.relu()?;
        let expected = expected.reshape((2, 3, HIDDEN))?;
        let cols = HIDDEN / world as usize;
        for (rank, u) in results.iter().enumerate() {
            let expected = expected.narrow(2, rank * cols, cols)?;
            expect_near(u, &expected, &format!("rank {rank} of {world}"))?;
        }
    }
    Ok(())
}

#[test]
fn swiglu_is_applied_to_own_columns() -> Result<()> {
    let whole = Whole::new()?;
    for world in [1, 2, 4] {
        let x = random(5, &[2, 3, INPUTS])?;
        let results = on_ranks(world, |ranks| {
            let gate_up = ColumnParallel::shard(ranks, &whole.w1, Some(&whole.b1))?;
            gate_up.forward_swiglu(&x)
        });
        let sums = product(&x.reshape((6, INPUTS))?, &whole.w1)?;
        let sums = sums.broadcast_add(&whole.b1.to_dtype(DType::F32)?)?;
        let cols = HIDDEN / world as usize / 2;
        for (rank, h) in results.iter().enumerate() {
            let part = |part: usize| sums.narrow(1, (2 * rank + part) * cols, cols);
            let expected = (part(0)?.silu()? * part(1)?)?.reshape((2, 3, cols))?;
            expect_near(h, &expected, &format!("rank {rank} of {world}"))?;
        }
    }
    Ok(())
}

/// One kernel applies the operations to the whole sum that candle applies step by step.
#[test]
fn a_sum_is_activated_or_added_to_a_residual_and_normalised() -> Result<()> {
    let whole = Whole::new()?;
    let f32s = |tensor: &Tensor| tensor.to_dtype(DType::F32);
    let (x, residual, weight) = (
        random(5, &[2, 3, INPUTS])?,
        random(6, &[2, 3, INPUTS])?,
        random(7, &[INPUTS])?,
    );
    let sum = whole
        .output(&x.reshape((6, INPUTS))?)?
        .reshape((2, 3, INPUTS))?;
    let z = (&sum + f32s(&residual)?)?;
    let scale = (z.sqr()?.mean_keepdim(2)? + f64::from(1e-2f32))?.sqrt()?;
    let y = z.broadcast_div(&scale)?.broadcast_mul(&f32s(&weight)?)?;
    let expected = [sum.relu()?, z.clone(), y, z];
    for world in [1, 2, 4] {
        let results = on_ranks(world, |ranks| {
            let up = ColumnParallel::shard(ranks, &whole.w1, Some(&whole.b1))?;
            let down = RowParallel::shard(ranks, &whole.w2, Some(&whole.b2))?;
            let u = up.forward(&x)?;
            let (y, z) = down.forward_rms_norm(&u, (&residual, &weight), 1e-2)?;
            let activated = down.forward_activated(&u, Activation::Relu)?;
            Ok([activated, down.forward_residual(&u, &residual)?, y, z])
        });
        for found in &results {
            for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let what = format!("result {index} of {world} ranks");
                expect_near(found, expected, &what)?;
                expect_equal(found, &results[0][index], &what)?;
            }
        }
    }
    Ok(())
}

/// Layers take the type of their weights.
#[test]
fn layers_of_f16_are_right() -> Result<()> {
    let whole = Whole::new()?;
    let f16 = |tensor: &Tensor| tensor.to_dtype(DType::F16);
    let (w1, w2) = (f16(&whole.w1)?, f16(&whole.w2)?);
    let x = random(5, &[4, INPUTS])?;
    let hidden = product(&x, &whole.w1)?;
    let output = product(&f16(&hidden)?, &whole.w2)?;
    let results = on_ranks(2, |ranks| {
        let up = ColumnParallel::shard(ranks, &w1, None)?;
        let down = RowParallel::shard(ranks, &w2, None)?;
        let own = f16(&x.narrow(0, 2 * ranks.rank(), 2)?)?;
        down.forward(&up.forward_gathered(&own, 4)?)
    });
    for y in &results {
        assert_eq!(y.dtype(), DType::F16);
        expect_near(y, &output, "fp16")?;
    }
    Ok(())
}

/// Of 5 rows, 4 ranks have 2, 2, 1 and 0.
#[test]
fn rows_are_gathered_and_scattered_also_if_ranks_have_different_numbers_of_them() -> Result<()> {
    let whole = Whole::new()?;
    for (world, rows) in [(2, 8), (4, 5)] {
        let x = random(6, &[rows, INPUTS])?;
        let shard = rows.div_ceil(world as usize);
        let own = |rank: usize| {
            let first = (rank * shard).min(rows);
            (first, shard.min(rows - first))
        };
        let results = on_ranks(world, |ranks| {
            let up = ColumnParallel::shard(ranks, &whole.w1, Some(&whole.b1))?;
            let down = RowParallel::shard(ranks, &whole.w2, Some(&whole.b2))?;
            let (first, count) = own(ranks.rank());
            let u = up.forward_gathered(&x.narrow(0, first, count)?, rows)?;
            Ok((u.clone(), down.forward_scattered(&u)?))
        });
        let (hidden, output) = (whole.hidden(&x)?, whole.output(&x)?);
        let cols = HIDDEN / world as usize;
        for (rank, (u, y)) in results.iter().enumerate() {
            let what = format!("rank {rank} of {world}");
            expect_near(u, &hidden.narrow(1, rank * cols, cols)?, &what)?;
            let (first, count) = own(rank);
            assert_eq!(y.dims(), [count, INPUTS], "{what}");
            if count > 0 {
                expect_near(y, &output.narrow(0, first, count)?, &what)?;
            }
        }
    }
    Ok(())
}

#[test]
fn layers_of_equal_sizes_share_operators_and_few_are_kept() -> Result<()> {
    let whole = Whole::new()?;
    let counts = on_ranks(2, |ranks| {
        let one = RowParallel::shard(ranks, &whole.w2, None)?;
        let two = RowParallel::shard(ranks, &whole.w1.t()?, None)?;
        let x = |rows: usize| random(7, &[rows, HIDDEN / 2]);
        let first = one.forward(&x(1)?)?;
        two.forward(&x(1)?)?;
        let shared = ranks.operator_count();
        one.forward(&x(2)?)?;
        let both = ranks.operator_count();
        ranks.set_operator_capacity(1);
        expect_equal(&one.forward(&x(1)?)?, &first, "prepared again")?;
        Ok((shared, both, ranks.operator_count()))
    });
    assert_eq!(counts, [(1, 2, 1); 2]);
    Ok(())
}
