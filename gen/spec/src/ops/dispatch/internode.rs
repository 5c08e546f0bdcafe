//! `dispatch_gemm` on several nodes.
//!
//! A token crosses the network once for each node that has experts of it. A rank packs its tokens for a node in the
//! order of that node's experts: first the first expert of each rank of the node, then the second expert of each rank.
//! The rank puts these tokens in chunks to the rank with its own local rank on that node. The receiving rank forwards
//! each token to the ranks of its node that need it, and raises the flags that a push within a node raises. The GEMM of
//! an expert therefore does not depend on the way in which a row arrives.
//!
//! Memory is bounded by the need of one call. A rank receives at most as many tokens as it gets rows. Each source has a segment
//! of this memory, with room for the tokens that the source sends to the rank. For a source on another node, the segment has
//! room for the rows of the source's tokens on the rank, if these are fewer. Every rank computes the segments from the counts.
//! The tokens that a rank packs lie one behind the other. Tokens arrive in a few chunks of each peer (`chunks`). If all chunks
//! have room, the rank where the chunks arrive reads its own tokens in place. Otherwise the rank copies its tokens to the
//! segment of their source, as it does for other ranks.
//!
//! One put, a packet, precedes the chunks. It holds the row counts, the ranks that need each token, and the row lists
//! of the node's ranks. Its length depends on the routing. The number of puts of a call follows from the counts, so
//! both sides know this number. Each rank keeps the number of puts of earlier calls for each peer, by parity of the
//! epoch.
//!
//! Packets are double-buffered by parity of the epoch. A rank that puts a packet in epoch e has finished e-1, in which
//! it received the peer's packet of e-1, so the peer has finished e-2 and its packet buffer is free. Chunks need one
//! buffer on each side. Chunks are packed and put only after the counts of all ranks have arrived. Every rank has then
//! finished the previous call, and has read everything that was put to it in that call.

use super::chunks::{ChunkSizes, TokenChunks};
use super::op_plan::{DispatchPlan, InternodeDispatch};
use crate::config::Field;
use crate::diagnostic::Diagnostics;
use crate::plan::{MAX_PUT_BYTES, Network};
use crate::topology::Topology;

/// The most tokens of a rank: a list between nodes has the number of a token and the number of the token's block in one word.
const MAX_TOKENS: u64 = 1 << 16;

impl InternodeDispatch {
    /// Creates the exchange; `None` on one node.
    pub(super) fn new(op_plan: &DispatchPlan, topology: Topology) -> Option<Self> {
        if topology.peers() == 0 {
            return None;
        }
        let shape = op_plan.shape;
        let sizes = ChunkSizes {
            max_tokens: shape.max_tokens,
            block_tokens: op_plan.block_tokens.into(),
            token_bytes: op_plan.token_bytes(),
            put_tokens: op_plan.config.put_tokens,
            puts_in_flight: op_plan.config.puts_in_flight,
        };
        let experts = op_plan.local_experts(topology.world()) * u64::from(topology.local_world);
        let needs = if topology.local_world > 1 { 1 } else { 0 };
        let words = shape.max_tokens * (needs + shape.top_k.min(experts));
        Some(Self {
            chunks: TokenChunks::new(&sizes, topology),
            packet_bytes: (4 * (op_plan.count_words() + words)).next_multiple_of(16),
        })
    }

    fn put_bytes(&self, op_plan: &DispatchPlan) -> u64 {
        self.packet_bytes
            .max(self.chunks.chunk_tokens * op_plan.token_bytes())
    }

    /// Records a mistake if a packet or a token does not fit into a put.
    pub(super) fn check(&self, op_plan: &DispatchPlan, found: &mut Diagnostics) {
        let tokens = op_plan.shape.max_tokens;
        found.require(
            tokens <= MAX_TOKENS,
            Field::MAX_TOKENS,
            || format!("{tokens} tokens per rank are more than {MAX_TOKENS} across nodes (they are numbered in 16 bits)"),
            "use fewer tokens per call",
        );
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

    /// The puts of a call: a packet, and chunks of at most all tokens.
    pub(super) fn network(&self, op_plan: &DispatchPlan) -> Network {
        Network {
            channels: self.chunks.channels(op_plan.shape.max_tokens),
            puts: 1 + op_plan.shape.max_tokens.div_ceil(self.chunks.chunk_tokens) as u32,
            put_bytes: self.put_bytes(op_plan),
        }
    }
}
