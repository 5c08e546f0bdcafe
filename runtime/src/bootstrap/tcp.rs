//! Ranks that are processes: all connect to rank 0, which completes every step.

use super::failure::{Failure, Heard, printable};
use super::fds::{self, Mailbox, random_bytes};
use super::wait::{Ended, STOPPED};
use super::wire::{Frame, Kind, Link, LinkError, Nonce, Reader, put_string};
use super::{Group, MAX_STEP_BYTES, Nodes, Owner, POLL, ProtocolFault, Wait, agree};
use crate::error::{Error, Peer};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Rank 0 reports missing ranks at the deadline; the others give it this long to say so.
const GRACE: Duration = Duration::from_secs(2);

/// One process's end.
pub(crate) struct TcpGroup {
    rank: u32,
    world: u32,
    nodes: Nodes,
    nonce: Nonce,
    /// On rank 0 the links to ranks 1, 2, …; elsewhere the link to rank 0.
    links: Vec<Link>,
    /// By link: a frame that came before it was waited for, and whether the other end has said goodbye.
    early: Vec<Option<Frame>>,
    left: Vec<bool>,
    lost: Option<u32>,
    owner: Owner,
}

impl TcpGroup {
    pub(super) fn new(rank: u32, nodes: Nodes, nonce: Nonce, links: Vec<Link>) -> Self {
        Self {
            rank,
            world: nodes.world(),
            nodes,
            nonce,
            early: links.iter().map(|_| None).collect(),
            left: vec![false; links.len()],
            links,
            lost: None,
            owner: Owner::this_process(),
        }
    }

    #[cfg(test)]
    pub(super) fn links(&self) -> &[Link] {
        &self.links
    }

    /// Who is at the other end.
    fn rank_of(&self, link: usize) -> u32 {
        if self.rank == 0 { rank_of(link) } else { 0 }
    }

    /// The next frame of a step.
    fn next(&mut self, link: usize) -> Result<Option<Frame>, LinkError> {
        if let Some(frame) = self.early[link].take() {
            return Ok(Some(frame));
        }
        if self.left[link] {
            return Err(LinkError::Closed);
        }
        let heard = self.links[link].poll();
        match &heard {
            Ok(Some(frame)) if frame.kind == Kind::Goodbye && frame.nonce == self.nonce => {
                self.left[link] = true;
                return Err(LinkError::Closed);
            }
            Ok(Some(frame)) => self.hear_of_loss(frame),
            Ok(None) | Err(LinkError::Fault(_) | LinkError::Deadline) => {}
            Err(LinkError::Closed) => {
                self.lost.get_or_insert(self.rank_of(link));
            }
        }
        heard
    }

    /// A frame may say that a rank is lost.
    fn hear_of_loss(&mut self, frame: &Frame) {
        if frame.kind == Kind::Failed
            && frame.nonce == self.nonce
            && let Ok(Heard::Lost(rank)) = Failure::decode(&frame.payload)
            && rank < self.world
        {
            self.lost.get_or_insert(rank);
        }
    }

    /// What it means that a link is closed.
    fn gone(&self, link: usize) -> Failure {
        let rank = self.rank_of(link);
        if self.left[link] {
            Failure::Left { rank }
        } else {
            Failure::Lost { rank }
        }
    }

    fn frame(&self, kind: Kind, payload: Vec<u8>) -> Frame {
        Frame {
            kind,
            nonce: self.nonce,
            payload,
        }
    }

    /// Rank 0: collects all offers, then sends all of them to all.
    fn complete(&mut self, own: &[u8], wait: &mut Wait) -> Result<Vec<Vec<u8>>, Failure> {
        let mut offers: Vec<Option<Vec<u8>>> = vec![None; self.links.len()];
        loop {
            for (i, place) in offers.iter_mut().enumerate() {
                let rank = rank_of(i);
                match self.next(i) {
                    Ok(None) => {}
                    Ok(Some(frame)) if frame.kind == Kind::Failed && self.lost.is_some() => {
                        let rank = self.lost.unwrap_or(rank);
                        return Err(Failure::Lost { rank });
                    }
                    // Also of a rank that has come already.
                    Ok(Some(frame)) if frame.kind == Kind::Failed => {
                        return Err(told_by(rank, &frame, &self.nonce));
                    }
                    Ok(Some(frame)) => {
                        let offer = match place {
                            None => offer_in(&frame, &self.nonce, wait.step),
                            Some(_) => Err(ProtocolFault::Malformed),
                        };
                        *place = Some(offer.map_err(|fault| Failure::Protocol { rank, fault })?);
                    }
                    Err(LinkError::Fault(fault)) => return Err(Failure::Protocol { rank, fault }),
                    Err(_) => return Err(self.gone(i)),
                }
            }
            let missing: Vec<u32> = (0..)
                .zip(&offers)
                .filter(|(_, o)| o.is_none())
                .map(|(i, _)| rank_of(i))
                .collect();
            if missing.is_empty() {
                break;
            }
            wait.warn(self.rank, &missing);
            match wait.look(Duration::ZERO) {
                None => {}
                Some(Ended::Stopped) => return Err(self.stopped()),
                Some(Ended::Late) => {
                    let (ranks, refused) = (missing, Vec::new());
                    return Err(Failure::Missing { ranks, refused });
                }
            }
            std::thread::sleep(POLL);
        }
        let all: Vec<Vec<u8>> = std::iter::once(own.to_vec())
            .chain(offers.into_iter().flatten())
            .collect();
        let mut payload = Vec::new();
        all.iter().for_each(|offer| put_string(&mut payload, offer));
        let frame = self.frame(Kind::Complete, payload);
        for (i, link) in self.links.iter_mut().enumerate() {
            link.send_until(&frame, || wait.look(GRACE).is_some())
                .map_err(|_| Failure::Left { rank: rank_of(i) })?;
        }
        Ok(all)
    }

    /// That this rank gives up because it was told to.
    fn stopped(&self) -> Failure {
        Failure::Told {
            rank: self.rank,
            text: STOPPED.to_owned(),
        }
    }

    /// Rank 0: tells the living; others: rank 0. So that none waits for its own deadline.
    fn announce(&mut self, failure: &Failure) {
        announce(failure, self.nonce, self.links.iter_mut());
    }

    /// Other ranks: offers, then waits for rank 0.
    fn offer(&mut self, own: &[u8], wait: &mut Wait) -> Result<Vec<Vec<u8>>, Error> {
        let (step, timeout) = (wait.step, wait.timeout);
        let protocol = |source| Error::Protocol {
            peer: Peer::Rank(0),
            step,
            source,
        };
        let late = wait.error(Ended::Late, vec![0]);
        let lost = |error| match error {
            LinkError::Fault(fault) => protocol(fault),
            LinkError::Closed => Error::RankLeft { rank: 0, step },
            LinkError::Deadline => late.clone(),
        };
        let mut payload = Vec::new();
        put_string(&mut payload, step.as_bytes());
        put_string(&mut payload, own);
        let frame = self.frame(Kind::Offer, payload);
        let sent = self.links[0].send_until(&frame, || wait.look(GRACE).is_some());
        let answer = loop {
            // Rank 0 may have said why it left before the connection broke, so it is heard first.
            match self.next(0) {
                Ok(Some(frame)) => break frame,
                Ok(None) => {}
                Err(error) => return Err(lost(error)),
            }
            match wait.look(GRACE) {
                None => {}
                Some(Ended::Stopped) => {
                    self.announce(&self.stopped());
                    return Err(Error::Aborted { cause: None });
                }
                Some(Ended::Late) => return Err(lost(sent.err().unwrap_or(LinkError::Deadline))),
            }
            std::thread::sleep(POLL);
        };
        if answer.nonce != self.nonce {
            return Err(protocol(ProtocolFault::OtherJob));
        }
        match answer.kind {
            Kind::Complete => offers_in(&answer.payload, self.world).map_err(protocol),
            Kind::Failed => Err(Failure::decode(&answer.payload)
                .map_err(protocol)?
                .into_error(step, timeout)),
            _ => Err(protocol(ProtocolFault::Malformed)),
        }
    }
}

/// Tells who is at the other end of `links` why there is nothing more to come.
pub(super) fn announce<'a>(
    failure: &Failure,
    nonce: Nonce,
    links: impl Iterator<Item = &'a mut Link>,
) {
    let frame = Frame {
        kind: Kind::Failed,
        nonce,
        payload: failure.encode(),
    };
    tell(&frame, links);
}

fn tell<'a>(frame: &Frame, links: impl Iterator<Item = &'a mut Link>) {
    for link in links {
        // Who cannot be told is gone.
        let _ = link.send(frame, Instant::now() + Duration::from_millis(100));
    }
}

fn rank_of(link: usize) -> u32 {
    u32::try_from(link + 1).unwrap_or(u32::MAX)
}

/// Why a rank gives up, as it says.
fn told_by(rank: u32, frame: &Frame, nonce: &Nonce) -> Failure {
    let fault = match Failure::decode(&frame.payload) {
        _ if frame.nonce != *nonce => ProtocolFault::OtherJob,
        Ok(Heard::Told(told, text)) if told == rank => return Failure::Told { rank, text },
        Ok(_) => ProtocolFault::Malformed,
        Err(fault) => fault,
    };
    Failure::Protocol { rank, fault }
}

pub(super) fn offer_in(frame: &Frame, nonce: &Nonce, step: &str) -> Result<Vec<u8>, ProtocolFault> {
    if frame.nonce != *nonce {
        return Err(ProtocolFault::OtherJob);
    }
    if frame.kind != Kind::Offer {
        return Err(ProtocolFault::Malformed);
    }
    let mut reader = Reader(&frame.payload);
    let found = reader.string()?;
    if found != step.as_bytes() {
        return Err(ProtocolFault::WrongStep {
            found: printable(found),
        });
    }
    let offer = reader.string()?;
    if offer.len() > MAX_STEP_BYTES {
        return Err(ProtocolFault::TooLong {
            bytes: offer.len(),
            limit: MAX_STEP_BYTES,
        });
    }
    Ok(offer.to_vec())
}

pub(super) fn offers_in(payload: &[u8], world: u32) -> Result<Vec<Vec<u8>>, ProtocolFault> {
    let mut reader = Reader(payload);
    let offers = (0..world)
        .map(|_| reader.string().map(<[u8]>::to_vec))
        .collect::<Result<_, _>>()?;
    reader.end()?;
    Ok(offers)
}

impl Group for TcpGroup {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world(&self) -> u32 {
        self.world
    }

    fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    fn all_gather(&mut self, bytes: &[u8], mut wait: Wait) -> Result<Vec<Vec<u8>>, Error> {
        if self.rank != 0 {
            return self.offer(bytes, &mut wait);
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
        wait: &Wait,
    ) -> Result<Vec<Option<OwnedFd>>, Error> {
        let mailbox = Mailbox::open()?;
        // A key of its own, so that the nonce of the connections is not used for anything else.
        let mut offer = mailbox.name().to_vec();
        offer.extend_from_slice(&random_bytes()?);
        let offers = self.all_gather(&offer, wait.again(fds::STEP))?;
        let keys = offers
            .iter()
            .zip(0..)
            .map(|(offer, rank)| {
                let (name, key) = offer.split_first_chunk::<16>().unwrap_or((&[0; 16], &[]));
                <[u8; 16]>::try_from(key)
                    .map(|key| (*name, key))
                    .map_err(|_| Error::Protocol {
                        peer: Peer::Rank(rank),
                        step: fds::STEP,
                        source: ProtocolFault::Malformed,
                    })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut peers = self.nodes.neighbours(self.rank);
        peers.retain(|peer| *peer != self.rank);
        let delivered = peers.iter().try_for_each(|&peer| {
            let (name, key) = &keys[peer as usize];
            fds::deliver(fd, self.rank, key, peer, name)
        });
        // When all have delivered, nobody waits for a descriptor that does not come.
        agree(
            self,
            delivered.map(|()| ((), Vec::new())),
            wait.again("delivery of memory handles"),
        )??;
        let wait = wait.again(fds::STEP);
        mailbox.collect(&peers, self.world, &keys[self.rank as usize].1, wait)
    }

    fn lost(&mut self) -> Option<u32> {
        let was_lost = self.lost.is_some();
        for link in 0..self.links.len() {
            // What came early is for the next step; rank 0 says no more before that.
            let is_quiet = self.left[link] || self.rank != 0 && self.early[link].is_some();
            if is_quiet || self.lost.is_some() {
                continue;
            }
            let early = self.early[link].take();
            match self.next(link) {
                Ok(Some(frame)) if self.lost.is_none() => self.early[link] = Some(frame),
                Err(LinkError::Fault(_)) => self.lost = Some(self.rank_of(link)),
                _ => self.early[link] = early,
            }
        }
        // The others have it from rank 0.
        if let (Some(rank), false, 0) = (self.lost, was_lost, self.rank) {
            self.announce(&Failure::Lost { rank });
        }
        self.lost
    }

    fn tell_lost(&mut self, rank: u32) {
        if self.lost.is_none() {
            self.lost = Some(rank);
            self.announce(&Failure::Lost { rank });
        }
    }
}

impl Drop for TcpGroup {
    /// A thread that panics ends as a process that is killed.
    fn drop(&mut self) {
        if !std::thread::panicking() && self.owner.is_here() {
            let frame = self.frame(Kind::Goodbye, Vec::new());
            tell(&frame, self.links.iter_mut());
        }
    }
}
