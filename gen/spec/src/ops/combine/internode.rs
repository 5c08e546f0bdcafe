//! `combine` on several nodes.
//!
//! A rank lists for each other node those of its tokens that have rows there, with all their choices, and puts the list to the
//! rank of its own number there, which relays it to its node. The ranks of that node add up what each has of a token and send it
//! to the one that got the list; this adds those sums in the order of ranks, and puts them, as rows of bf16 in the order of the
//! list, in chunks to the token's rank. That adds the nodes' sums in the order of nodes, its own node's rows in that of ranks, in
//! fp32. So a row crosses once for each token and node that has rows of it.
//!
//! Where a token is on a list is by chance; its rank keeps it. A call has as many puts as the lists make necessary, which both
//! sides know from their lengths; each rank keeps how many there were before, for each peer, by parity of the epoch.
//!
//! Lists are double-buffered by parity: who puts one in epoch e has finished e-1, in which the peer's list came, so that the peer
//! has finished e-2. Sums need one buffer, on both sides: who makes one has the list of this epoch, whose rank has finished the
//! call before, in which it got all that was put to it.

use super::op_plan::{CombinePlan, InternodeCombine, LIST_HEADER_BYTES};
use crate::config::Field;
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::plan::MAX_PUT_BYTES;
use crate::plan::Network;
use crate::plan::network::PUT_BYTES;
use crate::topology::Topology;

/// A choice on a list: its row, and what it counts.
pub(super) const CHOICE_BYTES: u64 = 8;
impl InternodeCombine {
    /// None on one node.
    pub(super) fn new(op_plan: &CombinePlan, topology: Topology) -> Option<Self> {
        let chunk = u64::from(PUT_BYTES) / op_plan.row_bytes();
        (topology.peers() > 0).then(|| Self {
            chunk_tokens: chunk.clamp(1, op_plan.shape.max_tokens),
            list_bytes: (LIST_HEADER_BYTES + op_plan.choices() * CHOICE_BYTES).next_multiple_of(16),
        })
    }

    fn put_bytes(&self, op_plan: &CombinePlan) -> u64 {
        self.list_bytes.max(self.chunk_tokens * op_plan.row_bytes())
    }

    /// # Errors
    /// What does not fit into a put, or no CTA beside the one that communicates.
    pub(super) fn check(&self, op_plan: &CombinePlan, device: &Device) -> Result<(), Diagnostics> {
        let mut found = Diagnostics::default();
        found.require(
            self.put_bytes(op_plan) <= MAX_PUT_BYTES,
            Field::MAX_TOKENS,
            || {
                format!(
                    "the choices of {} tokens, or a row, have {} bytes, and a put at most {MAX_PUT_BYTES}",
                    op_plan.shape.max_tokens,
                    self.put_bytes(op_plan)
                )
            },
            "use fewer tokens per call",
        );
        found.require(
            device.sm_count > op_plan.comm_ctas(),
            Field::NODES,
            || {
                format!(
                    "one CTA communicates, and {} has {} SM",
                    device.name, device.sm_count
                )
            },
            "use a GPU with more",
        );
        found.into_result(())
    }

    /// A list, and chunks of as many sums as there are.
    pub(super) fn network(&self, op_plan: &CombinePlan) -> Network {
        Network {
            channels: 1,
            puts: 1 + op_plan.shape.max_tokens.div_ceil(self.chunk_tokens) as u32,
            put_bytes: self.put_bytes(op_plan),
        }
    }
}
