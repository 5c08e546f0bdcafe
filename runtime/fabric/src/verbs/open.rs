//! Opening of the NICs of a transport, with queues of the depth that its peers need.

use super::device::Device;
use super::library;
use super::options::Options;
use super::queue_pair::{Capability, QueueDepth};
use super::queue_pair_type::QueuePairType;
use super::rail::Rail;
use super::receives::SharedReceiveQueue;
use crate::error::FabricError;
use std::sync::Arc;

/// Opens the NICs that the options name, or the first suitable NIC.
pub(super) fn open_all<K: QueuePairType>(options: &Options) -> Result<Vec<Rail>, FabricError> {
    let nic = |reason| FabricError::Nic { reason };
    let verbs = library::verbs()?;
    let open_named = |name: &String| {
        Device::open(verbs, name)
            .and_then(|device| open::<K>(device, options))
            .map_err(|error| format!("{name}: {error}"))
    };
    if !options.devices.is_empty() {
        return options
            .devices
            .iter()
            .map(open_named)
            .collect::<Result<_, _>>()
            .map_err(nic);
    }
    let mut refused = vec![format!("no RDMA device is suitable for {}", K::NAME)];
    for name in Device::names(verbs).map_err(nic)? {
        match open_named(&name) {
            Ok(rail) => return Ok(vec![rail]),
            Err(error) => refused.push(error),
        }
    }
    Err(nic(refused.join("; ")))
}

fn open<K: QueuePairType>(device: Device, options: &Options) -> Result<Rail, String> {
    let port = device.port(options.port, options.gid_index)?;
    if options.partition_key >= port.partition_keys {
        return Err(format!(
            "partition_key is {}, but port {} has a table of {} partition keys; choose a smaller index",
            options.partition_key, port.number, port.partition_keys
        ));
    }
    let able = K::capability(&device, &port)?;
    let depth = depth(options, K::SERVES_ALL_PEERS, &able)?;
    let device = Arc::new(device);
    let receives = match K::SERVES_ALL_PEERS {
        true => None,
        false => Some(Arc::new(SharedReceiveQueue::new(&device, depth.receives)?)),
    };
    let entries = completions(options, K::SERVES_ALL_PEERS, depth);
    Rail::new((device, port), options, (&able, depth), entries, receives)
}

/// Returns the depth of the queues on a device, or the reason why the device does not support this depth.
fn depth(
    options: &Options,
    serves_all_peers: bool,
    able: &Capability,
) -> Result<QueueDepth, String> {
    let peers = u32::from(options.peers);
    let receives = peers * options.receives_per_peer();
    if options.writes > able.depth.writes {
        return Err(format!(
            "writes is {}, but its queue pairs support at most {}; set fewer",
            options.writes, able.depth.writes
        ));
    }
    if receives > able.depth.receives {
        return Err(format!(
            "{peers} peers share {receives} receives, but its receive queues hold at most {}; set a smaller receive_queue",
            able.depth.receives
        ));
    }
    let writes = match serves_all_peers {
        true => (peers * options.writes).min(able.depth.writes),
        false => options.writes,
    };
    Ok(QueueDepth { writes, receives })
}

/// Returns the number of completions that can be pending on a rail: one for each write on each queue pair, one for each
/// receive, and one for the flush.
fn completions(options: &Options, serves_all_peers: bool, depth: QueueDepth) -> u32 {
    let queue_pairs = u32::from(options.queue_pairs);
    let of_peers = match serves_all_peers {
        true => queue_pairs * (depth.writes + depth.receives),
        false => u32::from(options.peers) * queue_pairs * depth.writes + depth.receives,
    };
    of_peers + u32::from(options.flush)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn able(writes: u32, receives: u32) -> Capability {
        Capability {
            write_bytes: 1 << 20,
            depth: QueueDepth { writes, receives },
        }
    }

    /// Up to 512 peers, the receives and the queue pairs for all peers do not grow with the number of peers.
    #[test]
    fn queues_do_not_grow_with_peers() {
        for peers in [32, 63, 127, 512] {
            let options = Options::new(peers);
            let share = options.receives_per_peer();
            let rc = depth(&options, false, &able(1 << 14, 1 << 15)).expect("possible");
            assert!((16..=256).contains(&share) && rc.writes == options.writes);
            assert!(
                rc.receives <= 8192 && rc.receives + u32::from(peers) > 8192,
                "{rc:?}"
            );
            let srd = depth(&options, true, &able(4096, u32::MAX)).expect("possible");
            assert_eq!(srd, QueueDepth { writes: 4096, ..rc });
            assert_eq!(completions(&options, true, srd), 4096 + rc.receives);
        }
        let most = Options::new(1023);
        let depth = depth(&most, false, &able(1 << 14, 1 << 15)).expect("possible");
        assert_eq!(depth.receives, 1023 * 16);
    }

    #[test]
    fn devices_with_smaller_queues_are_refused() {
        let options = Options::new(63);
        let error = depth(&options, false, &able(1 << 14, 1000)).expect_err("too few");
        assert!(
            error.contains("63 peers share 8190 receives") && error.contains("at most 1000"),
            "{error}"
        );
        let error = depth(&options, false, &able(100, 1 << 15)).expect_err("too few");
        assert!(error.contains("writes is 128"), "{error}");
    }
}
