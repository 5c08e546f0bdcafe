//! [`Job`]: the job of a process, before it is connected to the other ranks.

use super::secret::Secret;
use crate::bootstrap::group::Network;
use crate::bootstrap::wait::Stop;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

pub(crate) const STEP: &str = "rendezvous";

/// The time that a connection may take for the handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// A job from the view of one of its processes.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub rank: u32,
    pub world: u32,
    /// The host name or address of rank 0.
    pub host: String,
    pub port: u16,
    /// The launcher's name for the job. Ranks of jobs with different names refuse each other.
    pub name: String,
    /// Whether ranks on other hosts must be able to reach rank 0.
    pub several_hosts: bool,
    /// The id of the host. All processes of a host have one id, and every host has a different id.
    pub host_id: String,
    /// The secret of the job, if it has one.
    pub secret: Option<Secret>,
    pub timeout: Duration,
    /// The time within which the loss of a host must be detected.
    pub silence: Duration,
    /// Ends the waits of this rank.
    pub stop: Stop,
}

impl Job {
    /// Returns the means by which this rank connects to groups. `addresses` are the addresses of this rank's ends of
    /// connections, and `nonce` is the nonce of the job.
    pub fn network(&self, addresses: impl Iterator<Item = IpAddr>, nonce: &[u8]) -> Network {
        // Other hosts reach this one at any address except those of the loopback interface.
        let address = addresses.min_by_key(IpAddr::is_loopback);
        let secret = self.secret.as_ref();
        Network {
            address: address.unwrap_or(Ipv4Addr::LOCALHOST.into()),
            silence: self.silence,
            key: secret.map_or_else(Vec::new, |secret| secret.key_of_groups(nonce).to_vec()),
        }
    }

    /// Returns the host and the port of rank 0 for messages.
    pub fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}
