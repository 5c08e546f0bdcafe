//! The plan of a GEMM operator: the fastest candidate by the cost model.

use super::ag_gemm;
use super::config::{GemmConfig, GemmOp, GemmShape};
use super::op_plan::GemmPlan;
use super::reduce;
use super::spec::GemmSpec;
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::parts::BodyPlan;
use crate::topology::Topology;

/// The fastest plan by the cost model.
pub(crate) fn plan(
    config: &GemmConfig,
    shape: GemmShape,
    topology: Topology,
    device: &Device,
) -> Result<BodyPlan<GemmPlan>, Diagnostics> {
    let spec = GemmSpec {
        ranks: topology,
        topology: match config.op.communicates() {
            true => topology,
            false => Topology::ALONE,
        },
        config,
        shape,
    };
    match spec.op() {
        GemmOp::AgGemm | GemmOp::Gemm => ag_gemm::plan(spec, device),
        GemmOp::GemmRs | GemmOp::GemmAr => reduce::plan(spec, device),
    }
}
