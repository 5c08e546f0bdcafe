//! The roles of operators that add up the ranks' partial sums of each tile.

use super::super::op_plan::Reduction;
use super::{FORWARDED, OTHERS, OWN, RESULTS, Roles};
use crate::parts::waits::{CallSteps, Step, Whose, Word};
use crate::plan::{Role, RoleKind};

impl Roles<'_> {
    /// The roles of a kernel that adds up the ranks' partial sums of each tile.
    pub(in super::super) fn reducing(&self) -> (Vec<Role>, CallSteps) {
        let roles = match self.reduction {
            None => self.of_plain_gemm(),
            Some(reduction) if reduction.shots == 1 => self.one_shot(reduction),
            Some(reduction) => self.two_shots(reduction),
        };
        (roles, self.call_steps(None))
    }

    fn one_shot(&self, reduction: &Reduction) -> Vec<Role> {
        let Self { workspace, .. } = self;
        let node = Whose::node(self.topology());
        let mut multiply = self.multiply(OTHERS);
        multiply.push(Step::of(OTHERS).signals(&workspace.packets, node));
        multiply.push(Step::of(OTHERS).waits(&workspace.packets, node));
        if reduction.results {
            multiply.push(Step::of(RESULTS).signals(&workspace.packets, self.peers()));
            multiply.push(Step::of(RESULTS).waits(&workspace.packets, self.peers()));
        }
        multiply.extend(self.normalise());
        self.of_core(
            [
                ("A and B to shared memory", self.load(OTHERS, |step| step)),
                ("", Vec::new()),
            ],
            multiply,
        )
    }

    fn two_shots(&self, reduction: &Reduction) -> Vec<Role> {
        let (load, multiply, store) = self.tiles_of_owners(reduction);
        let normalises = self.spec.epilogue().normalises();
        let about = match (reduction.results, reduction.on_peers) {
            (false, _) => "sums to C, or to the rank that reduces them",
            (true, true) => "sums to C of all ranks, or to the rank that reduces them",
            (true, false) => "sums to C and to all ranks, or to the rank that reduces them",
        };
        let mut roles = self.of_core(
            [
                ("A, B and others' partial sums to shared memory", load),
                (about, store),
            ],
            multiply,
        );
        if self.workspace.result_ready.is_some() {
            let about = match reduction.on_peers {
                _ if normalises => "rows of results, and their norm, to memory",
                true => "waits for the results that other owners store to C",
                false => "other owners' results to C",
            };
            let steps = vec![self.await_results(reduction)];
            roles.push(self.computing(RoleKind::Collect, (3, 4), about, steps));
        }
        roles.extend(self.across_nodes(reduction));
        roles
    }

    /// The ranks whose results a rank finds in its slots, or in C.
    fn owners_of_results(&self, reduction: &Reduction) -> &'static [Whose] {
        let keeps_own = self.comm_ctas > 0 || self.spec.epilogue().normalises();
        match reduction.results {
            true => Whose::peers_and(self.topology(), keeps_own),
            false => Whose::RANK,
        }
    }

    fn await_results(&self, reduction: &Reduction) -> Step {
        let owners = self.owners_of_results(reduction);
        Step::of(RESULTS).waits(&self.workspace.result_ready, owners)
    }

    /// The steps of the load thread, of the warps that multiply, and of the threads that store.
    fn tiles_of_owners(&self, reduction: &Reduction) -> (Vec<Step>, Vec<Step>, Vec<Step>) {
        let Self {
            workspace, smem, ..
        } = self;
        let (peers, crosses) = (self.peers(), self.comm_ctas > 0);
        let signalled = match self.spec.epilogue().normalises() {
            true => self.owners_of_results(reduction),
            false => peers,
        };
        let (mut load, mut multiply, mut store) = (Vec::new(), Vec::new(), Vec::new());
        for pass in [OTHERS, FORWARDED, OWN] {
            if pass == OTHERS && peers.is_empty() || pass == FORWARDED && !crosses {
                continue;
            }
            load.extend(self.load(pass, |step| step));
            multiply.extend(self.multiply(pass));
            if pass > OTHERS {
                let partials = Step::of(pass)
                    .waits(&workspace.partial_ready, peers)
                    .when(pass == OWN, |step| {
                        step.waits(&workspace.arrived, Whose::RANK)
                    });
                load.push(
                    partials
                        .takes(&smem.stage_empty, Whose::CTA)
                        .signals(&smem.stage_full, Whose::CTA),
                );
            }
            let stored = self.store(pass);
            store.push(match pass {
                OTHERS => stored.signals(&workspace.partial_ready, peers),
                FORWARDED => stored.signals(&workspace.put_ready, Whose::RANK),
                _ => stored
                    .when(reduction.on_peers, |step| {
                        step.waits(&workspace.begun, peers)
                    })
                    .when(reduction.results, |step| {
                        step.signals(&workspace.put_ready, Whose::RANK)
                    })
                    .signals(&workspace.result_ready, signalled),
            });
        }
        if self.spec.epilogue().normalises() {
            multiply.push(self.await_results(reduction));
        }
        (load, multiply, store)
    }

    /// The roles of CTAs that only communicate: none on one node.
    fn across_nodes(&self, reduction: &Reduction) -> Vec<Role> {
        let put = |pass| {
            Step::of(pass)
                .waits(&self.workspace.put_ready, Whose::RANK)
                .puts()
        };
        let watched = |step: Step| step.signals(&Word::Watched, Whose::RANK);
        match (self.comm_ctas, reduction.results) {
            (0, _) => Vec::new(),
            (_, true) => {
                let mut steps = vec![
                    put(FORWARDED),
                    self.watch(FORWARDED),
                    put(RESULTS),
                    watched(self.watch(RESULTS)),
                ];
                let ready = &self.workspace.result_ready;
                let relayed = Step::of(RESULTS).signals(ready, Whose::node(self.topology()));
                steps.push(Step::of(RESULTS).waits(&self.workspace.arrived, Whose::RANK));
                steps.extend(match self.topology().local_world {
                    1 => vec![relayed],
                    _ => self.copies(RESULTS, relayed),
                });
                let about =
                    "a warp watches arrivals, one puts, all others forward results of other nodes";
                vec![self.communicating(RoleKind::Communicate, about, steps)]
            }
            // One CTA is enough: arrivals have one watcher, and each sum is put once.
            (_, false) => {
                let role =
                    |kind, warps, about, steps| Role::new(kind, (0, 1), warps, about).with(steps);
                let watch = vec![watched(self.watch(FORWARDED))];
                let about = "sums of this node to those who own them";
                vec![
                    role(
                        RoleKind::WatchArrivals,
                        (0, 1),
                        "puts of other nodes",
                        watch,
                    ),
                    role(RoleKind::PutSums, (1, 2), about, vec![put(FORWARDED)]),
                ]
            }
        }
    }
}
