//! What a user may choose.

use super::connect_info::{MAX_QUEUE_PAIRS, MAX_RAILS};
use crate::error::FabricError;
use std::time::Duration;

/// The most work requests of a queue that can be asked for; NICs have 2^12 to 2^15.
const MAX_DEPTH: u32 = 1 << 15;

/// Which NICs a transport uses, and how. [`Options::new`] has defaults for all but the number of peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many peers there are.
    pub peers: u16,
    /// Names of NICs, as in `ibv_devices`; all carry writes, rail i to the peers' rail i. None: the first that fits.
    pub devices: Vec<String>,
    /// A port of each NIC, from 1. None: the first that is active.
    pub port: Option<u8>,
    /// An index in the port's table of GIDs. None: on Ethernet one of RoCE v2 and of the farthest reach, else the first.
    pub gid_index: Option<u8>,
    /// InfiniBand's service level or the priority of Ethernet, 0 to 15. RC only.
    pub service_level: u8,
    /// DSCP and ECN of IP packets of RoCE v2: the network's administrator knows which make it lossless. RC only.
    pub traffic_class: u8,
    /// Queue pairs to each peer on each NIC, 1 to 16. More let the switches spread packets over more paths.
    pub queue_pairs: u8,
    /// Writes that a queue pair can have on their way.
    pub writes: u32,
    /// Receives that are kept posted for each peer.
    pub receives: u32,
    /// How long a peer that does not answer is tried before it is lost. NICs of RC take a quarter to four times of that
    /// (InfiniBand Architecture 9.7.6.1.3); SRD's have a time of their own. The default is 31 s, of which RC uses 30.06:
    /// seven tries of 4.29 s. A link that goes down for a moment, or a subnet manager that sweeps, takes 5 to 20 s.
    pub peer_timeout: Duration,
    /// How long a port may be down before that is an error.
    pub port_down_limit: Duration,
}

impl Options {
    /// For so many peers, over the first NIC that fits.
    #[must_use]
    pub fn new(peers: u16) -> Self {
        Self {
            peers,
            devices: Vec::new(),
            port: None,
            gid_index: None,
            service_level: 0,
            traffic_class: 0,
            queue_pairs: 1,
            writes: 128,
            receives: 256,
            peer_timeout: Duration::from_secs(31),
            port_down_limit: Duration::from_millis(900),
        }
    }

    /// All that cannot be.
    pub(super) fn check(&self) -> Result<(), FabricError> {
        let mut wrong = Vec::new();
        let mut within = |what: &str, value: u64, least: u64, most: u64| {
            if !(least..=most).contains(&value) {
                wrong.push(format!("{what} = {value}: it must be {least} to {most}"));
            }
        };
        within("peers", self.peers.into(), 1, u16::MAX.into());
        within("devices", self.devices.len() as u64, 0, MAX_RAILS as u64);
        within("port", self.port.unwrap_or(1).into(), 1, u8::MAX.into());
        within("service_level", self.service_level.into(), 0, 15);
        within(
            "queue_pairs",
            self.queue_pairs.into(),
            1,
            MAX_QUEUE_PAIRS as u64,
        );
        within("writes", self.writes.into(), 1, MAX_DEPTH.into());
        within("receives", self.receives.into(), 1, MAX_DEPTH.into());
        within(
            "peer_timeout in ms",
            self.peer_timeout.as_millis() as u64,
            10,
            60_000,
        );
        for (index, name) in self.devices.iter().enumerate() {
            if self.devices[..index].contains(name) {
                wrong.push(format!(
                    "device {name} is named twice: use queue_pairs for more queue pairs on it"
                ));
            }
        }
        let rails = self.devices.len().max(1) as u64;
        let pending = u64::from(self.peers)
            * u64::from(self.queue_pairs)
            * u64::from(self.writes + self.receives);
        if wrong.is_empty() && pending * rails > i32::MAX as u64 {
            wrong.push(format!(
                "{pending} completions may be pending on a NIC: set fewer peers, writes or receives"
            ));
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(FabricError::Config(wrong))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Options;
    use crate::error::FabricError;
    use std::time::Duration;

    #[test]
    fn all_mistakes_are_told_at_once() {
        assert_eq!(Options::new(1).check(), Ok(()));
        let wrong = Options {
            devices: vec!["a".into(), "b".into(), "a".into()],
            service_level: 16,
            queue_pairs: 17,
            writes: 0,
            receives: 1 << 16,
            peer_timeout: Duration::ZERO,
            ..Options::new(0)
        };
        let Err(FabricError::Config(mistakes)) = wrong.check() else {
            panic!("accepted")
        };
        let told = mistakes.join("\n");
        for word in [
            "peers = 0",
            "a is named twice",
            "= 16:",
            "= 17:",
            "writes = 0",
            "65536",
            "peer_timeout",
        ] {
            assert!(told.contains(word), "{word} in {told}");
        }
        let many = Options {
            writes: 1 << 15,
            receives: 1 << 15,
            ..Options::new(u16::MAX)
        };
        assert!(matches!(many.check(), Err(FabricError::Config(_))));
    }
}
