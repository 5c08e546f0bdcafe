//! The roles of a GEMM operator: the warps of each role, their steps, and the waits of each step.

mod reduce;

use super::config::Transfer;
use super::memory::{GemmWorkspace, Needs};
use super::op_plan::{Chunks, Reduction};
use super::smem::{CommSmem, GemmSmem};
use super::spec::GemmSpec;
use crate::arch::ArchSpec;
use crate::parts::waits::{CallSteps, Step, Whose, Word};
use crate::plan::{Role, RoleKind};
use crate::topology::Topology;

/// Tiles that another rank of the node reduces, or all tiles where no ranks reduce.
const OTHERS: u32 = 0;
/// Tiles that this rank reduces for the rank of another node that owns them, or rows of A that are forwarded.
const FORWARDED: u32 = 1;
/// Tiles that this rank owns.
const OWN: u32 = 2;
/// Results on their way to other nodes.
const RESULTS: u32 = 3;

/// The parts of a plan from which its roles derive.
pub(super) struct Roles<'a> {
    spec: GemmSpec<'a>,
    chunks: Option<&'a Chunks>,
    reduction: Option<&'a Reduction>,
    workspace: GemmWorkspace,
    smem: GemmSmem,
    comm_smem: CommSmem,
    arch: &'static ArchSpec,
    comm_ctas: u32,
    grid_ctas: u32,
}

impl<'a> Roles<'a> {
    /// The roles of `grid_ctas` CTAs. The first `comm_ctas` CTAs only communicate.
    pub(super) fn new(needs: &Needs<'a>, comm_ctas: u32, grid_ctas: u32) -> Self {
        Self {
            spec: needs.spec,
            chunks: needs.chunks,
            reduction: needs.reduction,
            workspace: GemmWorkspace::new(needs),
            smem: needs.core.memory(),
            comm_smem: CommSmem::new(needs.core.arch.warps()),
            arch: needs.core.arch,
            comm_ctas,
            grid_ctas,
        }
    }

    fn topology(&self) -> Topology {
        self.spec.topology
    }

    fn peers(&self) -> &'static [Whose] {
        Whose::peers(self.topology())
    }

    /// A role of all CTAs that compute.
    fn computing(&self, kind: RoleKind, warps: (u32, u32), about: &str, steps: Vec<Step>) -> Role {
        Role::new(kind, (self.comm_ctas, self.grid_ctas), warps, about).with(steps)
    }

    /// A role of all warps of the CTAs that only communicate.
    fn communicating(&self, kind: RoleKind, about: &str, steps: Vec<Step>) -> Role {
        Role::new(kind, (0, self.comm_ctas), (0, self.arch.warps()), about).with(steps)
    }

    // ---- the GEMM core

    /// The load thread: A and B of the tiles of a pass. `arrives` adds the waits for partial sums or rows of A.
    fn load(&self, pass: u32, arrives: impl FnOnce(Step) -> Step) -> Vec<Step> {
        let Self {
            workspace, smem, ..
        } = self;
        let step = Step::of(pass)
            .waits(&workspace.pace, Whose::RANK)
            .takes(&smem.stage_empty, Whose::CTA)
            .signals(&smem.stage_full, Whose::CTA);
        vec![
            Step::of(pass).signals(&workspace.pace, Whose::RANK),
            arrives(step),
        ]
    }

    /// The warps that multiply: the tiles of a pass. CTAs that share a tile exchange their sums.
    fn multiply(&self, pass: u32) -> Vec<Step> {
        let Self {
            workspace, smem, ..
        } = self;
        let product = Step::of(pass)
            .waits(&smem.stage_full, Whose::CTA)
            .signals(&smem.stage_empty, Whose::CTA)
            .signals(&workspace.split_ready, Whose::RANK)
            .signals(&smem.cluster_full, Whose::RANK);
        let finish = Step::of(pass)
            .waits(&workspace.split_ready, Whose::RANK)
            .waits(&smem.cluster_full, Whose::RANK);
        vec![
            product,
            finish.when(!self.stores_from_registers(), |step| {
                step.takes(&smem.output_empty, Whose::CTA)
                    .signals(&smem.output_full, Whose::CTA)
            }),
        ]
    }

    fn store(&self, pass: u32) -> Step {
        Step::of(pass)
            .waits(&self.smem.output_full, Whose::CTA)
            .signals(&self.smem.output_empty, Whose::CTA)
    }

    /// Whether the warps that multiply store C themselves: in clusters, with one shot, or if one rank normalises rows.
    fn stores_from_registers(&self) -> bool {
        self.smem.cluster_full.is_some() || stores_from_registers(self.spec, self.reduction)
    }

    fn of_core(&self, [load, store]: [(&str, Vec<Step>); 2], multiply: Vec<Step>) -> Vec<Role> {
        let role = |kind, warps, (about, steps)| self.computing(kind, warps, about, steps);
        let mut roles = vec![role(RoleKind::Load, (0, 1), load)];
        if !self.stores_from_registers() {
            roles.push(role(RoleKind::Store, (1, 3), store));
        }
        let about = format!("wgmma, {} to fp32", self.spec.types().a);
        roles.push(role(
            RoleKind::Multiply,
            (self.arch.first_multiplying_warp(), self.arch.warps()),
            (&about, multiply),
        ));
        roles
    }

    /// The steps of all CTAs before and after their roles. The counts at the end are of tiles and chunks that a call does not have.
    fn call_steps(&self, transfer: Option<Transfer>) -> CallSteps {
        let Self { workspace, .. } = self;
        let (peers, takes_rows) = (self.peers(), self.spec.takes_rows());
        let copies = transfer == Some(Transfer::CopyEngine);
        let begin = Step::of(OTHERS)
            .signals(&workspace.begun, peers)
            .signals(&workspace.owner_begun, peers)
            .when(copies, |step| step.signals(&Word::Doorbell, Whose::HOST));
        let has_empty_shards =
            self.chunks.is_some() && !takes_rows && self.spec.has_ranks_without_rows();
        let end = Step::last()
            .when(takes_rows, |step| step.waits(&workspace.begun, peers))
            .waits(&workspace.owner_begun, peers)
            .when(has_empty_shards, |step| {
                step.waits(&workspace.chunk_ready, self.arriving_from())
            })
            .when(copies, |step| step.waits(&Word::CopiesLeft, Whose::HOST))
            .when(takes_rows, |step| self.counts_unused(step));
        let mut call = CallSteps::new(vec![begin], vec![end], self.topology());
        if self.relays() && self.spec.sends_in_place() {
            call.host
                .push(Step::of(OTHERS).signals(&Word::PutsSent, Whose::HOST));
        }
        if copies {
            let step = Step::of(OTHERS).waits(&Word::Doorbell, Whose::HOST);
            let step = step.signals(&workspace.chunk_ready, self.pushed_to());
            call.host.push(step.signals(&Word::CopiesLeft, Whose::HOST));
        }
        call
    }

    fn counts_unused(&self, step: Step) -> Step {
        let Self { workspace, .. } = self;
        let relays = self.topology().nodes > 1;
        step.signals(&workspace.split_ready, Whose::RANK)
            .signals(&workspace.chunk_ready, self.pushed_to())
            .signals(&workspace.partial_ready, self.peers())
            .signals(&workspace.put_ready, Whose::RANK)
            .signals(
                &workspace.result_ready,
                match self.spec.epilogue().normalises() {
                    true => Whose::RANK,
                    false => Whose::peers_and(self.topology(), relays),
                },
            )
    }

    // ---- operators that gather A, or exchange nothing

    /// The roles of a kernel that multiplies rows of all ranks, which `transfer` brings.
    pub(super) fn gathering(&self, transfer: Option<Transfer>) -> (Vec<Role>, CallSteps) {
        let push = (transfer == Some(Transfer::SmPush)).then(|| self.push());
        let roles = push.into_iter().chain(self.of_plain_gemm()).collect();
        (roles, self.call_steps(transfer))
    }

    /// The roles of a GEMM whose ranks exchange no sums.
    fn of_plain_gemm(&self) -> Vec<Role> {
        // Forwarded rows belong to a later pass than own rows on their way to peers.
        let pass = if self.relays() { FORWARDED } else { OTHERS };
        let load = self.load(pass, |step| {
            step.waits(&self.workspace.chunk_ready, self.arriving_from())
        });
        let mut multiply = self.multiply(pass);
        if self.comm_ctas == 0 && self.chunks.is_some_and(|chunks| chunks.push_warps > 1) {
            multiply.insert(0, self.push_by_registers());
        }
        multiply.extend(self.normalise());
        self.of_core(
            [
                ("A and B to shared memory", load),
                ("C from shared memory", vec![self.store(pass)]),
            ],
            multiply,
        )
    }

    fn relays(&self) -> bool {
        self.chunks.is_some() && self.topology().nodes > 1
    }

    /// The ranks whose flags count this rank's pieces. A rank signals itself too if tiles with rows of several ranks, or puts, take
    /// own rows from `gathered`.
    fn pushed_to(&self) -> &'static [Whose] {
        let puts_gathered = self.relays() && !self.spec.sends_in_place();
        let gathers_own =
            self.chunks.is_some_and(|chunks| chunks.to_self) || self.spec.takes_rows();
        Whose::peers_and(self.topology(), puts_gathered || gathers_own)
    }

    /// The ranks that signal the arrival of rows of A.
    fn arriving_from(&self) -> &'static [Whose] {
        let gathers_own =
            self.chunks.is_some_and(|chunks| chunks.to_self) || self.spec.takes_rows();
        Whose::peers_and(self.topology(), self.relays() || gathers_own)
    }

    fn push_by_registers(&self) -> Step {
        Step::of(OTHERS).signals(&self.workspace.chunk_ready, self.pushed_to())
    }

    fn push(&self) -> Role {
        let about = "own rows of A to every peer";
        match (self.comm_ctas, self.topology().nodes) {
            (0, _) => {
                let steps = vec![self.push_by_registers()];
                self.computing(RoleKind::PushByRegisters, (3, 4), about, steps)
            }
            (_, 1) => self.communicating(
                RoleKind::Push,
                about,
                self.copies(OTHERS, self.push_by_registers()),
            ),
            _ => {
                let about = "a warp watches arrivals, one puts, all others push own rows and forward other nodes'";
                self.communicating(RoleKind::Communicate, about, self.communicate())
            }
        }
    }

    /// The steps of the thread of a slot, which loads bytes to the slot and does `then` when the bytes have arrived.
    fn copies(&self, pass: u32, then: Step) -> Vec<Step> {
        let loaded = &self.comm_smem.copy_loaded;
        vec![
            Step::of(pass).signals(loaded, Whose::CTA),
            then.waits(loaded, Whose::CTA),
        ]
    }

    fn communicate(&self) -> Vec<Step> {
        let Self { workspace, .. } = self;
        let in_place = self.spec.sends_in_place();
        let mut steps = self.copies(OTHERS, self.push_by_registers());
        let put = Step::of(OTHERS).when(!in_place, |step| {
            step.waits(&workspace.chunk_ready, Whose::RANK)
        });
        steps.push(put.puts());
        if in_place {
            steps.push(Step::of(OTHERS).waits(&Word::PutsSent, Whose::HOST));
        }
        steps.push(self.watch(OTHERS).signals(&Word::Watched, Whose::RANK));
        let relayed =
            Step::of(FORWARDED).signals(&workspace.chunk_ready, Whose::node(self.topology()));
        steps.push(Step::of(FORWARDED).waits(&workspace.arrived, Whose::RANK));
        steps.extend(match self.topology().local_world {
            1 => vec![relayed],
            _ => self.copies(FORWARDED, relayed),
        });
        steps
    }

    /// The warp that watches the puts of a pass.
    fn watch(&self, pass: u32) -> Step {
        let takes_rows = self.spec.takes_rows();
        Step::of(pass)
            .takes(&Word::Watched, Whose::RANK)
            .waits(&Word::Arrivals, Whose::NODES)
            .when(takes_rows, |step| {
                step.waits(&self.workspace.begun, self.peers())
            })
            .signals(&self.workspace.arrived, Whose::RANK)
    }

    /// The steps in which the warps that share a row exchange its sums of squares.
    fn normalise(&self) -> [Step; 3] {
        let GemmWorkspace {
            squares,
            row_squares,
            ..
        } = &self.workspace;
        [
            Step::of(RESULTS).signals(squares, Whose::RANK),
            Step::of(RESULTS)
                .waits(squares, Whose::RANK)
                .signals(row_squares, Whose::RANK),
            Step::of(RESULTS).waits(row_squares, Whose::RANK),
        ]
    }
}

/// Whether the warps that multiply store C themselves: with one shot, or if one rank normalises rows.
pub(super) fn stores_from_registers(spec: GemmSpec<'_>, reduction: Option<&Reduction>) -> bool {
    match reduction {
        None => spec.normalises_alone(),
        Some(reduction) => reduction.shots == 1,
    }
}
