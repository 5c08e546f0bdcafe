//! One call of an operator with tensors.

use crate::called::Called;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::error::refuse;
use crate::operands::{Input, Output, check};
use crate::ranks::Ranks;
use crate::simulated;
use candle_core::{Device, Result, Tensor, bail};
use mkernel::Operator;

/// Enqueues one call, and returns the tensors that it writes.
pub(crate) fn call<const N: usize>(
    ranks: &Ranks,
    operator: &Operator,
    inputs: &[Input<'_>],
    outputs: [Output; N],
) -> Result<[Tensor; N]> {
    let called = Called {
        operator,
        rows: None,
    };
    call_with_rows(ranks, called, inputs, outputs)
}

/// Enqueues one call with the rows of `called`, and returns the tensors that it writes.
pub(crate) fn call_with_rows<const N: usize>(
    ranks: &Ranks,
    called: Called<'_>,
    inputs: &[Input<'_>],
    outputs: [Output; N],
) -> Result<[Tensor; N]> {
    for (operand, tensor) in inputs {
        check(ranks, operand.name(), tensor)?;
        check_size(ranks, called, (*operand, tensor))?;
    }
    match ranks.device() {
        Device::Cpu => simulated::call(ranks, called, inputs, outputs),
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => cuda::call(ranks, device, called, inputs, outputs),
        device => bail!("operators do not run on {:?}", device.location()),
    }
}

/// Checks that a tensor has exactly the elements of an operand. Operators also take longer slices, but a longer
/// tensor has another shape than the caller thinks.
fn check_size(ranks: &Ranks, called: Called<'_>, (operand, tensor): Input<'_>) -> Result<()> {
    let plan = called.operator.plan();
    let Some(spec) = plan.operands().iter().find(|spec| spec.operand == operand) else {
        return Ok(());
    };
    let rows = called.rows.or(plan.max_rows());
    let rows = rows.map_or(spec.rows, |rows| spec.rows.in_call(rows));
    let (rows, cols) = (rows.on(ranks.rank() as u32), spec.cols);
    if tensor.elem_count() as u64 != rows * cols {
        refuse!(
            "{} has the shape {:?}, but rank {}'s part is {rows} rows of {cols} elements",
            operand.name(),
            tensor.dims(),
            ranks.rank()
        );
    }
    Ok(())
}
