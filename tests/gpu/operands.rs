//! Tests of slices and views of cudarc as operands, of operands that do not fit, and of ranks that prepare different kernels.

use crate::ranks::{config, on_ranks, seed, worlds};
use mkernel::Operand;
use mkernel::half::bf16;
use mkernel::{
    Communicator, Error,
    error::OperandFault,
    spec::{BLayout, GemmShape, Tuning},
};
use mkernel_testing::lab::{Failure, Lab, MAX_RELATIVE_ERROR, TimeLimit};
use std::time::Duration;

const SHAPE: GemmShape = GemmShape {
    m: 100,
    n: 72,
    k: 136,
};
/// The number of elements before and after each matrix in its slice.
const MARGIN: usize = 16;

#[test]
#[ignore = "needs GPUs"]
fn views_of_slices_are_operands() {
    let _limit = TimeLimit::start("slices", Duration::from_secs(60));
    let seed = seed();
    for world in worlds(1) {
        on_ranks(world, |ranks| views(ranks, seed));
    }
}

/// Makes a call with views, and compares the result with a reference in fp64 on the host. `Lab` provides only random numbers.
fn views(ranks: &Communicator, seed: u64) -> Result<(), Failure> {
    let GemmShape { m, n, k } = SHAPE;
    let lab = Lab::new(&ranks.default_stream())?;
    let stream = &lab.stream;
    let operator = ranks.prepare(
        &config((ranks.world(), SHAPE.m), BLayout::Nk, Tuning::default()),
        SHAPE,
    )?;
    let (whole, b) = (lab.matrix(m, k, 0)?, lab.matrix(n, k, 0)?);
    lab.fill(&whole, 0, seed)?;
    lab.fill(&b, 0, seed + 1 + u64::from(ranks.rank()))?;
    let (whole, b) = (
        stream.clone_dtoh(&whole.memory)?,
        stream.clone_dtoh(&b.memory)?,
    );

    let shard_rows = m.div_ceil(u64::from(ranks.world()));
    let first_row = (u64::from(ranks.rank()) * shard_rows).min(m);
    let own = (first_row * k) as usize..((first_row + shard_rows).min(m) * k) as usize;
    let surrounded = |elems: &[bf16]| [&[bf16::NAN; MARGIN], elems, &[bf16::NAN; MARGIN]].concat();
    let a_slice = stream.clone_htod(&surrounded(&whole[own.clone()]))?;
    let b_slice = stream.clone_htod(&surrounded(&b))?;
    let c_elems = (m * n) as usize;
    let mut c_slice = stream.clone_htod(&surrounded(&vec![bf16::NAN; c_elems]))?;

    let a_view = a_slice.slice(MARGIN..MARGIN + own.len());
    let b_view = b_slice.slice(MARGIN..MARGIN + b.len());
    let mut c_view = c_slice.slice_mut(MARGIN..MARGIN + c_elems);
    operator.launch(stream, &a_view, &b_view, &mut c_view)?;
    ranks.synchronize(stream)?;
    let c = stream.clone_dtoh(&c_slice)?;
    stream.synchronize()?;

    let (around, c) = (
        c[..MARGIN].iter().chain(&c[MARGIN + c_elems..]),
        &c[MARGIN..MARGIN + c_elems],
    );
    if !around.clone().all(|value| value.is_nan()) {
        return Err("elements outside of C were written".into());
    }
    let (mut error2, mut reference2) = (0.0, 0.0);
    for (i, found) in c.iter().enumerate() {
        let (row, col) = (i / n as usize * k as usize, i % n as usize * k as usize);
        let products = (0..k as usize).map(|j| whole[row + j].to_f64() * b[col + j].to_f64());
        let reference: f64 = products.sum();
        error2 += (found.to_f64() - reference).powi(2);
        reference2 += reference.powi(2);
    }
    let error = f64::sqrt(error2 / reference2);
    if error < MAX_RELATIVE_ERROR {
        Ok(())
    } else {
        Err(format!("relative error {error}").into())
    }
}

#[test]
#[ignore = "needs GPUs"]
fn operands_that_do_not_fit_are_refused_all_at_once() {
    let _limit = TimeLimit::start("wrong operands", Duration::from_secs(60));
    for world in worlds(1) {
        on_ranks(world, |ranks| {
            let stream = ranks.default_stream();
            let operator = ranks.prepare(
                &config((ranks.world(), SHAPE.m), BLayout::Kn, Tuning::default()),
                SHAPE,
            )?;
            let few = stream.alloc_zeros::<bf16>(64)?;
            let mut c = stream.alloc_zeros::<bf16>((SHAPE.m * SHAPE.n) as usize - 1)?;
            let refused = operator.launch(&stream, &few, &few, &mut c);
            let Err(Error::Operands(faults)) = refused else {
                return Err(format!("{refused:?}").into());
            };
            let all_lengths = faults
                .iter()
                .all(|(_, fault)| matches!(fault, OperandFault::Length { .. }));
            let operands: Vec<Operand> = faults.iter().map(|(operand, _)| *operand).collect();
            if !all_lengths || operands != [Operand::A, Operand::B, Operand::C] {
                return Err(format!("{faults:?}").into());
            }
            Ok(ranks.barrier()?)
        });
    }
}

#[test]
#[ignore = "needs GPUs"]
fn ranks_that_prepare_different_kernels_are_named() {
    let _limit = TimeLimit::start("different kernels", Duration::from_secs(60));
    for world in worlds(2) {
        on_ranks(world, |ranks| {
            let n = if ranks.rank() == world - 1 { 80 } else { 72 };
            let config = config((world, SHAPE.m), BLayout::Kn, Tuning::default());
            match ranks.prepare(&config, GemmShape { n, ..SHAPE }) {
                Err(Error::Mismatch { ranks, .. }) if ranks == [world - 1] => {}
                other => return Err(format!("{other:?}").into()),
            }
            // The communicator is still usable.
            ranks.prepare(&config, SHAPE)?;
            Ok(ranks.barrier()?)
        });
    }
}
