//! [`Collective`]: the steps that all ranks take together.

use super::fds;
use super::group::{Agreed, Group, Survivors, agree};
use super::heartbeats::Heartbeats;
use super::host_map::HostMap;
use super::rendezvous::connect_ranks;
use super::rendezvous::job::Job;
use super::survivors::{self, Doors};
use super::tcp::TcpGroup;
use super::tcp_groups;
use super::wait::{IsBusy, StepWait, Stop};
use crate::error::Error;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// A [`Group`] in which every step fails immediately after the first failure, since the ranks may be at different steps
/// by then.
pub(crate) struct Collective {
    group: Box<dyn Group>,
    /// The means to find the ranks that are left after a failure, if ranks are processes. Groups of a split have none.
    doors: Option<Doors>,
    broken: Option<Arc<Error>>,
    stop: Stop,
    is_busy: Option<IsBusy>,
}

impl Collective {
    /// Connects the ranks of a job that are processes.
    pub fn connect(job: &Job) -> Result<Self, Error> {
        Self::with_doors(connect_ranks(job)?, job.timeout)
    }

    /// Lets the ranks, which are processes, exchange the means to find each other after a failure.
    pub(super) fn with_doors(mut group: TcpGroup, timeout: Duration) -> Result<Self, Error> {
        let wait = StepWait::new("exchange of addresses", timeout);
        let doors = survivors::open(&mut group, wait)?;
        Ok(Self {
            doors: Some(doors),
            ..Self::new(group)
        })
    }

    pub fn new(group: impl Group + 'static) -> Self {
        Self::of(Box::new(group))
    }

    fn of(group: Box<dyn Group>) -> Self {
        Self {
            group,
            doors: None,
            broken: None,
            stop: Stop::default(),
            is_busy: None,
        }
    }

    /// Returns a handle that ends the waits of the program's running call from any thread.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Begins a call of the program. Stops from before this call do not affect it.
    pub fn begin(&mut self) {
        self.stop.renew();
    }

    /// Pauses the deadlines of steps while `is_busy` returns true.
    pub fn pause_while(&mut self, is_busy: IsBusy) {
        self.is_busy = Some(is_busy);
    }

    /// Returns the wait of this rank in `step`.
    pub fn wait(&self, step: &'static str, timeout: Duration) -> StepWait {
        StepWait::new(step, timeout).with(self.stop.clone(), self.is_busy.clone())
    }

    pub fn rank(&self) -> u32 {
        self.group.rank()
    }

    pub fn world(&self) -> u32 {
        self.group.world()
    }

    /// See [`Group::heartbeats`].
    pub fn heartbeats(&self) -> Option<Heartbeats> {
        self.group.heartbeats()
    }

    /// See [`Group::host_map`].
    pub fn host_map(&self) -> &HostMap {
        self.group.host_map()
    }

    /// Sends `bytes`, at most [`MAX_CONTRIBUTION_BYTES`](super::MAX_CONTRIBUTION_BYTES), to all ranks. Returns the bytes of each
    /// rank, by rank.
    pub fn all_gather(
        &mut self,
        step: &'static str,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let own = Ok(((), bytes.to_vec()));
        let ((), all) = self.agree(step, own, timeout)?;
        Ok(all)
    }

    /// See [`Group::exchange_fds`].
    pub fn exchange_fds(
        &mut self,
        fd: BorrowedFd<'_>,
        timeout: Duration,
    ) -> Result<Vec<Option<OwnedFd>>, Error> {
        let wait = self.wait(fds::STEP, timeout);
        self.run(|group| group.exchange_fds(fd, &wait))
    }

    /// Returns when every rank has entered this step.
    pub fn barrier(&mut self, step: &'static str, timeout: Duration) -> Result<(), Error> {
        self.all_gather(step, &[], timeout).map(drop)
    }

    /// Connects `members`, in this order, as a group of their own. All ranks must call this, each with the members of its own
    /// group. A rank without a group passes no members and gets `None`.
    pub fn connect_group(
        &mut self,
        members: &[u32],
        timeout: Duration,
    ) -> Result<Option<Self>, Error> {
        let wait = self.wait("connecting groups of ranks", timeout);
        let group = self.run(|group| match group.network() {
            Some(network) => tcp_groups::connect(group, &network, members, &wait),
            None => group.connect_threads(members, &wait).map(Ok),
        })??;
        Ok(group.map(Self::of))
    }

    /// Connects the ranks that call this and have not ended. A rank that does not call this within half of the timeout may be left
    /// out. Returns the connections and the former rank of each rank. Steps that have failed do not matter.
    ///
    /// # Errors
    /// [`Error::RanksMissing`] on all ranks if there are fewer than `at_least`.
    pub fn connect_survivors(
        &mut self,
        at_least: u32,
        timeout: Duration,
    ) -> Result<(Self, Vec<u32>), Error> {
        let wait = self.wait(survivors::STEP, timeout);
        let (Survivors { group, ranks }, doors) = match &self.doors {
            Some(doors) => {
                let (left, doors) =
                    survivors::connect(self.group.as_ref(), doors, at_least, &wait)?;
                (left, Some(doors))
            }
            None => (self.group.connect_threads_left(at_least, &wait)?, None),
        };
        // A rank that comes late finds that nothing listens any more.
        self.doors = None;
        let left = Self {
            doors,
            ..Self::of(group)
        };
        Ok((left, ranks))
    }

    /// See [`Group::lost`].
    pub fn lost(&mut self) -> Option<u32> {
        self.group.lost()
    }

    /// See [`Group::leave`].
    pub fn leave(&mut self) {
        self.group.leave();
    }

    /// See [`Group::left`].
    pub fn left(&self) -> Vec<u32> {
        self.group.left()
    }

    /// See [`Group::failed`].
    pub fn failed(&self) -> Option<u32> {
        self.group.failed()
    }

    /// See [`Group::report_failed`].
    pub fn report_failed(&mut self) {
        self.group.report_failed();
    }

    /// See [`Group::are_threads`].
    pub fn are_threads(&self) -> bool {
        self.group.are_threads()
    }

    /// See [`Group::report_lost`].
    pub fn report_lost(&mut self, rank: u32) {
        self.group.report_lost(rank);
    }

    /// Tells every rank whether `result` is an error. If `result` is an error on any rank, this returns an error on all ranks
    /// at once. Otherwise it returns the bytes that came with each rank's result.
    pub fn agree<T>(
        &mut self,
        step: &'static str,
        result: Result<(T, Vec<u8>), Error>,
        timeout: Duration,
    ) -> Agreed<T> {
        let wait = self.wait(step, timeout);
        self.run(|group| agree(group, result, wait))?
    }

    fn run<T>(
        &mut self,
        step: impl FnOnce(&mut dyn Group) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match self.broken.as_deref() {
            Some(aborted @ Error::Aborted { .. }) => return Err(aborted.clone()),
            Some(_) => {
                let cause = self.broken.clone();
                return Err(Error::Aborted { cause });
            }
            None => {}
        }
        let result = step(self.group.as_mut());
        if let Err(error) = &result {
            self.broken = Some(Arc::new(error.clone()));
        }
        result
    }
}

/// The description of contributions in the error that reports their difference.
pub(crate) struct Description {
    /// Describes a contribution.
    pub of: fn(&[u8]) -> String,
    /// Describes the difference of the second contribution from the first, or returns `None` if it has no description.
    pub difference: fn(&[u8], &[u8]) -> Option<String>,
}

impl Description {
    /// The description of contributions that are texts.
    pub const TEXT: Self = Self {
        of: |text| String::from_utf8_lossy(text).into_owned(),
        difference: |_, _| None,
    };
}

/// Checks that the contributions of all ranks to a step are equal.
pub(crate) fn ensure_equal(
    contributions: &[&[u8]],
    description: &Description,
) -> Result<(), Error> {
    let reference = contributions[0];
    let differs = |(_, theirs): &(u32, &&[u8])| **theirs != reference;
    let others: Vec<(u32, &&[u8])> = (0..).zip(contributions).filter(differs).collect();
    match others.first() {
        None => Ok(()),
        Some((_, first)) => Err(Error::Mismatch {
            reference: (description.of)(reference),
            theirs: (description.of)(first),
            difference: (description.difference)(reference, first),
            ranks: others.iter().map(|(rank, _)| *rank).collect(),
        }),
    }
}
