//! [`KernelPlan`]: how a kernel computes the problem of its spec.

use super::op_plan::OpPlan;
use super::sized::SizedSpec;
use super::tuned::TunedTimes;
use crate::abi::{ArgKind, OperandSpec};
use crate::config::{Dim, Shape};
use crate::device::Device;
use crate::ops::gemm::GemmPlan;
use crate::parts::region::Region;
use crate::parts::{BodyPlan, Launch};
use serde::Serialize;

/// A body of a kernel of any kind.
pub type Body = BodyPlan<OpPlan>;

/// How a kernel computes the problem of its spec; a pure function of spec, device and measured choices.
///
/// ```
/// use mkernel_spec::{BLayout, Device, Dim, GemmConfig, GemmOp, KernelConfig, KernelPlan, SizedSpec};
///
/// let up = GemmConfig {
///     m: Dim::Static(8192),
///     n: Dim::Static(1024),
///     k: Dim::Static(8192),
///     b_layout: BLayout::Nk,
///     ..GemmConfig::new(GemmOp::AgGemm)
/// };
/// let spec = SizedSpec::validate(KernelConfig::new(8, up))?;
/// let plan = KernelPlan::new(&spec, &Device::h200())?;
/// assert!(plan.smem_bytes() <= plan.device.smem_bytes);
/// # Ok::<(), mkernel_spec::Diagnostics>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelPlan {
    /// The name of the kernel: file stem, symbol, and name in profilers and snapshots.
    pub id: String,
    /// The checked problem, with its sizes.
    pub spec: SizedSpec,
    /// The GPU that the kernel is planned for.
    pub device: Device,
    /// The bodies, at least one, from the fewest rows to the most. A call runs the first body that takes its rows. A kernel
    /// without buckets has one body.
    pub bodies: Vec<Body>,
    /// The times of measured choices; `None` if all choices are those of the cost model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuned: Option<TunedTimes>,
}

impl KernelPlan {
    /// The body for the most rows.
    #[must_use]
    pub fn body(&self) -> &Body {
        &self.bodies[self.bodies.len() - 1]
    }

    /// Whether the kernel has several bodies, each for a range of rows.
    #[must_use]
    pub const fn has_buckets(&self) -> bool {
        self.bodies.len() > 1
    }

    /// The size of the launch, which all bodies have in common.
    #[must_use]
    pub fn launch(&self) -> Launch {
        self.body().launch
    }

    /// Dynamic shared memory of the launch, alignment slack included.
    #[must_use]
    pub fn smem_bytes(&self) -> u32 {
        let bodies = self.bodies.iter();
        bodies.map(|body| body.smem_bytes).max().unwrap_or(0)
    }

    /// Bytes of symmetric memory.
    #[must_use]
    pub fn workspace_bytes(&self) -> u64 {
        let bodies = self.bodies.iter();
        bodies.map(|body| body.workspace.bytes).max().unwrap_or(0)
    }

    /// The operands that the caller passes.
    #[must_use]
    pub fn operands(&self) -> &[OperandSpec] {
        &self.body().operands
    }

    /// The operands of a call with this number of rows. The number has no effect if calls do not give rows.
    #[must_use]
    pub fn operands_in_call(&self, rows: u64) -> Vec<OperandSpec> {
        let specs = self.operands().iter();
        specs.map(|spec| spec.in_call(rows)).collect()
    }

    /// The sizes that the plan is for.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        self.spec.shape()
    }

    /// The largest number of rows of a call; `None` if calls do not give rows. Calls with packed sequences give offsets instead.
    #[must_use]
    pub fn max_rows(&self) -> Option<u64> {
        self.body().max_rows()
    }

    /// The offsets of each body's arguments in the kernel's parameter, and the size of the parameter, in bytes.
    #[must_use]
    pub fn parameter(&self) -> (Vec<usize>, usize) {
        let mut end = 0;
        let place = |body: &Body| {
            let at = usize::next_multiple_of(end, body.args.align());
            end = at + body.args.size_bytes;
            at
        };
        let offsets = self.bodies.iter().map(place).collect();
        (offsets, end)
    }

    /// The regions of the workspace, each with the largest number of rows of the body that the region belongs to; `None` if the
    /// region is common to all bodies.
    pub fn workspace_regions(&self) -> impl Iterator<Item = (Option<u64>, &Region)> {
        let has_buckets = self.has_buckets();
        let common = self.body().workspace.regions.iter();
        let common = common.filter(move |region| !has_buckets || region.is_common);
        let of_bodies = self.bodies.iter().filter(move |_| has_buckets);
        let of_bodies = of_bodies.flat_map(|body| {
            let regions = body.workspace.regions.iter();
            let own = regions.filter(|region| !region.is_common);
            own.map(|region| (body.max_rows(), region))
        });
        common.map(|region| (None, region)).chain(of_bodies)
    }

    /// The name of a place in the workspace, as in `partials[1][3][7] + 8`; `None` if the place is between regions.
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

    /// The part of the plan that only GEMM operators have; `None` for other operators.
    #[must_use]
    pub fn gemm(&self) -> Option<&GemmPlan> {
        self.body().gemm()
    }
}

impl Body {
    /// The largest number of rows of a call that runs this body; `None` if calls do not give rows.
    #[must_use]
    pub const fn max_rows(&self) -> Option<u64> {
        let rows = match &self.op_plan {
            OpPlan::Gemm(of) => of.config.m,
            OpPlan::Collective(of) => of.config.m,
            OpPlan::Attention(of) if !of.config.packed => of.config.seq,
            _ => return None,
        };
        match rows {
            Dim::UpTo(most) => Some(most),
            _ => None,
        }
    }

    /// Adds the argument of kernels that are traced.
    pub(super) fn trace(&mut self) {
        let args = std::mem::take(&mut self.args);
        self.args = args.with("trace", ArgKind::Trace);
    }

    /// The part of the body's plan that only GEMM operators have; `None` for other operators.
    #[must_use]
    pub const fn gemm(&self) -> Option<&GemmPlan> {
        match &self.op_plan {
            OpPlan::Gemm(gemm) => Some(gemm),
            _ => None,
        }
    }
}
