//! [`Rows`]: the rows of a call, if the operator takes them at run time.

use crate::error::{CallError, Error};
use mkernel_spec::KernelPlan;
use mkernel_spec::abi::OperandSpec;
use mkernel_spec::plan::Body;

/// The number of rows of a call of an operator that takes rows at run time: a GEMM operator or a collective that was declared
/// with `m = dynamic`, or `ring_attention` with `seq = dynamic`. All ranks must give equal numbers, except to `gemm`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rows {
    /// The number of rows that the operator was prepared for, which is the most rows.
    #[default]
    Most,
    /// The given number of rows.
    Count(u64),
    /// The 32-bit word at the given address of device memory, which the kernel reads when it starts. A graph reads the word at
    /// each replay.
    At(u64),
}

/// The rows of a call, checked against the plan of the operator.
#[derive(Clone, Copy)]
pub(crate) struct CallRows<'a> {
    plan: &'a KernelPlan,
    given: Rows,
}

impl Rows {
    /// Checks that an operator with this plan can take the rows.
    pub(crate) fn checked(self, plan: &KernelPlan) -> Result<CallRows<'_>, Error> {
        let fault = match (self, plan.max_rows()) {
            (Self::Count(_) | Self::At(_), None) => CallError::RowsFixed {
                id: plan.id.clone(),
            },
            (Self::Count(rows), Some(most)) if rows > most => CallError::TooManyRows { rows, most },
            _ => return Ok(CallRows { plan, given: self }),
        };
        Err(Error::Call(fault))
    }
}

impl<'a> CallRows<'a> {
    /// Returns the rows as the caller gave them.
    pub fn given(self) -> Rows {
        self.given
    }

    /// Returns the arguments of the kernel: the rows, and the address of the word with the rows or 0.
    pub fn args(self) -> (u32, u64) {
        match self.given {
            // Plans have less than 2^32 rows.
            Rows::Most => (self.plan.max_rows().unwrap_or(0) as u32, 0),
            Rows::Count(rows) => (rows as u32, 0),
            Rows::At(address) => (0, address),
        }
    }

    /// Returns whether a call may run this body of the plan. If the rows are in device memory, the call may run any body.
    pub fn may_run(self, body: &Body) -> bool {
        let (rows, address) = self.args();
        let runs = |body: &&Body| body.max_rows() >= Some(rows.into());
        let chosen = self.plan.bodies.iter().find(runs);
        let chosen = chosen.unwrap_or_else(|| self.plan.body());
        address != 0 || std::ptr::eq(chosen, body)
    }

    /// Returns the specifications of the call's operands.
    pub fn specs(self) -> impl Iterator<Item = OperandSpec> + 'a {
        let rows = match self.given {
            Rows::Most => self.plan.max_rows(),
            Rows::Count(rows) => Some(rows),
            Rows::At(_) => None,
        };
        let specs = self.plan.operands().iter();
        specs.map(move |spec| rows.map_or(*spec, |rows| spec.in_call(rows)))
    }
}
