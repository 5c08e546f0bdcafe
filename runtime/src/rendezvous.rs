//! [`Rendezvous`]: the values with which a process joins a job without a launcher.

use crate::bootstrap::Secret;
use crate::env::launcher::{LaunchedRank, MAX_WORLD};
use crate::env::rendezvous_point::{RendezvousPoint, host_of, is_loopback};
use crate::error::{Error, RendezvousError};
use std::fmt;

/// The values with which a process joins a job, in programs that start their ranks without a launcher.
///
/// [`Communicator::connect`](crate::Communicator::connect) takes a rendezvous.
/// [`Communicator::from_env`](crate::Communicator::from_env) reads the same values from the variables of a launcher.
/// Errors of both name `MASTER_ADDR` for [`host`](Self::host), and `MASTER_PORT` for [`port`](Self::port).
#[derive(Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// The rank of this process.
    pub rank: u32,
    /// The number of ranks, 1 to 4096.
    pub world: u32,
    /// The number of this process among the processes of its host, which is also the ordinal of its GPU. The default is the
    /// place of the rank among the ranks of its host.
    pub local_rank: Option<u32>,
    /// The host name or IP address of rank 0. A job of one rank does not use it.
    pub host: String,
    /// The port at which rank 0 listens until all ranks are connected.
    pub port: u16,
    /// A secret of all ranks, 16 random bytes or more, by which the ends of each connection prove to each other that they belong to
    /// the job. Without a secret, any process that reaches the port can join as a rank.
    pub secret: Option<Vec<u8>>,
}

impl Rendezvous {
    /// A rendezvous without a secret, in which the place of a rank on its host decides on its GPU.
    #[must_use]
    pub fn new(rank: u32, world: u32, host: impl Into<String>, port: u16) -> Self {
        Self {
            rank,
            world,
            local_rank: None,
            host: host.into(),
            port,
            secret: None,
        }
    }

    /// Returns the rank as a launcher would have set it, and the secret.
    pub(crate) fn check(&self) -> Result<(LaunchedRank, Option<Secret>), Error> {
        let mut mistakes = Vec::new();
        if !(1..=MAX_WORLD).contains(&self.world) {
            mistakes.push(format!("world: {} is not in 1..={MAX_WORLD}", self.world));
        } else if self.rank >= self.world {
            mistakes.push(format!(
                "rank: {} is not less than the number of ranks, {}",
                self.rank, self.world
            ));
        }
        let secret = self
            .secret
            .as_ref()
            .map(|bytes| (Secret::new(bytes), bytes.len()));
        if let Some((None, length)) = secret {
            mistakes.push(format!(
                "secret: {length} bytes are too few. Use 16 random bytes or more"
            ));
        }
        let host = host_of(&self.host);
        if self.world > 1 {
            if self.port == 0 {
                mistakes.push("port: 0 is not a port. Use 1 to 65535".into());
            }
            if let Err(expected) = host {
                mistakes.push(format!("host: {:?} is not {expected}", self.host));
            }
        }
        let (true, host) = (mistakes.is_empty(), host.unwrap_or_default()) else {
            return Err(Error::Rendezvous(RendezvousError::Invalid { mistakes }));
        };
        let launched = LaunchedRank {
            rank: self.rank,
            world: self.world,
            local_rank: self.local_rank,
            rendezvous: (self.world > 1).then(|| RendezvousPoint {
                several_hosts: !is_loopback(&host),
                host,
                port: self.port,
                job: String::new(),
            }),
        };
        Ok((launched, secret.and_then(|(secret, _)| secret)))
    }
}

/// The secret is not shown.
impl fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rendezvous")
            .field("rank", &self.rank)
            .field("world", &self.world)
            .field("local_rank", &self.local_rank)
            .field("host", &self.host)
            .field("port", &self.port)
            .field("has_secret", &self.secret.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(rendezvous: &Rendezvous) -> Vec<String> {
        match rendezvous.check() {
            Err(Error::Rendezvous(RendezvousError::Invalid { mistakes })) => mistakes,
            other => panic!("{:?}", other.map(|_| "no mistake")),
        }
    }

    #[test]
    fn all_mistakes_are_named_at_once() {
        let wrong = Rendezvous {
            secret: Some(b"short".to_vec()),
            ..Rendezvous::new(4, 4, "10.0.0.1:29500", 0)
        };
        let found = mistakes(&wrong);
        let fields: Vec<_> = found.iter().filter_map(|m| m.split(':').next()).collect();
        assert_eq!(fields, ["rank", "secret", "port", "host"]);
        assert!(!format!("{found:?} {wrong:?}").contains("short"));
        assert_eq!(
            mistakes(&Rendezvous::new(0, 0, "node1", 1)),
            ["world: 0 is not in 1..=4096"]
        );
    }

    #[test]
    fn one_rank_needs_no_address() {
        let (launched, secret) = Rendezvous::new(0, 1, "", 0).check().expect("one rank");
        assert_eq!((launched.rendezvous, secret.is_some()), (None, false));
    }

    #[test]
    fn ranks_of_other_hosts_may_come_unless_the_address_is_of_this_host_alone() {
        for (host, several_hosts) in [
            ("127.0.0.1", false),
            ("localhost", false),
            ("::1", false),
            ("node1", true),
            ("[fd00::1]", true),
        ] {
            let (launched, _) = Rendezvous::new(1, 2, host, 7000).check().expect("valid");
            let point = launched.rendezvous.expect("two ranks");
            assert_eq!(point.several_hosts, several_hosts, "{host}");
            assert!(!point.host.contains('['));
        }
    }
}
