//! [`Options`]: the choice of NICs of a verbs transport, and their settings.

use super::connect_info::MAX_RAILS;
use crate::endpoint_info::{MAX_PEER_RECEIVES, RECEIVE_QUEUE, receives_per_peer};
use crate::error::FabricError;
use std::time::Duration;

/// The most work requests that may be requested per queue. NICs support 2^12 to 2^15.
const MAX_DEPTH: u32 = 1 << 15;

/// The choice of a transport's NICs, and their settings. [`Options::new`] has defaults for everything but the number of peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The number of peers.
    pub peers: u16,
    /// The names of the NICs, as `ibv_devices` lists them. All named NICs carry writes, rail i to the peers' rail i. If the
    /// list is empty, the first suitable NIC is used.
    pub devices: Vec<String>,
    /// The port of each NIC, counted from 1. `None` selects the first active port.
    pub port: Option<u8>,
    /// An index in the port's GID table. `None` selects a RoCE v2 GID of the farthest reach on Ethernet, and the
    /// first GID elsewhere.
    pub gid_index: Option<u8>,
    /// The service level of InfiniBand, the priority of Ethernet, or the service level of EFA, 0 to 15.
    pub service_level: u8,
    /// The DSCP and ECN bits of the IP packets of RoCE v2. The network's administrator knows which value is lossless. They
    /// apply to RC only.
    pub traffic_class: u8,
    /// An index in the port's table of partition keys. It applies to RC only.
    pub partition_key: u16,
    /// Whether writes of the NICs to registered memory may pass each other on PCIe.
    pub relaxed_ordering: bool,
    /// Whether arrivals wait until a read by the NIC has flushed their bytes to memory.
    pub flush: bool,
    /// The number of queue pairs on each NIC: 1 to 16 for each peer with RC, 1 to 4 for all peers with SRD. With more RC queue
    /// pairs, switches spread packets over more paths.
    pub queue_pairs: u8,
    /// The most writes to a peer that may be in flight on a queue pair.
    pub writes: u32,
    /// The most receives that are kept posted on a NIC, except that the share of each peer is at least 16. The memory for
    /// receives grows with this option, not with the number of peers.
    pub receive_queue: u32,
    /// The largest share of a peer in the receives of a NIC.
    pub receives: u32,
    /// The time for which requests to a peer that does not answer are repeated before the peer is lost.
    ///
    /// NICs of RC take a quarter to four times this time (InfiniBand Architecture 9.7.6.1.3). NICs of SRD have a
    /// fixed time of their own. The default is 31 s. RC uses 30.06 s of this time: seven attempts of 4.29 s each. A link
    /// that goes down for a moment or a subnet manager that sweeps takes 5 to 20 s.
    pub peer_timeout: Duration,
    /// The time for which a port may be down before the transport fails.
    pub port_down_limit: Duration,
}

/// The longest [`Options::peer_timeout`].
pub const MAX_PEER_TIMEOUT: Duration = Duration::from_secs(600);

impl Options {
    /// Returns the options for the given number of peers and the first suitable NIC.
    #[must_use]
    pub fn new(peers: u16) -> Self {
        Self {
            peers,
            devices: Vec::new(),
            port: None,
            gid_index: None,
            service_level: 0,
            traffic_class: 0,
            partition_key: 0,
            relaxed_ordering: false,
            flush: false,
            queue_pairs: 1,
            writes: 128,
            receive_queue: RECEIVE_QUEUE,
            receives: MAX_PEER_RECEIVES,
            peer_timeout: Duration::from_secs(31),
            port_down_limit: Duration::from_millis(900),
        }
    }

    /// Returns the number of a peer's writes that may be in flight to this endpoint: the peer's share of the receives of a NIC.
    /// Each NIC reserves this number of receives for the peer, because the peer may send all its writes through one NIC.
    pub(super) fn receives_per_peer(&self) -> u32 {
        receives_per_peer(self.receive_queue, self.receives, self.peers.into())
    }

    /// Checks all options and reports all invalid options. `most_queue_pairs` is the limit of the queue pair type.
    pub(super) fn check(&self, most_queue_pairs: u8) -> Result<(), FabricError> {
        let mut issues = Vec::new();
        let mut within = |what: &str, value: u64, least: u64, most: u64| {
            if !(least..=most).contains(&value) {
                issues.push(format!(
                    "{what} is {value}, but it must be {least} to {most}"
                ));
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
            most_queue_pairs.into(),
        );
        within("writes", self.writes.into(), 1, MAX_DEPTH.into());
        within(
            "receive_queue",
            self.receive_queue.into(),
            1,
            MAX_DEPTH.into(),
        );
        within("receives", self.receives.into(), 1, MAX_DEPTH.into());
        within(
            "peer_timeout in ms",
            self.peer_timeout.as_millis() as u64,
            10,
            MAX_PEER_TIMEOUT.as_millis() as u64,
        );
        for (index, name) in self.devices.iter().enumerate() {
            if self.devices[..index].contains(name) {
                issues.push(format!(
                    "device {name} is listed twice; set queue_pairs for more queue pairs on it"
                ));
            }
        }
        let rails = self.devices.len().max(1) as u64;
        let pending = u64::from(self.peers)
            * u64::from(self.queue_pairs)
            * u64::from(self.writes + self.receives);
        if issues.is_empty() && pending * rails > i32::MAX as u64 {
            issues.push(format!(
                "{pending} completions may be pending on a NIC, which is too many; set fewer peers, writes or receives"
            ));
        }
        if issues.is_empty() {
            Ok(())
        } else {
            Err(FabricError::Config(issues))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Options;
    use crate::error::FabricError;
    use std::time::Duration;

    #[test]
    fn all_invalid_options_are_reported() {
        assert_eq!(Options::new(1).check(16), Ok(()));
        let wrong = Options {
            devices: vec!["a".into(), "b".into(), "a".into()],
            service_level: 16,
            queue_pairs: 17,
            writes: 0,
            receives: 1 << 16,
            peer_timeout: Duration::ZERO,
            ..Options::new(0)
        };
        let Err(FabricError::Config(issues)) = wrong.check(16) else {
            panic!("accepted")
        };
        let text = issues.join("\n");
        for word in [
            "peers is 0",
            "a is listed twice",
            "is 16,",
            "is 17,",
            "writes is 0",
            "65536",
            "peer_timeout",
        ] {
            assert!(text.contains(word), "{word} in {text}");
        }
        let many = Options {
            writes: 1 << 15,
            receives: 1 << 15,
            ..Options::new(u16::MAX)
        };
        assert!(matches!(many.check(16), Err(FabricError::Config(_))));
    }
}
