//! [`BodyPlan`]: how one body of a kernel computes.

use super::copies::Copies;
use super::network::Network;
use super::region::{Region, RegionId};
use super::role::Role;
use super::waits::CallSteps;
use super::workspace::Workspace;
use crate::abi::{ArgLayout, OperandSpec};
use crate::arch::Registers;
use crate::roofline::{Bound, Traffic};
use serde::Serialize;

/// The size of a launch. All bodies of a kernel have the same launch, since a kernel starts before it chooses a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Launch {
    /// Threads of a CTA.
    pub threads: u32,
    /// CTAs of the grid.
    pub grid_ctas: u32,
    /// CTAs of a cluster; 1 if the launch has no clusters.
    pub cluster_ctas: u32,
    /// Registers per thread.
    pub registers: Registers,
}

/// The plan of one body of a kernel, for a range of numbers of rows. `P` is the part that only one kind of operator has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BodyPlan<P> {
    /// The id of a kernel that has this body alone.
    pub id: String,
    /// Threads, CTAs and registers.
    #[serde(flatten)]
    pub launch: Launch,
    /// The roles of warps.
    pub roles: Vec<Role>,
    /// The waits and signals outside roles.
    pub call: CallSteps,
    /// Shared memory, as dynamic shared memory is laid out from a 1024-byte boundary.
    pub smem: Vec<Region>,
    /// Shared memory of CTAs that only communicate, or of the communication of CTAs before their other roles, from the same
    /// 1024-byte boundary as `smem`; empty if this memory has no layout of its own.
    pub comm_smem: Vec<Region>,
    /// Dynamic shared memory, alignment slack included.
    pub smem_bytes: u32,
    /// Symmetric memory.
    pub workspace: Workspace,
    /// Copies by the host, with [`Transfer::CopyEngine`](crate::Transfer::CopyEngine).
    pub copies: Option<Copies>,
    /// Puts to other nodes, if there are any.
    pub network: Option<Network>,
    /// The operands that the caller passes.
    pub operands: Vec<OperandSpec>,
    /// The arguments of the body.
    pub args: ArgLayout,
    /// Bytes moved.
    pub traffic: Traffic,
    /// The time that no kernel beats, and why.
    pub bound: Bound,
    /// The time that the cost model expects, µs.
    pub estimate_us: f64,
    /// The part of the plan that only this kind of operator has.
    #[serde(flatten)]
    pub op_plan: P,
}

impl<P> BodyPlan<P> {
    /// The region of memory with this handle, if the body has the region.
    #[must_use]
    pub fn region(&self, id: RegionId) -> Option<&Region> {
        let smem = self.smem.iter().chain(&self.comm_smem);
        let mut regions = self.workspace.regions.iter().chain(smem);
        regions.find(|region| region.id() == id)
    }

    /// The body with `of` applied to the part that only one kind of operator has.
    pub(crate) fn map<Q>(self, of: impl FnOnce(P) -> Q) -> BodyPlan<Q> {
        BodyPlan {
            id: self.id,
            launch: self.launch,
            roles: self.roles,
            call: self.call,
            smem: self.smem,
            comm_smem: self.comm_smem,
            smem_bytes: self.smem_bytes,
            workspace: self.workspace,
            copies: self.copies,
            network: self.network,
            operands: self.operands,
            args: self.args,
            traffic: self.traffic,
            bound: self.bound,
            estimate_us: self.estimate_us,
            op_plan: of(self.op_plan),
        }
    }
}
