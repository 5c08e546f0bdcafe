//! The part of a plan that only `combine` has.

use super::config::{CombineConfig, CombineShape};
use crate::arch::Arch;
use crate::ops::dispatch::{ExpectedRouting, TokenChunks};
use crate::topology::Topology;
use serde::Serialize;

/// The most tokens of a rank whose sums do not pass through the pipeline, unless the user gives a limit
/// (`docs/performance.md#sums-of-few-tokens`).
pub(super) const LOW_LATENCY_TOKENS: u32 = 128;
/// The most tokens whose sums do not pass through the pipeline on one rank, where no data travels.
pub(super) const LOW_LATENCY_TOKENS_ALONE: u32 = 1024;
/// Output buffers, each with a storing thread: sums that are complete but have not left the CTA. A sum is on its way for 2
/// to 5 µs, in which 344 GB/s over 132 SMs need 5 to 13 KiB in flight.
pub const OUTPUTS: u32 = 3;
/// The most sums for peers that a CTA sends before it waits for the sums of an own token. More sums for peers would queue for
/// the link, and own rows would be read at the end, when the link is idle.
pub const SUMS_AHEAD: u32 = 2;
/// Words before a list: the number of tokens, the number of tokens on the list, a fault, and the destination of their sums.
pub const LIST_HEADER_BYTES: u64 = 32;

/// The part of a plan that only `combine` has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CombinePlan {
    /// The architecture of the kernel.
    #[serde(skip)]
    pub arch: Arch,
    /// The configuration of the operator.
    pub config: CombineConfig,
    /// The sizes of the problem.
    pub shape: CombineShape,
    /// Rows of a rank, equal to the rows of the operator that dispatched the tokens.
    pub max_rows: u64,
    /// The most tokens of a rank whose sums are computed without the pipeline, and travel in packets; 0 across nodes.
    pub low_latency_tokens: u64,
    /// The pipeline for the sums of ranks with more tokens, if a rank can have more.
    pub pipeline: Option<SumPipeline>,
    /// The exchange between nodes; `None` on one node.
    pub internode: Option<InternodeCombine>,
}

/// Bytes of a row.
pub(super) const fn row_bytes(config: &CombineConfig, shape: &CombineShape) -> u64 {
    shape.hidden * config.dtype.bytes()
}

impl CombinePlan {
    /// Choices of a rank's tokens.
    #[must_use]
    pub const fn choices(&self) -> u64 {
        self.shape.max_tokens * self.shape.top_k
    }

    /// Bytes of a row.
    #[must_use]
    pub const fn row_bytes(&self) -> u64 {
        row_bytes(&self.config, &self.shape)
    }

    /// Parts of a row. Each part is summed under one flag. 0 without a pipeline.
    #[must_use]
    pub fn parts(&self) -> u64 {
        let part_bytes = self.pipeline.map(|pipeline| pipeline.part_bytes);
        part_bytes.map_or(0, |bytes| self.row_bytes().div_ceil(bytes.into()))
    }

    /// Across nodes, the room of a rank for its partial sums for other ranks of its node: one sum for each of its rows, or for
    /// each token if there are fewer tokens than rows.
    #[must_use]
    pub fn partial_slots(&self, topology: Topology) -> u64 {
        self.max_rows.min(self.all_tokens(topology))
    }

    /// Whether a partial sum lies in the slot of a row. Otherwise it lies in the slot of its token.
    #[must_use]
    pub fn has_slots_of_rows(&self, topology: Topology) -> bool {
        self.max_rows < self.all_tokens(topology)
    }

    fn all_tokens(&self, topology: Topology) -> u64 {
        u64::from(topology.world()) * self.shape.max_tokens
    }

    /// The largest number of tokens on all lists of a rank for other nodes. A token is on at most one list per expert.
    #[must_use]
    pub fn listed_tokens(&self, topology: Topology) -> u64 {
        self.shape.max_tokens * self.shape.top_k.min(topology.peers().into())
    }

    /// Packets that a rank sends before the packets of its choices: the number of tokens, and across nodes also a fault.
    #[must_use]
    pub const fn count_packets(&self) -> u32 {
        match self.internode {
            None => 1,
            Some(_) => 3,
        }
    }

    /// Whether sums of other nodes are acknowledged.
    #[must_use]
    pub fn acknowledges(&self) -> bool {
        self.internode.is_some() && self.chunks().are_acknowledged(self.shape.max_tokens)
    }

    /// Chunks between nodes.
    pub(super) fn chunks(&self) -> TokenChunks {
        let internode = self.internode.as_ref();
        internode
            .map(|internode| internode.chunks)
            .unwrap_or_default()
    }

    /// The number of CTAs, the first CTAs of the launch, that only communicate.
    #[must_use]
    pub const fn comm_ctas(&self) -> u32 {
        match self.internode {
            None => 0,
            Some(_) => 1,
        }
    }

    /// The average distribution of tokens if experts are chosen evenly.
    #[must_use]
    pub fn expected_routing(&self, topology: Topology) -> ExpectedRouting {
        let shape = self.shape;
        ExpectedRouting::of(topology, shape.experts, shape.top_k, shape.max_tokens)
    }
}

/// The pipeline through which parts of rows pass in a CTA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SumPipeline {
    /// Bytes of a row that are summed at a time.
    pub part_bytes: u32,
    /// Stages of a CTA, each for a part of a row.
    pub stages: u32,
}

/// The exchange between nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InternodeCombine {
    /// The number of sums of a put, and of sums of a peer for which a rank has room until they have arrived.
    #[serde(flatten)]
    pub chunks: TokenChunks,
    /// Bytes of the longest list.
    pub list_bytes: u64,
}
