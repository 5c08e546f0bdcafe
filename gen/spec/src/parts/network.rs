//! What plans of several nodes have in common: puts and the argument for them.

use crate::abi::{ArgKind, Operand};
use crate::config::Field;
use crate::diagnostic::Diagnostics;
use crate::fabric::MAX_CALL_PUTS;
use crate::topology::Topology;
use serde::Serialize;

/// What a kernel wants of the fabric: puts to the same GPU of every other node, all of them to the workspace. They come from the
/// same place of this rank's workspace, or from an operand in symmetric memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Network {
    /// The channels that the kernel uses to each peer, at most [`PUT_CHANNELS`](crate::fabric::PUT_CHANNELS).
    pub channels: u16,
    /// The puts of a call to each peer, on each channel. For calls of `dispatch_gemm` and `combine` this is the most: they
    /// make as many as their tokens need.
    pub puts: u32,
    /// Bytes of the largest.
    pub put_bytes: u64,
}

impl Network {
    /// # Errors
    /// More puts than a call can count.
    pub(crate) fn check(&self) -> Result<(), Diagnostics> {
        let mut found = Diagnostics::default();
        found.require(
            self.puts <= MAX_CALL_PUTS,
            Field::NODES,
            || {
                format!(
                    "a call makes {} puts to each node, and at most {MAX_CALL_PUTS} are possible",
                    self.puts
                )
            },
            "use smaller sizes per call",
        );
        found.into_result(())
    }
}

/// The most bytes of a put that plans have. NICs take at least as many.
pub const MAX_PUT_BYTES: u64 = 16 << 20;

/// About what a put has: with fewer bytes the proxy is the limit, with more the last ones are forwarded late.
pub(crate) const PUT_BYTES: u32 = 1 << 20;

/// Returns the arguments that every kernel has: what its calls have in common with those of other operators, and the
/// endpoint if there are several nodes.
pub(crate) fn common_args(topology: Topology) -> Vec<(&'static str, ArgKind)> {
    let gate = [
        ("gate", ArgKind::Gate),
        ("operator_number", ArgKind::OperatorNumber),
    ];
    let endpoint = (topology.nodes > 1).then_some(("endpoint", ArgKind::Endpoint));
    gate.into_iter().chain(endpoint).collect()
}

/// Returns the arguments of kernels whose ranks compare where their results lie in symmetric memory: this place, and the
/// addresses of all results of the node if `by_address`.
pub(crate) fn results_on_peers(result: Operand, by_address: bool) -> Vec<(&'static str, ArgKind)> {
    let addresses = by_address.then_some(("results", ArgKind::OnPeers(result)));
    let place = ("result_place", ArgKind::SymmetricPlace(result));
    addresses.into_iter().chain([place]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_puts_than_a_call_can_count_are_refused() {
        let network = |puts| Network {
            channels: 1,
            puts,
            put_bytes: 64,
        };
        assert!(network(MAX_CALL_PUTS).check().is_ok());
        let refused = network(MAX_CALL_PUTS + 1).check().expect_err("too many");
        assert!(refused.to_string().contains("32768 puts"), "{refused}");
    }
}
