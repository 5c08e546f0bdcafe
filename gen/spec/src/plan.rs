//! [`KernelPlan`]: how a kernel computes what its spec says.

mod ag_gemm;
mod exchange;
mod gemm;
mod reduce;

use crate::abi::{ArgLayout, OperandSpec, State};
use crate::config::{Op, Tile, Transfer};
use crate::cost::Bound;
use crate::device::Device;
use crate::spec::{KernelSpec, Shape};
use crate::violation::{Field, Violations};
use serde::Serialize;

pub use exchange::SLOT_BYTES;
pub use gemm::{CoreLayout, Split, TILE_K};

/// Threads of every CTA: one warpgroup that moves data, two that multiply.
pub const THREADS: u32 = 384;

/// What some CTAs, or some warps of every CTA, do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Role {
    /// `push`, `load`, `math`, `store`.
    pub name: &'static str,
    /// The CTAs that have it: `first..end`.
    pub ctas: (u32, u32),
    /// Their warps that have it: `first..end`.
    pub warps: (u32, u32),
    /// What it does, for people.
    pub about: String,
}

/// A part of shared memory or of the workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Region {
    /// Its name.
    pub name: &'static str,
    /// Where it starts.
    pub offset_bytes: u64,
    /// How long it is.
    pub bytes: u64,
}

/// Symmetric memory of one operator instance on each rank: zeroed once, never reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Workspace {
    /// All of it.
    pub bytes: u64,
    /// Its parts: `state`, and what the operator needs (`flags`, `gathered`, `partials`).
    pub regions: Vec<Region>,
}

impl Workspace {
    /// The state, then `parts`.
    fn new(parts: impl IntoIterator<Item = (&'static str, u64)>) -> Self {
        let mut bytes = 0;
        let regions = [("state", size_of::<State>() as u64)]
            .into_iter()
            .chain(parts)
            .map(|(name, size)| {
                let region = Region {
                    name,
                    offset_bytes: bytes,
                    bytes: size,
                };
                bytes = (bytes + size).next_multiple_of(1024);
                region
            })
            .collect();
        Self { bytes, regions }
    }

    /// Where region `name` starts, if there is one.
    #[must_use]
    pub fn offset_of(&self, name: &str) -> Option<u64> {
        self.regions
            .iter()
            .find(|r| r.name == name)
            .map(|r| r.offset_bytes)
    }
}

/// How a shard travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chunks {
    /// Rows that arrive under one flag (per slice of K).
    pub rows: u32,
    /// Chunks of a full shard.
    pub per_shard: u32,
    /// Parts of K that arrive under flags of their own.
    pub k_slices: u32,
    /// Columns of such a part, the last one perhaps fewer.
    pub slice_cols: u32,
    /// `sm_push`: rows that one warp stores at a time; a flag counts such pieces.
    pub piece_rows: u32,
    /// What one epoch adds to a flag.
    pub arrivals: u32,
    /// Chunks whose slices are sent in turn, before the next chunks.
    pub panel_chunks: u32,
    /// `sm_push`: warps per pushing CTA; more than one in a compute CTA push before they multiply.
    pub push_warps: u32,
    /// Whether a rank sends its rows to itself too, since tiles straddle shards.
    pub to_self: bool,
}

/// How partial sums of the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reduction {
    /// 1: every rank sends its part of every tile to all, and adds up all. 2: a tile has an owner, who adds it up.
    pub shots: u32,
    /// Ranks that own tiles: the first ones.
    pub owners: u32,
    /// Tiles of each owner; with one shot, all tiles.
    pub owner_tiles: u32,
    /// Tiles of each owner in a round: own tiles are computed a round later than the others' tiles.
    pub round_tiles: u32,
    /// Sub-tiles of 64 columns, per math warpgroup, of partial sums that a stage holds.
    pub partial_subs: u32,
    /// Whether who adds up a tile, or with one shot a row, sends the result to all peers.
    pub results: bool,
}

/// The order in which tiles are computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TileOrder {
    /// Tiles along M.
    pub row_tiles: u32,
    /// Tiles along N.
    pub col_tiles: u32,
    /// Row tiles that advance together along N.
    pub group_m: u32,
    /// Row tiles of a full shard, if tiles don't straddle shards.
    pub shard_row_tiles: Option<u32>,
    /// Places in the order: one per tile; some are empty if owners have unequal numbers of tiles.
    pub places: u32,
    /// Tiles that one CTA computes alone: whole rounds over the compute CTAs. The rest are the last round.
    pub whole_tiles: u32,
    /// CTAs that share a tile of the last round, each a part of K; 1 if none do.
    pub tail_parts: u32,
}

impl TileOrder {
    /// Tiles of the result.
    #[must_use]
    pub const fn tiles(&self) -> u32 {
        self.row_tiles * self.col_tiles
    }

    /// Tiles of the last round.
    #[must_use]
    pub const fn tail_tiles(&self) -> u32 {
        self.places - self.whole_tiles
    }

    /// What compute CTAs take one after the other: whole tiles, then parts of tiles. In one shot, each tile comes again
    /// to be added up.
    #[must_use]
    pub const fn units(&self) -> u32 {
        self.whole_tiles + self.tail_tiles() * self.tail_parts
    }
}

/// Copies that the host enqueues when the kernel rings the doorbell: for each chunk the same bytes to every peer, then its flag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Copies {
    /// Bytes of a row; rows are contiguous in the gathered buffer.
    pub row_bytes: u64,
    /// Rows of a chunk, which is one copy; chunk `i` is rows `i·rows ..` of the shard.
    pub rows: u32,
    /// Rows of a full shard.
    pub shard_rows: u64,
    /// Rows over all ranks.
    pub total_rows: u64,
    /// Where epoch `e`'s gathered rows start in a peer's workspace: element `e % 2`.
    pub gathered_offset_bytes: [u64; 2],
    /// Where the flags of source rank 0 start in a peer's workspace; u32 each,
    /// [`FLAG_STRIDE_BYTES`](crate::abi::FLAG_STRIDE_BYTES) apart.
    pub flags_offset_bytes: u64,
    /// Flags, and chunks, per source rank. In epoch `e` the flag behind each chunk becomes `e`.
    pub flags_per_source: u32,
}

/// Registers per thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Registers {
    /// At entry, set by the launch bounds.
    pub entry: u32,
    /// Of the data-moving warpgroup after `setmaxnreg`.
    pub mover: u32,
    /// Of the math warpgroups after `setmaxnreg`.
    pub math: u32,
}

/// Bytes that one call moves, per rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Over NVLink, out; as much comes in.
    pub link_bytes: u64,
    /// Operands read and results written in device memory, each once.
    pub memory_bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
}

/// How a kernel computes what its spec says; a pure function of spec and device.
///
/// ```
/// use mkernel_spec::{BLayout, Device, Dim, Epilogue, KernelConfig, KernelPlan, KernelSpec, Op, Tuning};
///
/// let spec = KernelSpec::validate(KernelConfig {
///     name: None,
///     op: Op::AgGemm,
///     world: 8,
///     m: Dim::Static(8192),
///     n: Dim::Static(1024),
///     k: Dim::Static(8192),
///     b_layout: BLayout::Nk,
///     epilogue: Epilogue::default(),
///     tuning: Tuning::default(),
/// })?;
/// let plan = KernelPlan::new(&spec, &Device::h200())?;
/// assert!(plan.smem_bytes <= plan.device.smem_bytes);
/// # Ok::<(), mkernel_spec::Violations>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelPlan {
    /// File stem, kernel symbol, profiler name and snapshot name.
    pub id: String,
    /// What is computed.
    pub spec: KernelSpec,
    /// Its sizes.
    pub shape: Shape,
    /// For which GPU.
    pub device: Device,
    /// Rows and columns that a CTA computes at a time.
    pub tile: Tile,
    /// How two math warpgroups share a tile.
    pub split: Split,
    /// Stages of the shared-memory ring.
    pub stages: u32,
    /// What moves rows of A to the peers; none in a world of 1, and for operators that reduce.
    pub transfer: Option<Transfer>,
    /// CTAs of the launch; the first `comm_ctas` only communicate.
    pub grid_ctas: u32,
    /// CTAs that only communicate.
    pub comm_ctas: u32,
    /// Who does what.
    pub roles: Vec<Role>,
    /// The order of tiles.
    pub order: TileOrder,
    /// How a shard travels; none in a world of 1.
    pub chunks: Option<Chunks>,
    /// How partial sums meet, for operators that reduce; none in a world of 1.
    pub reduction: Option<Reduction>,
    /// Shared memory, as dynamic shared memory is laid out from a 1024-byte boundary.
    pub smem: Vec<Region>,
    /// Dynamic shared memory of the launch, alignment slack included.
    pub smem_bytes: u32,
    /// Symmetric memory.
    pub workspace: Workspace,
    /// Copies by the host, with [`Transfer::CopyEngine`].
    pub copies: Option<Copies>,
    /// What the caller passes.
    pub operands: Vec<OperandSpec>,
    /// The kernel's parameter.
    pub args: ArgLayout,
    /// Registers per thread.
    pub registers: Registers,
    /// Bytes moved.
    pub traffic: Traffic,
    /// The time that no kernel beats, and why.
    pub bound: Bound,
    /// The time that the cost model expects, µs.
    pub estimate_us: f64,
}

impl KernelPlan {
    /// Chooses the plan that the cost model expects to be fastest among those that `spec` allows.
    ///
    /// # Errors
    /// A dimension that is still dynamic, or a fixed choice that fits no plan: all at once.
    pub fn new(spec: &KernelSpec, device: &Device) -> Result<Self, Violations> {
        let Some(shape) = spec.shape() else {
            return Err(unknown_dims(spec));
        };
        match spec.op() {
            Op::AgGemm => ag_gemm::plan(spec, shape, device),
            Op::GemmRs | Op::GemmAr => reduce::plan(spec, shape, device),
        }
    }
}

fn unknown_dims(spec: &KernelSpec) -> Violations {
    let mut found = Violations::default();
    let config = spec.config();
    for (field, dim) in [
        (Field::M, config.m),
        (Field::N, config.n),
        (Field::K, config.k),
    ] {
        found.require(
            dim.fixed().is_some(),
            field,
            || "a dynamic dimension has no plan before its size is known".to_owned(),
            format!("give its size, as in --{field} 4096"),
        );
    }
    found
}
