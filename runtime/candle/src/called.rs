//! [`Called`]: an operator or a layer that is called.

use mkernel::Operator;

/// An operator, and the rows of a call if the operator takes them at run time.
#[derive(Clone, Copy)]
pub(crate) struct Called<'a> {
    pub operator: &'a Operator,
    pub rows: Option<u64>,
}
