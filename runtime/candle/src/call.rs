//! One call of an operator with tensors.

#[cfg(feature = "cuda")]
use crate::cuda;
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
    for (operand, tensor) in inputs {
        check(ranks, operand.name(), tensor)?;
    }
    match ranks.device() {
        Device::Cpu => simulated::call(ranks, operator, inputs, outputs),
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => cuda::call(ranks, device, operator, inputs, outputs),
        device => bail!("operators do not run on {:?}", device.location()),
    }
}
