//! [`Rows`]: the rows of a call, if the operator takes them at run time.

use crate::error::{CallError, Error};
use mkernel_spec::KernelPlan;
use mkernel_spec::abi::OperandSpec;
use std::borrow::Cow;

/// The number of rows of a call of an operator that takes them at run time: a GEMM operator or a collective that was declared
/// with `m = dynamic`, or `ring_attention` with `seq = dynamic`. All ranks must give the same number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rows {
    /// The number that the operator was prepared for, which is the most.
    #[default]
    Most,
    /// This number.
    Count(u64),
    /// The 32-bit word at this address of device memory, which the kernel reads when it starts. A graph that is replayed
    /// reads it at each replay.
    At(u64),
}

impl Rows {
    /// Checks that an operator with this plan can take the rows.
    pub(crate) fn check(self, plan: &KernelPlan) -> Result<(), Error> {
        let fault = match (self, plan.max_rows()) {
            (Self::Most, _) => return Ok(()),
            (_, None) => CallError::RowsFixed {
                id: plan.id.clone(),
            },
            (Self::Count(rows), Some(most)) if rows > most => CallError::TooManyRows { rows, most },
            _ => return Ok(()),
        };
        Err(Error::Call(fault))
    }

    /// Returns the arguments of the kernel: the rows, and the address of the word with them or 0.
    pub(crate) fn args(self, plan: &KernelPlan) -> (u32, u64) {
        let most = plan.max_rows().unwrap_or(0);
        match self {
            // Plans have less than 2^32 rows.
            Self::Most => (most as u32, 0),
            Self::Count(rows) => (rows.min(most) as u32, 0),
            Self::At(address) => (0, address),
        }
    }

    /// Returns whether a call may run this bucket of the plan. With rows in memory, it may run any.
    pub(crate) fn may_run(self, plan: &KernelPlan, bucket: &KernelPlan) -> bool {
        let (rows, address) = self.args(plan);
        let runs = |bucket: &&KernelPlan| bucket.max_rows() >= Some(rows.into());
        let chosen = plan.buckets().find(runs).unwrap_or(plan);
        address != 0 || std::ptr::eq(chosen, bucket)
    }

    /// Returns what the operands of the call must be.
    pub(crate) fn specs(self, plan: &KernelPlan) -> Cow<'_, [OperandSpec]> {
        let rows = match (self, plan.max_rows()) {
            (Self::Count(rows), _) | (Self::Most, Some(rows)) => rows,
            _ => return Cow::Borrowed(&plan.operands),
        };
        Cow::Owned(plan.operands_in_call(rows))
    }
}
