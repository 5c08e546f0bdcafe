//! How ranks find each other and agree: bytes from every rank to every rank, and file descriptors.
//!
//! Two ways: [`local`] for threads of one process, [`tcp`] for processes of one host. Every step has a
//! deadline, and an error names the rank that did not come. What a peer sends is checked before use.

pub(crate) mod fds;
pub(crate) mod local;
mod meet;
pub(crate) mod tcp;
mod wire;
pub(crate) mod wires;

use crate::error::{Error, with_causes};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The most that one rank may contribute to a step.
pub const MAX_OFFER_BYTES: usize = 64 << 10;

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

    /// Gives `bytes` to all ranks; returns what each gave, by rank. Returns on no rank before all have come.
    fn all_gather(
        &mut self,
        step: &'static str,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>, Error>;

    /// Gives a duplicate of `fd` to all other ranks; returns theirs by rank, `None` in the own place.
    fn exchange_fds(
        &mut self,
        fd: BorrowedFd<'_>,
        timeout: Duration,
    ) -> Result<Vec<Option<OwnedFd>>, Error>;
}

/// A [`Group`] that fails at once after its first failure: ranks may be at different steps then.
pub(crate) struct Collective {
    group: Box<dyn Group>,
    broken: Option<Arc<Error>>,
}

impl Collective {
    pub fn new(group: impl Group + 'static) -> Self {
        Self {
            group: Box::new(group),
            broken: None,
        }
    }

    pub fn rank(&self) -> u32 {
        self.group.rank()
    }

    pub fn world(&self) -> u32 {
        self.group.world()
    }

    /// See [`Group::all_gather`].
    pub fn all_gather(
        &mut self,
        step: &'static str,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>, Error> {
        if bytes.len() > MAX_OFFER_BYTES {
            let source = ProtocolFault::TooLong {
                bytes: bytes.len(),
                limit: MAX_OFFER_BYTES,
            };
            return Err(Error::Protocol {
                peer: crate::error::Peer::Rank(self.rank()),
                step,
                source,
            });
        }
        self.run(|group| group.all_gather(step, bytes, timeout))
    }

    /// See [`Group::exchange_fds`].
    pub fn exchange_fds(
        &mut self,
        fd: BorrowedFd<'_>,
        timeout: Duration,
    ) -> Result<Vec<Option<OwnedFd>>, Error> {
        self.run(|group| group.exchange_fds(fd, timeout))
    }

    /// Returns when every rank has come.
    pub fn barrier(&mut self, step: &'static str, timeout: Duration) -> Result<(), Error> {
        self.all_gather(step, &[], timeout).map(drop)
    }

    /// Tells every rank how `result` came out: a failure of any rank is an error on all, at once.
    /// On success, returns also the bytes that came with each rank's result.
    pub fn agree<T>(
        &mut self,
        step: &'static str,
        result: Result<(T, Vec<u8>), Error>,
        timeout: Duration,
    ) -> Agreed<T> {
        self.run(|group| agree(group, step, result, timeout))?
    }

    fn run<T>(
        &mut self,
        step: impl FnOnce(&mut dyn Group) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(cause) = &self.broken {
            return Err(Error::Aborted {
                cause: Some(cause.clone()),
            });
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
    step: &'static str,
    result: Result<(T, Vec<u8>), Error>,
    timeout: Duration,
) -> Result<Agreed<T>, Error> {
    let mut offer = match &result {
        Ok((_, bytes)) => [&[OK], bytes.as_slice()].concat(),
        Err(error) => [&[FAILED], with_causes(error).as_bytes()].concat(),
    };
    offer.truncate(MAX_OFFER_BYTES);
    let offers = group.all_gather(step, &offer, timeout);
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

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// Runs `body` on `world` threads, one per rank; returns what each returned, by rank.
    fn on_ranks<T: Send>(world: u32, body: impl Fn(Collective) -> T + Sync) -> Vec<T> {
        let groups = local::groups(world);
        std::thread::scope(|scope| {
            let body = &body;
            let threads: Vec<_> = groups
                .into_iter()
                .map(|group| scope.spawn(move || body(Collective::new(group))))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic on a rank"))
                .collect()
        })
    }

    #[test]
    fn agree_brings_payloads_of_all_ranks() {
        let results = on_ranks(8, |mut ranks| {
            let mine = vec![ranks.rank() as u8; 3];
            ranks.agree("plan", Ok(("value", mine)), TIMEOUT)
        });
        for result in results {
            let (value, payloads) = result.expect("all ranks agree");
            assert_eq!(value, "value");
            assert_eq!(
                payloads,
                (0..8).map(|rank| vec![rank; 3]).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn a_failure_of_one_rank_reaches_all_and_the_group_goes_on() {
        let results = on_ranks(4, |mut ranks| {
            let mine = if ranks.rank() == 2 {
                Err(Error::World(3))
            } else {
                Ok(((), Vec::new()))
            };
            let first = ranks.agree("plan", mine, TIMEOUT);
            let second = ranks.barrier("again", TIMEOUT);
            (first, second)
        });
        for (rank, (first, second)) in results.into_iter().enumerate() {
            match first.expect_err("rank 2 failed") {
                Error::World(3) => assert_eq!(rank, 2),
                Error::RanksFailed { step, failures } => {
                    assert_eq!(step, "plan");
                    assert_eq!(failures, [(2, Error::World(3).to_string())]);
                }
                other => panic!("{other}"),
            }
            second.expect("the ranks are still in step");
        }
    }

    #[test]
    fn after_a_missing_rank_every_later_step_fails_at_once() {
        let results = on_ranks(2, |mut ranks| {
            if ranks.rank() == 1 {
                std::thread::sleep(Duration::from_millis(300));
                return ranks.barrier("late", TIMEOUT);
            }
            let error = ranks
                .barrier("late", Duration::from_millis(50))
                .expect_err("rank 1 sleeps");
            assert!(
                matches!(&error, Error::RanksMissing { ranks, .. } if *ranks == [1]),
                "{error}"
            );
            let started = std::time::Instant::now();
            let error = ranks.barrier("next", TIMEOUT).expect_err("out of step");
            assert!(
                matches!(error, Error::Aborted { cause: Some(_) }),
                "{error}"
            );
            assert!(started.elapsed() < Duration::from_secs(1));
            Ok(())
        });
        assert!(
            matches!(results[1], Err(Error::RanksMissing { .. })),
            "the late rank learns of it"
        );
    }

    #[test]
    fn too_much_is_refused_before_anything_is_sent() {
        let mut alone = Collective::new(local::groups(1).remove(0));
        let error = alone
            .all_gather("big", &vec![0; MAX_OFFER_BYTES + 1], TIMEOUT)
            .expect_err("too long");
        assert!(
            matches!(
                error,
                Error::Protocol {
                    source: ProtocolFault::TooLong { .. },
                    ..
                }
            ),
            "{error}"
        );
        alone
            .barrier("small", TIMEOUT)
            .expect("the group still works");
    }
}
