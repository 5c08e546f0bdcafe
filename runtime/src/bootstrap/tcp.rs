//! [`TcpGroup`]: ranks that are processes. All are connected to rank 0, which completes every step.

use super::connection_error::ConnectionError;
use super::failure::{ReportedFailure, StepFailure};
use super::fds;
use super::group::{Group, Network};
use super::heartbeats::Heartbeats;
use super::host_map::HostMap;
use super::limits::POLL;
use super::owner::Owner;
use super::step_frames::{announce, contribution_in, contributions_in, reported_by, send_to_all};
use super::wait::{Ended, StepWait};
use super::wire::{Connection, Frame, FrameKind, Nonce, put_string};
use crate::error::{Error, Peer, ProtocolFault};
use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// The time beyond the deadline for which the other ranks wait for rank 0, which reports the missing ranks at the deadline.
const GRACE: Duration = Duration::from_secs(2);

/// The group of one process.
pub(crate) struct TcpGroup {
    rank: u32,
    world: u32,
    host_map: HostMap,
    network: Network,
    nonce: Nonce,
    /// On rank 0, the connections to ranks 1, 2 and so on. On other ranks, the connection to rank 0.
    links: Vec<Connection>,
    /// For each connection, a frame that arrived before this rank waited for it.
    early: Vec<Option<Frame>>,
    /// For each connection, whether the other end has sent a `Goodbye` frame.
    left: Vec<bool>,
    /// The ranks that have left, as far as is known.
    gone: BTreeSet<u32>,
    lost: Option<u32>,
    /// The first rank that has reported the failure of a call.
    failed_call: Option<u32>,
    /// Whether this rank has sent a `Goodbye` frame.
    has_left: bool,
    owner: Owner,
}

impl TcpGroup {
    pub(super) fn new(
        (rank, host_map): (u32, HostMap),
        nonce: Nonce,
        links: Vec<Connection>,
        network: Network,
    ) -> Self {
        Self {
            rank,
            world: host_map.world(),
            host_map,
            network,
            nonce,
            early: links.iter().map(|_| None).collect(),
            left: vec![false; links.len()],
            links,
            gone: BTreeSet::new(),
            lost: None,
            failed_call: None,
            has_left: false,
            owner: Owner::this_process(),
        }
    }

    #[cfg(test)]
    pub(super) fn links(&self) -> &[Connection] {
        &self.links
    }

    /// Returns the rank at the other end of a connection.
    fn rank_of(&self, link: usize) -> u32 {
        if self.rank == 0 { rank_of(link) } else { 0 }
    }

    /// Returns the next frame of a step, if one has arrived.
    fn next(&mut self, link: usize) -> Result<Option<Frame>, ConnectionError> {
        if let Some(frame) = self.early[link].take() {
            return Ok(Some(frame));
        }
        if self.left[link] {
            return Err(ConnectionError::Closed);
        }
        let received = self.links[link].poll();
        match &received {
            Ok(Some(frame)) if frame.kind == FrameKind::Goodbye && frame.nonce == self.nonce => {
                self.left[link] = true;
                self.gone.insert(self.rank_of(link));
                return Err(ConnectionError::Closed);
            }
            Ok(Some(frame)) if self.take_failed_call(frame) => return Ok(None),
            Ok(Some(frame)) => {
                self.take_notice(frame);
            }
            Ok(None) | Err(ConnectionError::Fault(_) | ConnectionError::Deadline) => {}
            Err(ConnectionError::Closed) => {
                self.lost.get_or_insert(self.rank_of(link));
            }
        }
        received
    }

    /// Returns whether the frame reports the failure of a call, which belongs to no step. Rank 0 passes on the first report.
    fn take_failed_call(&mut self, frame: &Frame) -> bool {
        if frame.kind != FrameKind::Failed || frame.nonce != self.nonce {
            return false;
        }
        match StepFailure::decode(&frame.payload) {
            Ok(ReportedFailure::Call(rank)) if rank < self.world => {
                self.record_failed_call(rank);
                true
            }
            _ => false,
        }
    }

    /// Records the first failure of a call. Rank 0 reports it to all other ranks, and any other rank reports its own to rank 0.
    fn record_failed_call(&mut self, rank: u32) {
        if self.failed_call.is_none() {
            self.failed_call = Some(rank);
            if self.rank == 0 || self.rank == rank {
                self.announce(&StepFailure::Call { rank });
            }
        }
    }

    /// Records a rank that has left or is lost, if the frame reports one. Returns a rank that has left.
    fn take_notice(&mut self, frame: &Frame) -> Option<u32> {
        if frame.kind != FrameKind::Failed || frame.nonce != self.nonce {
            return None;
        }
        match StepFailure::decode(&frame.payload) {
            Ok(ReportedFailure::Lost(rank)) if rank < self.world => {
                self.lost.get_or_insert(rank);
                None
            }
            Ok(ReportedFailure::Left(rank)) if rank < self.world => {
                self.gone.insert(rank);
                Some(rank)
            }
            _ => None,
        }
    }

    /// Returns the reason why a connection is closed: its rank has left, or is lost.
    fn gone(&self, link: usize) -> StepFailure {
        let rank = self.rank_of(link);
        if self.left[link] {
            StepFailure::Left { rank }
        } else {
            StepFailure::Lost { rank }
        }
    }

    fn frame(&self, kind: FrameKind, payload: Vec<u8>) -> Frame {
        Frame {
            kind,
            nonce: self.nonce,
            payload,
        }
    }

    /// On rank 0: collects the contributions of all ranks, then sends all contributions to each rank.
    fn complete(&mut self, own: &[u8], wait: &mut StepWait) -> Result<Vec<Vec<u8>>, StepFailure> {
        let mut contributions: Vec<Option<Vec<u8>>> = vec![None; self.links.len()];
        loop {
            for (i, slot) in contributions.iter_mut().enumerate() {
                let rank = rank_of(i);
                match self.next(i) {
                    Ok(None) => {}
                    Ok(Some(frame)) if frame.kind == FrameKind::Failed && self.lost.is_some() => {
                        let rank = self.lost.unwrap_or(rank);
                        return Err(StepFailure::Lost { rank });
                    }
                    // A rank that has already contributed can still report a failure.
                    Ok(Some(frame)) if frame.kind == FrameKind::Failed => {
                        return Err(reported_by(rank, &frame, &self.nonce));
                    }
                    Ok(Some(frame)) => {
                        let contribution = match slot {
                            None => contribution_in(&frame, &self.nonce, wait.step),
                            Some(_) => Err(ProtocolFault::Malformed),
                        };
                        *slot = Some(
                            contribution.map_err(|fault| StepFailure::Protocol { rank, fault })?,
                        );
                    }
                    Err(ConnectionError::Fault(fault)) => {
                        return Err(StepFailure::Protocol { rank, fault });
                    }
                    Err(_) => return Err(self.gone(i)),
                }
            }
            let missing: Vec<u32> = (0..)
                .zip(&contributions)
                .filter(|(_, o)| o.is_none())
                .map(|(i, _)| rank_of(i))
                .collect();
            if missing.is_empty() {
                break;
            }
            wait.warn(self.rank, &missing);
            match wait.look(Duration::ZERO) {
                None => {}
                Some(Ended::Stopped) => return Err(StepFailure::stopped(self.rank)),
                Some(Ended::Late) => {
                    let (ranks, refused) = (missing, Vec::new());
                    return Err(StepFailure::Missing { ranks, refused });
                }
            }
            std::thread::sleep(POLL);
        }
        let all: Vec<Vec<u8>> = std::iter::once(own.to_vec())
            .chain(contributions.into_iter().flatten())
            .collect();
        let mut payload = Vec::new();
        all.iter()
            .for_each(|contribution| put_string(&mut payload, contribution));
        let frame = self.frame(FrameKind::Complete, payload);
        for (i, link) in self.links.iter_mut().enumerate() {
            link.send_until(&frame, || wait.look(GRACE).is_some())
                .map_err(|_| StepFailure::Left { rank: rank_of(i) })?;
        }
        Ok(all)
    }

    /// Reports a failure: rank 0 to all other ranks, any other rank to rank 0. So no rank waits until its own deadline.
    fn announce(&mut self, failure: &StepFailure) {
        announce(failure, self.nonce, self.links.iter_mut());
    }

    /// On ranks other than 0: sends the contribution, then waits for the result of rank 0.
    fn contribute(&mut self, own: &[u8], wait: &mut StepWait) -> Result<Vec<Vec<u8>>, Error> {
        let (step, timeout) = (wait.step, wait.timeout);
        let protocol = |source| Error::Protocol {
            peer: Peer::Rank(0),
            step,
            source,
        };
        let late = wait.error(Ended::Late, vec![0]);
        let lost = |error| match error {
            ConnectionError::Fault(fault) => protocol(fault),
            ConnectionError::Closed => Error::RankLeft { rank: 0, step },
            ConnectionError::Deadline => late.clone(),
        };
        let mut payload = Vec::new();
        put_string(&mut payload, step.as_bytes());
        put_string(&mut payload, own);
        let frame = self.frame(FrameKind::Contribution, payload);
        let sent = self.links[0].send_until(&frame, || wait.look(GRACE).is_some());
        let answer = loop {
            // Rank 0 may have sent the reason before the connection closed, so received frames are read first.
            match self.next(0) {
                Ok(Some(frame)) => break frame,
                Ok(None) => {}
                Err(error) => return Err(lost(error)),
            }
            match wait.look(GRACE) {
                None => {}
                Some(Ended::Stopped) => {
                    self.announce(&StepFailure::stopped(self.rank));
                    return Err(Error::Aborted { cause: None });
                }
                Some(Ended::Late) => {
                    return Err(lost(sent.err().unwrap_or(ConnectionError::Deadline)));
                }
            }
            std::thread::sleep(POLL);
        };
        if answer.nonce != self.nonce {
            return Err(protocol(ProtocolFault::OtherJob));
        }
        match answer.kind {
            FrameKind::Complete => contributions_in(&answer.payload, self.world).map_err(protocol),
            FrameKind::Failed => Err(StepFailure::decode(&answer.payload)
                .map_err(protocol)?
                .into_error(step, timeout)),
            _ => Err(protocol(ProtocolFault::Malformed)),
        }
    }
}

fn rank_of(link: usize) -> u32 {
    u32::try_from(link + 1).unwrap_or(u32::MAX)
}

impl Group for TcpGroup {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world(&self) -> u32 {
        self.world
    }

    fn host_map(&self) -> &HostMap {
        &self.host_map
    }

    fn all_gather(&mut self, bytes: &[u8], mut wait: StepWait) -> Result<Vec<Vec<u8>>, Error> {
        if self.rank != 0 {
            return self.contribute(bytes, &mut wait);
        }
        self.complete(bytes, &mut wait).map_err(|failure| {
            self.announce(&failure);
            match wait.stop.is_set() {
                true => Error::Aborted { cause: None },
                false => failure.into_error(wait.step, wait.timeout),
            }
        })
    }

    fn exchange_fds(
        &mut self,
        fd: BorrowedFd<'_>,
        wait: &StepWait,
    ) -> Result<Vec<Option<OwnedFd>>, Error> {
        fds::exchange(self, fd, wait)
    }

    fn heartbeats(&self) -> Option<Heartbeats> {
        let frame = self.frame(FrameKind::Heartbeat, Vec::new()).encode();
        let senders = self.links.iter().map(Connection::sender).collect();
        Some(Heartbeats::new(frame, senders, self.network.silence))
    }

    fn network(&self) -> Option<Network> {
        Some(self.network.clone())
    }

    fn lost(&mut self) -> Option<u32> {
        let (was_lost, before) = (self.lost.is_some(), self.gone.clone());
        for link in 0..self.links.len() {
            // A frame that arrived early belongs to the next step. Rank 0 sends no further frames before that step.
            let is_quiet = self.left[link] || self.rank != 0 && self.early[link].is_some();
            if is_quiet || self.lost.is_some() {
                continue;
            }
            let early = self.early[link].take();
            match self.next(link) {
                // In the next step, rank 0 reports again which ranks have left.
                Ok(Some(frame)) if self.take_notice(&frame).is_some() => {}
                Ok(Some(frame)) if self.lost.is_none() => self.early[link] = Some(frame),
                Err(ConnectionError::Fault(_)) => self.lost = Some(self.rank_of(link)),
                _ => self.early[link] = early,
            }
        }
        // Rank 0 reports to the other ranks which ranks have left, and the loss.
        if self.rank == 0 {
            let news: Vec<u32> = self.gone.difference(&before).copied().collect();
            news.into_iter()
                .for_each(|rank| self.announce(&StepFailure::Left { rank }));
        }
        if let (Some(rank), false, 0) = (self.lost, was_lost, self.rank) {
            self.announce(&StepFailure::Lost { rank });
        }
        self.lost
    }

    fn leave(&mut self) {
        let frame = self.frame(FrameKind::Goodbye, Vec::new());
        send_to_all(&frame, self.links.iter_mut());
        self.has_left = true;
    }

    fn left(&self) -> Vec<u32> {
        self.gone.iter().copied().collect()
    }

    fn are_threads(&self) -> bool {
        false
    }

    fn report_lost(&mut self, rank: u32) {
        if self.lost.is_none() {
            self.lost = Some(rank);
            self.announce(&StepFailure::Lost { rank });
        }
    }

    fn failed(&self) -> Option<u32> {
        self.failed_call
    }

    fn report_failed(&mut self) {
        self.record_failed_call(self.rank);
    }
}

impl Drop for TcpGroup {
    /// A rank whose thread panics closes its connections without a `Goodbye` frame, like a process that is killed.
    fn drop(&mut self) {
        if !self.has_left && !std::thread::panicking() && self.owner.is_here() {
            self.leave();
        }
    }
}
