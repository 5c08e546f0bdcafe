//! The roles of a kernel of a collective, and their waits.

use super::config::Protocol;
use super::memory::CollectiveWorkspace;
use super::op_plan::CollectivePlan;
use crate::parts::waits::{CallSteps, Step, Whose, Word};
use crate::plan::{Role, RoleKind};
use crate::topology::Topology;

/// The pass of chunks that are added up for other nodes.
const FOR_NODES: u32 = 0;
/// The pass of chunks of the own shard.
const OWN: u32 = 1;
/// The pass of chunks of the own shard on their way to other nodes.
const PUT: u32 = 2;
/// The pass of chunks of the shards of other nodes.
const RELAYED: u32 = 3;

/// A role with the number of its warps.
type Listed = (RoleKind, u32, &'static str, Vec<Step>);

/// The parts of a plan from which its roles derive.
pub(super) struct Roles<'a> {
    op_plan: &'a CollectivePlan,
    topology: Topology,
    workspace: CollectiveWorkspace,
}

impl<'a> Roles<'a> {
    pub(super) fn new(op_plan: &'a CollectivePlan, topology: Topology) -> Self {
        let workspace = CollectiveWorkspace::of(op_plan, topology);
        Self {
            op_plan,
            topology,
            workspace,
        }
    }

    fn peers(&self) -> &'static [Whose] {
        Whose::peers(self.topology)
    }

    fn node(&self) -> &'static [Whose] {
        Whose::node(self.topology)
    }

    /// The steps of all CTAs before and after their roles.
    pub(super) fn call_steps(&self) -> CallSteps {
        let begun = &self.workspace.begun;
        let begin = Step::of(FOR_NODES).signals(begun, self.peers());
        let end = Step::last().waits(begun, self.peers());
        let mut call = CallSteps::new(vec![begin], vec![end], self.topology);
        if self.workspace.outgoing.is_some() {
            let sent = Step::of(PUT).signals(&Word::PutsSent, Whose::HOST);
            call.host.push(sent);
        }
        call
    }

    pub(super) fn all(&self, threads: u32, grid_ctas: u32) -> Vec<Role> {
        match self.op_plan.protocol {
            Protocol::Ll => {
                let about = "packets to the peers, and the peers' packets to the result";
                let role = Role::new(RoleKind::Exchange, (0, grid_ctas), (0, threads / 32), about);
                vec![role.with(self.exchange())]
            }
            Protocol::Simple => self.simple(grid_ctas),
        }
    }

    /// The steps of packets. Where rows are normalised, sums also go to this rank, since other threads of this rank may
    /// have the row.
    fn exchange(&self) -> Vec<Step> {
        let summed = Whose::peers_and(self.topology, self.op_plan.norm.is_some());
        let exchanged = [
            (&self.workspace.parts, self.peers()),
            (&self.workspace.sums, summed),
            (&self.workspace.shards, self.peers()),
            (&self.workspace.squares, Whose::RANK),
        ];
        let steps = |(words, ranks)| {
            [
                Step::of(OWN).signals(words, ranks),
                Step::of(OWN).waits(words, ranks),
            ]
        };
        exchanged.into_iter().flat_map(steps).collect()
    }

    fn simple(&self, grid_ctas: u32) -> Vec<Role> {
        let mut warp = 0;
        let listed = self.across_nodes().into_iter().map(|role| (1, role));
        let listed = listed.chain(self.on_node().into_iter().map(|role| (grid_ctas, role)));
        let roles = listed.filter(|(_, (_, count, ..))| *count > 0);
        let roles = roles.map(|(end_cta, (kind, count, about, steps))| {
            let warps = (warp, warp + count);
            warp += count;
            Role::new(kind, (0, end_cta), warps, about).with(steps)
        });
        roles.collect()
    }

    /// The roles of the first CTA across nodes, with the number of their warps.
    fn across_nodes(&self) -> [Listed; 3] {
        let op = self.op_plan.config.op;
        let network = u32::from(self.topology.peers() > 0);
        let sums = network * u32::from(op.reduces());
        let shards = network * u32::from(op.gathers());
        let about = "sums of this node to their owners";
        [
            (
                RoleKind::WatchArrivals,
                network,
                "puts of other nodes",
                self.watch_arrivals(),
            ),
            (RoleKind::PutSums, sums, about, self.put_sums()),
            (
                RoleKind::PutShard,
                shards,
                match op.exchanges() {
                    true => "chunks of this node to their owners",
                    false => "own chunks to other nodes",
                },
                self.put_shard(),
            ),
        ]
    }

    /// The roles of all CTAs, with the number of their warps.
    fn on_node(&self) -> [Listed; 4] {
        let (warps, op) = (&self.op_plan.warps, self.op_plan.config.op);
        let push = match op.reduces() {
            true => {
                let about = "own parts of the chunks that peers add up";
                (RoleKind::Push, warps.push, about, self.push())
            }
            false if self.op_plan.owners.is_some() => {
                let about = "the root's chunks to ranks that send them to all, and to the result";
                (RoleKind::PushShard, warps.push, about, self.scatter())
            }
            false if op.exchanges() => {
                let about = "chunks to their owners, or to ranks that put them, and to the result";
                (
                    RoleKind::PushShard,
                    warps.push,
                    about,
                    self.exchange_chunks(),
                )
            }
            false => {
                let about = "own chunks to the peers and to the result";
                (
                    RoleKind::PushShard,
                    warps.push,
                    about,
                    vec![self.raise_own(Step::of(OWN))],
                )
            }
        };
        let reduced = match op.gathers() {
            true => "sums in fp32, to the result and to the peers",
            false => "sums in fp32, to the result",
        };
        let collected = match (
            self.op_plan.norm,
            self.op_plan.stores_to_results(self.topology),
        ) {
            (Some(_), _) => "rows of all ranks' chunks, normalised, to the result",
            (None, true) => "waits for the chunks that other ranks store to the result",
            (None, false) => "other ranks' chunks to the result",
        };
        let relayed = "other nodes' chunks to the peers";
        [
            push,
            (RoleKind::Reduce, warps.reduce, reduced, self.reduce()),
            (RoleKind::Collect, warps.collect, collected, self.collect()),
            (RoleKind::Relay, warps.relay, relayed, self.relay()),
        ]
    }

    fn push(&self) -> Vec<Step> {
        // Sums for other nodes are added up first, so their addends are sent first.
        let parts = |pass| Step::of(pass).signals(&self.workspace.partial_ready, self.peers());
        vec![parts(FOR_NODES), parts(OWN)]
    }

    /// Chunks of a broadcast: from the root to their owners, and from there to all ranks.
    fn scatter(&self) -> Vec<Step> {
        let scattered = &self.workspace.scattered;
        vec![
            Step::of(FOR_NODES).signals(scattered, self.peers()),
            self.raise_own(Step::of(OWN).waits(scattered, self.peers())),
        ]
    }

    /// Chunks of an all-to-all: for other nodes to ranks that put them, then to their owners on this node.
    fn exchange_chunks(&self) -> Vec<Step> {
        let outgoing = &self.workspace.outgoing_ready;
        vec![
            self.await_results(Step::of(FOR_NODES))
                .signals(outgoing, self.node()),
            Step::of(OWN).signals(&self.workspace.chunk_ready, self.peers()),
        ]
    }

    fn reduce(&self) -> Vec<Step> {
        let parts = |pass| Step::of(pass).waits(&self.workspace.partial_ready, self.peers());
        let own = parts(OWN).waits(&self.workspace.arrived, Whose::RANK);
        vec![
            parts(FOR_NODES).signals(&self.workspace.sum_ready, Whose::RANK),
            self.raise_own(own),
        ]
    }

    /// Stores to results of other ranks wait until these ranks have begun the call.
    fn await_results(&self, step: Step) -> Step {
        step.when(self.op_plan.stores_to_results(self.topology), |step| {
            step.waits(&self.workspace.begun, self.peers())
        })
    }

    /// Sends chunks of the own shard.
    fn raise_own(&self, step: Step) -> Step {
        let keeps_own = self.topology.peers() > 0 || self.op_plan.norm.is_some();
        let to = Whose::peers_and(self.topology, keeps_own);
        let step = self.await_results(step);
        step.signals(&self.workspace.chunk_ready, to)
    }

    fn collect(&self) -> Vec<Step> {
        if self.op_plan.config.op.exchanges() {
            let step = Step::of(RELAYED).waits(&self.workspace.chunk_ready, self.peers());
            return vec![step.waits(&self.workspace.arrived, Whose::RANK)];
        }
        let takes_own = self.topology.peers() > 0 || self.op_plan.norm.is_some();
        let from = Whose::peers_and(self.topology, takes_own);
        vec![Step::of(RELAYED).waits(&self.workspace.chunk_ready, from)]
    }

    // ---- across nodes

    fn watch_arrivals(&self) -> Vec<Step> {
        let watch = |pass| {
            Step::of(pass)
                .takes(&Word::Watched, Whose::RANK)
                .waits(&Word::Arrivals, Whose::NODES)
                .when(self.op_plan.takes_rows(), |step| {
                    step.waits(&self.workspace.begun, self.peers())
                })
                .signals(&self.workspace.arrived, Whose::RANK)
        };
        let (sums, shards) = (
            self.op_plan.config.op.reduces(),
            self.op_plan.config.op.gathers(),
        );
        let passes = [(sums, FOR_NODES), (shards, PUT)];
        let mut steps: Vec<_> = passes
            .into_iter()
            .filter(|(is_used, _)| *is_used)
            .map(|(_, pass)| watch(pass))
            .collect();
        steps.push(Step::of(PUT).signals(&Word::Watched, Whose::RANK));
        steps
    }

    fn put_sums(&self) -> Vec<Step> {
        vec![
            Step::of(FOR_NODES)
                .waits(&self.workspace.sum_ready, Whose::RANK)
                .puts(),
        ]
    }

    fn put_shard(&self) -> Vec<Step> {
        if self.op_plan.config.op.exchanges() {
            let outgoing = &self.workspace.outgoing_ready;
            return vec![
                Step::of(PUT).waits(outgoing, self.node()).puts(),
                Step::of(PUT).waits(&Word::PutsSent, Whose::HOST),
            ];
        }
        vec![
            Step::of(PUT)
                .waits(&self.workspace.chunk_ready, Whose::RANK)
                .puts(),
        ]
    }

    fn relay(&self) -> Vec<Step> {
        let step = Step::of(RELAYED).waits(&self.workspace.arrived, Whose::RANK);
        vec![step.signals(&self.workspace.chunk_ready, self.node())]
    }
}
