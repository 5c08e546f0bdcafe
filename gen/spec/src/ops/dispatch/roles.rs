//! The roles of kernels with products of experts, and their waits.

use super::memory::{DispatchSmem, DispatchWorkspace, Needs};
use super::op_plan::DispatchPlan;
use crate::parts::waits::{CallSteps, Step, Whose, Word};
use crate::plan::{Role, RoleKind};
use crate::topology::Topology;

/// Messages of the ranks of this node.
const ROUTED: u32 = 0;
/// Messages of other nodes.
const ALL_ROUTED: u32 = 1;
/// Tokens of this rank.
const OWN: u32 = 2;
/// Tokens of other nodes.
const FORWARDED: u32 = 3;
/// Acknowledgements of chunks that were forwarded.
const ACKNOWLEDGED: u32 = 4;
/// Products of hidden rows.
const DOWN: u32 = 5;
/// Results of this rank's tokens.
const RETURNED: u32 = 6;

/// The parts of a plan on which its roles depend.
pub(super) struct Roles<'a> {
    op_plan: &'a DispatchPlan,
    topology: Topology,
    grid_ctas: u32,
    workspace: DispatchWorkspace,
    smem: DispatchSmem,
}

impl<'a> Roles<'a> {
    pub(super) fn new(needs: Needs<'a>) -> Self {
        Self {
            op_plan: needs.op_plan,
            topology: needs.topology,
            grid_ctas: needs.grid_ctas,
            workspace: DispatchWorkspace::new(needs),
            smem: DispatchSmem::new(needs),
        }
    }

    fn crosses_nodes(&self) -> bool {
        self.topology.peers() > 0
    }

    /// All CTAs route tokens before their roles.
    pub(super) fn call_steps(&self) -> CallSteps {
        if !self.op_plan.dispatches() {
            return CallSteps::new(Vec::new(), Vec::new(), self.topology);
        }
        let DispatchWorkspace {
            counted,
            routed,
            slots_ready,
            arrived,
            ..
        } = &self.workspace;
        let node = Whose::node(self.topology);
        let mut begin = vec![
            Step::of(ROUTED).signals(counted, Whose::RANK),
            Step::of(ROUTED)
                .waits(counted, Whose::RANK)
                .signals(routed, node),
        ];
        let routes = if self.crosses_nodes() {
            begin.push(Step::of(ROUTED).waits(routed, Whose::RANK).puts());
            begin.push(self.watch(ROUTED).takes(&Word::Watched, Whose::RANK));
            let forwards = Step::of(ALL_ROUTED).waits(arrived, Whose::RANK);
            begin.push(
                forwards
                    .signals(routed, node)
                    .signals(slots_ready, Whose::RANK),
            );
            ALL_ROUTED
        } else {
            ROUTED
        };
        begin.push(Step::of(routes).waits(routed, node));
        CallSteps::new(begin, Vec::new(), self.topology)
    }

    pub(super) fn all(&self) -> Vec<Role> {
        let arch = self.op_plan.arch.spec();
        let (warps, load_warps) = (arch.warps(), arch.first_multiplying_warp());
        let all = (0, self.grid_ctas);
        let mut roles = Vec::new();
        if self.op_plan.comm_ctas > 0 {
            let about = match self.op_plan.internode {
                None => "first, tokens to the ranks of their experts",
                Some(_) => {
                    "first, arrivals, puts, tokens to this node and to puts, other nodes' tokens to this node"
                }
            };
            let ctas = (0, self.op_plan.comm_ctas);
            roles.push(
                Role::new(RoleKind::SendTokens, ctas, (0, warps), about).with(self.send_tokens()),
            );
        }
        let about = match self.op_plan.dispatches() {
            true => "tokens and weights to shared memory",
            false => "rows and weights to shared memory",
        };
        roles.push(Role::new(RoleKind::Load, all, (0, load_warps), about).with(self.load()));
        let about = format!("wgmma, {} to fp32, and C", self.op_plan.config.dtype);
        roles.push(
            Role::new(RoleKind::Multiply, all, (load_warps, warps), &about).with(self.multiply()),
        );
        roles
    }

    /// The pass in which the last tokens arrive.
    fn last_pass(&self) -> u32 {
        if self.crosses_nodes() { FORWARDED } else { OWN }
    }

    /// The first thread takes tiles and loads weights, and the warps load the rows of these tiles.
    fn load(&self) -> Vec<Step> {
        let DispatchSmem {
            tile_full,
            tile_empty,
            stage_full,
            stage_empty,
            ..
        } = &self.smem;
        let pass = self.last_pass();
        let takes = Step::of(pass)
            .takes(tile_empty, Whose::CTA)
            .signals(tile_full, Whose::CTA);
        let from = Whose::peers_and(self.topology, self.crosses_nodes());
        let loads = Step::of(pass)
            .waits(tile_full, Whose::CTA)
            .waits(&self.workspace.token_ready, from)
            .takes(stage_empty, Whose::CTA);
        let loads = loads
            .signals(tile_empty, Whose::CTA)
            .signals(stage_full, Whose::CTA);
        let mut steps = match self.op_plan.dispatches() {
            true => vec![takes, loads],
            false => Vec::new(),
        };
        if self.op_plan.returns() {
            let takes = Step::of(DOWN)
                .takes(tile_empty, Whose::CTA)
                .signals(tile_full, Whose::CTA);
            let (before, whose) = match self.op_plan.dispatches() {
                true => (&self.workspace.hidden_ready, Whose::RANK),
                false => (&self.workspace.placed, Whose::node(self.topology)),
            };
            let loads = Step::of(DOWN)
                .waits(tile_full, Whose::CTA)
                .waits(before, whose)
                .takes(stage_empty, Whose::CTA);
            let loads = loads
                .signals(tile_empty, Whose::CTA)
                .signals(stage_full, Whose::CTA);
            steps.extend([takes, loads]);
        }
        steps
    }

    fn multiply(&self) -> Vec<Step> {
        let DispatchSmem {
            tile_full,
            tile_empty,
            stage_full,
            stage_empty,
            ..
        } = &self.smem;
        let of_pass = |pass| {
            let step = Step::of(pass)
                .waits(tile_full, Whose::CTA)
                .waits(stage_full, Whose::CTA);
            step.signals(tile_empty, Whose::CTA)
                .signals(stage_empty, Whose::CTA)
        };
        let up = of_pass(self.last_pass());
        if !self.op_plan.returns() {
            return vec![up];
        }
        let DispatchWorkspace {
            hidden_ready,
            placed,
            returned,
            ..
        } = &self.workspace;
        let node = Whose::node(self.topology);
        vec![
            match self.op_plan.dispatches() {
                true => up.signals(hidden_ready, Whose::RANK),
                false => Step::of(OWN).signals(placed, node),
            },
            of_pass(DOWN).signals(returned, node),
            Step::of(RETURNED).waits(returned, node),
        ]
    }

    /// Across nodes, one warp watches arrivals, one warp puts, one warp may acknowledge, and all other warps send and forward.
    fn send_tokens(&self) -> Vec<Step> {
        let DispatchWorkspace {
            token_ready,
            packed_ready,
            slots_ready,
            forwarded,
            arrived,
            ..
        } = &self.workspace;
        let (loaded, peers) = (&self.smem.copy_loaded, Whose::peers(self.topology));
        let mut steps = vec![
            Step::of(OWN).signals(loaded, Whose::CTA),
            Step::of(OWN)
                .waits(loaded, Whose::CTA)
                .signals(token_ready, peers)
                .signals(packed_ready, Whose::RANK),
        ];
        if !self.crosses_nodes() {
            return steps;
        }
        let acknowledges = self.op_plan.acknowledges();
        let put = Step::of(OWN)
            .waits(packed_ready, Whose::RANK)
            .when(acknowledges, |step| step.takes(arrived, Whose::RANK));
        steps.extend([put.puts(), self.watch(OWN)]);
        let begin = Step::of(FORWARDED)
            .waits(arrived, Whose::RANK)
            .waits(slots_ready, Whose::RANK);
        steps.push(begin.signals(loaded, Whose::CTA));
        let forward = Step::of(FORWARDED).waits(loaded, Whose::CTA);
        steps.push(
            forward
                .signals(token_ready, Whose::node(self.topology))
                .signals(forwarded, Whose::RANK),
        );
        if acknowledges {
            let acknowledge = Step::of(ACKNOWLEDGED).waits(forwarded, Whose::RANK);
            steps.extend([acknowledge.puts(), self.watch(ACKNOWLEDGED)]);
        }
        steps.push(Step::of(ACKNOWLEDGED).signals(&Word::Watched, Whose::RANK));
        steps
    }

    /// The warp that watches the puts of a pass.
    fn watch(&self, pass: u32) -> Step {
        let step = Step::of(pass).waits(&Word::Arrivals, Whose::NODES);
        step.signals(&self.workspace.arrived, Whose::RANK)
    }
}
