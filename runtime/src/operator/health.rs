//! [`OperatorHealth`]: the state of an operator that its communicator monitors.

use crate::copy_engine::CopyJob;
use crate::error::Error;
use crate::fabric::endpoint::Fabric;
use crate::health::Monitored;
use crate::report::Page;
use std::sync::Arc;

/// The state of an operator that its communicator monitors.
pub(crate) struct OperatorHealth {
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
        self.page.overlap()
    }

    fn failure(&self) -> Option<Error> {
        // Failed copies and a failed network make waits fail. These causes are stored before the page reports the
        // failed wait, and are read after it. So a thread that sees the consequence also sees the cause.
        let consequence = self.page.failure();
        self.network_failure()
            .or_else(|| self.job.as_ref().and_then(|job| job.failure()))
            .or(consequence)
    }

    fn take_fault(&self) -> Option<Error> {
        self.page.take_fault()
    }

    fn abort(&self, lost: Option<u32>) {
        match lost {
            Some(rank) => self.page.abort_without(rank),
            None => self.page.abort(),
        }
    }
}
