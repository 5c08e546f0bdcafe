//! A test of flushes on two connected transports.

use super::{losses, meet, write};
use mkernel_fabric::{PeerId, Transport};
use std::time::{Duration, Instant};

/// Each of two nodes flushes before it reports the arrivals of a batch, once for the batch or less often than once per arrival.
pub fn arrivals_are_flushed(transports: Vec<Box<dyn Transport>>) {
    const WRITES: u32 = 12;
    let mut nodes = meet(transports);
    for node in &mut nodes {
        let writes: Vec<_> = (0..WRITES)
            .map(|id| write(PeerId(0), 0, 64, 8, id))
            .collect();
        assert_eq!(node.transport.post(&writes).unwrap(), writes.len());
    }
    let until = Instant::now() + Duration::from_secs(20);
    while nodes
        .iter()
        .any(|node| node.arrived.len() < WRITES as usize)
    {
        assert!(Instant::now() < until, "{:?}", losses(&nodes));
        nodes.iter_mut().for_each(|node| drop(node.poll()));
    }
    for node in &nodes {
        let counters = node.transport.rail_counters();
        let flushes: u64 = counters.iter().map(|rail| rail.flushes.get()).sum();
        assert!(
            (1..=u64::from(WRITES)).contains(&flushes),
            "{flushes} flushes"
        );
    }
}
