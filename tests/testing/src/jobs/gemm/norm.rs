//! Jobs of `gemm_ar` and `gemm_rs` with a norm. Every bit of the new residual is known. The result is compared with a norm in fp64
//! of that residual, and must be equal on all ranks that have it.

pub mod quantised;

use super::GemmJob;
use crate::jobs::norm::{self, NormCall, NormRun};
use crate::jobs::simulated::rounded;
use crate::jobs::{
    Backend, CALLS, CALLS_AFTER, CALLS_BEFORE, CallCount, Machine, Results, SimulatedJob, deadline,
};
use crate::lab::Failure;
use mkernel::spec::{
    Activation, BLayout, Dim, Epilogue, Eps, GemmConfig, GemmOp, GemmShape, Norm, Scales, Tuning,
};
use mkernel::{Communicator, Operand};

/// Several calls of an operator that normalises the rows of sums over the ranks.
#[derive(Clone, Debug)]
pub struct GemmNormJob {
    /// The products and sums, and whether they are in a graph.
    pub job: GemmJob,
    /// Whether the new residual takes the place of the residual.
    pub is_in_place: bool,
}

impl GemmNormJob {
    /// Creates a job of `gemm_ar` that adds a residual to the sums and normalises their rows.
    pub fn new(world: u32, (m, n, k): (u64, u64, u64), sms: u32) -> Self {
        let config = GemmConfig {
            m: Dim::Static(m),
            n: Dim::Static(n),
            k: Dim::Static(k),
            b_layout: BLayout::Nk,
            epilogue: Epilogue {
                residual: true,
                norm: Norm::Rms,
                // This eps is so large that a norm without it is wrong.
                eps: Eps::new(8.0),
                ..Epilogue::default()
            },
            ..GemmConfig::new(GemmOp::GemmAr)
        };
        Self {
            job: GemmJob::new(world, config, GemmShape { m, n, k }, sms),
            is_in_place: false,
        }
    }

    /// Makes the job a job of `gemm_rs`, which leaves each rank its rows.
    #[must_use]
    pub fn scattered(mut self) -> Self {
        self.job.config.op = GemmOp::GemmRs;
        self
    }

    /// Lets owners of tiles add up partial sums, in rounds of `round_tiles` tiles.
    #[must_use]
    pub fn in_two_shots(mut self, round_tiles: u32) -> Self {
        let tuning = &mut self.job.config.tuning;
        (tuning.shots, tuning.round_tiles) = (Some(2), Some(round_tiles));
        self
    }

    /// Changes the tuning.
    #[must_use]
    pub fn tuned(mut self, tuning: Tuning) -> Self {
        self.job.config.tuning = tuning;
        self
    }

    /// Adds a bias, and applies ReLU.
    #[must_use]
    pub fn activated(mut self) -> Self {
        let epilogue = &mut self.job.config.epilogue;
        (epilogue.bias, epilogue.activation) = (true, Activation::Relu);
        self
    }

    /// Sets elements of fp16 in place of bf16.
    #[must_use]
    pub fn fp16(mut self) -> Self {
        self.job = self.job.fp16();
        self
    }

    /// Makes C e4m3 with scales.
    #[must_use]
    pub fn quantised(mut self, scales: Scales) -> Self {
        self.job.config.epilogue.result_scales = scales;
        self
    }

    /// Puts the new residual in the place of the residual.
    #[must_use]
    pub fn in_place(mut self) -> Self {
        self.is_in_place = true;
        self
    }

    /// Captures the calls in a graph.
    #[must_use]
    pub fn in_graph(mut self) -> Self {
        self.job.is_graph = true;
        self
    }

    /// Makes a call for each of these numbers of rows, with one operator that takes rows at run time.
    #[must_use]
    pub fn with_rows(mut self, rows: &[u64]) -> Self {
        self.job = self.job.with_rows(rows);
        self
    }

    /// Runs the job and returns its results: for each call, the result and the new residual.
    ///
    /// # Errors
    /// A call fails, the simulator finds a defect, a result is wrong, or ranks have different bits.
    pub fn run_on(&self, backend: Backend) -> Result<Results, String> {
        let machine = Machine {
            world: self.job.world,
            sms: self.job.sms,
            skew: self.job.skew,
        };
        let results = machine.run(backend, |ranks| self.rank(ranks))?;
        match self.is_scattered() {
            true => Ok(results),
            false => norm::same_on_all_ranks(results),
        }
    }

    fn is_scattered(&self) -> bool {
        self.job.config.op == GemmOp::GemmRs
    }

    /// The jobs of all kernels that a run needs.
    #[must_use]
    pub fn kernels(&self) -> Vec<GemmJob> {
        let quantises = self.job.config.epilogue.quantises();
        let unscaled = quantises.then(|| self.unscaled().job);
        std::iter::once(self.job.clone()).chain(unscaled).collect()
    }

    /// The same sums and norms without scales, by one launch for each call.
    fn unscaled(&self) -> Self {
        let mut unscaled = self.clone().quantised(Scales::None);
        unscaled.is_in_place = false;
        (unscaled.job.is_graph, unscaled.job.call_count) = (false, None);
        unscaled.job.edits.clear();
        unscaled
    }

    fn rank(&self, ranks: &Communicator) -> Result<Vec<Vec<u32>>, Failure> {
        let calls = self.calls(ranks.rank() as usize);
        self.rank_with(ranks, &calls)
    }

    fn rank_with(
        &self,
        ranks: &Communicator,
        calls: &[NormCall],
    ) -> Result<Vec<Vec<u32>>, Failure> {
        ranks.set_timeout(deadline(self.job.edits.is_empty()));
        let unscaled = match self.job.config.epilogue.quantises() {
            true => Some(self.unscaled().rank_with(ranks, calls)?),
            false => None,
        };
        let run = NormRun {
            ranks,
            operator: &self.job.prepare(ranks)?,
            calls,
            result: Operand::C,
            is_graph: self.job.is_graph,
            call_count: self.job.call_count,
            is_in_place: self.is_in_place,
            unscaled,
        };
        norm::run(&run, self.job.config.dtype)
    }

    /// The calls of a rank.
    fn calls(&self, rank: usize) -> Vec<NormCall> {
        let job = &self.job;
        let all = job.calls();
        let count = match job.call_count {
            _ if !job.rows.is_empty() => all.len() as u32,
            Some(_) => CALLS_BEFORE + CALLS_AFTER,
            None => CALLS,
        };
        let n = job.shape.n as usize;
        let weight: Vec<f32> = (0..n).map(|col| (col % 7) as f32 * 0.25 - 0.5).collect();
        let eps = job.config.epilogue.eps.value();
        let of = |call: &super::CallData| {
            let inputs = vec![
                (Operand::A, call.a.clone()),
                (Operand::B, call.b.clone()),
                (Operand::Bias, call.bias.clone()),
                (Operand::Residual, call.residual.clone()),
                (Operand::Weight, vec![weight.clone()]),
            ];
            let expected = &call.expected[rank];
            let rounded = expected.iter().map(|z| rounded(*z, job.config.dtype));
            let elems = match self.is_scattered() {
                true => call.expected.iter().map(Vec::len).sum(),
                false => expected.len(),
            };
            let rows = (elems / n) as u64;
            NormCall::new(rows, inputs, rounded.collect(), (&weight, eps))
        };
        all.iter().cycle().take(count as usize).map(of).collect()
    }
}

impl SimulatedJob for GemmNormJob {
    fn run(&self, seed: u64) -> Result<Results, String> {
        self.run_on(Backend::Simulated { seed })
    }

    fn edit(&mut self, edits: Vec<(String, String)>) {
        self.job.edit(edits);
    }
}

impl CallCount for GemmNormJob {
    fn with_call_count(mut self, calls: u32) -> Self {
        self.job = self.job.with_call_count(calls);
        self
    }

    fn replays_a_graph(&self) -> bool {
        self.job.is_graph
    }
}

/// Returns jobs of two shots, in which warps find rows whose tiles have several owners: rows of several tiles, columns that C does
/// not have, rounds that are not full, several groups of row tiles, in place, graphs, and rows at run time.
pub fn normalised_by_owners(world: u32) -> Vec<(String, GemmNormJob)> {
    let job = |size, sms| GemmNormJob::new(world, size, sms).in_two_shots(2);
    let groups = |job: GemmNormJob| {
        let tuning = Tuning {
            tile_m: Some(64),
            group_m: Some(1),
            ..job.job.config.tuning
        };
        job.tuned(tuning)
    };
    let rows = [70, 0, 1, 133, 3, 64, 7];
    let of_all = [
        ("one row", job((1, 520, 64), 3)),
        ("rows of several tiles", job((77, 520, 128), 2).activated()),
        ("shared tiles", job((9, 264, 256), 6).in_place()),
        ("groups of rows", groups(job((200, 136, 64), 2))),
        ("a graph", job((70, 264, 64), 2).in_graph()),
        ("fp16", job((12, 264, 128), 2).activated().fp16()),
        (
            "rows at run time",
            groups(job((133, 264, 128), 3)).activated().with_rows(&rows),
        ),
        (
            "rows at run time in a graph",
            job((133, 136, 64), 2).with_rows(&rows).in_graph(),
        ),
    ];
    let both = of_all.into_iter().flat_map(|(name, job)| {
        let scattered = job.clone().scattered();
        [
            (format!("{name}, two shots on {world} ranks"), job),
            (format!("{name}, scattered over {world} ranks"), scattered),
        ]
    });
    both.map(|(name, job)| (format!("gemm norm: {name}"), job))
        .collect()
}

/// Returns jobs of one shot with both exchanges: sub-tiles that several CTAs share, several tiles of a CTA, columns that C does not have,
/// in place, graphs, and rows at run time.
pub fn normalised(world: u32) -> Vec<(String, GemmNormJob)> {
    let job = |size, sms| GemmNormJob::new(world, size, sms);
    let tuning = |tile_n, split_k| Tuning {
        tile_m: Some(64),
        tile_n: Some(tile_n),
        split_k: Some(split_k),
        shots: Some(1),
        ..Tuning::default()
    };
    let rows = [5, 0, 1, 12, 3, 12, 7];
    let jobs = [
        ("one row", job((1, 520, 64), 3)),
        ("rows of several tiles", job((12, 520, 128), 2).activated()),
        (
            "shared tiles",
            job((9, 264, 256), 6).tuned(tuning(128, 2)).in_place(),
        ),
        ("more rows than a tile", job((77, 136, 64), 2)),
        ("a graph", job((5, 264, 64), 2).in_graph()),
        ("fp16", job((12, 264, 128), 2).activated().fp16()),
        (
            "rows at run time",
            job((12, 520, 128), 3).activated().with_rows(&rows),
        ),
        (
            "rows at run time in a graph",
            job((12, 264, 64), 2).with_rows(&rows).in_graph(),
        ),
    ];
    let name =
        |(name, job): (&str, GemmNormJob)| (format!("gemm norm: {name} on {world} ranks"), job);
    jobs.into_iter().map(name).collect()
}
