//! The tensors of a call.

use crate::error::refuse;
use crate::ranks::Ranks;
use candle_core::{DType, Result, Shape, Tensor};
use mkernel::Operand;
use mkernel::spec::Dtype;

/// A tensor that a call reads.
pub(crate) type Input<'a> = (Operand, &'a Tensor);

/// A tensor that a call writes, and that it allocates.
pub(crate) struct Output {
    pub operand: Operand,
    pub shape: Shape,
    pub dtype: DType,
}

impl Output {
    pub fn new(operand: Operand, shape: impl Into<Shape>, dtype: DType) -> Self {
        Self {
            operand,
            shape: shape.into(),
            dtype,
        }
    }
}

/// Checks that an operator can read a tensor where it is. Types are checked by the operator itself.
pub(crate) fn check(ranks: &Ranks, name: &str, tensor: &Tensor) -> Result<()> {
    if !tensor.device().same_device(ranks.device()) {
        refuse!(
            "{name} is on {:?}, and this rank's tensors are on {:?}; call to_device first, with the device that was \
             passed to Ranks::new",
            tensor.device().location(),
            ranks.device().location()
        );
    }
    if !tensor.is_contiguous() {
        refuse!(
            "{name} has the shape {:?} and the strides {:?}; operators take contiguous tensors, so call contiguous() first",
            tensor.dims(),
            tensor.stride()
        );
    }
    Ok(())
}

/// The types of floating-point numbers that operators take.
const FLOATS: [(DType, Dtype); 4] = [
    (DType::BF16, Dtype::Bf16),
    (DType::F16, Dtype::Fp16),
    (DType::F32, Dtype::Fp32),
    (DType::F8E4M3, Dtype::E4m3),
];

/// Returns the option for the elements of a tensor, which must be one of `those`.
pub(crate) fn dtype(name: &str, tensor: &Tensor, those: &[Dtype]) -> Result<Dtype> {
    let found = FLOATS
        .iter()
        .find(|(of_tensor, _)| *of_tensor == tensor.dtype());
    match found {
        Some((_, dtype)) if those.contains(dtype) => Ok(*dtype),
        _ => {
            let names: Vec<_> = those.iter().map(|dtype| dtype.name()).collect();
            refuse!(
                "{name} has elements of {:?}; they must be {}, so call to_dtype first",
                tensor.dtype(),
                names.join(" or ")
            )
        }
    }
}

/// Returns the values if all are right, else the first error.
pub(crate) fn all<T, const N: usize>(results: [Result<T>; N]) -> Result<[T; N]> {
    let values = results.into_iter().collect::<Result<Vec<T>>>()?;
    let values = values.try_into().ok();
    values.ok_or_else(|| candle_core::Error::msg("a result is missing"))
}
