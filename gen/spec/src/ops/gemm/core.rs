//! The core that GEMM operators share: tile, stages, and the layout of shared memory.

use super::config::{GemmOp, MAX_STAGES};
use super::maps::stage_rows_a;
use super::op_plan::{
    Cluster, GemmPlan, OUT_BUFFERS, OUT_BYTES, OUT_COLS, SLOT_BYTES, Split, TileOrder,
};
use super::scales::SCALE_BLOCK;
use super::smem::{GemmSmem, Stages};
use super::spec::GemmSpec;
use crate::arch::{Arch, ArchSpec, Tile};
use crate::config::Field;
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::options::SMEM_ALIGN;
use crate::plan::{Region, Registers};
use serde::Serialize;

/// The fewest steps of a slice of K. Adding the sums of a shorter slice costs more than the slice saves: four stages of the
/// largest tile take 3 µs, and an exchange of sums takes at least 2.6 µs (H100). The cost model chooses the number of splits.
const MIN_SLICE_STEPS: u64 = 4;
/// The most whole rounds before a last round that can have any number of splits. After more rounds, only the usual number is a
/// candidate: another number would save a few percent of such a long call, whose time is limited by power.
const MAX_ROUNDS_BEFORE_SPLITS: u32 = 1;
/// The most CTAs that share a tile. With more CTAs, a CTA that completes the tile adds for longer than it multiplies.
const MAX_SPLITS: u32 = 16;
/// The fewest operations of a GEMM whose CTAs keep pace. Such a GEMM is limited by power, and CTAs that have drifted apart read
/// operands from device memory again and again (`docs/performance.md#keeping-pace`).
const PACED_FLOPS: u64 = 10_000_000_000_000;
/// Steps of K after which CTAs wait for each other.
const PACE_STEPS: u32 = 16;

/// Registers per thread. `normalises_tiles`: whether a warp beside those that multiply normalises rows.
pub(super) fn registers(spec: GemmSpec<'_>, arch: Arch, normalises_tiles: bool) -> Registers {
    let of = &arch.spec().producers;
    let producer = match (spec.takes_rows(), spec.types().a.bytes()) {
        (_, 2..) if normalises_tiles => of.gemm_normalising,
        (true, 1) if spec.op() == GemmOp::AgGemm => of.gemm_promoting_pushed_rows,
        (_, 1) => of.gemm_promoting,
        (true, _) => of.gemm_with_rows,
        (false, _) => of.gemm,
    };
    arch.spec().split_registers(producer)
}

/// Tile, stages and shared memory of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CoreLayout {
    /// The architecture of the kernel.
    #[serde(skip)]
    pub arch: &'static ArchSpec,
    /// Rows and columns that a CTA computes at a time.
    pub tile: Tile,
    /// How the warpgroups share a tile.
    pub split: Split,
    /// Rows of A in a stage: fewer than the rows of the tile if C has fewer.
    pub stage_rows_a: u32,
    /// Stages of the pipeline in shared memory.
    pub stages: u32,
    /// The CTAs that share each tile as a cluster. `None` if the kernel has no clusters.
    pub cluster: Option<Cluster>,
    /// The regions of shared memory, from a 1024-byte boundary.
    pub smem: Vec<Region>,
    /// Dynamic shared memory of a launch, in bytes.
    pub smem_bytes: u32,
}

/// Bytes of shared memory without the stages, but with the barriers of the most stages.
fn fixed_bytes(arch: &ArchSpec, cluster: Option<Cluster>) -> u32 {
    // A buffer of the output has two barriers: full and empty.
    let exchange = match cluster {
        None => arch.groups * OUT_BUFFERS * (OUT_BYTES + 2 * 8),
        Some(cluster) => cluster.smem_bytes(arch.groups),
    };
    exchange + 2 * 8 * MAX_STAGES + SMEM_ALIGN
}

impl CoreLayout {
    /// The plan of a kernel that computes tiles in this order and exchanges nothing.
    pub(super) fn plan(&self, spec: GemmSpec<'_>, order: TileOrder) -> GemmPlan {
        GemmPlan {
            config: *spec.config,
            shape: spec.shape,
            tile: self.tile,
            split: self.split,
            stages: self.stages,
            cluster: self.cluster,
            stage_rows_a: self.stage_rows_a,
            load_rows_a: self.tile.m,
            transfer: None,
            comm_ctas: 0,
            order,
            chunks: None,
            reduction: None,
        }
    }

    /// The layout for `tile`, with the most stages that fit unless the spec fixes their number. If `cluster` is given, its CTAs
    /// share each tile.
    pub(super) fn new(
        spec: GemmSpec<'_>,
        tile: Tile,
        cluster: Option<Cluster>,
        device: &Device,
    ) -> Result<Self, Diagnostics> {
        let mut found = Diagnostics::default();
        let arch = device.arch.spec();
        let stages_of = |stages| Stages {
            arch,
            tile,
            rows_a: stage_rows_a(tile, spec.shape.m),
            stages,
            cluster,
        };
        let stage_bytes = stages_of(1).stage_bytes();
        let fixed_bytes = fixed_bytes(arch, cluster);
        let most = device.smem_bytes.saturating_sub(fixed_bytes) / stage_bytes;
        let stages = spec.tuning().stages.unwrap_or(most.min(MAX_STAGES));
        found.require(
            stages <= most.min(MAX_STAGES) && stages >= 2,
            Field::STAGES,
            || {
                format!(
                    "{stages} stages of a {}x{} tile need {} bytes of shared memory of {} ({})",
                    tile.m,
                    tile.n,
                    stages * stage_bytes + fixed_bytes,
                    device.smem_bytes,
                    device.name,
                )
            },
            format!(
                "use 2 to {} stages, or a smaller tile",
                most.clamp(2, MAX_STAGES)
            ),
        );
        let (group_cols, most) = (Split::of(tile).group_cols(tile), spec.most_group_cols());
        found.require(
            group_cols <= most,
            Field::TILE_N,
            || {
                format!(
                    "batch-invariant sums of {group_cols} columns of a warpgroup do not fit into its registers, {most} do"
                )
            },
            "remove it, or use fewer columns",
        );
        found.into_result(())?;
        let smem = GemmSmem::new(stages_of(stages));
        Ok(Self {
            arch,
            tile,
            split: Split::of(tile),
            stage_rows_a: stages_of(stages).rows_a,
            stages,
            cluster,
            smem: smem.regions(),
            smem_bytes: smem.bytes as u32 + SMEM_ALIGN,
        })
    }

    /// The regions of the shared memory of a CTA that computes.
    pub(super) fn memory(&self) -> GemmSmem {
        GemmSmem::new(Stages {
            arch: self.arch,
            tile: self.tile,
            rows_a: self.stage_rows_a,
            stages: self.stages,
            cluster: self.cluster,
        })
    }

    /// Columns of one consumer warpgroup.
    #[must_use]
    pub fn group_n(&self) -> u32 {
        self.split.group_cols(self.tile)
    }

    /// Whether the slots of a communication CTA, which take the place of the stages, end before the barriers.
    pub(super) fn holds_slots(&self) -> bool {
        let slots = u64::from(self.arch.warps() * SLOT_BYTES);
        let barriers = self.memory().stage_full;
        barriers.is_some_and(|region| slots <= region.offset_bytes)
    }

    /// Completes an order for `compute_ctas`. In the last, incomplete round, several CTAs share each tile along K, so that fewer
    /// CTAs idle. In whole rounds, CTAs keep pace if the GEMM is long. Returns one order for each number of CTAs that may share a
    /// tile; the cost model chooses among the orders.
    ///
    /// If each call gives the rows, CTAs do not keep pace.
    pub(super) fn complete(
        &self,
        spec: GemmSpec<'_>,
        mut order: TileOrder,
        compute_ctas: u32,
    ) -> Vec<TileOrder> {
        let (tuning, k) = (spec.tuning(), spec.shape.k);
        order.whole_tiles = order.slots / compute_ctas * compute_ctas;
        let steps = k.div_ceil(spec.types().tile_k().into());
        // A CTA with an empty slot of the order takes no part in the round, so the others would wait for it.
        let may_pace = order.whole_tiles > 0 && order.slots == order.tiles() && !spec.takes_rows();
        let flops = 2 * u64::from(order.tiles()) * u64::from(self.tile.m * self.tile.n) * k;
        let pace_steps = match tuning.pace_steps {
            _ if !may_pace => 0,
            None if flops < PACED_FLOPS => 0,
            None => PACE_STEPS,
            Some(asked) => asked,
        };
        order.pace_steps = pace_steps.min(steps as u32);
        let splits = self.tail_splits(spec, &order, steps, compute_ctas);
        let with_splits = |tail_splits| TileOrder {
            tail_splits,
            ..order.clone()
        };
        splits.into_iter().map(with_splits).collect()
    }

    /// The numbers of CTAs that may share a tile of the last round. The usual number comes first: 4 or 2, if the sub-tiles of C
    /// of a warpgroup divide evenly among the CTAs.
    ///
    /// CTAs that quantise share tiles only if there is one round: otherwise ptxas finds no registers for the next products, and
    /// serialises them.
    ///
    /// If each call gives the rows, the last round can have any number of tiles. If a call never has more tiles than half of the
    /// CTAs, tiles are shared as usual. Otherwise at most two CTAs share a tile, in last rounds of few tiles.
    fn tail_splits(
        &self,
        spec: GemmSpec<'_>,
        order: &TileOrder,
        steps: u64,
        compute_ctas: u32,
    ) -> Vec<u32> {
        let subs = spec.group_cols(self.tile) / OUT_COLS;
        let asked = spec.tuning().split_k;
        let may_have_rounds =
            order.whole_tiles > 0 || spec.takes_rows() && 2 * order.slots > compute_ctas;
        if may_have_rounds && spec.epilogue().quantises_sums() {
            return vec![1];
        }
        if let Some(granules) = spec.granules() {
            let most = match order.tail_tiles() {
                _ if spec.takes_rows() && 2 * order.slots > compute_ctas => 2.min(compute_ctas),
                0 => 1,
                tiles => compute_ctas / tiles,
            };
            let splits = powers_of_two(most.min(granules).min(asked.unwrap_or(granules)));
            return match asked {
                Some(_) => splits[..1].to_vec(),
                None => splits,
            };
        }
        if spec.takes_rows() && 2 * order.slots > compute_ctas {
            let may_halve =
                compute_ctas >= 2 && subs.is_multiple_of(2) && steps >= 2 * MIN_SLICE_STEPS;
            let splits = asked.map_or(2, |asked| asked.min(2));
            return vec![if may_halve { splits } else { 1 }];
        }
        let tiles = order.tail_tiles();
        if tiles == 0 {
            return vec![1];
        }
        let most = MAX_SPLITS.min(compute_ctas / tiles);
        if let Some(asked) = asked {
            return vec![asked.min(most).min(steps as u32)];
        }
        let most = most.min((steps / MIN_SLICE_STEPS) as u32).max(1);
        let is_even = |splits: &u32| *splits <= most && subs.is_multiple_of(*splits);
        let even = [4, 2].into_iter().find(is_even).unwrap_or(1);
        // With rows of the call and 128 sums per thread, registers do not suffice for uneven splits.
        let may_be_uneven = !spec.takes_rows() || subs <= 2;
        let is_short =
            may_be_uneven && order.whole_tiles <= MAX_ROUNDS_BEFORE_SPLITS * compute_ctas;
        let others = (2..=most).filter(|splits| is_short && *splits != even);
        std::iter::once(even).chain(others).collect()
    }
}

/// The powers of two up to `most`, the largest first.
fn powers_of_two(most: u32) -> Vec<u32> {
    let powers = (0..=most.ilog2()).rev();
    powers.map(|exponent| 1 << exponent).collect()
}

/// Tiles of the architecture that the tuning allows, in which a warpgroup has whole sub-tiles of C, and a tile has all columns
/// that share a scale.
pub(super) fn candidate_tiles(spec: GemmSpec<'_>, arch: Arch) -> impl Iterator<Item = Tile> {
    let (tuning, tiles) = (&spec.config.tuning, arch.spec().tiles.iter().copied());
    tiles.filter(move |tile| {
        tuning.tile_m.is_none_or(|m| m == tile.m)
            && tuning.tile_n.is_none_or(|n| n == tile.n)
            && spec.group_cols(*tile) >= OUT_COLS
            && (!spec.epilogue().quantises_sums() || spec.tile_cols(*tile) >= SCALE_BLOCK as u32)
    })
}
