//! [`KernelPlan`]: how a kernel computes what its spec says.

use super::op_plan::OpPlan;
use crate::abi::{ArgLayout, OperandSpec};
use crate::config::{Dim, Problem, Shape};
use crate::device::Device;
use crate::ops::each_problem;
use crate::ops::gemm::GemmPlan;
use crate::parts::copies::Copies;
use crate::parts::network::Network;
use crate::parts::region::Region;
use crate::parts::registers::Registers;
use crate::parts::role::Role;
use crate::parts::waits::CallSteps;
use crate::parts::workspace::Workspace;
use crate::roofline::{Bound, Traffic};
use crate::spec::KernelSpec;
use serde::Serialize;

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
/// # Ok::<(), mkernel_spec::Diagnostics>(())
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
    /// The waits and signals outside roles.
    pub call: CallSteps,
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
    pub op_plan: OpPlan,
    /// The plans of the other buckets, from the fewest rows on, each for calls with more rows than the one before it takes.
    /// What is said above is of the last bucket, except for the id, the workspace's size and the dynamic shared memory, which
    /// are those of the whole kernel. Threads, CTAs and registers are common to all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fewer_rows: Vec<KernelPlan>,
}

impl KernelPlan {
    /// The sizes it is for.
    #[must_use]
    pub fn shape(&self) -> Shape {
        each_problem!(&self.op_plan, OpPlan(op_plan) => op_plan.shape.into())
    }

    /// The most rows of a call, if each call gives them. Calls with packed sequences give offsets instead.
    #[must_use]
    pub const fn max_rows(&self) -> Option<u64> {
        let rows = match self.spec.problem() {
            Problem::Gemm(config) => config.m,
            Problem::Collective(config) => config.m,
            Problem::Attention(config) if !config.packed => config.seq,
            _ => return None,
        };
        match rows {
            Dim::UpTo { most } => Some(most),
            _ => None,
        }
    }

    /// The operands of a call with this number of rows. Where calls do not give rows, the number does not matter.
    #[must_use]
    pub fn operands_in_call(&self, rows: u64) -> Vec<OperandSpec> {
        let specs = self.operands.iter();
        specs.map(|spec| spec.in_call(rows)).collect()
    }

    /// The plans of all buckets, from the fewest rows to the most. A kernel without buckets has one.
    pub fn buckets(&self) -> impl Iterator<Item = &Self> {
        self.fewer_rows.iter().chain([self])
    }

    /// Where the arguments of each bucket lie in the kernel's parameter, and the bytes of the parameter.
    #[must_use]
    pub fn parameter(&self) -> (Vec<usize>, usize) {
        let mut end = 0;
        let place = |bucket: &Self| {
            let at = usize::next_multiple_of(end, bucket.args.align());
            end = at + bucket.args.size_bytes;
            at
        };
        let offsets = self.buckets().map(place).collect();
        (offsets, end)
    }

    /// The regions of the workspace, each with the most rows of the bucket that it belongs to; `None` if it is common to all
    /// buckets.
    pub fn workspace_regions(&self) -> impl Iterator<Item = (Option<u64>, &Region)> {
        let has_buckets = !self.fewer_rows.is_empty();
        let common = self.workspace.regions.iter();
        let common = common.filter(move |region| !has_buckets || Workspace::is_common(region));
        let of_buckets = self.buckets().filter(move |_| has_buckets);
        let of_buckets = of_buckets.flat_map(|bucket| {
            let regions = bucket.workspace.regions.iter();
            let own = regions.filter(|region| !Workspace::is_common(region));
            own.map(|region| (bucket.max_rows(), region))
        });
        common.map(|region| (None, region)).chain(of_buckets)
    }

    /// The name of a place in the workspace, as in `partials[1][3][7] + 8`; none if it is between regions.
    #[must_use]
    pub fn name_of(&self, offset_bytes: u64) -> Option<String> {
        self.workspace_regions().find_map(|(rows, region)| {
            let name = region.name_of(offset_bytes)?;
            Some(match rows {
                Some(rows) => format!("{name} (..={rows} rows)"),
                None => name,
            })
        })
    }

    /// The CTAs of a cluster; 1 if the launch has no clusters.
    #[must_use]
    pub const fn cluster_ctas(&self) -> u32 {
        match self.gemm() {
            Some(GemmPlan {
                cluster: Some(cluster),
                ..
            }) => cluster.ctas,
            _ => 1,
        }
    }

    /// What only kernels of GEMM operators have, if it is one.
    #[must_use]
    pub const fn gemm(&self) -> Option<&GemmPlan> {
        match &self.op_plan {
            OpPlan::Gemm(gemm) => Some(gemm),
            _ => None,
        }
    }
}
