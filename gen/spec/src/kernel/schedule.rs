//! The messages of a call of any kind of operator.

use super::op_plan::OpPlan;
use super::plan::KernelPlan;
use crate::ops::attention::schedule::AttentionSchedule;
use crate::ops::collective::schedule::CollectiveSchedule;
use crate::ops::combine::schedule::CombineSchedule;
use crate::ops::dispatch::schedule::DispatchSchedule;
use crate::ops::gemm::schedule::GemmSchedule;
use crate::parts::schedule::{Routing, Schedule};
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
    /// The messages of a call with the most rows or tokens, across nodes. Experts are chosen by `routing`.
    ///
    /// # Errors
    /// A plan for one node, and an operator whose messages are not written as data.
    pub fn schedule(&self, routing: Routing) -> Result<Box<dyn Schedule>, NoSchedule> {
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
        let device = &self.device;
        let whole = (topology, &body.traffic);
        let schedule: Option<Box<dyn Schedule>> = match &body.op_plan {
            OpPlan::Collective(plan) => {
                let is_modelled = plan.owners.is_none() && !plan.config.op.exchanges();
                is_modelled.then(|| Box::new(CollectiveSchedule::new(plan, topology, device)) as _)
            }
            OpPlan::Gemm(plan) => {
                GemmSchedule::new(plan, whole, device).map(|schedule| Box::new(schedule) as _)
            }
            OpPlan::Attention(plan) => {
                let ctas = body.launch.grid_ctas;
                Some(Box::new(AttentionSchedule::new(plan, whole, ctas, device)))
            }
            OpPlan::Dispatch(plan) => Some(Box::new(DispatchSchedule::new(
                plan, whole, routing, device,
            ))),
            OpPlan::Combine(plan) => Some(Box::new(CombineSchedule::new(
                plan, topology, routing, device,
            ))),
        };
        schedule.ok_or_else(|| NoSchedule {
            reason: format!("the messages of {} are not modelled yet", self.spec.config().op()),
            help: "use all_gather in place of broadcast or all_to_all; `mkernel-gen plan --scaling` has the bounds of all operators",
        })
    }
}
