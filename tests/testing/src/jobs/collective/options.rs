//! The options of a job of a collective.

use super::CollectiveJob;
use mkernel::network::Faults;
use mkernel::spec::{Dtype, Protocol};

impl CollectiveJob {
    /// Sets the protocol.
    #[must_use]
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.config.protocol = Some(protocol);
        self
    }

    /// Sets the number of shots.
    #[must_use]
    pub fn shots(mut self, shots: u32) -> Self {
        self.config.shots = Some(shots);
        self
    }

    /// Sets the most KiB that travel as packets.
    #[must_use]
    pub fn packet_kib(mut self, most: u32) -> Self {
        self.config.packet_kib = Some(most);
        self
    }

    /// Sets the most buckets.
    #[must_use]
    pub fn buckets(mut self, most: u32) -> Self {
        self.config.buckets = Some(most);
        self
    }

    /// Sets the root of a broadcast.
    #[must_use]
    pub fn from(mut self, root: u32) -> Self {
        self.config.root = Some(root);
        self
    }

    /// Sets elements of fp32 in place of bf16.
    #[must_use]
    pub fn fp32(mut self) -> Self {
        self.config.dtype = Dtype::Fp32;
        self
    }

    /// Sets elements of fp16 in place of bf16.
    #[must_use]
    pub fn fp16(mut self) -> Self {
        self.config.dtype = Dtype::Fp16;
        self
    }

    /// Puts the result into symmetric memory, and sets `symmetric_result`.
    #[must_use]
    pub fn symmetric(mut self) -> Self {
        self.config.symmetric_result = true;
        self
    }

    /// Captures the calls in a graph.
    #[must_use]
    pub fn in_graph(mut self) -> Self {
        self.is_graph = true;
        self
    }

    /// Makes a call for each of these numbers of rows, with one operator that takes rows at run time.
    #[must_use]
    pub fn with_rows(mut self, rows: &[u64]) -> Self {
        self.rows = rows.to_vec();
        self
    }

    /// Gives the result the memory of the input.
    #[must_use]
    pub fn in_place(mut self) -> Self {
        self.is_in_place = true;
        self
    }

    /// Divides the ranks into `nodes` nodes, whose network has these faults.
    #[must_use]
    pub fn across(mut self, nodes: u32, faults: Faults) -> Self {
        (self.nodes, self.faults) = (nodes, faults);
        self
    }
}
