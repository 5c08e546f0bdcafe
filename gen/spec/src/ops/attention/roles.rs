//! The roles of a `ring_attention` kernel, and their waits.

use super::memory::{AttentionSmem, AttentionWorkspace};
use super::op_plan::AttentionPlan;
use crate::parts::waits::{CallSteps, Step, Whose, Word};
use crate::plan::{Role, RoleKind};
use crate::topology::Topology;

/// Own K and V.
const OWN: u32 = 0;
/// K and V of other nodes. On one node, no pass follows own K and V.
const FORWARDED: u32 = 1;

/// The parts of a plan from which its roles derive.
pub(super) struct Roles<'a> {
    op_plan: &'a AttentionPlan,
    topology: Topology,
    workspace: AttentionWorkspace,
    smem: AttentionSmem,
}

impl<'a> Roles<'a> {
    pub(super) fn new(op_plan: &'a AttentionPlan, topology: Topology) -> Self {
        Self {
            op_plan,
            topology,
            workspace: AttentionWorkspace::of(op_plan, topology),
            smem: AttentionSmem::of(op_plan, topology),
        }
    }

    /// The steps of all CTAs before and after their roles.
    pub(super) fn call_steps(&self) -> CallSteps {
        let (begun, peers) = (&self.workspace.begun, Whose::peers(self.topology));
        let begin = Step::of(OWN).signals(begun, peers);
        CallSteps::new(
            vec![begin],
            vec![Step::last().waits(begun, peers)],
            self.topology,
        )
    }

    pub(super) fn all(&self, grid_ctas: u32) -> Vec<Role> {
        let (all, first, pushing) = ((0, grid_ctas), (0, 1), (0, self.op_plan.push_ctas));
        let mut roles = Vec::new();
        if self.op_plan.put_tiles > 0 {
            let about = "puts of other nodes";
            roles.push(
                Role::new(RoleKind::WatchArrivals, first, (1, 2), about)
                    .with(self.watch_arrivals()),
            );
            let about = "own K and V, to other nodes";
            roles.push(Role::new(RoleKind::PutKv, first, (2, 3), about).with(self.put_kv()));
            let about = "own K and V to this node and to puts, K and V of other nodes to this node";
            let mut steps = self.push_kv(OWN, Step::of(OWN));
            let arrived = Step::of(FORWARDED).waits(&self.workspace.arrived, Whose::RANK);
            steps.extend(self.push_kv(FORWARDED, arrived));
            roles.push(Role::new(RoleKind::PushKv, pushing, (3, 4), about).with(steps));
        } else if self.op_plan.push_ctas > 0 {
            let (warps, about) = (
                (0, self.op_plan.push_warps),
                "first, own K and V to the peers",
            );
            let steps = self.push_kv(OWN, Step::of(OWN));
            roles.push(Role::new(RoleKind::PushKv, pushing, warps, about).with(steps));
        }
        let about = "Q, K and V to shared memory";
        roles.push(Role::new(RoleKind::Load, all, (0, 1), about).with(self.load()));
        let about = "wgmma, softmax, O and LSE";
        let arch = self.op_plan.arch.spec();
        let warps = (arch.first_multiplying_warp(), arch.warps());
        roles.push(Role::new(RoleKind::Multiply, all, warps, about).with(self.multiply()));
        roles
    }

    /// The ranks of this node that get K and V of a pass. Across nodes, parts also go to own slots: own parts, which are put
    /// from there, and the parts of the rank with the same local rank on another node.
    fn receivers(&self) -> &'static [Whose] {
        Whose::peers_and(self.topology, self.op_plan.put_tiles > 0)
    }

    /// The pass after which tiles of queries have met all keys.
    const fn last_pass(&self) -> u32 {
        match self.op_plan.put_tiles {
            0 => OWN,
            _ => FORWARDED,
        }
    }

    fn load(&self) -> Vec<Step> {
        let step = Step::of(self.last_pass())
            .takes(&self.smem.q_empty, Whose::CTA)
            .waits(&self.workspace.kv_ready, self.receivers())
            .waits(&self.workspace.kv_marks, self.receivers())
            .takes(&self.smem.k_empty, Whose::CTA)
            .takes(&self.smem.v_empty, Whose::CTA)
            .signals(&self.smem.q_full, Whose::CTA)
            .signals(&self.smem.k_full, Whose::CTA)
            .signals(&self.smem.v_full, Whose::CTA);
        vec![step]
    }

    /// The warps that multiply. When a tile of queries has read a head, these warps give the slots back to the senders
    /// of the head.
    fn multiply(&self) -> Vec<Step> {
        let peers = Whose::peers(self.topology);
        let step = Step::of(self.last_pass())
            .waits(&self.smem.q_full, Whose::CTA)
            .waits(&self.smem.k_full, Whose::CTA)
            .waits(&self.smem.v_full, Whose::CTA)
            .signals(&self.smem.k_empty, Whose::CTA)
            .signals(&self.smem.v_empty, Whose::CTA)
            .signals(&self.workspace.slot_reads, peers)
            .signals(&self.workspace.head_marks, peers)
            .signals(&self.smem.q_empty, Whose::CTA);
        vec![step]
    }

    /// Sends the parts of a pass. `begin` is the step before a part is loaded.
    fn push_kv(&self, pass: u32, begin: Step) -> Vec<Step> {
        let (loaded, peers) = (&self.smem.copy_loaded, Whose::peers(self.topology));
        let send = Step::of(pass)
            .when(self.op_plan.buffers == 1, |step| {
                step.waits(&self.workspace.begun, peers)
            })
            .takes(&self.workspace.slot_reads, peers)
            .takes(&self.workspace.head_marks, peers)
            .waits(loaded, Whose::CTA)
            .signals(&self.workspace.kv_ready, self.receivers())
            .signals(&self.workspace.kv_marks, self.receivers());
        vec![begin.signals(loaded, Whose::CTA), send]
    }

    // ---- across nodes

    fn put_kv(&self) -> Vec<Step> {
        let own = Step::of(OWN)
            .waits(&self.workspace.kv_ready, Whose::RANK)
            .waits(&self.workspace.kv_marks, Whose::RANK);
        vec![own.puts()]
    }

    fn watch_arrivals(&self) -> Vec<Step> {
        let step = Step::of(OWN)
            .takes(&Word::Watched, Whose::RANK)
            .waits(&Word::Arrivals, Whose::NODES)
            .waits(&self.workspace.begun, Whose::peers(self.topology));
        vec![
            step.signals(&self.workspace.arrived, Whose::RANK)
                .signals(&Word::Watched, Whose::RANK),
        ]
    }
}
