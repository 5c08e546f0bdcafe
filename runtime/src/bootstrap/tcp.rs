//! Ranks that are processes of one host: all connect to rank 0, which completes every step.

use super::fds::{self, Mailbox, random_bytes};
use super::wire::{Frame, Kind, Link, LinkError, Nonce, Reader, put_string};
use super::{Group, MAX_OFFER_BYTES, POLL, ProtocolFault, agree};
use crate::error::{Error, Peer};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

pub(crate) use super::meet::{Job, meet};

/// Rank 0 reports missing ranks at the deadline; the others give it this long to say so.
const GRACE: Duration = Duration::from_secs(2);

/// One process's end.
pub(crate) struct TcpGroup {
    rank: u32,
    world: u32,
    nonce: Nonce,
    /// On rank 0 the links to ranks 1, 2, …; elsewhere the link to rank 0.
    links: Vec<Link>,
}

impl TcpGroup {
    pub(super) fn new(rank: u32, world: u32, nonce: Nonce, links: Vec<Link>) -> Self {
        Self {
            rank,
            world,
            nonce,
            links,
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
    fn complete(
        &mut self,
        step: &'static str,
        own: &[u8],
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        let deadline = Instant::now() + timeout;
        let mut offers: Vec<Option<Vec<u8>>> = vec![None; self.links.len()];
        loop {
            for (i, link) in self
                .links
                .iter_mut()
                .enumerate()
                .filter(|(i, _)| offers[*i].is_none())
                .collect::<Vec<_>>()
            {
                let rank = rank_of(i);
                match link.poll() {
                    Ok(None) => {}
                    Ok(Some(frame)) => {
                        let offer = offer_in(&frame, &self.nonce, step);
                        offers[i] = Some(offer.map_err(|fault| Failure::Protocol { rank, fault })?);
                    }
                    Err(LinkError::Fault(fault)) => return Err(Failure::Protocol { rank, fault }),
                    Err(_) => return Err(Failure::Left { rank }),
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
            if Instant::now() >= deadline {
                return Err(Failure::Missing { ranks: missing });
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
            link.send(&frame, deadline + GRACE)
                .map_err(|_| Failure::Left { rank: rank_of(i) })?;
        }
        Ok(all)
    }

    /// Rank 0: tells the living, so that none waits for its own deadline.
    fn announce(&mut self, failure: &Failure) {
        let frame = self.frame(Kind::Failed, failure.encode());
        for link in &mut self.links {
            // Who cannot be told is gone.
            let _ = link.send(&frame, Instant::now() + Duration::from_millis(100));
        }
    }

    /// Other ranks: offers, then waits for rank 0.
    fn offer(
        &mut self,
        step: &'static str,
        own: &[u8],
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let protocol = |source| Error::Protocol {
            peer: Peer::Rank(0),
            step,
            source,
        };
        let lost = |error| match error {
            LinkError::Fault(fault) => protocol(fault),
            LinkError::Closed => Error::RankLeft { rank: 0, step },
            LinkError::Deadline => Error::RanksMissing {
                step,
                ranks: vec![0],
                waited: timeout,
            },
        };
        let deadline = Instant::now() + timeout + GRACE;
        let mut payload = Vec::new();
        put_string(&mut payload, step.as_bytes());
        put_string(&mut payload, own);
        let frame = self.frame(Kind::Offer, payload);
        let sent = self.links[0].send(&frame, deadline);
        let answer = loop {
            // Rank 0 may have said why it left before the connection broke, so it is heard first.
            match self.links[0].poll() {
                Ok(Some(frame)) => break frame,
                Ok(None) => {}
                Err(error) => return Err(lost(error)),
            }
            if Instant::now() >= deadline {
                return Err(lost(sent.err().unwrap_or(LinkError::Deadline)));
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

fn rank_of(link: usize) -> u32 {
    u32::try_from(link + 1).unwrap_or(u32::MAX)
}

fn offer_in(frame: &Frame, nonce: &Nonce, step: &str) -> Result<Vec<u8>, ProtocolFault> {
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
    if offer.len() > MAX_OFFER_BYTES {
        return Err(ProtocolFault::TooLong {
            bytes: offer.len(),
            limit: MAX_OFFER_BYTES,
        });
    }
    Ok(offer.to_vec())
}

fn offers_in(payload: &[u8], world: u32) -> Result<Vec<Vec<u8>>, ProtocolFault> {
    let mut reader = Reader(payload);
    let offers = (0..world)
        .map(|_| reader.string().map(<[u8]>::to_vec))
        .collect::<Result<_, _>>()?;
    if reader.0.is_empty() {
        Ok(offers)
    } else {
        Err(ProtocolFault::Malformed)
    }
}

/// Text of another process, short and without control characters.
pub(super) fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .filter(|c| !c.is_control())
        .take(500)
        .collect()
}

/// Why rank 0 cannot complete a step.
#[derive(Debug)]
enum Failure {
    Missing { ranks: Vec<u32> },
    Left { rank: u32 },
    Protocol { rank: u32, fault: ProtocolFault },
}

/// [`Failure`] as the other ranks hear of it.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Missing(Vec<u32>),
    Left(u32),
    Told(u32, String),
}

impl Failure {
    fn encode(&self) -> Vec<u8> {
        let (code, ranks, text) = match self {
            Self::Missing { ranks } => (1, ranks.clone(), String::new()),
            Self::Left { rank } => (2, vec![*rank], String::new()),
            Self::Protocol { rank, fault } => (3, vec![*rank], fault.to_string()),
        };
        let mut bytes = vec![code, u8::try_from(ranks.len()).unwrap_or(u8::MAX)];
        ranks
            .iter()
            .for_each(|rank| bytes.extend_from_slice(&rank.to_le_bytes()));
        put_string(&mut bytes, text.as_bytes());
        bytes
    }

    fn decode(payload: &[u8]) -> Result<Heard, ProtocolFault> {
        let mut reader = Reader(payload);
        let code = reader.u8()?;
        let count = reader.u8()?;
        let ranks = (0..count)
            .map(|_| reader.u32())
            .collect::<Result<Vec<_>, _>>()?;
        let text = printable(reader.string()?);
        match (code, ranks.as_slice()) {
            (1, [_, ..]) => Ok(Heard::Missing(ranks)),
            (2, [rank]) => Ok(Heard::Left(*rank)),
            (3, [rank]) => Ok(Heard::Told(*rank, text)),
            _ => Err(ProtocolFault::Malformed),
        }
    }

    fn into_error(self, step: &'static str, waited: Duration) -> Error {
        match self {
            Self::Missing { ranks } => Error::RanksMissing {
                step,
                ranks,
                waited,
            },
            Self::Left { rank } => Error::RankLeft { rank, step },
            Self::Protocol { rank, fault } => Error::Protocol {
                peer: Peer::Rank(rank),
                step,
                source: fault,
            },
        }
    }
}

impl Heard {
    fn into_error(self, step: &'static str, waited: Duration) -> Error {
        match self {
            Self::Missing(ranks) => Error::RanksMissing {
                step,
                ranks,
                waited,
            },
            Self::Left(rank) => Error::RankLeft { rank, step },
            Self::Told(rank, text) => Error::RanksFailed {
                step,
                failures: vec![(rank, text)],
            },
        }
    }
}

impl Group for TcpGroup {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world(&self) -> u32 {
        self.world
    }

    fn all_gather(
        &mut self,
        step: &'static str,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>, Error> {
        if self.rank != 0 {
            return self.offer(step, bytes, timeout);
        }
        self.complete(step, bytes, timeout).map_err(|failure| {
            self.announce(&failure);
            failure.into_error(step, timeout)
        })
    }

    fn exchange_fds(
        &mut self,
        fd: BorrowedFd<'_>,
        timeout: Duration,
    ) -> Result<Vec<Option<OwnedFd>>, Error> {
        let mailbox = Mailbox::open()?;
        // A key of its own, so that the nonce of the connections is not used for anything else.
        let mut offer = mailbox.name().to_vec();
        offer.extend_from_slice(&random_bytes()?);
        let offers = self.all_gather(fds::STEP, &offer, timeout)?;
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
        let mut others = (0..).zip(&keys).filter(|(peer, _)| *peer != self.rank);
        let delivered =
            others.try_for_each(|(peer, (name, key))| fds::deliver(fd, self.rank, key, peer, name));
        // When all have delivered, nobody waits for a descriptor that does not come.
        agree(
            self,
            "delivery of memory handles",
            delivered.map(|()| ((), Vec::new())),
            timeout,
        )??;
        let peers: Vec<u32> = (0..self.world).filter(|rank| *rank != self.rank).collect();
        mailbox.collect(&peers, self.world, &keys[self.rank as usize].1, timeout)
    }
}

#[cfg(test)]
#[path = "tcp_tests.rs"]
mod tests;
