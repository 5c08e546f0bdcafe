//! `combine` on several nodes.
//!
//! For each other node, a rank makes a list of its tokens that have rows there, with all their top-k entries. The rank puts the
//! list to the rank with its own local rank on that node, which forwards the list to the other ranks of its node. Each rank of
//! that node adds up its rows of a token, keeps the sum, and raises a flag at the rank that received the list. That rank loads
//! these sums, adds them in the order of ranks, and puts the results back to the token's rank in chunks: rows of elements, in
//! the order of the list. The token's rank adds the sums of the nodes in fp32 in the order of nodes, where its own node's sum
//! is made of rows in the order of ranks. A row of sums therefore crosses the network once for each token and node.
//!
//! CTAs append tokens to a list in any order, so the position of a token differs from call to call. The token's rank
//! keeps the position. The number of puts of a call follows from the lengths of the lists, so both sides know this
//! number. Each rank keeps the number of puts of earlier calls for each peer, by parity of the epoch.
//!
//! Lists are double-buffered by parity of the epoch. A rank that puts a list in epoch e has finished e-1, in which it
//! received the peer's list of e-1, so the peer has finished e-2 and its list buffer is free. Sums need one buffer on
//! each side. A rank that computes a sum has received the list of this epoch, so the rank that sent the list has
//! finished the previous call, and has read all sums that were put to it in that call. A rank writes a partial sum only
//! after the counts of all ranks of its node have arrived, so these ranks have finished the previous call and have read
//! its partial sums of that call.
//!
//! Memory is bounded by the need of one call. A partial sum lies in the slot of a row, or of a token if tokens are
//! fewer. Sums from other nodes lie one behind the other: a token is on no more lists than it has experts, and each
//! list has the place of the first sum of its tokens. Sums for other nodes leave through a few chunks
//! (`dispatch::chunks`).

use super::op_plan::{CombinePlan, InternodeCombine, LIST_HEADER_BYTES};
use crate::config::Field;
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::ops::dispatch::TokenChunks;
use crate::ops::dispatch::chunks::ChunkSizes;
use crate::plan::MAX_PUT_BYTES;
use crate::plan::Network;
use crate::topology::Topology;

/// The size of a choice on a list: the index of its row, and its weight.
pub(super) const CHOICE_BYTES: u64 = 8;
impl InternodeCombine {
    /// Creates the exchange; `None` on one node.
    pub(super) fn new(op_plan: &CombinePlan, topology: Topology) -> Option<Self> {
        let sizes = ChunkSizes {
            max_tokens: op_plan.shape.max_tokens,
            block_tokens: 1,
            token_bytes: op_plan.row_bytes(),
            put_tokens: op_plan.config.put_tokens,
            puts_in_flight: op_plan.config.puts_in_flight,
        };
        (topology.peers() > 0).then(|| Self {
            chunks: TokenChunks::new(&sizes, topology),
            list_bytes: (LIST_HEADER_BYTES + op_plan.choices() * CHOICE_BYTES).next_multiple_of(16),
        })
    }

    fn put_bytes(&self, op_plan: &CombinePlan) -> u64 {
        self.list_bytes
            .max(self.chunks.chunk_tokens * op_plan.row_bytes())
    }

    /// # Errors
    /// A list that does not fit into a put, or a grid without a CTA beside the CTA that communicates.
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

    /// The puts of a call: a list, and chunks of at most all sums.
    pub(super) fn network(&self, op_plan: &CombinePlan) -> Network {
        Network {
            channels: self.chunks.channels(op_plan.shape.max_tokens),
            puts: 1 + op_plan.shape.max_tokens.div_ceil(self.chunks.chunk_tokens) as u32,
            put_bytes: self.put_bytes(op_plan),
        }
    }
}
