//! Rank 0's side of the rendezvous: it listens until every rank has presented itself, then welcomes all.
//!
//! Anyone can connect. A stranger costs a bounded amount of memory for a bounded time, and none waits for another.

use super::failure::Failure;
use super::fds::random_bytes;
use super::files::{is_exhausted, os};
use super::greeting::{Challenge, Conversation, Hello};
use super::meet::{HELLO, Job, STEP};
use super::nodes::Nodes;
use super::refusals::Refusals;
use super::strangers::{MOST, Stranger, Strangers};
use super::tcp::{TcpGroup, announce};
use super::wire::{Frame, Kind, Link, LinkError, Nonce, RANK_BYTES};
use super::{POLL, ProtocolFault};
use crate::error::Error;
use std::net::{IpAddr, TcpListener};
use std::time::{Duration, Instant};

/// Waits for all ranks.
pub(super) fn gather(job: &Job, listener: &TcpListener) -> Result<TcpGroup, Error> {
    let deadline = Instant::now() + job.timeout;
    let mut door = Door {
        job,
        own: Hello::new(job)?,
        strangers: Strangers::default(),
        refusals: Refusals::default(),
        guests: (1..job.world).map(|_| None).collect(),
    };
    while !door.missing().is_empty() {
        if Instant::now() >= deadline {
            let (ranks, refused) = (door.missing(), door.refusals.texts());
            return Err(door.give_up(Failure::Missing { ranks, refused }));
        }
        if let Err(error) = door.accept(listener) {
            return Err(door.give_up(Failure::Own { rank: 0, error }));
        }
        door.attend();
        std::thread::sleep(POLL);
    }
    door.welcome(deadline + HELLO)
}

/// A rank that waits for the others.
struct Guest {
    link: Link,
    host: Vec<u8>,
    conversation: Conversation,
}

struct Door<'a> {
    job: &'a Job,
    own: Hello,
    strangers: Strangers,
    refusals: Refusals,
    /// By rank, from rank 1 on.
    guests: Vec<Option<Guest>>,
}

impl Door<'_> {
    fn missing(&self) -> Vec<u32> {
        let guests = (1..).zip(&self.guests);
        guests
            .filter(|(_, guest)| guest.is_none())
            .map(|(rank, _)| rank)
            .collect()
    }

    fn accept(&mut self, listener: &TcpListener) -> Result<(), Error> {
        // No more at once, so that those who are here are attended to.
        for _ in 0..MOST {
            let (stream, from) = match listener.accept() {
                Ok(accepted) => accepted,
                // Strangers must not be able to use up this process's files.
                Err(error) if is_exhausted(&error) && self.strangers.drop_one() => continue,
                Err(error) if is_exhausted(&error) => {
                    return Err(os("accepting a rank's connection")(error));
                }
                // Nobody is there, or is no more.
                Err(_) => return Ok(()),
            };
            let Ok(link) = Link::new(stream, self.job.silence) else {
                continue;
            };
            self.strangers.push(Stranger {
                link,
                from: from.ip(),
                since: Instant::now(),
                hello: None,
            });
        }
        Ok(())
    }

    /// Hears everyone once.
    fn attend(&mut self) {
        for stranger in self.strangers.take() {
            self.hear(stranger);
        }
        for (rank, place) in (1..).zip(&mut self.guests) {
            let Some(guest) = place else { continue };
            // A guest has nothing to say before it is welcomed.
            if !matches!(guest.link.poll(), Ok(None)) {
                tracing::warn!(rank, "a rank left before all had met; it may come again");
                *place = None;
            }
        }
    }

    fn hear(&mut self, mut stranger: Stranger) {
        let frame = match stranger.link.poll() {
            Ok(Some(frame)) => frame,
            Ok(None) if stranger.since.elapsed() < HELLO => {
                self.strangers.push(stranger);
                return;
            }
            Err(LinkError::Fault(fault)) => {
                return self.refuse((stranger.link, stranger.from, fault));
            }
            Err(_) if stranger.hello.is_some() => {
                return self.refusals.add(stranger.from, HUNG_UP);
            }
            Ok(None) | Err(_) => return,
        };
        let heard = match stranger.hello.take() {
            None => self.greet(stranger, &frame),
            Some((hello, conversation)) => self.let_in(stranger, hello, conversation, &frame),
        };
        if let Err(refused) = heard {
            self.refuse(refused);
        }
    }

    /// Not an error of this rank, for anyone can connect. The rank that was meant to come will be missing.
    fn refuse(&mut self, (mut link, from, fault): Refused) {
        let reason = fault.to_string();
        self.refusals.add(from, &reason);
        let frame = Frame {
            kind: Kind::Refused,
            nonce: Nonce::default(),
            payload: reason.into_bytes(),
        };
        let _ = link.send(&frame, soon());
    }

    /// Asks somebody who says that it is a rank for a proof.
    fn greet(&mut self, mut stranger: Stranger, frame: &Frame) -> Result<(), Refused> {
        let hello = match Hello::check(frame, &self.own) {
            Ok(hello) => hello,
            Err(fault) => return Err((stranger.link, stranger.from, fault)),
        };
        // Without a random number, or a connection, it is as if it had not come.
        let Ok(challenge) = Challenge::new(self.job) else {
            return Ok(());
        };
        if stranger.link.send(&challenge.frame(), soon()).is_ok() {
            let conversation = Conversation::new(&hello, &challenge);
            stranger.hello = Some((hello, conversation));
            self.strangers.push(stranger);
        }
        Ok(())
    }

    /// Makes somebody who proves that it is a rank a guest.
    fn let_in(
        &mut self,
        stranger: Stranger,
        hello: Hello,
        conversation: Conversation,
        frame: &Frame,
    ) -> Result<(), Refused> {
        let (link, from) = (stranger.link, stranger.from);
        if let Err(fault) = conversation.check_proof(frame, self.job) {
            return Err((link, from, fault));
        }
        let rank = hello.rank;
        // Checked with the hello: from 1 to the last rank.
        let place = &mut self.guests[rank as usize - 1];
        if place.is_some() {
            return Err((link, from, ProtocolFault::DuplicateRank { rank }));
        }
        *place = Some(Guest {
            link,
            host: hello.host,
            conversation,
        });
        Ok(())
    }

    fn welcome(mut self, deadline: Instant) -> Result<TcpGroup, Error> {
        let nonce = random_bytes()?;
        let hosts: Vec<&[u8]> = std::iter::once(&self.own.host)
            .chain(self.guests.iter().flatten().map(|guest| &guest.host))
            .map(Vec::as_slice)
            .collect();
        let nodes = Nodes::from_hosts(&hosts);
        let mut left = None;
        for (rank, guest) in (1..).zip(self.guests.iter_mut().flatten()) {
            let welcome = guest.conversation.welcome(self.job, nonce, &nodes);
            if guest.link.send(&welcome, deadline).is_err() {
                left.get_or_insert(rank);
            }
        }
        if let Some(rank) = left {
            return Err(self.give_up(Failure::Left { rank }));
        }
        let links = self.guests.into_iter().flatten().map(|mut guest| {
            guest.link.allow(RANK_BYTES);
            guest.link
        });
        Ok(TcpGroup::new(self.job.rank, nodes, nonce, links.collect()))
    }

    /// Tells all guests.
    fn give_up(&mut self, failure: Failure) -> Error {
        let links = self
            .guests
            .iter_mut()
            .flatten()
            .map(|guest| &mut guest.link);
        announce(&failure, Nonce::default(), links);
        failure.into_error(STEP, self.job.timeout)
    }
}

type Refused = (Link, IpAddr, ProtocolFault);

/// What a rank does that has a secret where this one has none, or the other way round.
const HUNG_UP: &str =
    "it hung up when it was asked for a proof; set MKERNEL_SECRET to the same on all ranks";

/// What is sent to strangers is so short that a new socket's buffer holds it.
fn soon() -> Instant {
    Instant::now() + Duration::from_millis(100)
}
