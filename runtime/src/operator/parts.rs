//! [`Parts`]: the objects that the launches of an operator use.

use super::health::OperatorHealth;
use crate::copy_engine::CopyThread;
use crate::driver;
use crate::error::Error;
use crate::kernel::Kernel;
use crate::launch::operands::places;
use crate::launch::params::{ParamInputs, TensorMap};
use crate::launch::raw_operand::RawOperand;
use crate::launch::rows::Rows;
use crate::shared::Shared;
use crate::simulation::BusyGuard;
use crate::symmetric::OwnMemory;
use crate::workspace::Workspace;
use mkernel_spec::KernelPlan;
use std::sync::Arc;

/// The objects that the launches of an operator use.
pub(super) struct Parts {
    pub _busy_guard: Option<BusyGuard>,
    pub plan: KernelPlan,
    pub health: Arc<OperatorHealth>,
    pub kernel: Kernel,
    pub workspace: Arc<Workspace>,
    pub copies: Option<Arc<CopyThread>>,
    pub gate: Arc<OwnMemory>,
    pub shared: Arc<Shared>,
}

/// The parameter of the last launch, and the values from which it was packed.
#[derive(Default)]
pub(super) struct BoundParams {
    operands: Vec<RawOperand>,
    rows: Rows,
    deadline_ns: u64,
    pub bytes: Vec<u8>,
}

impl Parts {
    /// Packs the parameter again if these values differ from those of the last launch.
    pub fn bind(
        &self,
        args: &mut BoundParams,
        operands: &[RawOperand],
        rows: Rows,
    ) -> Result<(), Error> {
        let deadline_ns = self.shared.timeout_ns();
        if args.operands == operands && args.rows == rows && args.deadline_ns == deadline_ns {
            return Ok(());
        }
        let specs = rows.specs(&self.plan);
        let bindings = ParamInputs {
            specs: &specs,
            operands,
            places: &places(&specs, operands, self.shared.rank, &self.shared.tensors),
            workspaces: self.workspace.addresses(),
            local_rank: self.workspace.local_rank(),
            host_page: self.health.page.device_address(),
            gate: self.gate.address(),
            operator_number: self.health.operator.number(),
            deadline_ns,
            rank: self.shared.rank,
            rows: rows.args(&self.plan),
            endpoint: self.workspace.endpoint(),
        };
        let (offsets, size_bytes) = self.plan.parameter();
        let mut bytes = vec![0; size_bytes];
        for (bucket, at) in self.plan.buckets().zip(offsets) {
            // A call reads no tensor maps of buckets that it does not run.
            let encode = |map: &TensorMap| match rows.may_run(&self.plan, bucket) {
                true => driver::encode_tensor_map(map),
                false => Ok([0; 128]),
            };
            let of_bucket = bindings.fill(&bucket.args, encode)?;
            bytes[at..at + of_bucket.len()].copy_from_slice(&of_bucket);
        }
        *args = BoundParams {
            operands: operands.to_vec(),
            rows,
            deadline_ns,
            bytes,
        };
        Ok(())
    }
}
