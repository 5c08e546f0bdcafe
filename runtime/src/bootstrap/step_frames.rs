//! Reads and checks the frames of a step, and reports its failure.

use super::failure::{ReportedFailure, StepFailure, printable};
use super::limits::MAX_STEP_BYTES;
use super::wire::{Connection, Frame, FrameKind, Nonce, Reader};
use crate::error::ProtocolFault;
use std::time::{Duration, Instant};

/// Reads the reason why another rank aborts the step.
pub(super) fn reported_by(rank: u32, frame: &Frame, nonce: &Nonce) -> StepFailure {
    let fault = match StepFailure::decode(&frame.payload) {
        _ if frame.nonce != *nonce => ProtocolFault::OtherJob,
        Ok(ReportedFailure::Reported(reporter, text)) if reporter == rank => {
            return StepFailure::Reported { rank, text };
        }
        Ok(_) => ProtocolFault::Malformed,
        Err(fault) => fault,
    };
    StepFailure::Protocol { rank, fault }
}

pub(super) fn contribution_in(
    frame: &Frame,
    nonce: &Nonce,
    step: &str,
) -> Result<Vec<u8>, ProtocolFault> {
    if frame.nonce != *nonce {
        return Err(ProtocolFault::OtherJob);
    }
    if frame.kind != FrameKind::Contribution {
        return Err(ProtocolFault::Malformed);
    }
    let mut reader = Reader(&frame.payload);
    let found = reader.string()?;
    if found != step.as_bytes() {
        return Err(ProtocolFault::WrongStep {
            found: printable(found),
        });
    }
    let contribution = reader.string()?;
    if contribution.len() > MAX_STEP_BYTES {
        return Err(ProtocolFault::TooLong {
            bytes: contribution.len(),
            limit: MAX_STEP_BYTES,
        });
    }
    Ok(contribution.to_vec())
}

pub(super) fn contributions_in(payload: &[u8], world: u32) -> Result<Vec<Vec<u8>>, ProtocolFault> {
    let mut reader = Reader(payload);
    let contributions = (0..world)
        .map(|_| reader.string().map(<[u8]>::to_vec))
        .collect::<Result<_, _>>()?;
    reader.end()?;
    Ok(contributions)
}

/// Reports over `links` the reason why the step was aborted.
pub(super) fn announce<'a>(
    failure: &StepFailure,
    nonce: Nonce,
    links: impl Iterator<Item = &'a mut Connection>,
) {
    let frame = Frame {
        kind: FrameKind::Failed,
        nonce,
        payload: failure.encode(),
    };
    send_to_all(&frame, links);
}

/// Sends a frame to all peers that can receive it.
pub(super) fn send_to_all<'a>(frame: &Frame, links: impl Iterator<Item = &'a mut Connection>) {
    for link in links {
        // A peer that cannot receive the frame is gone, so a failure is ignored.
        let _ = link.send(frame, Instant::now() + Duration::from_millis(100));
    }
}
