//! [`Parts`]: the objects that the launches of an operator use.

use super::health::OperatorHealth;
use super::trace_memory::TraceMemory;
use crate::copy_engine::CopyThread;
use crate::driver;
use crate::error::Error;
use crate::kernel::Kernel;
use crate::launch::operands::{self, places};
use crate::launch::params::{ParamInputs, TensorMap};
use crate::launch::raw_operand::RawOperand;
use crate::launch::rows::{CallRows, Rows};
use crate::shared::Shared;
use crate::simulation::BusyGuard;
use crate::symmetric::OwnMemory;
use crate::workspace::Workspace;
use mkernel_spec::KernelPlan;
use mkernel_spec::abi::{OperandSpec, TraceBuffer};
use std::sync::Arc;

/// The objects that the launches of an operator use.
pub(super) struct Parts {
    pub _busy_guard: Option<BusyGuard>,
    pub plan: KernelPlan,
    /// The offsets of the bodies' arguments and the size of the parameter, from [`KernelPlan::parameter`].
    pub parameter: (Vec<usize>, usize),
    pub health: Arc<OperatorHealth>,
    pub kernel: Kernel,
    pub workspace: Arc<Workspace>,
    pub copies: Option<Arc<CopyThread>>,
    pub gate: Arc<OwnMemory>,
    pub trace: Option<TraceMemory>,
    pub shared: Arc<Shared>,
}

/// The parameter of the last launch, and the values from which it was packed.
#[derive(Default)]
pub(super) struct BoundParams {
    /// The operands of the packed parameter. Empty if nothing is packed.
    operands: Vec<RawOperand>,
    rows: Rows,
    deadline_ns: u64,
    pub bytes: Vec<u8>,
    /// The specifications of the operands, kept to reuse the allocation.
    specs: Vec<OperandSpec>,
}

impl Parts {
    /// Returns the operator, the rank and the sizes of a call, for profilers.
    pub fn name_of_call(&self, rows: CallRows<'_>) -> String {
        let mut name = format!("{}, rank {}", self.health.operator.name(), self.shared.rank);
        for (field, dim) in self.plan.spec.config().problem.dims() {
            name += &format!(" {field}={dim}");
        }
        match rows.given() {
            Rows::Most => {}
            Rows::Count(rows) => name += &format!(", {rows} rows"),
            Rows::At(_) => name += ", rows in device memory",
        }
        name
    }

    /// Checks the operands and packs the parameter. If all values equal those of the last launch, which were checked then, the
    /// parameter of the last launch is kept.
    pub fn bind(
        &self,
        params: &mut BoundParams,
        operands: &[RawOperand],
        rows: CallRows<'_>,
    ) -> Result<(), Error> {
        let (rank, tensors) = (self.shared.rank, &self.shared.tensors);
        let deadline_ns = self.shared.timeout_ns();
        let is_same = !operands.is_empty()
            && params.operands == operands
            && params.rows == rows.given()
            && params.deadline_ns == deadline_ns;
        // A tensor in symmetric memory may have been freed since the last launch.
        if is_same && !self.plan.operands().iter().any(|spec| spec.symmetric) {
            return Ok(());
        }
        params.specs.clear();
        params.specs.extend(rows.specs());
        operands::check(&params.specs, operands, rows.given(), (rank, tensors))?;
        if is_same {
            return Ok(());
        }
        params.operands.clear();
        self.pack(params, operands, (rows, deadline_ns))?;
        params.operands.extend(operands);
        (params.rows, params.deadline_ns) = (rows.given(), deadline_ns);
        Ok(())
    }

    fn pack(
        &self,
        BoundParams { specs, bytes, .. }: &mut BoundParams,
        operands: &[RawOperand],
        (rows, deadline_ns): (CallRows<'_>, u64),
    ) -> Result<(), Error> {
        let inputs = ParamInputs {
            specs,
            operands,
            places: &places(specs, operands, self.shared.rank, &self.shared.tensors),
            workspaces: self.workspace.addresses(),
            local_rank: self.workspace.local_rank(),
            host_page: self.health.page.device_address(),
            gate: self.gate.address(),
            operator_number: self.health.operator.number(),
            deadline_ns,
            rank: self.shared.rank,
            rows: rows.args(),
            endpoint: self.workspace.endpoint(),
            trace: (self.trace.as_ref()).map_or_else(TraceBuffer::default, TraceMemory::buffer),
        };
        let (offsets, size_bytes) = &self.parameter;
        bytes.clear();
        bytes.resize(*size_bytes, 0);
        for (body, at) in self.plan.bodies.iter().zip(offsets) {
            // A call does not read the tensor maps of bodies that it does not run.
            let encode = |map: &TensorMap| match rows.may_run(body) {
                true => driver::encode_tensor_map(map),
                false => Ok([0; 128]),
            };
            inputs.fill(&body.args, &mut bytes[*at..], encode)?;
        }
        Ok(())
    }
}
