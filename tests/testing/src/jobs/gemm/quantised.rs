//! Jobs of `gemm` and `ag_gemm` whose results are e4m3 with scales of blocks. The same kernel with results of fp32 runs first. Its
//! results are checked, and are quantised by the CPU: every bit of the results of e4m3 is known.

use super::GemmJob;
use crate::jobs::norm::{self, NormCall, NormRun};
use crate::jobs::{
    Backend, CALLS, CALLS_AFTER, CALLS_BEFORE, CallCount, Machine, Results, SimulatedJob, deadline,
};
use crate::lab::Failure;
use mkernel::spec::{
    Activation, BLayout, Dim, Dtype, Epilogue, GemmConfig, GemmOp, GemmShape, Scales, Tuning,
};
use mkernel::{Communicator, Operand};

/// Several calls of an operator that quantises the results of its products.
#[derive(Clone, Debug)]
pub struct QuantisedGemmJob(pub GemmJob);

impl QuantisedGemmJob {
    /// Creates a job of `op`. Tiles of this size are computed.
    pub fn new(
        op: GemmOp,
        world: u32,
        (m, n, k): (u64, u64, u64),
        tile: (u32, u32),
        sms: u32,
    ) -> Self {
        let config = GemmConfig {
            m: Dim::Static(m),
            n: Dim::Static(n),
            k: Dim::Static(k),
            b_layout: BLayout::Nk,
            epilogue: Epilogue {
                result_scales: Scales::Block,
                ..Epilogue::default()
            },
            tuning: Tuning {
                tile_m: Some(tile.0),
                tile_n: Some(tile.1),
                ..Tuning::default()
            },
            ..GemmConfig::new(op)
        };
        Self(GemmJob::new(world, config, GemmShape { m, n, k }, sms))
    }

    /// Changes the operations between sums and results.
    fn finished(mut self, epilogue: Epilogue) -> Self {
        self.0.config.epilogue = Epilogue {
            result_scales: Scales::Block,
            ..epilogue
        };
        self
    }

    /// Lets this number of CTAs share tiles of the last round.
    #[must_use]
    pub const fn split(mut self, split_k: u32) -> Self {
        self.0.config.tuning.split_k = Some(split_k);
        self
    }

    fn scaled(mut self, scales: Scales) -> Self {
        self.0 = self.0.scaled(scales);
        self
    }

    fn with_rows(mut self, rows: &[u64]) -> Self {
        self.0 = self.0.with_rows(rows);
        self
    }

    fn in_graph(mut self) -> Self {
        self.0 = self.0.in_graph();
        self
    }

    /// Runs the job and returns its results: for each call, the elements and then the scales.
    ///
    /// # Errors
    /// A call fails, the simulator finds a defect, or a result is wrong.
    pub fn run_on(&self, backend: Backend) -> Result<Results, String> {
        let machine = Machine {
            world: self.0.world,
            sms: self.0.sms,
            skew: self.0.skew,
        };
        machine.run(backend, |ranks| self.rank(ranks))
    }

    /// The jobs of all kernels that a run needs.
    #[must_use]
    pub fn kernels(&self) -> Vec<GemmJob> {
        vec![self.0.clone(), self.unscaled()]
    }

    /// The same results in fp32, by one launch for each call.
    fn unscaled(&self) -> GemmJob {
        let mut unscaled = self.0.clone();
        let epilogue = &mut unscaled.config.epilogue;
        (epilogue.result_scales, epilogue.output) = (Scales::None, Some(Dtype::Fp32));
        (unscaled.is_graph, unscaled.call_count) = (false, None);
        unscaled.edits.clear();
        unscaled
    }

    fn rank(&self, ranks: &Communicator) -> Result<Vec<Vec<u32>>, Failure> {
        let unscaled = self.unscaled().rank(ranks, false)?;
        let calls = self.calls(ranks.rank() as usize);
        ranks.set_timeout(deadline(self.0.edits.is_empty()));
        let run = NormRun {
            ranks,
            operator: &self.0.prepare(ranks)?,
            unscaled: Some(unscaled.into_iter().cycle().take(calls.len()).collect()),
            calls: &calls,
            result: Operand::C,
            is_graph: self.0.is_graph,
            call_count: self.0.call_count,
            is_in_place: false,
        };
        norm::run(&run, self.0.config.dtype)
    }

    /// The calls of a rank. With rows at run time, ranks that do not communicate have different rows.
    fn calls(&self, rank: usize) -> Vec<NormCall> {
        let job = &self.0;
        let (first, count) = match (job.rows.len(), job.call_count) {
            (0, None) => (0, CALLS as usize),
            (0, Some(_)) => (0, (CALLS_BEFORE + CALLS_AFTER) as usize),
            (rows, _) if job.config.op.communicates() => (0, rows),
            (rows, _) => (rank, rows),
        };
        let rows = job.rows.iter().copied().chain([job.shape.m]);
        let rows: Vec<_> = rows.take(job.rows.len().max(1)).collect();
        let all = job.calls().iter().zip(rows.iter().cycle()).cycle();
        let of = |(call, rows): (&super::CallData, &u64)| {
            let inputs = call.inputs(&job.config, rank).into_iter();
            NormCall {
                rows: *rows,
                inputs: inputs
                    .map(|(operand, values)| (operand, vec![values.to_vec()]))
                    .collect(),
                residual_out: Vec::new(),
                result: call.expected[rank].clone(),
            }
        };
        all.skip(first).take(count).map(of).collect()
    }
}

impl SimulatedJob for QuantisedGemmJob {
    fn run(&self, seed: u64) -> Result<Results, String> {
        self.run_on(Backend::Simulated { seed })
    }

    fn edit(&mut self, edits: Vec<(String, String)>) {
        self.0.edit(edits);
    }
}

impl CallCount for QuantisedGemmJob {
    fn with_call_count(mut self, calls: u32) -> Self {
        self.0 = self.0.with_call_count(calls);
        self
    }

    fn replays_a_graph(&self) -> bool {
        self.0.is_graph
    }
}

fn swiglu() -> Epilogue {
    Epilogue {
        swiglu: true,
        ..Epilogue::default()
    }
}

fn activated_residual() -> Epilogue {
    Epilogue {
        residual: true,
        activation: Activation::Relu,
        ..Epilogue::default()
    }
}

/// Returns jobs with each tile: blocks of one warpgroup and of both, columns that C does not have, several rounds of tiles, tiles that
/// CTAs share, SwiGLU, all addends, products of e4m3, rows at run time, and graphs.
pub fn quantised(world: u32) -> Vec<(String, QuantisedGemmJob)> {
    let gathered = |size, tile, sms| QuantisedGemmJob::new(GemmOp::AgGemm, world, size, tile, sms);
    let alone = |size, tile, sms| QuantisedGemmJob::new(GemmOp::Gemm, world, size, tile, sms);
    let biased = |epilogue| Epilogue {
        bias: true,
        ..epilogue
    };
    let (swiglu, all) = (swiglu(), biased(activated_residual()));
    let rows = [5, 0, 1, 77, 64, 77];
    let jobs = [
        ("one row", gathered((1, 16, 64), (64, 128), 3)),
        (
            "blocks of both warpgroups",
            alone((77, 400, 64), (64, 128), 3).finished(all),
        ),
        (
            "SwiGLU in blocks of both warpgroups",
            gathered((77, 272, 128), (64, 256), 3)
                .finished(biased(swiglu))
                .scaled(Scales::Block),
        ),
        (
            "blocks of a warpgroup",
            alone((77, 400, 64), (64, 256), 2).finished(all).in_graph(),
        ),
        (
            "wide tiles",
            gathered((150, 400, 64), (128, 256), 3).finished(all),
        ),
        (
            "SwiGLU in wide tiles",
            alone((150, 272, 128), (128, 256), 3)
                .finished(swiglu)
                .scaled(Scales::Row),
        ),
        ("shared tiles", alone((64, 272, 256), (64, 128), 6).split(2)),
        (
            "shared wide tiles",
            gathered((128, 528, 256), (128, 256), 8)
                .split(2)
                .finished(biased(swiglu))
                .scaled(Scales::Block),
        ),
        (
            "rows at run time",
            gathered((77, 272, 128), (64, 256), 3)
                .finished(swiglu)
                .with_rows(&rows),
        ),
        (
            "rows at run time in a graph",
            alone((77, 400, 64), (128, 128), 3)
                .finished(all)
                .with_rows(&rows)
                .in_graph(),
        ),
    ];
    let name = |(name, job)| (format!("products in e4m3: {name} on {world} ranks"), job);
    jobs.into_iter().map(name).collect()
}
