//! When an operator's launches are over, and its memory can go.

use super::body::Parts;
use crate::driver::{self, Event, UserStream};
use crate::error::Error;
use crate::reaper::{Retired, Wait};
use cudarc::driver::{CudaContext, DriverError, sys};
use std::sync::Arc;

/// The end of launches.
pub(super) enum End {
    Recorded(Event),
    /// Of those in a stream in which nothing can be recorded, since it is being captured.
    Captured(UserStream),
    /// Nobody will know.
    Unknown(Error),
}

impl End {
    pub fn of(ctx: &Arc<CudaContext>, stream: UserStream) -> Self {
        let recorded = driver::bind(ctx).and_then(|()| {
            // SAFETY: the stream is alive: it has an owner, or its user has promised so.
            match unsafe { driver::is_capturing(stream.handle())? } {
                true => Ok(None),
                false => {
                    let event = Event::new(ctx)?;
                    // SAFETY: as above; it is of the operator's context.
                    unsafe { event.record(stream.handle())? };
                    Ok(Some(event))
                }
            }
        });
        match recorded {
            Ok(Some(event)) => Self::Recorded(event),
            Ok(None) if stream.is_owned() => Self::Captured(stream),
            // The stream may be gone when its capture is over.
            Ok(None) => Self::Unknown(Error::Cuda {
                call: "cuEventRecord in a stream that is being captured",
                source: DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
            }),
            Err(error) => Self::Unknown(error),
        }
    }

    /// What is left to wait for.
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

/// What an operator leaves behind.
pub(super) struct Remains {
    ends: Vec<End>,
    /// Whether `ends` are those of the copies, which kernels need to the last.
    copies_end: bool,
    parts: Parts,
}

impl Remains {
    pub fn new(ends: Vec<End>, parts: Parts) -> Self {
        Self {
            ends,
            copies_end: false,
            parts,
        }
    }
}

impl Retired for Remains {
    fn name(&self) -> String {
        format!("operator {}", self.parts.plan.id)
    }

    fn is_unused(&mut self) -> Result<Wait, Error> {
        let ctx = self.parts.shared.ctx.clone();
        driver::bind(&ctx)?;
        loop {
            for end in std::mem::take(&mut self.ends) {
                self.ends.extend(end.left(&ctx)?);
            }
            if self.ends.iter().any(|end| matches!(end, End::Captured(_))) {
                return Ok(Wait::Elsewhere);
            }
            if !self.ends.is_empty() {
                return Ok(Wait::Here);
            }
            let (Some(thread), Some(job), false) =
                (&self.parts.copies, &self.parts.live.job, self.copies_end)
            else {
                return Ok(Wait::Over);
            };
            self.copies_end = true;
            thread.remove(job);
            let ends = thread.ends(&ctx)?;
            self.ends = ends.into_iter().map(End::Recorded).collect();
        }
    }
}
