//! What plans of several nodes have in common: puts, their arguments, and words for arrivals.

use crate::abi::ArgKind;
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
pub(crate) const PUT_BYTES: u32 = 1 << 20;

/// Across nodes: the ring of commands, and what the proxy says of arrivals.
fn args(topology: Topology) -> Vec<(&'static str, ArgKind)> {
    match topology.nodes {
        1 => Vec::new(),
        _ => vec![("ring", ArgKind::Ring), ("arrivals", ArgKind::Arrivals)],
    }
}

/// What every kernel is passed besides: what its calls have in common with other operators', and what it has of a network.
pub(crate) fn common_args(topology: Topology) -> Vec<(&'static str, ArgKind)> {
    let gate = [
        ("gate", ArgKind::Gate),
        ("operator_number", ArgKind::OperatorNumber),
    ];
    gate.into_iter().chain(args(topology)).collect()
}
