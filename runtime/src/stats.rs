//! [`Stats`]: what a communicator uses.

/// What a communicator uses on this rank, as [`Communicator::stats`](crate::Communicator::stats) returns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The symmetric memory.
    pub heap: HeapStats,
    /// The number of fabrics. A communicator has one for each way in which its operators put ranks into nodes. A fabric
    /// has a proxy thread, and a connection to every peer.
    pub fabrics: usize,
}

/// The symmetric memory of a communicator on this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStats {
    /// The number of allocations. Each is registered once with each NIC.
    pub extents: usize,
    /// The bytes of all extents.
    pub bytes: u64,
    /// The number of workspaces. Those of dropped operators count until the next
    /// [`prepare`](crate::Communicator::prepare) after all ranks have dropped them.
    pub workspaces: usize,
    /// The bytes of these workspaces.
    pub used_bytes: u64,
}
