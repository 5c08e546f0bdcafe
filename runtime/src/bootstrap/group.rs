//! [`Group`]: the connections of one rank to all other ranks.

use super::heartbeats::Heartbeats;
use super::host_map::HostMap;
use super::limits::MAX_CONTRIBUTION_BYTES;
use super::wait::StepWait;
use crate::error::{CallError, Error, ProtocolFault, with_causes};
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// The connections of one rank to all other ranks.
pub(crate) trait Group: Send {
    /// Returns this rank.
    fn rank(&self) -> u32;

    /// Returns the number of ranks.
    fn world(&self) -> u32;

    /// Returns the map of ranks to hosts.
    fn host_map(&self) -> &HostMap;

    /// Sends `bytes` to all ranks, and returns the bytes of each rank, by rank. Returns on no rank before all ranks
    /// have entered the step.
    fn all_gather(&mut self, bytes: &[u8], wait: StepWait) -> Result<Vec<Vec<u8>>, Error>;

    /// Sends a duplicate of `fd` to all other ranks of the host. Returns their descriptors by rank; the entries of this
    /// rank and of ranks on other hosts are `None`. All ranks of all hosts must call this.
    fn exchange_fds(
        &mut self,
        fd: BorrowedFd<'_>,
        wait: &StepWait,
    ) -> Result<Vec<Option<OwnedFd>>, Error>;

    /// Connects `members`, in this order, as a group of their own. All ranks are threads and must call this, each with the members
    /// of its own group. A rank without a group passes no members and gets `None`.
    fn connect_threads(&mut self, _members: &[u32], _wait: &StepWait) -> Result<Connected, Error> {
        Ok(None)
    }

    /// Returns the means by which ranks connect as groups of their own, or `None` if all ranks are threads.
    fn network(&self) -> Option<Network> {
        None
    }

    /// Connects the ranks that call this before the timeout as a group of their own. All ranks are threads. Steps that have failed do
    /// not matter.
    ///
    /// # Errors
    /// [`Error::RanksMissing`] on all ranks if there are fewer than `at_least`.
    fn connect_threads_left(
        &mut self,
        _at_least: u32,
        _wait: &StepWait,
    ) -> Result<Survivors, Error> {
        Err(Error::Call(CallError::NotRebuildable))
    }

    /// Returns the heartbeats that this rank has to send, or `None` if all ranks are threads, which stop together.
    fn heartbeats(&self) -> Option<Heartbeats> {
        None
    }

    /// Returns a rank that is lost: its connection closed without a `Goodbye` frame, its process has stopped, or another rank has
    /// reported so.
    /// Does not wait.
    fn lost(&mut self) -> Option<u32>;

    /// Tells all ranks that this rank leaves and takes part in no more steps. Dropping the group has this effect too, unless
    /// the thread panics.
    fn leave(&mut self);

    /// Returns the ranks that are known to have left. Does not wait. [`lost`](Self::lost) looks for ranks that have left.
    fn left(&self) -> Vec<u32>;

    /// Returns whether all ranks are threads of this process.
    fn are_threads(&self) -> bool;

    /// Reports to all ranks that a rank is lost, unless a lost rank was reported before.
    fn report_lost(&mut self, rank: u32);

    /// Returns a rank that has reported the failure of a call. Does not wait. [`lost`](Self::lost) looks for such reports.
    fn failed(&self) -> Option<u32>;

    /// Reports to all ranks that a call of this rank has failed. Steps can still be completed.
    fn report_failed(&mut self);
}

/// The connections of a rank to its group, or `None` if the rank has no group.
pub(crate) type Connected = Option<Box<dyn Group>>;

/// The ranks that are left of a group.
pub(crate) struct Survivors {
    pub group: Box<dyn Group>,
    /// The rank that each rank of `group` had before.
    pub ranks: Vec<u32>,
}

/// The means by which ranks that are processes connect as groups.
#[derive(Clone)]
pub(crate) struct Network {
    /// An address of this host.
    pub address: IpAddr,
    /// The time within which the loss of a host must be detected.
    pub silence: Duration,
    /// A key that only ranks of the job know, or nothing if the job has no secret.
    pub key: Vec<u8>,
}

const OK: u8 = 0;
const FAILED: u8 = 1;

/// This rank's value, and the bytes that came with the values of all ranks.
pub(crate) type Agreed<T> = Result<(T, Vec<Vec<u8>>), Error>;

/// Implements [`Collective::agree`](super::Collective::agree). The outer error is a failure of the group, which cannot be used
/// afterwards.
pub(super) fn agree<T>(
    group: &mut dyn Group,
    result: Result<(T, Vec<u8>), Error>,
    wait: StepWait,
) -> Result<Agreed<T>, Error> {
    let step = wait.step;
    let result = result.and_then(|(value, payload)| match payload.len() {
        ..=MAX_CONTRIBUTION_BYTES => Ok((value, payload)),
        bytes => Err(Error::ContributionTooLong {
            step,
            bytes,
            limit: MAX_CONTRIBUTION_BYTES,
        }),
    });
    let contribution = match &result {
        Ok((_, payload)) => [&[OK], payload.as_slice()].concat(),
        Err(error) => {
            let mut text = with_causes(error);
            text.truncate(text.floor_char_boundary(MAX_CONTRIBUTION_BYTES));
            [&[FAILED], text.as_bytes()].concat()
        }
    };
    let contributions = group.all_gather(&contribution, wait);
    // This rank's own failure is more specific than the failure of the exchange.
    let (value, contributions) = match (result, contributions) {
        (Ok((value, _)), Ok(contributions)) => (value, contributions),
        (Ok(_), Err(error)) | (Err(error), Err(_)) => return Err(error),
        (Err(error), Ok(_)) => return Ok(Err(error)),
    };
    let mut failures = Vec::new();
    let mut payloads = Vec::with_capacity(contributions.len());
    for (rank, contribution) in (0..).zip(contributions) {
        match contribution.split_first() {
            Some((&OK, rest)) => payloads.push(rest.to_vec()),
            Some((_, rest)) => failures.push((rank, String::from_utf8_lossy(rest).into_owned())),
            None => failures.push((rank, ProtocolFault::Malformed.to_string())),
        }
    }
    Ok(if failures.is_empty() {
        Ok((value, payloads))
    } else {
        Err(Error::RanksFailed { step, failures })
    })
}
