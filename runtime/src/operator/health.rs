//! [`OperatorHealth`]: the state of an operator that its communicator monitors.

use super::calls::BegunCalls;
use crate::copy_engine::CopyJob;
use crate::error::{Error, OperatorCalls, OperatorId, with_causes};
use crate::fabric::endpoint::Fabric;
use crate::health::Monitored;
use crate::operator_names::OperatorNames;
use crate::report::{AbortCause, Page};
use std::sync::Arc;

/// The state of an operator that its communicator monitors.
pub(crate) struct OperatorHealth {
    pub operator: OperatorId,
    /// The names of the other operators.
    pub operators: Arc<OperatorNames>,
    /// The counts of the calls of all ranks, if the ranks communicate.
    pub calls: Option<BegunCalls>,
    pub page: Arc<Page>,
    pub job: Option<Arc<CopyJob>>,
    pub fabric: Option<Arc<Fabric>>,
}

impl OperatorHealth {
    /// Records that a launch is captured. From now on, kernels may run without a launch that announces them.
    pub fn capture(&self) {
        if let Some(fabric) = &self.fabric {
            fabric.capture();
        }
        if let Some(job) = &self.job {
            job.capture();
        }
    }
}

impl Monitored for OperatorHealth {
    fn network_failure(&self) -> Option<Error> {
        self.fabric.as_ref()?.failure()
    }

    fn overlap(&self) -> Option<Error> {
        self.page.overlap(&self.operator, &self.operators)
    }

    fn failure(&self) -> Option<Error> {
        // Failed copies and a failed network make waits fail. These causes are stored before the page reports the
        // failed wait, and are read after it. A thread that sees the consequence therefore also sees the cause.
        let consequence = self.page.failure(&self.operator, &self.operators);
        self.network_failure()
            .or_else(|| self.job.as_ref().and_then(|job| job.failure()))
            .or(consequence)
    }

    fn take_fault(&self) -> Option<Error> {
        self.page.take_fault(&self.operator)
    }

    fn calls(&self) -> Option<OperatorCalls> {
        let begun = self.calls.as_ref()?.read().inspect_err(|error| {
            let (operator, error) = (&self.operator, with_causes(error));
            tracing::debug!(%operator, error, "the calls of the ranks cannot be read");
        });
        Some(OperatorCalls {
            operator: self.operator.clone(),
            begun: begun.ok()?,
        })
    }

    fn abort(&self, cause: AbortCause) {
        self.page.abort(cause);
    }
}
