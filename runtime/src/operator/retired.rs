//! [`RetiredOperator`]: an operator that was dropped and may still be in use by the GPU.

use super::parts::Parts;
use crate::driver::{self, Event, UserStream};
use crate::error::Error;
use crate::reaper::{GpuUse, Retired};
use cudarc::driver::{CudaContext, DriverError, sys};
use std::sync::Arc;

/// The end of the launches in a stream.
pub(super) enum LaunchEnd {
    Recorded(Event),
    /// The stream is being captured, so no event can be recorded in it now.
    Captured(UserStream),
    /// The end cannot be determined.
    Unknown(Error),
}

impl LaunchEnd {
    pub fn of(ctx: &Arc<CudaContext>, stream: UserStream) -> Self {
        // SAFETY: the stream is alive, since it has an owner or its user has promised to keep it alive. It belongs to the
        // operator's context.
        match unsafe { Event::behind(ctx, &stream) } {
            Ok(Some(event)) => Self::Recorded(event),
            Ok(None) if stream.is_owned() => Self::Captured(stream),
            // The stream may be destroyed when its capture has ended.
            Ok(None) => Self::Unknown(Error::Cuda {
                call: "cuEventRecord in a stream that is being captured",
                source: DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
            }),
            Err(error) => Self::Unknown(error),
        }
    }

    /// Returns whether the end is known to have been reached.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Recorded(event) if event.is_over().is_ok_and(|is_over| is_over))
    }

    /// Returns the end if it has not been reached yet.
    fn left(self, ctx: &Arc<CudaContext>) -> Result<Option<Self>, Error> {
        let end = match self {
            Self::Captured(stream) => Self::of(ctx, stream),
            end => end,
        };
        match end {
            Self::Recorded(event) => Ok((!event.is_over()?).then_some(Self::Recorded(event))),
            Self::Captured(_) => Ok(Some(end)),
            Self::Unknown(error) => Err(error),
        }
    }
}

/// The parts of a dropped operator, until the GPU does not use them any more.
pub(super) struct RetiredOperator {
    ends: Vec<LaunchEnd>,
    /// Whether `ends` includes the ends of the copies. They are added last, since kernels need the copies until the kernels
    /// end.
    copies_end: bool,
    parts: Parts,
}

impl RetiredOperator {
    pub fn new(ends: Vec<LaunchEnd>, parts: Parts) -> Self {
        Self {
            ends,
            copies_end: false,
            parts,
        }
    }
}

impl Retired for RetiredOperator {
    fn name(&self) -> String {
        format!("operator {}", self.parts.plan.id)
    }

    fn is_unused(&mut self) -> Result<GpuUse, Error> {
        let ctx = self.parts.shared.ctx.clone();
        driver::bind(&ctx)?;
        loop {
            for end in std::mem::take(&mut self.ends) {
                self.ends.extend(end.left(&ctx)?);
            }
            if self
                .ends
                .iter()
                .any(|end| matches!(end, LaunchEnd::Captured(_)))
            {
                return Ok(GpuUse::Capturing);
            }
            if !self.ends.is_empty() {
                return Ok(GpuUse::Running);
            }
            let (Some(thread), Some(job), false) =
                (&self.parts.copies, &self.parts.health.job, self.copies_end)
            else {
                return Ok(GpuUse::Unused);
            };
            self.copies_end = true;
            thread.remove(job);
            let ends = thread.ends(&ctx)?;
            self.ends = ends.into_iter().map(LaunchEnd::Recorded).collect();
        }
    }
}
