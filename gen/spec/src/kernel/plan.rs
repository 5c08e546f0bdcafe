//! [`KernelPlan`]: how a kernel computes what its spec says.

use super::op_plan::OpPlan;
use super::sized::SizedSpec;
use crate::abi::OperandSpec;
use crate::config::{Dim, Shape};
use crate::device::Device;
use crate::ops::gemm::GemmPlan;
use crate::parts::region::Region;
use crate::parts::{BodyPlan, Launch};
use serde::Serialize;

/// A body of a kernel of any kind.
pub type Body = BodyPlan<OpPlan>;

/// How a kernel computes what its spec says; a pure function of spec and device.
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
    /// File stem, kernel symbol, profiler name and snapshot name.
    pub id: String,
    /// What is computed.
    pub spec: SizedSpec,
    /// For which GPU.
    pub device: Device,
    /// The bodies, at least one, from the fewest rows to the most. A call runs the first body that takes its rows. A kernel
    /// without buckets has one body.
    pub bodies: Vec<Body>,
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

    /// What the caller passes.
    #[must_use]
    pub fn operands(&self) -> &[OperandSpec] {
        &self.body().operands
    }

    /// The operands of a call with this number of rows. Where calls do not give rows, the number does not matter.
    #[must_use]
    pub fn operands_in_call(&self, rows: u64) -> Vec<OperandSpec> {
        let specs = self.operands().iter();
        specs.map(|spec| spec.in_call(rows)).collect()
    }

    /// The sizes it is for.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        self.spec.shape()
    }

    /// The most rows of a call, if each call gives them. Calls with packed sequences give offsets instead.
    #[must_use]
    pub fn max_rows(&self) -> Option<u64> {
        self.body().max_rows()
    }

    /// Where the arguments of each body lie in the kernel's parameter, and the bytes of the parameter.
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

    /// The regions of the workspace, each with the most rows of the body that it belongs to; `None` if it is common to all
    /// bodies.
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

    /// What only kernels of GEMM operators have, if it is one.
    #[must_use]
    pub fn gemm(&self) -> Option<&GemmPlan> {
        self.body().gemm()
    }
}

impl Body {
    /// The most rows of a call that runs this body, if each call gives them.
    #[must_use]
    pub const fn max_rows(&self) -> Option<u64> {
        let rows = match &self.op_plan {
            OpPlan::Gemm(of) => of.config.m,
            OpPlan::Collective(of) => of.config.m,
            OpPlan::Attention(of) if !of.config.packed => of.config.seq,
            _ => return None,
        };
        match rows {
            Dim::UpTo { most } => Some(most),
            _ => None,
        }
    }

    /// What only bodies of GEMM operators have, if it is one.
    #[must_use]
    pub const fn gemm(&self) -> Option<&GemmPlan> {
        match &self.op_plan {
            OpPlan::Gemm(gemm) => Some(gemm),
            _ => None,
        }
    }
}
