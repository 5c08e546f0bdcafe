//! Symmetric memory of GEMM operators.

use super::config::GemmOp;
use super::core::CoreLayout;
use super::op_plan::{Chunks, OUT_BYTES, OUT_COLS, OUT_ROWS, Reduction, TileOrder};
use super::spec::GemmSpec;
use crate::parts::region::regions;
use crate::plan::{Element, Workspace};

/// The packets of a warp. Each lane has four packets of 16 bytes, so they hold 8 rows of 64 columns.
const PACKETS: u64 = 4 * 32;

/// The parts of a plan on which the memory of a kernel depends.
pub(super) struct Needs<'a> {
    pub spec: GemmSpec<'a>,
    pub core: &'a CoreLayout,
    pub order: &'a TileOrder,
    /// The CTAs that compute, if each call gives the rows.
    pub compute_ctas: u32,
    pub chunks: Option<&'a Chunks>,
    pub reduction: Option<&'a Reduction>,
}

impl Needs<'_> {
    /// Returns the bytes of partial sums of a tile.
    fn partial_bytes(&self) -> u64 {
        let elems = u64::from(self.core.tile.m * self.core.tile.n);
        elems * self.spec.types().partial.bytes()
    }

    /// Returns the number of sub-tiles of a warpgroup.
    fn subs(&self) -> u32 {
        self.core.group_n() / OUT_COLS
    }

    /// Returns the number of output buffers that the results of a warpgroup fill.
    fn pieces(&self) -> u32 {
        self.subs() * OUT_COLS / self.spec.types().c.per_line()
    }

    fn normalises(&self) -> bool {
        self.spec.epilogue().normalises()
    }

    /// Whether normalised rows become elements of e4m3.
    fn quantises(&self) -> bool {
        self.spec.epilogue().quantises()
    }

    /// Returns the element with the squares of a row.
    fn row_squares(&self) -> Element {
        if self.quantises() {
            Element::Packets(1)
        } else {
            Element::Marked
        }
    }

    /// Returns the number of sub-tiles whose squares a packet has.
    fn subs_of_packet(&self) -> u32 {
        if self.quantises() { 1 } else { 2 }
    }

    /// Returns the number of sub-tiles of a row.
    fn row_subs(&self) -> u32 {
        self.order.col_tiles * self.core.tile.n / OUT_COLS
    }

    fn one_shot(&self) -> Option<&Reduction> {
        self.reduction.filter(|r| r.shots == 1)
    }

    fn two_shots(&self) -> Option<&Reduction> {
        self.reduction.filter(|r| r.shots == 2)
    }

    /// Returns a number of a plan with two shots, or 0 for other plans.
    fn of_two_shots(&self, number: impl Fn(&Reduction) -> u32) -> u32 {
        self.two_shots().map_or(0, number)
    }

    fn of_chunks(&self, number: impl Fn(&Chunks) -> u32) -> u32 {
        self.chunks.map_or(0, number)
    }

    fn has_idle_ranks(&self) -> bool {
        self.spec.op() == GemmOp::GemmRs
            && !self.spec.takes_rows()
            && self
                .reduction
                .is_some_and(|r| r.owners < self.spec.topology.local_world)
    }

    /// Returns the number of tiles that CTAs may share.
    fn split_tiles(&self) -> u32 {
        match self.spec.takes_rows() {
            true => self.compute_ctas / self.order.tail_splits,
            false => self.order.tail_tiles(),
        }
    }

    /// Returns whether CTAs that share a tile exchange their sums through memory.
    fn splits_in_workspace(&self) -> bool {
        self.order.tail_splits > 1 && self.core.cluster.is_none()
    }

    /// Returns the number of ranks whose partial sums a rank gets: those of its node, unless it is alone on its node.
    fn sources(&self) -> u32 {
        let topology = self.spec.topology;
        match (topology.local_world, topology.nodes) {
            (1, 2..) => 0,
            (local_world, _) => local_world,
        }
    }

    /// Returns whether sums of a node are put to other nodes.
    fn puts_sums(&self) -> bool {
        self.two_shots().is_some_and(|r| r.put_tiles > 0)
    }

    fn sends_results(&self) -> bool {
        self.two_shots().is_some_and(|r| r.results)
    }

    /// Whether the tiles of results are counted.
    fn counts_results(&self) -> bool {
        self.sends_results() || self.normalises_tiles()
    }

    /// Whether owners send results to slots of other ranks.
    fn has_slots(&self) -> bool {
        self.sends_results() && !self.stores_to_results() && self.spec.world() > 1
    }

    /// Whether rows are normalised when all of their tiles have been counted.
    fn normalises_tiles(&self) -> bool {
        let epilogue = self.spec.epilogue();
        self.reduction
            .is_some_and(|r| r.normalises_tiles(&epilogue))
    }

    /// Whether the warps that multiply normalise rows that they have stored.
    fn normalises_stored(&self) -> bool {
        self.normalises() && self.two_shots().is_none()
    }

    /// Whether results go straight to C of other ranks.
    fn stores_to_results(&self) -> bool {
        self.two_shots().is_some_and(|r| r.on_peers)
    }

    /// Returns the number of tiles whose results are counted. If rows are normalised, these are the tiles of C in the order of C.
    fn result_tiles(&self) -> u32 {
        if self.normalises_tiles() {
            let row_tiles = self.order.shard_row_tiles;
            return row_tiles.unwrap_or(self.order.row_tiles) * self.order.col_tiles;
        }
        let nodes = self.spec.topology.nodes;
        self.of_two_shots(|r| self.spec.world().min(r.owners * nodes) * r.shard_tiles)
    }

    /// Returns the number of channels to each peer on another node.
    fn channels(&self) -> u32 {
        1 + u32::from(self.sends_results())
    }

    fn crosses_nodes(&self) -> bool {
        self.spec.crosses_nodes() && (self.chunks.is_some() || self.puts_sums())
    }
}

regions! {
    /// The symmetric memory of a rank. It is zeroed once and never reset. The state comes first.
    pub struct GemmWorkspace(p: &Needs<'_>), from Workspace::STATE_END_BYTES, aligned to 1024;

    /// Counts the load threads that have met, over all calls.
    pace: Element::Flag, [], if p.order.pace_steps > 0;
    /// Counts the CTAs whose warp has stored its sums of a tile, over all calls.
    split_ready: Element::Flag, [tile: p.split_tiles(), warp: p.core.arch.multiplying_warps()], if p.splits_in_workspace();
    /// The sums over a slice of K of the sub-tiles that another CTA completes.
    split_sums: Element::Floats(u64::from(OUT_COLS * OUT_COLS)),
        [parity: 2u32, tile: p.split_tiles(), split: p.order.tail_splits, group: p.core.arch.groups, sub: p.subs()],
        if p.splits_in_workspace();
    /// Counts the calls that a rank with rows has begun, for the ranks without rows.
    owner_begun: Element::Flag, [owner: p.spec.world()], if p.has_idle_ranks();
    /// The mark of the last call that a rank has begun, and the number of its rows, which must be the same on all
    /// ranks.
    begun: Element::Marked, [parity: 2u32, rank: p.spec.world()], for all bodies, if p.spec.announces_begin() || p.stores_to_results();
    /// Where C of a rank lies in symmetric memory, which must be the same on all ranks.
    result_place: Element::LongWords(1), [parity: 2u32, rank: p.spec.world()], for all bodies, if p.stores_to_results() || p.spec.compares_places();
    /// The sums of a source for eight rows of a sub-tile: four Lamport packets of each lane, which are 0 between calls.
    packets: Element::LongWords(PACKETS),
        [parity: 2u32, source: p.spec.world() + u32::from(p.one_shot().is_some_and(|r| r.results)),
         tile: p.one_shot().map_or(0, |r| r.owner_tiles), group: p.core.arch.groups, sub: p.subs(), warp: 4u32, half: 2u32],
        if p.one_shot().is_some();
    /// For each sub-tile of a row: the squares of its columns, added up, and the mark of the call; for a result of e4m3 also the
    /// greatest |z · weight|.
    squares: Element::Packets(u64::from(p.row_subs().div_ceil(p.subs_of_packet()))), [parity: 2u32, row: p.spec.shape.m],
        if p.normalises_stored();
    /// For each row: the squares, added up, and the mark of the call; for a result of e4m3 also the greatest |z · weight|.
    row_squares: p.row_squares(), [parity: 2u32, row: p.spec.shape.m], if p.normalises_stored();
    /// Counts the sub-tiles of a tile that have arrived from a source, over all calls.
    partial_ready: Element::Flag, [source: p.sources(), tile: p.of_two_shots(|r| r.owner_tiles)],
        if p.two_shots().is_some();
    /// The partial sum of a source for a tile, rounded to the type of A.
    partials: Element::Bytes(p.partial_bytes()),
        [parity: 2u32, source: p.sources(), tile: p.of_two_shots(|r| r.owner_tiles)], if p.two_shots().is_some();
    /// Counts the sub-tiles of a put that are in sums_out, over all calls.
    put_ready: Element::Flag,
        [phase: p.spec.topology.nodes, put: p.of_two_shots(|r| r.shard_tiles.div_ceil(r.put_tiles.max(1)))],
        if p.puts_sums();
    /// This node's sums of tiles that ranks of other nodes own.
    sums_out: Element::Bytes(p.partial_bytes()),
        [parity: 2u32, tile: p.of_two_shots(|r| p.spec.topology.peers() * r.shard_tiles)], if p.puts_sums();
    /// The sums of other nodes for this rank's tiles.
    sums_in: Element::Bytes(p.partial_bytes()),
        [parity: 2u32, peer: p.spec.topology.peers(), tile: p.of_two_shots(|r| r.shard_tiles)], if p.puts_sums();
    /// Counts the sub-tiles of a tile whose results have arrived, over all calls.
    result_ready: Element::Flag, [tile: p.result_tiles()], if p.counts_results();
    /// Results in the layout of an output buffer: 64 rows of 128 bytes, in TMA's swizzle.
    results: Element::Bytes(OUT_BYTES.into()),
        [parity: 2u32, tile: p.result_tiles(), group: p.core.arch.groups, piece: p.pieces()],
        if p.has_slots();
    /// The squares of each row of a sub-tile of results, added up.
    tile_squares: Element::Floats(OUT_ROWS.into()),
        [parity: 2u32, tile: p.result_tiles(), group: p.core.arch.groups, sub: p.subs()], if p.normalises_tiles();
    /// The rows of results that warps of this rank have taken in the calls of a parity.
    rows_taken: Element::Words(1), [parity: 2u32], if p.normalises_tiles();
    /// Counts the pieces of a chunk of a shard of A that have arrived, over all calls.
    chunk_ready: Element::Flag,
        [source: p.spec.world(), chunk: p.of_chunks(|c| c.per_shard), slice: p.of_chunks(|c| c.k_slices)],
        if p.chunks.is_some();
    /// The rows of A of all ranks. If scales travel, each row has its scales behind its elements.
    gathered: Element::Bytes(p.spec.sent_row_bytes()), [parity: 2u32, row: p.spec.shape.m], if p.chunks.is_some();
    /// The number of puts of a peer that have arrived, as `mk/comm/put.cuh` encodes it.
    arrived: Element::Flag, [channel: p.channels(), peer: p.spec.topology.peers()], if p.crosses_nodes();
}

/// Returns the symmetric memory of a kernel.
pub(super) fn workspace(needs: &Needs<'_>) -> Workspace {
    let memory = GemmWorkspace::new(needs);
    Workspace::new(memory.regions(), memory.bytes)
}
