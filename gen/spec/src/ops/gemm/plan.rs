//! The plan of a GEMM operator: the fastest candidate by the cost model.

use super::ag_gemm;
use super::config::{GemmConfig, GemmOp};
use super::reduce;
use super::spec::GemmSpec;
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::plan::KernelPlan;
use crate::spec::KernelSpec;

/// The fastest plan by the cost model; none while a size is not known.
pub(crate) fn plan(
    kernel: &KernelSpec,
    config: &GemmConfig,
    device: &Device,
) -> Option<Result<KernelPlan, Diagnostics>> {
    let spec = GemmSpec {
        kernel,
        config,
        shape: config.shape()?,
    };
    Some(match spec.op() {
        GemmOp::AgGemm => ag_gemm::plan(spec, device),
        GemmOp::GemmRs | GemmOp::GemmAr => reduce::plan(spec, device),
    })
}
