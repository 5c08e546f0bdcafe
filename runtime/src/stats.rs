//! [`Stats`]: the resources of a communicator, and the traffic that it has sent.

pub use mkernel_fabric::{EndpointStats, RailStats};
use std::fmt;

/// The resources and traffic of a communicator on this rank, as returned by
/// [`Communicator::stats`](crate::Communicator::stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The symmetric memory. [`KernelPlan::workspace`](crate::KernelPlan) gives the part that an operator uses.
    pub heap: HeapStats,
    /// The fabrics. A communicator has one fabric for each division of its ranks into nodes by its operators. A fabric has a
    /// proxy thread, and a connection to every peer.
    pub fabrics: Vec<FabricStats>,
}

/// The symmetric memory of a communicator on this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStats {
    /// The number of allocations. Each allocation is registered once with each NIC.
    pub extents: usize,
    /// The bytes of all extents.
    pub bytes: u64,
    /// The number of workspaces. Workspaces of dropped operators count until the next [`prepare`](crate::Communicator::prepare)
    /// or [`alloc`](crate::Communicator::alloc) after all ranks have dropped the operators.
    pub workspaces: usize,
    /// The number of tensors of [`Communicator::alloc`](crate::Communicator::alloc). Dropped tensors count for as long as the
    /// workspaces of dropped operators.
    pub tensors: usize,
    /// The bytes of all counted workspaces and tensors.
    pub used_bytes: u64,
}

/// A fabric on this rank, and its traffic so far. Its proxy counts while it works, so two numbers may be a few events apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FabricStats {
    /// The transport: `emulated`, `rc` or `efa`.
    pub transport: &'static str,
    /// The number of peers.
    pub peers: usize,
    /// The counters of the endpoint.
    pub endpoint: EndpointStats,
}

impl FabricStats {
    /// Logs the counters of a fabric whose proxy has ended.
    pub(crate) fn log(&self) {
        let counts = &self.endpoint;
        tracing::debug!(
            transport = self.transport,
            peers = self.peers,
            commands = counts.commands,
            puts = counts.puts,
            put_bytes = counts.put_bytes,
            arrivals = counts.arrivals,
            credit_stalls = counts.credit_stalls,
            sleeps = counts.sleeps,
            "the fabric has ended"
        );
        for rail in &counts.rails {
            let (nic, writes, bytes) = (&rail.name, rail.writes, rail.bytes);
            tracing::debug!(nic, writes, bytes, "the fabric has used a NIC");
        }
        if let Some(first) = &counts.first_dropped {
            let dropped_writes = counts.dropped_writes;
            tracing::warn!(
                dropped_writes,
                "writes of unknown senders were dropped: {first}"
            );
        }
    }
}

impl fmt::Display for HeapStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            extents,
            bytes,
            workspaces,
            tensors,
            used_bytes,
        } = self;
        write!(
            f,
            "{workspaces} workspaces and {tensors} tensors of {used_bytes} bytes in {extents} extents of {bytes} bytes"
        )
    }
}

impl fmt::Display for FabricStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.endpoint;
        write!(
            f,
            "{} to {} peers: {} puts of {} bytes by {} commands, {} arrivals, {} waits for credits, {} sleeps",
            self.transport,
            self.peers,
            counts.puts,
            counts.put_bytes,
            counts.commands,
            counts.arrivals,
            counts.credit_stalls,
            counts.sleeps
        )?;
        for rail in &counts.rails {
            let (name, writes, bytes) = (&rail.name, rail.writes, rail.bytes);
            write!(f, "; {name} {writes} writes of {bytes} bytes")?;
        }
        if let Some(first) = &counts.first_dropped {
            let dropped = counts.dropped_writes;
            write!(
                f,
                "; {dropped} writes of unknown senders were dropped: {first}"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::FabricStats;
    use mkernel_fabric::EndpointStats;

    #[test]
    fn dropped_writes_are_shown_with_their_sender() {
        let mut endpoint = EndpointStats::default();
        endpoint.puts = 7;
        let mut stats = FabricStats {
            transport: "efa",
            peers: 3,
            endpoint,
        };
        let text = stats.to_string();
        assert!(text.starts_with("efa to 3 peers: 7 puts") && !text.contains("unknown"));
        stats.endpoint.dropped_writes = 2;
        stats.endpoint.first_dropped = Some("from queue pair 9".to_owned());
        let text = stats.to_string();
        assert!(text.ends_with("2 writes of unknown senders were dropped: from queue pair 9"));
    }
}
