//! One call of an operator: its operands are checked and packed into the kernel's parameter.

pub(crate) mod call;
pub(crate) mod operands;
mod overlap;
pub(crate) mod params;
pub(crate) mod raw_operand;
pub(crate) mod raw_slice;
pub(crate) mod rows;
pub(crate) mod slice_types;
mod slices;
pub(crate) mod strided;
mod waits;
