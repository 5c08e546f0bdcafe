//! Collectives of whole tensors.

use crate::call::call_with_rows;
use crate::called::Called;
use crate::linear::own_rows;
use crate::operands::Output;
use crate::ranks::Ranks;
use candle_core::{DType, Result, Shape, Tensor, bail};
use mkernel::Operand;
use mkernel::spec::{CollectiveConfig, CollectiveOp, CollectiveShape, Dim, Dtype};

/// Columns of the matrix as which a tensor of any shape is added up.
const FLAT_COLUMNS: usize = 8;

/// Returns the sum of all ranks' tensors, which have the same shape: every rank gets it, with the same bits. Elements are
/// bf16 or f32, and their number is a multiple of 8.
///
/// # Errors
/// Fails if the number or the type of the elements is another one, or if the operator cannot be prepared or called.
pub fn all_reduce(ranks: &Ranks, x: &Tensor) -> Result<Tensor> {
    let elems = x.elem_count();
    if !elems.is_multiple_of(FLAT_COLUMNS) {
        bail!(
            "all_reduce adds up tensors whose number of elements is a multiple of {FLAT_COLUMNS}, but {:?} has {elems}; \
             pad it",
            x.dims()
        );
    }
    // A long row is one that every plan can divide; a tensor of one dimension has rows of the least size.
    let cols = match x.dims().last() {
        Some(cols) if cols.is_multiple_of(FLAT_COLUMNS) && *cols > 0 => *cols,
        _ => FLAT_COLUMNS,
    };
    let shape = x.shape().clone();
    run(
        ranks,
        CollectiveOp::AllReduce,
        x,
        (elems / cols, cols),
        shape,
    )
}

/// Returns the rows of all ranks, in the order of ranks: `[rows, N]`. `x` has this rank's rows, `[⌈rows / ranks⌉, N]`, of
/// which the last ranks have fewer, or none. Elements are bf16 or f32, and N is a multiple of 8.
///
/// # Errors
/// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
pub fn all_gather(ranks: &Ranks, x: &Tensor, rows: usize) -> Result<Tensor> {
    let (_, cols) = x.dims2()?;
    run(
        ranks,
        CollectiveOp::AllGather,
        x,
        (rows, cols),
        (rows, cols),
    )
}

/// Returns this rank's rows of the sum of all ranks' tensors `[rows, N]`: `[⌈rows / ranks⌉, N]`, of which the last ranks
/// have fewer, or none. Elements are bf16 or f32, and N is a multiple of 8.
///
/// # Errors
/// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
pub fn reduce_scatter(ranks: &Ranks, x: &Tensor) -> Result<Tensor> {
    let (rows, cols) = x.dims2()?;
    let own = (own_rows(ranks, rows), cols);
    run(ranks, CollectiveOp::ReduceScatter, x, (rows, cols), own)
}

fn run(
    ranks: &Ranks,
    op: CollectiveOp,
    x: &Tensor,
    (m, n): (usize, usize),
    result: impl Into<Shape>,
) -> Result<Tensor> {
    let dtype = match x.dtype() {
        DType::BF16 => Dtype::Bf16,
        DType::F32 => Dtype::Fp32,
        dtype => bail!("collectives take bf16 or f32, not {dtype:?}; call to_dtype first"),
    };
    let (m, n) = (m as u64, n as u64);
    let config = CollectiveConfig {
        m: Dim::DYNAMIC,
        n: Dim::Static(n),
        dtype,
        ..CollectiveConfig::new(op)
    };
    // One operator serves all numbers of rows up to a power of two, of which there are few.
    let most = m.max(1).next_power_of_two();
    let operator = ranks.operator(config, CollectiveShape { m: most, n })?;
    let called = Called {
        operator: &operator,
        rows: Some(m),
    };
    let y = Output::new(Operand::Y, result, x.dtype());
    let [y] = call_with_rows(ranks, called, &[(Operand::X, x)], [y])?;
    Ok(y)
}
