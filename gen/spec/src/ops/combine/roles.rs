//! The roles of a `combine` kernel, and their waits.

use super::memory::{CombineSmem, CombineWorkspace};
use super::op_plan::{CombinePlan, OUTPUTS};
use crate::parts::waits::{CallSteps, Step, Whose, Word};
use crate::plan::{Role, RoleKind};
use crate::topology::Topology;

/// The pass of lists of tokens.
const LISTS: u32 = 0;
/// The pass of partial sums for other ranks of the node.
const PARTIALS: u32 = 1;
/// The pass of sums of the node for tokens of other nodes.
const FOR_NODES: u32 = 2;
/// The pass of sums of own tokens.
const OWN: u32 = 3;
/// The pass of acknowledgements of sums that have arrived.
const ACKNOWLEDGED: u32 = 4;

/// A role with its warps.
type Listed = (RoleKind, (u32, u32), &'static str, Vec<Step>);

/// The parts of a plan on which its roles depend.
pub(super) struct Roles<'a> {
    op_plan: &'a CombinePlan,
    topology: Topology,
    workspace: CombineWorkspace,
    smem: CombineSmem,
}

impl<'a> Roles<'a> {
    pub(super) fn new(op_plan: &'a CombinePlan, topology: Topology) -> Self {
        let world = topology.world();
        Self {
            op_plan,
            topology,
            workspace: CombineWorkspace::of(op_plan, topology),
            smem: CombineSmem::of(op_plan.low_latency_tokens, op_plan.pipeline, world),
        }
    }

    fn peers(&self) -> &'static [Whose] {
        Whose::peers(self.topology)
    }

    fn crosses_nodes(&self) -> bool {
        self.op_plan.internode.is_some()
    }

    /// All CTAs send entries, and list the tokens for other nodes, before their roles.
    pub(super) fn call_steps(&self) -> CallSteps {
        let begin = Step::of(LISTS)
            .signals(&self.workspace.token_counts, self.peers())
            .signals(&self.workspace.topk_packets, self.peers())
            .signals(&self.workspace.lists_ready, Whose::RANK)
            .signals(&self.workspace.list_positions, Whose::RANK);
        CallSteps::new(vec![begin], Vec::new(), self.topology)
    }

    /// The warps of a CTA.
    fn warps(&self) -> u32 {
        self.op_plan.arch.spec().warps()
    }

    pub(super) fn all(&self, grid_ctas: u32) -> Vec<Role> {
        let comm_ctas = self.op_plan.comm_ctas();
        let (comm, adding, warps) = ((0, comm_ctas), (comm_ctas, grid_ctas), self.warps());
        let mut roles = Vec::new();
        let mut push = |kind, ctas, warps, about: &str, steps| {
            roles.push(Role::new(kind, ctas, warps, about).with(steps))
        };
        if self.op_plan.low_latency_tokens > 0 {
            let about = format!(
                "sums of ranks with at most {} tokens",
                self.op_plan.low_latency_tokens
            );
            push(
                RoleKind::SumFewTokens,
                (0, grid_ctas),
                (0, warps),
                &about,
                self.sum_few_tokens(),
            );
        }
        for (kind, warps, about, steps) in self.across_nodes() {
            push(kind, comm, warps, about, steps);
        }
        if self.op_plan.pipeline.is_some() {
            push(
                RoleKind::Load,
                adding,
                (0, 1),
                "rows of sums to shared memory",
                self.load(),
            );
            push(
                RoleKind::Store,
                adding,
                (1, 1 + OUTPUTS),
                "sums to C and to peers",
                self.store(),
            );
            push(
                RoleKind::Add,
                adding,
                (1 + OUTPUTS, warps),
                "sums in fp32",
                self.add(),
            );
        }
        roles
    }

    /// The roles of the CTA that only communicates, if there is one, with their warps.
    fn across_nodes(&self) -> Vec<Listed> {
        if !self.crosses_nodes() {
            return Vec::new();
        }
        let acknowledging = 2 + u32::from(self.op_plan.acknowledges());
        let sums = "lists of tokens, and sums of other nodes' tokens";
        let acknowledged = "sums of other nodes, whose places are wanted again";
        let lists = "lists of other nodes to this node's ranks";
        let mut roles = vec![
            (
                RoleKind::WatchArrivals,
                (0, 1),
                "puts of other nodes",
                self.watch_arrivals(),
            ),
            (RoleKind::PutSums, (1, 2), sums, self.put_sums()),
            (
                RoleKind::AcknowledgeSums,
                (2, acknowledging),
                acknowledged,
                self.acknowledge_sums(),
            ),
            (
                RoleKind::RelayLists,
                (acknowledging, self.warps()),
                lists,
                self.relay_lists(),
            ),
        ];
        roles.retain(|(_, (first, end), ..)| first < end);
        roles
    }

    fn sum_few_tokens(&self) -> Vec<Step> {
        let sends = Step::of(PARTIALS)
            .waits(&self.workspace.token_counts, self.peers())
            .waits(&self.workspace.topk_packets, self.peers());
        vec![
            sends.signals(&self.workspace.partial_packets, self.peers()),
            Step::of(PARTIALS).waits(&self.workspace.partial_packets, self.peers()),
        ]
    }

    // ---- the pipeline

    /// The passes of sums: sums for other ranks come before sums that need sums of other ranks.
    fn passes(&self) -> Vec<u32> {
        let sends = self.topology.local_world > 1;
        let passes = [
            (PARTIALS, sends),
            (FOR_NODES, self.crosses_nodes()),
            (OWN, true),
        ];
        passes
            .into_iter()
            .filter(|(_, is_used)| *is_used)
            .map(|(pass, _)| pass)
            .collect()
    }

    /// Lists of other nodes name the tokens whose rows this rank has.
    fn load(&self) -> Vec<Step> {
        let lists = Whose::peers_and(self.topology, self.crosses_nodes());
        let rows = |pass| {
            let step = match pass {
                PARTIALS => Step::of(pass),
                FOR_NODES => Step::of(pass)
                    .waits(&self.workspace.partial_ready, self.peers())
                    .when(self.op_plan.acknowledges(), |step| {
                        step.takes(&self.workspace.arrived, Whose::RANK)
                    }),
                _ => Step::of(pass)
                    .waits(&self.workspace.partial_ready, self.peers())
                    .waits(&self.workspace.list_positions, Whose::RANK)
                    .waits(&self.workspace.sums_begin, Whose::RANK)
                    .waits(&self.workspace.arrived, Whose::RANK),
            };
            step.takes(&self.smem.row_empty, Whose::CTA)
                .signals(&self.smem.row_full, Whose::CTA)
        };
        let entries = Step::of(PARTIALS)
            .waits(&self.workspace.token_counts, lists)
            .waits(&self.workspace.topk_packets, lists);
        [entries]
            .into_iter()
            .chain(self.passes().into_iter().map(rows))
            .collect()
    }

    fn add(&self) -> Vec<Step> {
        let sums = |pass| {
            let step = Step::of(pass)
                .waits(&self.smem.row_full, Whose::CTA)
                .takes(&self.smem.output_empty, Whose::CTA);
            step.signals(&self.smem.row_empty, Whose::CTA)
                .signals(&self.smem.output_full, Whose::CTA)
        };
        self.passes().into_iter().map(sums).collect()
    }

    fn store(&self) -> Vec<Step> {
        let partial_ready = &self.workspace.partial_ready;
        let sums = |pass| {
            let step = Step::of(pass).waits(&self.smem.output_full, Whose::CTA);
            let step = step.signals(&self.smem.output_empty, Whose::CTA);
            match pass {
                PARTIALS => step.signals(partial_ready, self.peers()),
                FOR_NODES => step.signals(partial_ready, Whose::RANK),
                _ => step,
            }
        };
        self.passes().into_iter().map(sums).collect()
    }

    // ---- across nodes

    fn watch_arrivals(&self) -> Vec<Step> {
        let watch = |pass| {
            let step = Step::of(pass).waits(&Word::Arrivals, Whose::NODES);
            step.signals(&self.workspace.arrived, Whose::RANK)
        };
        let begin = Step::of(LISTS)
            .waits(&self.workspace.lists_ready, Whose::RANK)
            .takes(&Word::Watched, Whose::RANK);
        let mut steps = vec![begin, watch(LISTS), watch(FOR_NODES)];
        if self.op_plan.acknowledges() {
            steps.push(watch(ACKNOWLEDGED));
        }
        steps.push(Step::of(ACKNOWLEDGED).signals(&Word::Watched, Whose::RANK));
        steps
    }

    fn put_sums(&self) -> Vec<Step> {
        vec![
            Step::of(LISTS)
                .waits(&self.workspace.lists_ready, Whose::RANK)
                .signals(&self.workspace.sums_begin, Whose::RANK)
                .puts(),
            Step::of(PARTIALS).waits(&self.workspace.arrived, Whose::RANK),
            Step::of(FOR_NODES)
                .waits(&self.workspace.partial_ready, Whose::RANK)
                .puts(),
        ]
    }

    fn acknowledge_sums(&self) -> Vec<Step> {
        let waits = Step::of(FOR_NODES)
            .waits(&self.workspace.lists_ready, Whose::RANK)
            .waits(&self.workspace.arrived, Whose::RANK);
        vec![waits, Step::of(ACKNOWLEDGED).puts()]
    }

    fn relay_lists(&self) -> Vec<Step> {
        let node = Whose::node(self.topology);
        let step = Step::of(PARTIALS).waits(&self.workspace.arrived, Whose::RANK);
        vec![
            step.signals(&self.workspace.token_counts, node)
                .signals(&self.workspace.topk_packets, node),
        ]
    }
}
