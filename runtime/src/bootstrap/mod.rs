//! How ranks find each other and agree: bytes from every rank to every rank, and file descriptors within a host.
//!
//! Two ways: [`local`] for threads of one process, [`tcp`] for processes of one or several hosts. Every step has a
//! deadline, and an error names the rank that did not come. What a peer sends is checked before use.

mod failure;
pub(crate) mod fds;
pub(crate) mod files;
mod gather;
mod greeting;
mod join;
pub(crate) mod local;
mod meet;
mod nodes;
mod owner;
mod refusals;
mod secret;
mod strangers;
pub(crate) mod tcp;
#[cfg(test)]
mod tests;
mod wait;
mod wire;
pub(crate) mod wires;

pub(crate) use failure::printable;
pub(crate) use greeting::MAX_NAME_BYTES;
pub(crate) use meet::{Job, meet};
pub(crate) use nodes::Nodes;
pub(crate) use owner::Owner;
pub(crate) use secret::Secret;
pub(crate) use wait::{IsBusy, Stop, Wait};

use crate::error::{Error, with_causes};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The most that one rank may contribute to a step.
pub const MAX_OFFER_BYTES: usize = 64 << 10;

/// The longest contribution with the byte that says how the step came out on its rank.
const MAX_STEP_BYTES: usize = MAX_OFFER_BYTES + 1;

/// How long one poll of sockets sleeps. Steps of `prepare` take milliseconds, so this costs nothing.
const POLL: Duration = Duration::from_micros(200);

/// What was wrong with a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolFault {
    /// Something else listens or speaks there.
    #[error(
        "it does not speak mkernel's protocol; another program may use the port, set MKERNEL_PORT"
    )]
    NotMkernel,
    /// Another version of this crate.
    #[error(
        "it speaks version {found} of the protocol, this process {expected}; run the same build on every rank"
    )]
    Version {
        /// Of the message.
        found: u16,
        /// Of this crate.
        expected: u16,
    },
    /// A frame longer than any that is sent.
    #[error("a message of {bytes} bytes, at most {limit} are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A frame that ends too early, or holds impossible values.
    #[error("a malformed message")]
    Malformed,
    /// A frame of another job.
    #[error("it belongs to another job; set MKERNEL_PORT to a port of this job's own")]
    OtherJob,
    /// Another step than the one expected.
    #[error("it is at {found:?}; every rank must make the same calls in the same order")]
    WrongStep {
        /// Where the peer is.
        found: String,
    },
    /// Another world size.
    #[error("it was started with WORLD_SIZE {found}, rank 0 with {expected}")]
    World {
        /// The peer's.
        found: u32,
        /// Rank 0's.
        expected: u32,
    },
    /// A rank outside of the world, or rank 0 again.
    #[error("it calls itself rank {rank} of {world}")]
    Rank {
        /// What it says.
        rank: u32,
        /// The world.
        world: u32,
    },
    /// Two processes with one rank.
    #[error("rank {rank} is there already; is another job using this port?")]
    DuplicateRank {
        /// The rank.
        rank: u32,
    },
    /// Rank 0 does not take this process.
    #[error("it refused this rank: {reason}")]
    Refused {
        /// Its words.
        reason: String,
    },
    /// Rank 0 has a secret, this process none.
    #[error("it asks for a secret; set MKERNEL_SECRET to the same on all ranks")]
    SecretMissing,
    /// This process has a secret, rank 0 none.
    #[error("it has no secret, this process has one; set MKERNEL_SECRET to the same on all ranks")]
    NoSecret,
    /// A proof that is none.
    #[error("it does not know this job's secret; set MKERNEL_SECRET to the same on all ranks")]
    WrongSecret,
    /// The other end of a local socket belongs to another user.
    #[error("it runs as user {found}, this process as user {expected}")]
    User {
        /// The peer's.
        found: u32,
        /// This process's.
        expected: u32,
    },
}

/// One rank's end of a way to reach the others.
pub(crate) trait Group: Send {
    /// This rank.
    fn rank(&self) -> u32;

    /// How many ranks there are.
    fn world(&self) -> u32;

    /// Which ranks share a host.
    fn nodes(&self) -> &Nodes;

    /// Gives `bytes` to all ranks; returns what each gave, by rank. Returns on no rank before all have come.
    fn all_gather(&mut self, bytes: &[u8], wait: Wait) -> Result<Vec<Vec<u8>>, Error>;

    /// Gives a duplicate of `fd` to all other ranks of the node; returns theirs by rank, `None` in the own place and in
    /// those of other nodes. All ranks of all nodes come here.
    fn exchange_fds(
        &mut self,
        fd: BorrowedFd<'_>,
        wait: &Wait,
    ) -> Result<Vec<Option<OwnedFd>>, Error>;

    /// A rank that is lost: gone without a goodbye, or so others told. Does not wait.
    fn lost(&mut self) -> Option<u32>;

    /// Lets all ranks know that one is lost, unless this one has heard so of another.
    fn tell_lost(&mut self, rank: u32);
}

/// A [`Group`] that fails at once after its first failure: ranks may be at different steps then.
pub(crate) struct Collective {
    group: Box<dyn Group>,
    broken: Option<Arc<Error>>,
    stop: Stop,
    is_busy: Option<IsBusy>,
}

impl Collective {
    pub fn new(group: impl Group + 'static) -> Self {
        Self {
            group: Box::new(group),
            broken: None,
            stop: Stop::default(),
            is_busy: None,
        }
    }

    /// Ends the waits of the call of the program that is under way, from any thread.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// A call of the program begins, which earlier stops do not concern.
    pub fn begin(&mut self) {
        self.stop.renew();
    }

    /// Lets deadlines of steps stand still while `is_busy` says so.
    pub fn pause_while(&mut self, is_busy: IsBusy) {
        self.is_busy = Some(is_busy);
    }

    /// A wait of this rank in `step`.
    pub fn wait(&self, step: &'static str, timeout: Duration) -> Wait {
        Wait::new(step, timeout).with(self.stop.clone(), self.is_busy.clone())
    }

    pub fn rank(&self) -> u32 {
        self.group.rank()
    }

    pub fn world(&self) -> u32 {
        self.group.world()
    }

    /// See [`Group::nodes`].
    pub fn nodes(&self) -> &Nodes {
        self.group.nodes()
    }

    /// Gives `bytes`, at most [`MAX_OFFER_BYTES`], to all ranks; returns what each gave, by rank.
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

    /// Returns when every rank has come.
    pub fn barrier(&mut self, step: &'static str, timeout: Duration) -> Result<(), Error> {
        self.all_gather(step, &[], timeout).map(drop)
    }

    /// See [`Group::lost`].
    pub fn lost(&mut self) -> Option<u32> {
        self.group.lost()
    }

    /// See [`Group::tell_lost`].
    pub fn tell_lost(&mut self, rank: u32) {
        self.group.tell_lost(rank);
    }

    /// Tells every rank how `result` came out: a failure of any rank is an error on all, at once.
    /// On success, returns also the bytes that came with each rank's result.
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

const OK: u8 = 0;
const FAILED: u8 = 1;

/// The own value, and the bytes that came with every rank's.
pub(crate) type Agreed<T> = Result<(T, Vec<Vec<u8>>), Error>;

/// See [`Collective::agree`]. The outer error is one of the group, which then is of no more use.
fn agree<T>(
    group: &mut dyn Group,
    result: Result<(T, Vec<u8>), Error>,
    wait: Wait,
) -> Result<Agreed<T>, Error> {
    let step = wait.step;
    let result = result.and_then(|(value, payload)| match payload.len() {
        ..=MAX_OFFER_BYTES => Ok((value, payload)),
        bytes => Err(Error::OfferTooLong {
            step,
            bytes,
            limit: MAX_OFFER_BYTES,
        }),
    });
    let offer = match &result {
        Ok((_, payload)) => [&[OK], payload.as_slice()].concat(),
        Err(error) => {
            let mut text = with_causes(error);
            text.truncate(text.floor_char_boundary(MAX_OFFER_BYTES));
            [&[FAILED], text.as_bytes()].concat()
        }
    };
    let offers = group.all_gather(&offer, wait);
    // The own failure says more than how the others took it.
    let (value, offers) = match (result, offers) {
        (Ok((value, _)), Ok(offers)) => (value, offers),
        (Ok(_), Err(error)) | (Err(error), Err(_)) => return Err(error),
        (Err(error), Ok(_)) => return Ok(Err(error)),
    };
    let mut failures = Vec::new();
    let mut payloads = Vec::with_capacity(offers.len());
    for (rank, offer) in (0..).zip(offers) {
        match offer.split_first() {
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
