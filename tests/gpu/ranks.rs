//! Ranks of this process, a thread for each, and what they compute.

use mkernel::cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use mkernel::spec::spec::WORLDS;
use mkernel::{
    BLayout, Communicator, Epilogue, GemmConfig, GemmOp, GemmShape, KernelConfig, KernelSpec,
    Operator, RawOperand, Tuning,
};
use mkernel_testing::jobs::with_causes;
use mkernel_testing::lab::{Failure, Finish, Lab, Matrix, Random, Verdict, View, seed_from_clock};
use std::ops::Range;
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

/// What is computed.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    pub op: GemmOp,
    pub shape: GemmShape,
    pub layout: BLayout,
    pub epilogue: Epilogue,
    pub tuning: Tuning,
    /// Into which ranks are put, with emulated NICs between them.
    pub nodes: u32,
}

/// `ag_gemm`.
impl From<(GemmShape, BLayout, Tuning)> for Problem {
    fn from((shape, layout, tuning): (GemmShape, BLayout, Tuning)) -> Self {
        Self {
            op: GemmOp::AgGemm,
            shape,
            layout,
            epilogue: Epilogue::default(),
            tuning,
            nodes: 1,
        }
    }
}

impl Problem {
    /// Its kernel, with every size given at `prepare`.
    pub fn config(&self, world: u32) -> KernelConfig {
        let config = GemmConfig {
            b_layout: self.layout,
            epilogue: self.epilogue,
            tuning: self.tuning,
            ..GemmConfig::new(self.op)
        };
        KernelConfig {
            nodes: self.nodes,
            ..KernelConfig::new(world, config)
        }
    }

    /// Its kernel, of its sizes.
    pub fn spec(&self, world: u32) -> KernelSpec {
        let spec = KernelSpec::validate(self.config(world));
        let spec = spec.and_then(|spec| spec.specialise(self.shape));
        spec.unwrap_or_else(|error| panic!("world {world}, {self:?}: {error}"))
    }
}

/// `ag_gemm` with every size given at `prepare`.
pub fn config(world: u32, b_layout: BLayout, tuning: Tuning) -> KernelConfig {
    let shape = GemmShape { m: 1, n: 8, k: 8 };
    Problem::from((shape, b_layout, tuning)).config(world)
}

/// An operator, and operands for it whose rows are `pad` elements apart. Collective.
pub fn prepare(
    ranks: &Communicator,
    lab: &Lab,
    problem: impl Into<Problem>,
    pad: u64,
) -> Result<(Operator, Operands), Failure> {
    let problem = problem.into();
    let operator = ranks.prepare(&problem.config(ranks.world()), problem.shape)?;
    Ok((operator, Operands::new(ranks, lab, problem, pad)?))
}

/// Enqueues a call.
pub fn launch(
    operator: &Operator,
    stream: &Arc<CudaStream>,
    operands: &[RawOperand],
) -> Result<(), mkernel::Error> {
    // SAFETY: tests pass operands of the plan's sizes, and wait for their streams before they drop memory.
    unsafe { operator.launch_raw(stream.cu_stream(), operands) }
}

/// What one rank multiplies.
///
/// Backend ranks add up what each computed, their A side by side and their B below each other are one A and one B, the
/// product of which is the sum: each rank's operands are parts of these.
pub struct Operands {
    /// This rank's A, a part of `whole` or a copy of one.
    a: View,
    /// Own memory of `a`, where it has some.
    shard: Option<Matrix>,
    own_rows: Range<u64>,
    b: View,
    pub c: Matrix,
    epilogue: Epilogue,
    bias: Option<Matrix>,
    residual: Option<Matrix>,
    /// The A of which C is the product, all of it made here, not received: for the reference.
    whole: Matrix,
    whole_b: Matrix,
    /// Of C.
    rows: Range<u64>,
    transposed: bool,
    /// Rounded sums that C is made of.
    parts: u32,
}

impl Operands {
    /// Poison; rows are `pad` elements apart.
    pub fn new(
        ranks: &Communicator,
        lab: &Lab,
        problem: Problem,
        pad: u64,
    ) -> Result<Self, Failure> {
        let Problem {
            op,
            shape,
            epilogue,
            ..
        } = problem;
        let GemmShape { m, n, k } = shape;
        let (rank, world) = (u64::from(ranks.rank()), u64::from(ranks.world()));
        let transposed = problem.layout == BLayout::Nk;
        let shard_rows = m.div_ceil(world);
        let own_rows = (rank * shard_rows).min(m)..((rank + 1) * shard_rows).min(m);
        let (whole_k, own_k) = match op.reduces() {
            true => (world * k, rank * k..(rank + 1) * k),
            false => (k, 0..k),
        };
        let (b_rows, b_cols) = if transposed {
            (n, whole_k)
        } else {
            (whole_k, n)
        };
        let whole = lab.matrix(m, whole_k, pad)?;
        let whole_b = lab.matrix(b_rows, b_cols, pad)?;
        let b = match transposed {
            true => whole_b.part(0..n, own_k.clone()),
            false => whole_b.part(own_k.clone(), 0..n),
        };
        let shard = match op.reduces() {
            true => None,
            false => Some(lab.matrix(own_rows.end - own_rows.start, k, pad)?),
        };
        let a = shard
            .as_ref()
            .map_or_else(|| whole.part(0..m, own_k), |shard| shard.view);
        let rows = if op == GemmOp::GemmRs {
            own_rows.clone()
        } else {
            0..m
        };
        let c_rows = rows.end - rows.start;
        let addend = |given: bool, rows| given.then(|| lab.matrix(rows, n, pad)).transpose();
        Ok(Self {
            a,
            shard,
            own_rows,
            b,
            c: lab.matrix_of(epilogue.output, c_rows, n, pad)?,
            epilogue,
            bias: addend(epilogue.bias, 1)?,
            residual: addend(epilogue.residual, c_rows)?,
            whole,
            whole_b,
            rows,
            transposed,
            parts: if op.reduces() { ranks.world() } else { 1 },
        })
    }

    /// A, B, C, and what is added to C.
    pub fn raw(&self) -> Vec<RawOperand> {
        let addends = [&self.bias, &self.residual].into_iter().flatten();
        let addends = addends.map(|matrix| matrix.operand());
        [self.a.operand(), self.b.operand(), self.c.operand()]
            .into_iter()
            .chain(addends)
            .collect()
    }

    /// This rank's A.
    pub fn a(&self) -> View {
        self.a
    }

    /// New A, from the same seed on all ranks.
    pub fn fill_a(&self, lab: &Lab, seed: u64) -> Result<(), Failure> {
        lab.fill(&self.whole, 0, seed)?;
        let shard = self.shard.as_ref();
        shard.map_or(Ok(()), |shard| lab.fill(shard, self.own_rows.start, seed))
    }

    /// This rank's part of the A from `seed` to other memory.
    pub fn copy_a(&self, lab: &Lab, seed: u64, to: &View) -> Result<(), Failure> {
        self.fill_a(lab, seed)?;
        match self.a.rows {
            0 => Ok(()),
            _ => lab.copy(&self.a, to),
        }
    }

    /// New B, bias and residual, others on each rank; where ranks add up, from the same seed on all.
    pub fn fill_b(&self, lab: &Lab, seed: u64, rank: u32) -> Result<(), Failure> {
        let of_rank = if self.parts > 1 { 0 } else { rank };
        let seed = seed.wrapping_add(u64::from(of_rank));
        let mut seeds = Random(seed);
        lab.fill(&self.whole_b, 0, seeds.draw())?;
        for (matrix, first_row) in [(&self.bias, 0), (&self.residual, self.rows.start)] {
            if let Some(matrix) = matrix {
                lab.fill(matrix, first_row, seeds.draw())?;
            }
        }
        Ok(())
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
        let whole = self.whole.part(self.rows.clone(), 0..self.whole.cols);
        let matrices = (&whole, &*self.whole_b, &*self.c);
        let finish = Finish {
            epilogue: self.epilogue,
            bias: self.bias.as_deref(),
            residual: self.residual.as_deref(),
        };
        let how = (1, self.parts);
        lab.check(matrices, self.transposed, how, finish, verdicts, slot)
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
        operands.fill_a(lab, seeds.draw())?;
        operands.fill_b(lab, seeds.draw(), ranks.rank())?;
        operands.call(lab, operator, &verdicts, call)?;
    }
    let verdicts = expect_right(ranks, lab, &verdicts)?;
    let errors = verdicts.iter().map(|verdict| verdict.relative_error);
    Ok(errors.fold(0.0, f64::max))
}
