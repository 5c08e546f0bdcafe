//! Ranks of this process, a thread for each, and what they compute.

use crate::lab::{Failure, Lab, Matrix, Random, Verdict, seed_from_clock};
use mkernel::cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use mkernel::spec::spec::WORLDS;
use mkernel::{BLayout, Communicator, Dim, KernelConfig, Op, Operator, RawOperand, Shape, Tuning};
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

/// The seed of this run.
pub fn seed() -> u64 {
    let given = std::env::var("MKERNEL_TEST_SEED").ok();
    let seed = given.map_or_else(seed_from_clock, |text| {
        text.parse().expect("MKERNEL_TEST_SEED is a number")
    });
    println!("MKERNEL_TEST_SEED={seed}");
    seed
}

/// The worlds of at least `least` ranks that the host's GPUs make.
pub fn worlds(least: u32) -> Vec<u32> {
    let gpus = mkernel::device_count().expect("GPUs");
    let fits = |world: &u32| *world >= least && *world as usize <= gpus;
    let worlds: Vec<u32> = WORLDS.into_iter().filter(fits).collect();
    println!("worlds {worlds:?} of {gpus} GPUs");
    assert!(
        !worlds.is_empty(),
        "this test needs {least} GPUs, the host shows {gpus}"
    );
    worlds
}

/// Runs `body` on every rank; returns what each returned, by rank. Panics with all failures, if there are any.
pub fn on_ranks<T: Send>(
    world: u32,
    body: impl Fn(&Communicator) -> Result<T, Failure> + Sync,
) -> Vec<T> {
    // Contexts stay: making them takes longer than most tests, and would free what a test leaves behind.
    static CONTEXTS: Mutex<Vec<Arc<CudaContext>>> = Mutex::new(Vec::new());
    let gpus: Vec<usize> = (0..world as usize).collect();
    let communicators = Communicator::local(&gpus).expect("communicators");
    let contexts = communicators.iter().map(|ranks| ranks.context().clone());
    let mut kept = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    kept.extend(contexts);
    kept.sort_by_key(|context| context.ordinal());
    kept.dedup_by_key(|context| context.ordinal());
    drop(kept);
    let results: Vec<Result<T, Failure>> = std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = communicators
            .into_iter()
            .map(|ranks| scope.spawn(move || body(&ranks)))
            .collect();
        let results = threads.into_iter().map(|thread| thread.join());
        results
            .map(|result| result.unwrap_or_else(|_| Err("it panicked".into())))
            .collect()
    });
    let mut values = Vec::new();
    let mut failures = String::new();
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Ok(value) => values.push(value),
            Err(error) => {
                failures += &format!("\nrank {rank} of {world}: {}", with_causes(&*error));
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
    values
}

fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// `ag_gemm` with every size given at `prepare`.
pub fn config(world: u32, b_layout: BLayout, tuning: Tuning) -> KernelConfig {
    KernelConfig {
        name: None,
        op: Op::AgGemm,
        world,
        m: Dim::DYNAMIC,
        n: Dim::DYNAMIC,
        k: Dim::DYNAMIC,
        b_layout,
        tuning,
    }
}

/// An operator, and operands for it whose rows are `pad` elements apart. Collective.
pub fn prepare(
    ranks: &Communicator,
    lab: &Lab,
    (shape, layout, tuning): (Shape, BLayout, Tuning),
    pad: u64,
) -> Result<(Operator, Operands), Failure> {
    let operator = ranks.prepare(&config(ranks.world(), layout, tuning), shape)?;
    Ok((operator, Operands::new(ranks, lab, shape, layout, pad)?))
}

/// Enqueues a call.
pub fn launch(
    operator: &Operator,
    stream: &Arc<CudaStream>,
    operands: &[RawOperand; 3],
) -> Result<(), mkernel::Error> {
    // SAFETY: tests pass operands of the plan's sizes, and wait for their streams before they drop memory.
    unsafe { operator.launch_raw(stream.cu_stream(), operands) }
}

/// What one rank multiplies.
pub struct Operands {
    /// This rank's rows of A.
    pub shard: Matrix,
    pub first_row: u64,
    pub b: Matrix,
    pub c: Matrix,
    /// All of A, made here, not received: for the reference.
    whole: Matrix,
    transposed: bool,
}

impl Operands {
    /// Poison; rows are `pad` elements apart.
    pub fn new(
        ranks: &Communicator,
        lab: &Lab,
        Shape { m, n, k }: Shape,
        layout: BLayout,
        pad: u64,
    ) -> Result<Self, Failure> {
        let transposed = layout == BLayout::Nk;
        let (b_rows, b_cols) = if transposed { (n, k) } else { (k, n) };
        let shard_rows = m.div_ceil(u64::from(ranks.world()));
        let first_row = (u64::from(ranks.rank()) * shard_rows).min(m);
        Ok(Self {
            shard: lab.matrix(shard_rows.min(m - first_row), k, pad)?,
            first_row,
            b: lab.matrix(b_rows, b_cols, pad)?,
            c: lab.matrix(m, n, pad)?,
            whole: lab.matrix(m, k, 0)?,
            transposed,
        })
    }

    pub fn raw(&self) -> [RawOperand; 3] {
        [self.shard.operand(), self.b.operand(), self.c.operand()]
    }

    /// New A, from the same seed on all ranks.
    pub fn fill_a(&self, lab: &Lab, seed: u64) -> Result<(), Failure> {
        lab.fill(&self.whole, 0, seed)?;
        lab.fill(&self.shard, self.first_row, seed)
    }

    /// New B, another one on each rank.
    pub fn fill_b(&self, lab: &Lab, seed: u64, rank: u32) -> Result<(), Failure> {
        let seed = seed.wrapping_add(u64::from(rank));
        lab.fill(&self.b, 0, Random(seed).next())
    }

    /// Poison to C, a call, and a verdict on it. Enqueues only.
    pub fn call(
        &self,
        lab: &Lab,
        operator: &Operator,
        verdicts: &CudaSlice<u64>,
        slot: usize,
    ) -> Result<(), Failure> {
        lab.poison(&self.c)?;
        launch(operator, &lab.stream, &self.raw())?;
        self.judge(lab, verdicts, slot)
    }

    /// A verdict on every element of C. Enqueues only.
    pub fn judge(&self, lab: &Lab, verdicts: &CudaSlice<u64>, slot: usize) -> Result<(), Failure> {
        let matrices = (&self.whole, &self.b, &self.c);
        lab.check(matrices, self.transposed, 1, verdicts, slot)
    }
}

/// Waits; fails unless all verdicts are good.
pub fn expect_right(
    ranks: &Communicator,
    lab: &Lab,
    verdicts: &CudaSlice<u64>,
) -> Result<Vec<Verdict>, Failure> {
    ranks.synchronize(&lab.stream)?;
    let verdicts = lab.read_verdicts(verdicts)?;
    match verdicts.iter().position(|verdict| !verdict.is_right()) {
        Some(slot) => Err(format!("result {slot} is wrong: {:?}", verdicts[slot]).into()),
        None => Ok(verdicts),
    }
}

/// Some calls with new data each, checked. Collective.
pub fn compute(
    ranks: &Communicator,
    lab: &Lab,
    operator: &Operator,
    operands: &Operands,
    (calls, seed): (usize, u64),
) -> Result<f64, Failure> {
    let verdicts = lab.verdicts(calls)?;
    let mut seeds = Random(seed);
    for call in 0..calls {
        operands.fill_a(lab, seeds.next())?;
        operands.fill_b(lab, seeds.next(), ranks.rank())?;
        operands.call(lab, operator, &verdicts, call)?;
    }
    let verdicts = expect_right(ranks, lab, &verdicts)?;
    let errors = verdicts.iter().map(|verdict| verdict.relative_error);
    Ok(errors.fold(0.0, f64::max))
}
