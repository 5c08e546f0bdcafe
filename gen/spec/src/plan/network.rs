//! What plans of several nodes have in common: puts, their arguments, and words for arrivals.

use crate::abi::{ArgKind, FLAG_STRIDE_BYTES};
use crate::topology::Topology;
use serde::Serialize;

/// What a kernel wants of the fabric: puts to the same GPU of every other node, all of them within the workspace and to
/// the same place of the peer's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Network {
    /// Channels to each peer.
    pub channels: u16,
    /// Puts of a call to each peer, on each channel; in call e, arrival (e - 1)·`puts` + i is that of put i. Of a call of
    /// `dispatch_gemm` at most: there are as many as its tokens make necessary.
    pub puts: u32,
    /// Bytes of the largest.
    pub put_bytes: u64,
}

/// The most bytes of a put that plans have. NICs take at least as many.
pub const MAX_PUT_BYTES: u64 = 16 << 20;

/// About what a put has: with fewer bytes the proxy is the limit, with more the last ones are relayed late.
pub(super) const PUT_BYTES: u32 = 1 << 20;

/// Across nodes: the ring of commands, and what the proxy says of arrivals.
pub(super) fn args(topology: Topology) -> Vec<(&'static str, ArgKind)> {
    match topology.nodes {
        1 => Vec::new(),
        _ => vec![("ring", ArgKind::Ring), ("arrivals", ArgKind::Arrivals)],
    }
}

/// Across nodes: words for arrivals, by channel and peer, in device memory, where all CTAs may look at them.
pub(super) fn arrived_region(topology: Topology, channels: u32) -> Option<(&'static str, u64)> {
    let words = u64::from(channels * topology.peers());
    (words > 0).then_some(("arrived", words * FLAG_STRIDE_BYTES))
}
