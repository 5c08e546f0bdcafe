//! Chunks of tokens, or of their sums, that a rank puts to the peers on other nodes.
//!
//! A peer has room for some chunks of a rank. If this room is smaller than all tokens of a call, later chunks take the places of
//! earlier chunks. A rank that has read a chunk whose place is needed again acknowledges the chunk by an empty put on a separate
//! channel. The memory of a rank therefore does not grow with the number of nodes times its tokens.

use crate::parts::network::PUT_BYTES;
use crate::topology::Topology;
use serde::Serialize;

/// The largest number of peers for which a rank has room for all tokens. With more peers, the total room of a rank stays about the
/// same.
const PEERS_WITH_ROOM: u64 = 4;

/// The smallest room for chunks of a peer: one chunk arrives, one is forwarded, and one is acknowledged.
const FEWEST_CHUNKS: u64 = 3;

/// Chunks between two ranks. On one node, chunks have no tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TokenChunks {
    /// Tokens of a put.
    pub chunk_tokens: u64,
    /// Tokens of a peer for which a rank has room: a whole number of chunks.
    pub room_tokens: u64,
}

/// The inputs from which chunks are planned.
pub(crate) struct ChunkSizes {
    pub max_tokens: u64,
    /// The step of the number of tokens of a chunk.
    pub block_tokens: u64,
    /// Bytes of a token or of its sum.
    pub token_bytes: u64,
    /// The number of tokens of a put, and the number of puts in flight, where the configuration fixes them.
    pub put_tokens: Option<u32>,
    pub puts_in_flight: Option<u32>,
}

impl TokenChunks {
    pub(crate) fn new(sizes: &ChunkSizes, topology: Topology) -> Self {
        let ChunkSizes {
            max_tokens,
            block_tokens,
            ..
        } = *sizes;
        let tokens = u64::from(PUT_BYTES) / sizes.token_bytes;
        let tokens = sizes.put_tokens.map_or(tokens, u64::from);
        let blocks = (tokens / block_tokens).clamp(1, max_tokens.div_ceil(block_tokens));
        let chunk_tokens = blocks * block_tokens;
        let (all, peers) = (
            max_tokens.div_ceil(chunk_tokens),
            u64::from(topology.peers()),
        );
        let usual = if peers <= PEERS_WITH_ROOM {
            all
        } else {
            (PEERS_WITH_ROOM * max_tokens / (peers * chunk_tokens)).max(FEWEST_CHUNKS)
        };
        let chunks = sizes.puts_in_flight.map_or(usual, u64::from);
        Self {
            chunk_tokens,
            room_tokens: chunks.min(all) * chunk_tokens,
        }
    }

    /// The part of a kernel's id about chunks.
    pub(crate) fn id(&self) -> String {
        format!(
            "_c{}x{}",
            self.chunk_tokens,
            self.room_tokens / self.chunk_tokens
        )
    }

    /// Whether places are used again, so that chunks are acknowledged.
    #[must_use]
    pub const fn are_acknowledged(&self, max_tokens: u64) -> bool {
        self.room_tokens < max_tokens
    }

    /// Channels to each peer: a second one for acknowledgements.
    pub(crate) const fn channels(&self, max_tokens: u64) -> u16 {
        if self.are_acknowledged(max_tokens) {
            2
        } else {
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Dtype;

    fn chunks(nodes: u32, max_tokens: u64, puts_in_flight: Option<u32>) -> TokenChunks {
        let sizes = ChunkSizes {
            max_tokens,
            block_tokens: 8,
            token_bytes: 7168 * Dtype::Bf16.bytes(),
            put_tokens: None,
            puts_in_flight,
        };
        let topology = Topology {
            nodes,
            local_world: 8,
        };
        TokenChunks::new(&sizes, topology)
    }

    #[test]
    fn room_does_not_grow_with_the_nodes() {
        let all = |nodes: u32| u64::from(nodes - 1) * chunks(nodes, 4096, None).room_tokens;
        assert!(all(2) >= 4096 && all(5) >= 4 * 4096);
        // Whole chunks of 72 tokens, and three chunks at least.
        assert!(all(9) <= 4 * 4096, "{}", all(9));
        assert_eq!(all(64), 63 * 3 * 72);
        assert_eq!(chunks(64, 4096, Some(1)).room_tokens, 72);
    }

    #[test]
    fn few_tokens_are_not_acknowledged() {
        assert!(!chunks(2, 4096, None).are_acknowledged(4096));
        assert!(!chunks(64, 128, None).are_acknowledged(128));
        assert!(chunks(64, 4096, None).are_acknowledged(4096));
    }
}
