//! [`KernelPlan`]: how a kernel computes what its spec says.

mod attention;
mod combine;
mod dispatch;
mod gemm;
mod memory;
mod network;
mod region;

use crate::abi::{ArgKind, ArgLayout, OperandSpec, State};
use crate::config::{Problem, Shape};
use crate::cost::Bound;
use crate::device::Device;
use crate::plan::region::Placer;
use crate::spec::KernelSpec;
use crate::topology::Topology;
use crate::violation::Violations;
use serde::Serialize;

pub use attention::{AttentionPlan, PUSH_LEAD, SUB_TILE_BYTES, SUB_TILE_COLS, TILE_ROWS};
pub use combine::{CombinePlan, LIST_HEADER_BYTES, Lists, OUTPUTS, SUMS_AHEAD};
pub use dispatch::{Across, COPIES_AHEAD, DispatchPlan, FAULT_WORDS, GROUP_ROWS, Spread};
pub use gemm::{
    Chunks, CoreLayout, GemmPlan, Reduction, SLOT_BYTES, Split, THREADS, TILE_K, TileOrder,
};
pub use network::{MAX_PUT_BYTES, Network};
pub use region::{Element, Index, Region};

/// What some CTAs, or some warps of every CTA, do. Where a warp has several roles, it has them in the order of the plan's
/// list; all warps of the CTA are done with the first ones before any begins the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Role {
    /// `load`, `multiply`, `store`: in kernels, a member type of the same name in camel case.
    pub name: &'static str,
    /// The CTAs that have it: `first..end`.
    pub ctas: (u32, u32),
    /// Their warps that have it: `first..end`.
    pub warps: (u32, u32),
    /// What it does, for people.
    pub about: String,
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
    /// Where regions after the state start: on a boundary of theirs.
    pub(crate) const STATE_END_BYTES: u64 = (size_of::<State>() as u64).next_multiple_of(1024);

    /// The state, then regions that start at [`Self::STATE_END_BYTES`] and end at `bytes`.
    fn new(mut regions: Vec<Region>, bytes: u64) -> Self {
        let state = Element::Bytes(size_of::<State>() as u64);
        regions.insert(0, Placer::new(0, 1024).place("state", &[], state, &[]));
        Self { bytes, regions }
    }

    /// The name of a place in it, as in `partials[1][3][7] + 8`; none if it is between regions.
    #[must_use]
    pub fn name_of(&self, offset_bytes: u64) -> Option<String> {
        self.regions.iter().find_map(|r| r.name_of(offset_bytes))
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

impl Registers {
    /// Whether a kernel compiled to `found` is the planned one: warpgroups that share registers anew count on them all.
    #[must_use]
    pub const fn fit(&self, found: u32) -> bool {
        let is_shared = self.mover != self.entry;
        found == self.entry || !is_shared && found < self.entry
    }
}

/// Bytes that one call moves, per rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Over NVLink, out; as much comes in.
    pub link_bytes: u64,
    /// Over the NIC, out; as much comes in. 0 on one node.
    pub nic_bytes: u64,
    /// Operands read and results written in device memory, each once.
    pub memory_bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
}

/// How a kernel computes what its spec says; a pure function of spec and device.
///
/// ```
/// use mkernel_spec::{BLayout, Device, Dim, GemmConfig, GemmOp, KernelConfig, KernelPlan, KernelSpec};
///
/// let up = GemmConfig {
///     m: Dim::Static(8192),
///     n: Dim::Static(1024),
///     k: Dim::Static(8192),
///     b_layout: BLayout::Nk,
///     ..GemmConfig::new(GemmOp::AgGemm)
/// };
/// let spec = KernelSpec::validate(KernelConfig::new(8, up))?;
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
    /// For which GPU.
    pub device: Device,
    /// Threads of a CTA.
    pub threads: u32,
    /// CTAs of the launch.
    pub grid_ctas: u32,
    /// Who does what.
    pub roles: Vec<Role>,
    /// Shared memory, as dynamic shared memory is laid out from a 1024-byte boundary.
    pub smem: Vec<Region>,
    /// Shared memory of CTAs that only communicate, or of what CTAs do before their other roles, from the same boundary;
    /// empty if it is not laid out in another way.
    pub comm_smem: Vec<Region>,
    /// Dynamic shared memory of the launch, alignment slack included.
    pub smem_bytes: u32,
    /// Symmetric memory.
    pub workspace: Workspace,
    /// Copies by the host, with [`Transfer::CopyEngine`](crate::Transfer::CopyEngine).
    pub copies: Option<Copies>,
    /// Puts to other nodes, if there are any.
    pub network: Option<Network>,
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
    /// What only this problem's kernels have.
    #[serde(flatten)]
    pub body: Body,
}

/// The part of a plan that depends on the [`Problem`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Body {
    /// Of a GEMM operator.
    Gemm(GemmPlan),
    /// Of an attention operator.
    Attention(AttentionPlan),
    /// Of `dispatch_gemm`.
    Dispatch(DispatchPlan),
    /// Of `combine`.
    Combine(CombinePlan),
}

impl KernelPlan {
    /// Chooses the plan that the cost model expects to be fastest among those that `spec` allows.
    ///
    /// # Errors
    /// A dimension that is still dynamic, or a fixed choice that fits no plan: all at once; or operands and workspace that
    /// the device's memory cannot hold.
    pub fn new(spec: &KernelSpec, device: &Device) -> Result<Self, Violations> {
        let planned = match spec.problem() {
            Problem::Gemm(config) => gemm::plan(spec, config, device),
            Problem::Attention(config) => attention::plan(spec, config, device),
            Problem::Dispatch(config) => dispatch::plan(spec, config, device),
            Problem::Combine(config) => combine::plan(spec, config, device),
        };
        let plan = planned.unwrap_or_else(|| Err(unknown_dims(spec)))?;
        plan.check_memory()?;
        Ok(plan)
    }

    /// The sizes it is for.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        match &self.body {
            Body::Gemm(gemm) => Shape::Gemm(gemm.shape),
            Body::Attention(attention) => Shape::Attention(attention.shape),
            Body::Dispatch(dispatch) => Shape::Dispatch(dispatch.shape),
            Body::Combine(combine) => Shape::Combine(combine.shape),
        }
    }

    /// What only kernels of GEMM operators have, if it is one.
    #[must_use]
    pub const fn gemm(&self) -> Option<&GemmPlan> {
        match &self.body {
            Body::Gemm(gemm) => Some(gemm),
            _ => None,
        }
    }
}

/// What every kernel is passed besides: what its calls have in common with other operators', and what it has of a network.
fn common_args(topology: Topology) -> Vec<(&'static str, ArgKind)> {
    let gate = [
        ("gate", ArgKind::Gate),
        ("operator_number", ArgKind::OperatorNumber),
    ];
    gate.into_iter().chain(network::args(topology)).collect()
}

fn unknown_dims(spec: &KernelSpec) -> Violations {
    let mut found = Violations::default();
    for field in spec.unknown_dims() {
        found.push(
            field,
            "a dynamic dimension has no plan before its size is known",
            format!("give its size, as in --{field} 4096"),
        );
    }
    found
}
