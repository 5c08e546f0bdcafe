//! Puts to other nodes, as plans of all operators describe them, and the argument for puts.

use crate::abi::{ArgKind, Operand};
use crate::config::Field;
use crate::diagnostic::Diagnostics;
use crate::fabric::MAX_CALL_PUTS;
use crate::topology::Topology;
use serde::Serialize;

/// The puts that a kernel makes to the same GPU of every other node. All puts go to the workspace. The source of a put is the same
/// place in this rank's workspace, or an operand in symmetric memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Network {
    /// The channels that the kernel uses to each peer, at most [`PUT_CHANNELS`](crate::fabric::PUT_CHANNELS).
    pub channels: u16,
    /// The puts of a call to each peer, on each channel. For calls of `dispatch_gemm` and `combine` this is the largest number:
    /// the number of puts of a call depends on the tokens.
    pub puts: u32,
    /// Bytes of the largest put.
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

/// The largest size of a put in plans, in bytes. NICs take puts of this size.
pub const MAX_PUT_BYTES: u64 = 16 << 20;

/// The approximate size of a put, in bytes. With smaller puts the proxy is the bottleneck; with larger puts the last rows are
/// forwarded late.
pub(crate) const PUT_BYTES: u32 = 1 << 20;

/// Returns the arguments that kernels of all operators have: the gate, the operator's number, and the endpoint if there are several
/// nodes.
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
