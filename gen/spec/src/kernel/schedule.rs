//! The messages of a call of any kind of operator.

use super::op_plan::OpPlan;
use super::plan::KernelPlan;
use crate::ops::collective::schedule::CollectiveSchedule;
use crate::ops::gemm::schedule::GemmSchedule;
use crate::parts::schedule::Schedule;
use std::fmt;

/// The reason why a plan has no [`Schedule`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSchedule {
    /// The reason.
    pub reason: String,
    /// A way out.
    pub help: &'static str,
}

impl fmt::Display for NoSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.reason, self.help)
    }
}

impl std::error::Error for NoSchedule {}

impl KernelPlan {
    /// The messages of a call with the most rows, across nodes.
    ///
    /// # Errors
    /// A plan for one node, and an operator whose messages are not written as data.
    pub fn schedule(&self) -> Result<Box<dyn Schedule>, NoSchedule> {
        let (topology, body) = (self.spec.topology(), self.body());
        if body.network.is_none() {
            return Err(NoSchedule {
                reason: format!(
                    "{} puts nothing, so there are no messages between nodes",
                    self.spec.config().op()
                ),
                help: "use 2 nodes or more, and an operator that communicates",
            });
        }
        match &body.op_plan {
            OpPlan::Collective(plan) if plan.owners.is_none() && !plan.config.op.exchanges() => Ok(
                Box::new(CollectiveSchedule::new(plan, topology, &self.device)),
            ),
            OpPlan::Gemm(plan) => Ok(Box::new(GemmSchedule::new(
                plan,
                (topology, &body.traffic),
                &self.device,
            ))),
            _ => Err(NoSchedule {
                reason: format!(
                    "the messages of {} are not modelled yet",
                    self.spec.config().op()
                ),
                help: "use ag_gemm, gemm_rs, gemm_ar, all_gather, reduce_scatter or all_reduce; `mkernel-gen plan --scaling` has bounds of all operators",
            }),
        }
    }
}
