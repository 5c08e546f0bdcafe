//! The GEMM core that operators share: tile, stages and shared-memory map.

use super::config::{BLayout, GemmShape, MAX_STAGES, Tuning};
use super::maps::stage_rows_a;
use super::op_plan::{
    Cluster, GemmPlan, OUT_BUFFERS, OUT_BYTES, OUT_COLS, SLOT_BYTES, Split, THREADS, TileOrder,
};
use super::smem::{GemmSmem, Stages};
use super::spec::GemmSpec;
use crate::abi::{ArgKind, Extent, Operand, OperandSpec};
use crate::arch::{Arch, Tile};
use crate::config::Field;
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::options::SMEM_ALIGN;
use crate::plan::{Region, Registers};
use serde::Serialize;

/// A slice of K shorter than this costs more to add than it saves: four stages of the largest tile take 3 µs, and no
/// exchange of sums takes less than 2.6 (H100). Which number of splits is best, the cost model says.
const MIN_SLICE_STEPS: u64 = 4;
/// After more whole rounds than this, the last one is split in the usual way only. Another number of splits would save a
/// few percent of so long a call, and power decides its time.
const MAX_ROUNDS_BEFORE_SPLITS: u32 = 1;
/// The most CTAs that share a tile. With more, one of them adds for longer than it multiplies.
const MAX_SPLITS: u32 = 16;
/// A GEMM of so many operations keeps pace: it takes so long that power limits it, and CTAs that have drifted apart read
/// operands from device memory again and again. Measured on 2 GPUs, against cuBLAS of the same blocks: `gemm_rs` of 32768 x
/// 32768 x 16384 1.12 without, 1.02 with, `ag_gemm` of 32768 x 16384 x 32768 1.06 and 1.01; at 4e12 it costs up to 5 %.
const PACED_FLOPS: u64 = 10_000_000_000_000;
/// About 13 µs; 4 and 64 are equal within noise.
const PACE_STEPS: u32 = 16;

/// Registers per thread. 128 accumulators and their addresses need more than an even share; producers need 56 when they also
/// push.
///
/// If each call gives the rows, producers compute from them what are constants otherwise, for which 56 are too few.
pub(super) const fn registers(takes_rows: bool, arch: Arch) -> Registers {
    let producer = if takes_rows { 72 } else { 56 };
    arch.spec().split_registers(THREADS, producer)
}

/// Tile, stages and shared memory of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CoreLayout {
    /// Rows and columns that a CTA computes at a time.
    pub tile: Tile,
    /// How the warpgroups share it.
    pub split: Split,
    /// Rows of A in a stage: fewer than the tile has where C has fewer.
    pub stage_rows_a: u32,
    /// Stages of the pipeline in shared memory.
    pub stages: u32,
    /// The CTAs that share each tile as a cluster, if they do.
    pub cluster: Option<Cluster>,
    /// Regions, from a 1024-byte boundary.
    pub smem: Vec<Region>,
    /// Dynamic shared memory to ask for.
    pub smem_bytes: u32,
}

/// Shared memory without the stages, but with the barriers of as many as there may be.
fn fixed_bytes(tile: Tile, cluster: Option<Cluster>) -> u32 {
    // Of the output, four barriers for each buffer of two warpgroups: full and empty.
    let exchange = match cluster {
        None => OUT_BUFFERS * (2 * OUT_BYTES + 4 * 8),
        Some(cluster) => cluster.smem_bytes(tile),
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

    /// The layout for `tile`: as many stages as fit unless the spec fixes them. The CTAs of `cluster`, if there is one, share
    /// each tile.
    pub(super) fn new(
        spec: GemmSpec<'_>,
        tile: Tile,
        cluster: Option<Cluster>,
        device: &Device,
    ) -> Result<Self, Diagnostics> {
        let mut found = Diagnostics::default();
        let stages_of = |stages| Stages {
            tile,
            rows_a: stage_rows_a(tile, spec.shape.m),
            stages,
            cluster,
        };
        let stage_bytes = stages_of(1).stage_bytes();
        let fixed_bytes = fixed_bytes(tile, cluster);
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
        found.into_result(())?;
        let smem = GemmSmem::new(stages_of(stages));
        Ok(Self {
            tile,
            split: Split::of(tile),
            stage_rows_a: stages_of(stages).rows_a,
            stages,
            cluster,
            smem: smem.regions(),
            smem_bytes: smem.bytes as u32 + SMEM_ALIGN,
        })
    }

    /// The shared memory of a CTA that computes, by regions.
    pub(super) fn memory(&self) -> GemmSmem {
        GemmSmem::new(Stages {
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

    /// Whether a communication CTA's slots end before the barriers, which they share with the stages.
    pub(super) fn holds_slots(&self) -> bool {
        let slots = u64::from(THREADS / 32 * SLOT_BYTES);
        let barriers = self.memory().stage_full;
        barriers.is_some_and(|region| slots <= region.offset_bytes)
    }

    /// Completes an order for `compute_ctas`: the last, incomplete round of tiles is divided over the CTAs that would idle
    /// in it, each tile among several CTAs along K; and in whole rounds CTAs perhaps keep pace. There is one order for
    /// each number of CTAs that may share a tile, among which the cost model chooses.
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
        // A CTA that meets a gap of the order takes no part in the round.
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

    /// How many CTAs may share a tile of the last round, the usual number first: 4 or 2, if a group's sub-tiles divide
    /// evenly among them.
    ///
    /// If each call gives the rows, any number of tiles may be left for the last round. Tiles that are never more than half
    /// of the CTAs are shared as usual, and of others those of a last round of few tiles, by two CTAs.
    fn tail_splits(
        &self,
        spec: GemmSpec<'_>,
        order: &TileOrder,
        steps: u64,
        compute_ctas: u32,
    ) -> Vec<u32> {
        let subs = self.group_n() / OUT_COLS;
        let asked = spec.tuning().split_k;
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

/// The address of C, for kernels that do not only store it by TMA. If rows are normalised, it is that of the new residual.
pub(super) fn c_address(spec: GemmSpec<'_>) -> [(&'static str, ArgKind); 2] {
    let operand = match spec.epilogue().normalises() {
        true => Operand::ResidualOut,
        false => Operand::C,
    };
    [
        ("c_rows", ArgKind::Pointer(operand)),
        ("c_row_bytes", ArgKind::RowStrideBytes(operand)),
    ]
}

/// The rows of the call, and those of A of which a load brings at most `most`, if each call gives them.
pub(super) fn rows_args(spec: GemmSpec<'_>, most: u32) -> Vec<(&'static str, ArgKind)> {
    match spec.takes_rows() {
        true => vec![
            ("rows", ArgKind::Rows),
            ("rows_address", ArgKind::RowsAddress),
            ("load_rows_a", ArgKind::BoxRows { most }),
        ],
        false => Vec::new(),
    }
}

/// What the caller passes, where this rank's A and C have these rows.
pub(super) fn operands(spec: GemmSpec<'_>, a_rows: Extent, c_rows: Extent) -> Vec<OperandSpec> {
    let GemmShape { n, k, .. } = spec.shape;
    let (b_rows, b_cols) = match spec.b_layout() {
        BLayout::Kn => (k, n),
        BLayout::Nk => (n, k),
    };
    let (epilogue, types) = (spec.epilogue(), spec.types());
    let addend = |operand, rows| OperandSpec::new(operand, rows, n, types.addend);
    let result = OperandSpec::new(Operand::C, c_rows, n, types.c)
        .in_symmetric_memory(spec.config.symmetric_result);
    // A norm writes elements of C while it reads others of what it normalises.
    let result = match epilogue.normalises() {
        true => result,
        false => result.in_place_of(Operand::Residual),
    };
    let mut operands = vec![
        OperandSpec::new(Operand::A, a_rows, k, types.a)
            .in_symmetric_memory(spec.config.symmetric_a),
        OperandSpec::new(Operand::B, Extent::Fixed(b_rows), b_cols, types.b),
        result,
    ];
    if epilogue.bias {
        operands.push(addend(Operand::Bias, Extent::Fixed(1)));
    }
    if epilogue.residual {
        operands.push(addend(Operand::Residual, c_rows));
    }
    if epilogue.normalises() {
        operands.push(addend(Operand::Weight, Extent::Fixed(1)));
        let new_residual = addend(Operand::ResidualOut, c_rows);
        operands.push(new_residual.in_place_of(Operand::Residual));
    }
    operands
}

/// Where bias, residual and weight lie, and where the norm of C goes.
pub(super) fn epilogue_args(spec: GemmSpec<'_>) -> Vec<(&'static str, ArgKind)> {
    let mut kinds = Vec::new();
    if spec.epilogue().bias {
        kinds.push(("bias", ArgKind::Pointer(Operand::Bias)));
    }
    if spec.epilogue().residual {
        kinds.push(("residual", ArgKind::Pointer(Operand::Residual)));
        kinds.push((
            "residual_row_bytes",
            ArgKind::RowStrideBytes(Operand::Residual),
        ));
    }
    if spec.epilogue().normalises() {
        kinds.push(("weight", ArgKind::Pointer(Operand::Weight)));
        kinds.push(("y", ArgKind::Pointer(Operand::C)));
        kinds.push(("y_row_bytes", ArgKind::RowStrideBytes(Operand::C)));
    }
    kinds
}

/// Bytes of all of A, B, this rank's `c_rows` of C, and what the epilogue reads.
pub(super) fn memory_bytes(spec: GemmSpec<'_>, c_rows: u64) -> u64 {
    let GemmShape { m, n, k } = spec.shape;
    let (epilogue, types) = (spec.epilogue(), spec.types());
    let matrices = u64::from(epilogue.residual) + u64::from(epilogue.normalises());
    let rows = u64::from(epilogue.bias) + u64::from(epilogue.normalises());
    m * k * types.a.bytes()
        + k * n * types.b.bytes()
        + (matrices * c_rows + rows) * n * types.addend.bytes()
        + c_rows * n * types.c.bytes()
}

/// Tiles of the architecture that `tuning` allows.
pub(super) fn candidate_tiles(tuning: &Tuning, arch: Arch) -> impl Iterator<Item = Tile> {
    let tiles = arch.spec().tiles.iter().copied();
    tiles.filter(move |tile| {
        tuning.tile_m.is_none_or(|m| m == tile.m) && tuning.tile_n.is_none_or(|n| n == tile.n)
    })
}
