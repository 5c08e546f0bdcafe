//! `dispatch_gemm` on several nodes.
//!
//! A node gets a token once. Its tokens for a node are packed in the order of that node's experts, first ones of all its
//! ranks first, and put in chunks to the rank of the own number there, to the very place where this has tokens of that
//! source; it relays each to those ranks of its node that need it, to the same slots of theirs, and raises the same flags
//! that pushes inside a node do. So experts' products don't know how a row came.
//!
//! Before that, one put, a packet, tells a node the numbers, which ranks need each token, and the lists of its ranks, as long
//! as they are. A call has as many puts as tokens make necessary, which both sides know from the numbers; each rank keeps
//! how many there were before, for each peer, by parity of the epoch.
//!
//! Packets are double-buffered by parity: who puts one in epoch e has finished e-1, in which the peer's packet came, so that
//! the peer has finished e-2. Chunks need one buffer, on both sides: they are packed and put once the numbers of all ranks
//! are here, so that every rank has finished the call before, in which it had all that was put to it.

use super::op_plan::{DispatchPlan, InternodeDispatch};
use crate::config::Field;
use crate::diagnostic::Diagnostics;
use crate::plan::network::PUT_BYTES;
use crate::plan::{MAX_PUT_BYTES, Network};
use crate::topology::Topology;

impl InternodeDispatch {
    /// None on one node.
    pub(super) fn new(op_plan: &DispatchPlan, topology: Topology) -> Option<Self> {
        if topology.peers() == 0 {
            return None;
        }
        let (shape, block_tokens) = (op_plan.shape, u64::from(op_plan.block_tokens));
        let blocks = u64::from(PUT_BYTES) / (op_plan.token_bytes() * block_tokens);
        let experts = op_plan.local_experts(topology.world()) * u64::from(topology.local_world);
        let needs = if topology.local_world > 1 { 1 } else { 0 };
        let words = shape.max_tokens * (needs + shape.top_k.min(experts));
        Some(Self {
            chunk_tokens: blocks.clamp(1, op_plan.blocks()) * block_tokens,
            packet_bytes: (4 * (op_plan.count_words() + words)).next_multiple_of(16),
        })
    }

    fn put_bytes(&self, op_plan: &DispatchPlan) -> u64 {
        self.packet_bytes
            .max(self.chunk_tokens * op_plan.token_bytes())
    }

    /// Records what does not fit into a put.
    pub(super) fn check(&self, op_plan: &DispatchPlan, found: &mut Diagnostics) {
        let tokens = op_plan.shape.max_tokens;
        found.require(
            self.put_bytes(op_plan) <= MAX_PUT_BYTES,
            Field::MAX_TOKENS,
            || {
                format!(
                    "the routing of {tokens} tokens, or {} tokens together, have {} bytes, and a put at most {MAX_PUT_BYTES}",
                    op_plan.block_tokens,
                    self.put_bytes(op_plan)
                )
            },
            "use fewer tokens per call",
        );
    }

    /// A packet, and chunks of as many tokens as there are.
    pub(super) fn network(&self, op_plan: &DispatchPlan) -> Network {
        Network {
            channels: 1,
            puts: 1 + op_plan.shape.max_tokens.div_ceil(self.chunk_tokens) as u32,
            put_bytes: self.put_bytes(op_plan),
        }
    }
}
