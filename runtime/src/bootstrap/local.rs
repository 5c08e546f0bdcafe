//! [`LocalGroup`]: ranks that are threads of one process.

use super::files::{os, raise_limit};
use super::group::{Connected, Group, Survivors};
use super::host_map::HostMap;
use super::owner::Owner;
use super::wait::{Ended, STOPPED, StepWait};
use crate::error::{CallError, Error, Peer, ProtocolFault};
use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The interval at which a waiting rank checks whether its wait has ended for another reason than the arrival of all ranks.
const LOOK: Duration = Duration::from_millis(10);

/// The contribution of a rank to a step.
#[derive(Clone, Default)]
struct Contribution {
    step: &'static str,
    bytes: Vec<u8>,
    fd: Option<Arc<OwnedFd>>,
    /// The steps of the group whose first rank is the contributor.
    group: Option<Arc<SharedSteps>>,
}

#[derive(Default)]
struct StepState {
    /// The number of completed steps.
    round: u64,
    /// The contributions to the current step, by rank.
    contributions: Vec<Option<Contribution>>,
    /// The contributions to the last completed step. No later step completes before all ranks have read them.
    complete: Arc<Vec<Contribution>>,
    /// For each rank, whether it has left and takes part in no more steps.
    left: Vec<bool>,
    /// For each rank, whether it has left because its thread has panicked.
    panicked: Vec<bool>,
    lost: Option<u32>,
    /// The first rank that has reported the failure of a call.
    failed_call: Option<u32>,
    failed: Option<Error>,
    rebuild: Rebuild,
}

/// The ranks that connect again after a failure.
#[derive(Default)]
struct Rebuild {
    /// The ranks that wait for the others.
    waiting: BTreeSet<u32>,
    /// The number of attempts that have failed, and the error of the last one.
    failed: (u32, Option<Error>),
    /// The ranks that are connected, and their steps.
    connected: Option<(Vec<u32>, Arc<SharedSteps>)>,
}

impl Rebuild {
    /// Connects the ranks that wait, or ends their attempt if there are fewer than `at_least`.
    fn end(&mut self, missing: Vec<u32>, at_least: u32, wait: &StepWait) {
        let ranks = std::mem::take(&mut self.waiting);
        if ranks.len() < at_least as usize {
            self.failed = (self.failed.0 + 1, Some(wait.error(Ended::Late, missing)));
        } else {
            let steps = SharedSteps::new(ranks.len());
            self.connected = Some((ranks.into_iter().collect(), steps));
        }
    }
}

impl StepState {
    /// Ends the current step after every rank has contributed.
    fn complete(&mut self) {
        let contributions = self.contributions.iter_mut().filter_map(Option::take);
        self.complete = Arc::new(contributions.collect());
        self.round += 1;
    }
}

struct SharedSteps {
    state: Mutex<StepState>,
    changed: Condvar,
}

impl SharedSteps {
    fn new(world: usize) -> Arc<Self> {
        let state = StepState {
            contributions: vec![None; world],
            left: vec![false; world],
            panicked: vec![false; world],
            ..StepState::default()
        };
        Arc::new(Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, StepState> {
        // Every statement leaves the guarded value consistent, so a poisoned lock can still be used.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The group of one rank.
pub(crate) struct LocalGroup {
    shared: Arc<SharedSteps>,
    rank: u32,
    world: u32,
    host_map: HostMap,
    owner: Owner,
}

/// Returns the groups of `world` ranks, by rank.
pub(crate) fn groups(world: u32) -> Vec<LocalGroup> {
    raise_limit();
    let shared = SharedSteps::new(world as usize);
    (0..world)
        .map(|rank| LocalGroup::new(shared.clone(), rank, world))
        .collect()
}

impl LocalGroup {
    fn new(shared: Arc<SharedSteps>, rank: u32, world: u32) -> Self {
        Self {
            shared,
            rank,
            world,
            host_map: HostMap::one(world),
            owner: Owner::this_process(),
        }
    }

    fn exchange(
        &self,
        contribution: Contribution,
        mut wait: StepWait,
    ) -> Result<Arc<Vec<Contribution>>, Error> {
        let step = wait.step;
        let mut state = self.shared.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        if let Some((peer, found)) = other_step(&state, step) {
            let source = ProtocolFault::WrongStep {
                found: found.to_owned(),
            };
            return Err(self.fail(
                state,
                Error::Protocol {
                    peer: Peer::Rank(peer),
                    step,
                    source,
                },
            ));
        }
        if wait.stop.is_set() {
            return Err(self.stopped(state, step));
        }
        state.contributions[self.rank as usize] = Some(contribution);
        if state.contributions.iter().all(Option::is_some) {
            state.complete();
            self.shared.changed.notify_all();
            return Ok(state.complete.clone());
        }
        let round = state.round;
        loop {
            if state.round != round {
                return Ok(state.complete.clone());
            }
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            let missing: Vec<u32> = (0..self.world)
                .filter(|&r| state.contributions[r as usize].is_none())
                .collect();
            if let Some(&rank) = missing.iter().find(|&&rank| state.left[rank as usize]) {
                return Err(self.fail(state, Error::RankLeft { rank, step }));
            }
            wait.warn(self.rank, &missing);
            match wait.look(Duration::ZERO) {
                None => {}
                Some(Ended::Stopped) => return Err(self.stopped(state, step)),
                Some(late) => return Err(self.fail(state, wait.error(late, missing))),
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, LOOK)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Returns the connections of this rank to `ranks`, unless it is not one of these ranks.
    fn survivors(&self, ranks: &[u32], steps: &Arc<SharedSteps>) -> Result<Survivors, Error> {
        let place = ranks.iter().position(|rank| *rank == self.rank);
        let place = place.ok_or(Error::Call(CallError::NotRebuildable))?;
        let group = Self::new(steps.clone(), place as u32, ranks.len() as u32);
        Ok(Survivors {
            group: Box::new(group),
            ranks: ranks.to_vec(),
        })
    }

    /// Aborts the step because this rank was stopped. The other ranks get an error that names this rank.
    fn stopped(&self, state: MutexGuard<'_, StepState>, step: &'static str) -> Error {
        let failures = vec![(self.rank, STOPPED.to_owned())];
        self.fail(state, Error::RanksFailed { step, failures });
        Error::Aborted { cause: None }
    }

    fn fail(&self, mut state: MutexGuard<'_, StepState>, error: Error) -> Error {
        state.failed = Some(error.clone());
        self.shared.changed.notify_all();
        error
    }
}

fn other_step(state: &StepState, step: &str) -> Option<(u32, &'static str)> {
    (0..)
        .zip(&state.contributions)
        .find_map(|(rank, contribution)| {
            contribution
                .as_ref()
                .filter(|contribution| contribution.step != step)
                .map(|contribution| (rank, contribution.step))
        })
}

impl Group for LocalGroup {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world(&self) -> u32 {
        self.world
    }

    fn host_map(&self) -> &HostMap {
        &self.host_map
    }

    fn all_gather(&mut self, bytes: &[u8], wait: StepWait) -> Result<Vec<Vec<u8>>, Error> {
        let contribution = Contribution {
            step: wait.step,
            bytes: bytes.to_vec(),
            ..Contribution::default()
        };
        let complete = self.exchange(contribution, wait)?;
        Ok(complete
            .iter()
            .map(|contribution| contribution.bytes.clone())
            .collect())
    }

    fn exchange_fds(
        &mut self,
        fd: BorrowedFd<'_>,
        wait: &StepWait,
    ) -> Result<Vec<Option<OwnedFd>>, Error> {
        let os = os("dup of a memory handle");
        let own = Arc::new(fd.try_clone_to_owned().map_err(&os)?);
        let contribution = Contribution {
            step: wait.step,
            fd: Some(own),
            ..Contribution::default()
        };
        let complete = self.exchange(contribution, wait.clone())?;
        (0..self.world)
            .zip(complete.iter())
            .map(|(rank, contribution)| match &contribution.fd {
                Some(fd) if rank != self.rank => fd.try_clone().map(Some).map_err(&os),
                _ => Ok(None),
            })
            .collect()
    }

    fn connect_threads(&mut self, members: &[u32], wait: &StepWait) -> Result<Connected, Error> {
        let is_first = members.first() == Some(&self.rank);
        let contribution = Contribution {
            step: wait.step,
            group: is_first.then(|| SharedSteps::new(members.len())),
            ..Contribution::default()
        };
        let complete = self.exchange(contribution, wait.clone())?;
        let steps = members
            .first()
            .and_then(|first| complete.get(*first as usize)?.group.clone());
        let place = members.iter().position(|member| *member == self.rank);
        Ok(steps.zip(place).map(|(steps, place)| -> Box<dyn Group> {
            Box::new(Self::new(steps, place as u32, members.len() as u32))
        }))
    }

    fn connect_threads_left(&mut self, at_least: u32, wait: &StepWait) -> Result<Survivors, Error> {
        let mut wait = wait.clone();
        let mut state = self.shared.lock();
        if state.rebuild.connected.is_some() {
            return Err(Error::Call(CallError::NotRebuildable));
        }
        let failures = state.rebuild.failed.0;
        state.rebuild.waiting.insert(self.rank);
        loop {
            if let Some((ranks, steps)) = &state.rebuild.connected {
                return self.survivors(ranks, steps);
            }
            if let (true, Some(error)) =
                (state.rebuild.failed.0 != failures, &state.rebuild.failed.1)
            {
                return Err(error.clone());
            }
            let waiting = &state.rebuild.waiting;
            let absent = (0..self.world).filter(|rank| !waiting.contains(rank));
            let (gone, late): (Vec<u32>, Vec<u32>) =
                absent.partition(|rank| state.left[*rank as usize]);
            match wait.look(Duration::ZERO) {
                Some(Ended::Stopped) => {
                    state.rebuild.waiting.remove(&self.rank);
                    return Err(Error::Aborted { cause: None });
                }
                None if !late.is_empty() => {}
                _ => {
                    let missing = [gone, late].concat();
                    state.rebuild.end(missing, at_least, &wait);
                    self.shared.changed.notify_all();
                    continue;
                }
            }
            wait.warn(self.rank, &late);
            state = self
                .shared
                .changed
                .wait_timeout(state, LOOK)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn lost(&mut self) -> Option<u32> {
        self.shared.lock().lost
    }

    fn leave(&mut self) {
        self.shared.lock().left[self.rank as usize] = true;
        self.shared.changed.notify_all();
    }

    fn left(&self) -> Vec<u32> {
        let state = self.shared.lock();
        let all = (0..).zip(state.left.iter().zip(&state.panicked));
        all.filter_map(|(rank, (left, panicked))| (*left && !panicked).then_some(rank))
            .collect()
    }

    fn are_threads(&self) -> bool {
        true
    }

    fn report_lost(&mut self, rank: u32) {
        self.shared.lock().lost.get_or_insert(rank);
    }

    fn failed(&self) -> Option<u32> {
        self.shared.lock().failed_call
    }

    fn report_failed(&mut self) {
        self.shared.lock().failed_call.get_or_insert(self.rank);
    }
}

impl Drop for LocalGroup {
    fn drop(&mut self) {
        // In a forked child, the lock may be held by a thread that exists only in the parent.
        if !self.owner.is_here() {
            return;
        }
        if std::thread::panicking() {
            self.shared.lock().panicked[self.rank as usize] = true;
            self.report_lost(self.rank);
        }
        self.leave();
    }
}

#[cfg(test)]
mod tests;
