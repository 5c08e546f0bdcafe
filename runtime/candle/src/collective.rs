//! Collectives of whole tensors.

use crate::call::call_with_rows;
use crate::called::Called;
use crate::error::refuse;
use crate::linear::own_rows;
use crate::operands::{self, Input, Output};
use crate::ranks::Ranks;
use candle_core::{Result, Shape, Tensor};
use mkernel::Operand;
use mkernel::spec::{CollectiveConfig, CollectiveOp, CollectiveShape, Dim, Dtype};

/// Columns of the matrix as which a tensor of any shape is added up.
pub(crate) const FLAT_COLUMNS: usize = 8;

/// Returns the sum of all ranks' tensors, which have equal shapes. Every rank gets the sum, and its bits are equal on all ranks.
/// Elements are bf16, f16 or f32, and their number is a multiple of 8.
///
/// # Errors
/// Fails if the elements have another number or type, or if the operator cannot be prepared or called.
pub fn all_reduce(ranks: &Ranks, x: &Tensor) -> Result<Tensor> {
    let elems = x.elem_count();
    if !elems.is_multiple_of(FLAT_COLUMNS) {
        refuse!(
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
    let size = (elems / cols, cols);
    plain(ranks, CollectiveOp::AllReduce, x, size, shape)
}

/// Returns the rows of all ranks, in the order of ranks: `[rows, N]`. `x` has this rank's rows, `[⌈rows / ranks⌉, N]`,
/// and the last ranks have fewer rows, or no rows. Elements are bf16, f16 or f32, and N is a multiple of 8.
///
/// # Errors
/// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
pub fn all_gather(ranks: &Ranks, x: &Tensor, rows: usize) -> Result<Tensor> {
    let (_, cols) = x.dims2()?;
    let size = (rows, cols);
    plain(ranks, CollectiveOp::AllGather, x, size, size)
}

/// Returns this rank's rows of the sum of all ranks' tensors `[rows, N]`: `[⌈rows / ranks⌉, N]`. The last ranks have
/// fewer rows, or no rows. Elements are bf16, f16 or f32, and N is a multiple of 8.
///
/// # Errors
/// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
pub fn reduce_scatter(ranks: &Ranks, x: &Tensor) -> Result<Tensor> {
    let (rows, cols) = x.dims2()?;
    let own = (own_rows(ranks, rows), cols);
    plain(ranks, CollectiveOp::ReduceScatter, x, (rows, cols), own)
}

/// Sends each rank an equal part of the rows of `x`, and returns this rank's part of every rank's `x`, in the order of ranks. All
/// ranks pass equal shapes, `[rows, N]`, and get a tensor of that shape. Elements are bf16, f16 or f32, the ranks divide the rows,
/// and N is a multiple of 8.
///
/// # Errors
/// Fails if the sizes do not fit, or if the operator cannot be prepared or called.
pub fn all_to_all(ranks: &Ranks, x: &Tensor) -> Result<Tensor> {
    let (rows, cols) = x.dims2()?;
    if !rows.is_multiple_of(ranks.world()) {
        refuse!(
            "all_to_all sends equal numbers of rows to each of {} ranks, but x has {rows} rows; pad x",
            ranks.world()
        );
    }
    let size = (rows, cols);
    plain(ranks, CollectiveOp::AllToAll, x, size, size)
}

/// Makes a call of an operator without an epilogue.
fn plain(
    ranks: &Ranks,
    op: CollectiveOp,
    x: &Tensor,
    size: (usize, usize),
    result: impl Into<Shape>,
) -> Result<Tensor> {
    let y = Output::new(Operand::Y, result, x.dtype());
    let config = CollectiveConfig::new(op);
    let [y] = run(ranks, config, &[(Operand::X, x)], size, [y])?;
    Ok(y)
}

/// Makes a call with the type of the first operand and these sizes.
pub(crate) fn run<const N: usize>(
    ranks: &Ranks,
    config: CollectiveConfig,
    inputs: &[Input<'_>],
    (m, n): (usize, usize),
    results: [Output; N],
) -> Result<[Tensor; N]> {
    let (_, x) = inputs[0];
    let dtype = operands::dtype("the tensor", x, &Dtype::RESULTS)?;
    let (m, n) = (m as u64, n as u64);
    let config = CollectiveConfig {
        m: Dim::Dynamic,
        n: Dim::Static(n),
        dtype,
        // An operator serves numbers of rows that are alike.
        buckets: Some(1),
        ..config
    };
    // One operator serves all numbers of rows up to a power of two, so operators are few.
    let most = m.max(1).next_power_of_two();
    let operator = ranks.operator(config, CollectiveShape { m: most, n })?;
    let called = Called {
        operator: &operator,
        rows: Some(m),
    };
    call_with_rows(ranks, called, inputs, results)
}
