//! [`Job`]: the job of a process, before it is connected to the other ranks.

use super::secret::Secret;
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
}

impl Job {
    /// Returns the host and the port of rank 0 for messages.
    pub fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}
