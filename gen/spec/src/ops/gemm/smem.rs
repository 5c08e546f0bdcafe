//! Shared memory of the CTAs of GEMM operators.

use super::op_plan::{Cluster, OUT_BUFFERS, OUT_BYTES, SLOT_BYTES};
use crate::arch::{ArchSpec, Tile};
use crate::config::LINE_BYTES;
use crate::parts::region::regions;
use crate::plan::{Element, Region};

/// The numbers on which the shared memory of a CTA that computes depends.
#[derive(Clone, Copy)]
pub(super) struct Stages {
    pub arch: &'static ArchSpec,
    pub tile: Tile,
    /// Rows of A in a stage.
    pub rows_a: u32,
    pub stages: u32,
    /// The exchange of sums, if the CTAs of a cluster share every tile. All of C is then stored from registers.
    pub cluster: Option<Cluster>,
}

impl Stages {
    fn of_cluster(self, number: impl Fn(Cluster) -> u32) -> u32 {
        self.cluster.map_or(0, number)
    }

    /// Whether a stage has fewer rows of A than the tile. Then a warpgroup also multiplies the bytes behind these rows, for rows
    /// of C that do not exist. These bytes must belong to B of the same stage, which has arrived and does not change.
    pub(super) const fn is_one_piece(self) -> bool {
        self.rows_a < self.tile.m
    }

    pub(super) const fn stage_bytes(self) -> u32 {
        (self.rows_a + self.tile.n) * LINE_BYTES
    }
}

regions! {
    /// The shared memory of a CTA that computes. Stages and buffers are aligned to 1024 bytes, after which the 128-byte
    /// swizzle repeats.
    pub struct GemmSmem(p: Stages), from 0, aligned to 8;

    /// The stages of A and of B.
    a: Element::Bytes((p.tile.m * LINE_BYTES).into()), [stage: p.stages], if !p.is_one_piece();
    b: Element::Bytes((p.tile.n * LINE_BYTES).into()), [stage: p.stages], if !p.is_one_piece();
    /// The stages: the rows of A that there are, and then B.
    a_and_b: Element::Bytes(p.stage_bytes().into()), [stage: p.stages], if p.is_one_piece();
    /// Sub-tiles on their way to memory.
    out: Element::Bytes(OUT_BYTES.into()), [group: p.arch.groups, buffer: OUT_BUFFERS], if p.cluster.is_none();
    /// A warp's sums of 8 columns over the slice of K of another CTA: 16 bytes of each lane. Other CTAs are counted without
    /// this one, and warps over both groups.
    cluster_sums: Element::Bytes(Cluster::SUMS_BYTES),
        [from: p.of_cluster(|c| c.ctas - 1), block: p.of_cluster(|c| c.blocks),
         warp: p.of_cluster(|c| p.arch.groups * c.row_warps)],
        if p.cluster.is_some();
    /// The barriers of the two pipelines.
    stage_full: Element::Barrier, [stage: p.stages];
    stage_empty: Element::Barrier, [stage: p.stages];
    output_full: Element::Barrier, [group: p.arch.groups, buffer: OUT_BUFFERS], if p.cluster.is_none();
    output_empty: Element::Barrier, [group: p.arch.groups, buffer: OUT_BUFFERS], if p.cluster.is_none();
    /// Complete when a warp has the sums of all other CTAs.
    cluster_full: Element::Barrier, [warp: p.of_cluster(|c| p.arch.groups * c.row_warps)], if p.cluster.is_some();
    /// Whether this CTA has entered the call, for the others of the cluster.
    entered: Element::Words(1), [], if p.cluster.is_some();
}

regions! {
    /// The shared memory of a CTA that only communicates. Its slots end before the barriers of a CTA that computes
    /// (`CoreLayout::holds_slots`), so it needs no more memory than such a CTA.
    pub struct CommSmem(warps: u32), from 0, aligned to 8;

    /// In a CTA that only communicates: the slot through which a warp copies, and its barrier.
    copy_slot: Element::Bytes(SLOT_BYTES.into()), [warp: warps];
    copy_loaded: Element::Barrier, [warp: warps];
}

/// Returns the shared memory of a CTA that only communicates, if CTAs push through shared memory.
pub(super) fn comm_smem(arch: &ArchSpec, pushes: bool) -> Vec<Region> {
    match pushes {
        true => CommSmem::new(arch.warps()).regions(),
        false => Vec::new(),
    }
}
