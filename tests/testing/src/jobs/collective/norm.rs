//! Jobs of `all_reduce` with a norm. Every bit of the new residual is known. The result is compared with a norm in fp64
//! of that residual, and must be equal on all ranks.

pub mod cases;
pub mod quantised;

use super::CollectiveJob;
use crate::jobs::norm::{self, NormCall, NormRun};
use crate::jobs::random::Random;
use crate::jobs::{Backend, CALLS, CALLS_AFTER, CALLS_BEFORE, CallCount, Results, SimulatedJob};
use crate::lab::Failure;
use mkernel::spec::{CollectiveOp, CollectiveShape, Eps, Norm, Scales, SumEpilogue};
use mkernel::{Communicator, Operand};

/// Several calls of an all-reduce whose rows are normalised.
#[derive(Clone, Debug)]
pub struct NormJob {
    /// The sums, and whether they are in a graph.
    pub job: CollectiveJob,
    /// Whether the new residual takes the place of the residual, and Y of the type of X the place of X.
    pub is_in_place: bool,
}

impl NormJob {
    /// Creates a job that adds a residual to the sum of a tensor of `m` rows and `n` columns, and normalises its rows.
    pub fn new(world: u32, size: (u64, u64), sms: u32) -> Self {
        let mut job = CollectiveJob::new(CollectiveOp::AllReduce, world, size, sms);
        job.config.epilogue = SumEpilogue {
            residual: true,
            norm: Norm::Rms,
            // This eps is so large that a norm without it is wrong.
            eps: Eps::new(0.05),
            ..SumEpilogue::default()
        };
        Self {
            job,
            is_in_place: false,
        }
    }

    /// Changes the sums.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(CollectiveJob) -> CollectiveJob) -> Self {
        self.job = change(self.job);
        self
    }

    /// Adds a bias.
    #[must_use]
    pub fn biased(mut self) -> Self {
        self.job.config.epilogue.bias = true;
        self
    }

    /// Adds no residual.
    #[must_use]
    pub fn without_residual(mut self) -> Self {
        self.job.config.epilogue.residual = false;
        self
    }

    /// Makes Y e4m3 with scales. The job has a given protocol, so that the sums of a kernel without scales have the same bits.
    #[must_use]
    pub fn quantised(mut self, scales: Scales) -> Self {
        self.job.config.epilogue.result_scales = scales;
        self
    }

    /// Puts the new residual in the place of the residual, and Y in the place of X.
    #[must_use]
    pub fn in_place(mut self) -> Self {
        self.is_in_place = true;
        self
    }

    /// Runs the job and returns its results: for each call, the result and the new residual.
    ///
    /// # Errors
    /// A call fails, the simulator finds a defect, a result is wrong, or ranks have different bits.
    pub fn run_on(&self, backend: Backend) -> Result<Results, String> {
        let job = &self.job;
        let calls = self.calls();
        let rank = |ranks: &Communicator| self.rank(ranks, &calls);
        let results = job.machine.run_over(&job.faults, backend, rank)?;
        norm::same_on_all_ranks(results)
    }

    fn rank(&self, ranks: &Communicator, calls: &[NormCall]) -> Result<Vec<Vec<u32>>, Failure> {
        let job = &self.job;
        ranks.set_timeout(crate::jobs::deadline(job.edits.is_empty()));
        let unscaled = match job.config.epilogue.quantises() {
            true => Some(self.unscaled().rank(ranks, calls)?),
            false => None,
        };
        let run = NormRun {
            ranks,
            operator: &job.prepare(ranks)?,
            calls,
            result: Operand::Y,
            is_graph: job.is_graph,
            call_count: job.call_count,
            is_in_place: self.is_in_place,
            unscaled,
        };
        norm::run(&run, job.config.dtype)
    }

    /// The jobs of all kernels that a run needs.
    #[must_use]
    pub fn kernels(&self) -> Vec<CollectiveJob> {
        let of = [
            Some(self.clone()),
            self.job
                .config
                .epilogue
                .quantises()
                .then(|| self.unscaled()),
        ];
        of.into_iter().flatten().map(|of| of.job).collect()
    }

    /// The same sums and norms without scales, by one launch for each call.
    fn unscaled(&self) -> Self {
        let mut unscaled = self.clone().quantised(Scales::None);
        unscaled.is_in_place = false;
        (unscaled.job.is_graph, unscaled.job.call_count) = (false, None);
        unscaled.job.edits.clear();
        unscaled
    }

    fn calls(&self) -> Vec<NormCall> {
        let job = &self.job;
        let count = job.call_count.map_or(CALLS, |_| CALLS_BEFORE + CALLS_AFTER);
        match job.rows.as_slice() {
            [] => (0..count)
                .map(|number| self.call(number % CALLS, job.shape().m))
                .collect(),
            rows => (0..)
                .zip(rows)
                .map(|(number, rows)| self.call(number, *rows))
                .collect(),
        }
    }

    fn call(&self, number: u32, rows: u64) -> NormCall {
        let job = &self.job;
        let epilogue = job.config.epilogue;
        let shape = CollectiveShape {
            m: rows,
            ..job.shape()
        };
        let n = shape.n as usize;
        let mut state = Random(u64::from(number) + 77);
        let mut random = |len: usize, is_there: bool| -> Vec<f32> {
            (0..if is_there { len } else { 0 })
                .map(|_| job.rounded(state.next()))
                .collect()
        };
        let x = job.call(number, rows).x;
        let whole = rows as usize * n;
        let bias = random(n, epilogue.bias);
        let residual = random(whole, epilogue.residual);
        let weight = random(n, true);
        let owned = job.owned_elems(shape);
        let z = |index: usize| {
            let mut z = job.sum(&x, index, index / owned);
            z += bias.get(index % n).copied().unwrap_or(-0.0);
            z += residual.get(index).copied().unwrap_or(-0.0);
            job.rounded(z)
        };
        let residual_out: Vec<f32> = (0..whole).map(z).collect();
        let inputs = vec![
            (Operand::X, x),
            (Operand::Bias, vec![bias.clone()]),
            (Operand::Residual, vec![residual.clone()]),
            (Operand::Weight, vec![weight.clone()]),
        ];
        NormCall::new(rows, inputs, residual_out, (&weight, epilogue.eps.value()))
    }
}

impl SimulatedJob for NormJob {
    fn run(&self, seed: u64) -> Result<Results, String> {
        self.run_on(Backend::Simulated { seed })
    }

    fn edit(&mut self, edits: Vec<(String, String)>) {
        self.job.edit(edits);
    }
}

impl CallCount for NormJob {
    fn with_call_count(mut self, calls: u32) -> Self {
        self.job = self.job.with_call_count(calls);
        self
    }

    fn replays_a_graph(&self) -> bool {
        self.job.is_graph
    }
}
