//! The ranks of a test, each in a thread, and the operands and checks of GEMM operators.

use mkernel::cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use mkernel::spec::spec::WORLDS;
use mkernel::{
    Communicator, KernelConfig, Operator,
    operands::RawOperand,
    spec::{BLayout, Dim, Epilogue, GemmConfig, GemmOp, GemmShape, SizedSpec, Tuning},
};
use mkernel_testing::jobs::with_causes;
use mkernel_testing::lab::{Failure, Finish, Lab, Matrix, Random, Verdict, View, seed_from_clock};
use mkernel_testing::ranks::{gpus_of_ranks, ranks_per_gpu};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Returns the seed of this run, and prints it.
pub fn seed() -> u64 {
    let given = std::env::var("MKERNEL_TEST_SEED").ok();
    let seed = given.map_or_else(seed_from_clock, |text| {
        text.parse().expect("MKERNEL_TEST_SEED is a number")
    });
    println!("MKERNEL_TEST_SEED={seed}");
    seed
}

/// Returns the worlds of at least `least` ranks that fit the GPUs of the host, which ranks may [share](ranks_per_gpu). Panics
/// without such a world.
pub fn worlds(least: u32) -> Vec<u32> {
    worlds_with(ranks_per_gpu(), least)
}

/// Returns the worlds of at least `least` ranks that fit the GPUs of the host, one GPU for each rank: ranks in processes cannot
/// share a GPU, and calls of the driver that wait for a shared GPU delay errors.
pub fn worlds_of_whole_gpus(least: u32) -> Vec<u32> {
    worlds_with(1, least)
}

fn worlds_with(ranks_per_gpu: usize, least: u32) -> Vec<u32> {
    let gpus = mkernel::device_count().expect("GPUs");
    let fits = |world: &u32| *world >= least && *world as usize <= gpus * ranks_per_gpu;
    let worlds: Vec<u32> = WORLDS.into_iter().filter(fits).collect();
    println!("worlds {worlds:?} of {gpus} GPUs, at most {ranks_per_gpu} ranks per GPU");
    assert!(
        !worlds.is_empty(),
        "this test needs {least} GPUs, the host shows {gpus}"
    );
    worlds
}

/// Runs `body` on every rank and returns the values by rank. Panics with all failures if there are any.
pub fn on_ranks<T: Send>(
    world: u32,
    body: impl Fn(&Communicator) -> Result<T, Failure> + Sync,
) -> Vec<T> {
    // Contexts are kept, since their creation takes longer than most tests, and their end would free memory that a test has
    // leaked.
    static CONTEXTS: Mutex<Vec<Arc<CudaContext>>> = Mutex::new(Vec::new());
    let gpus = gpus_of_ranks(world).expect("GPUs");
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
            .map(|result| result.unwrap_or_else(|_| Err("the rank panicked".into())))
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

/// A GEMM operator with its sizes and options.
#[derive(Clone, Copy, Debug)]
pub struct GemmProblem {
    pub op: GemmOp,
    pub shape: GemmShape,
    pub layout: BLayout,
    pub epilogue: Epilogue,
    pub tuning: Tuning,
    /// The number of nodes into which the ranks are divided, with emulated NICs between the nodes.
    pub nodes: u32,
}

/// Creates a problem of `ag_gemm` on one node.
impl From<(GemmShape, BLayout, Tuning)> for GemmProblem {
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

impl GemmProblem {
    /// Returns the configuration of the kernel, with the rows of the problem and other sizes dynamic.
    pub fn config(&self, world: u32) -> KernelConfig {
        let config = GemmConfig {
            m: Dim::Static(self.shape.m),
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

    /// Returns the spec of the kernel for the sizes of the problem.
    pub fn spec(&self, world: u32) -> SizedSpec {
        let spec = SizedSpec::for_sizes(self.config(world), self.shape);
        spec.unwrap_or_else(|error| panic!("world {world}, {self:?}: {error}"))
    }
}

/// Returns a configuration of `ag_gemm` with this number of rows and other sizes dynamic.
pub fn config((world, m): (u32, u64), b_layout: BLayout, tuning: Tuning) -> KernelConfig {
    let config = GemmConfig {
        m: Dim::Static(m),
        b_layout,
        tuning,
        ..GemmConfig::new(GemmOp::AgGemm)
    };
    KernelConfig::new(world, config)
}

/// Prepares an operator, and allocates operands with `pad` elements between their rows. All ranks must call this function
/// together.
pub fn prepare(
    ranks: &Communicator,
    lab: &Lab,
    problem: impl Into<GemmProblem>,
    pad: u64,
) -> Result<(Operator, Operands), Failure> {
    let problem = problem.into();
    let operator = ranks.prepare(&problem.config(ranks.world()), problem.shape)?;
    Ok((operator, Operands::new(ranks, lab, problem, pad)?))
}

/// Launches a call.
pub fn launch(
    operator: &Operator,
    stream: &Arc<CudaStream>,
    operands: &[RawOperand],
) -> Result<(), mkernel::Error> {
    // SAFETY: the tests pass operands of the plan's sizes, and wait for their streams before they free memory.
    unsafe { operator.launch_raw(stream.cu_stream(), operands) }
}

/// The operands of one rank, and the operands of the reference.
///
/// In operators that reduce, the A of all ranks side by side and the B of all ranks below each other are one large A
/// and one large B. Their product is the sum over all ranks. Each rank's operands are parts of these large matrices.
pub struct Operands {
    /// The A of this rank: a part of `whole`, or the matrix `shard`.
    a: View,
    /// The memory of `a`, if it is not a part of `whole`.
    shard: Option<Matrix>,
    own_rows: Range<u64>,
    b: View,
    pub c: Matrix,
    epilogue: Epilogue,
    bias: Option<Matrix>,
    residual: Option<Matrix>,
    /// The A of the reference. This rank generates the whole matrix by itself.
    whole: Matrix,
    whole_b: Matrix,
    /// The rows of the whole result that this rank's C has.
    rows: Range<u64>,
    transposed: bool,
    /// The number of rounded partial sums whose sum is C.
    parts: u32,
}

impl Operands {
    /// Allocates the operands, with `pad` elements between rows, and poisons them.
    pub fn new(
        ranks: &Communicator,
        lab: &Lab,
        problem: GemmProblem,
        pad: u64,
    ) -> Result<Self, Failure> {
        let GemmProblem {
            op,
            shape,
            epilogue,
            ..
        } = problem;
        let GemmShape { m, n, k } = shape;
        let (rank, world) = (u64::from(ranks.rank()), u64::from(ranks.world()));
        let transposed = problem.layout == BLayout::Nk;
        let shard_rows = m.div_ceil(world);
        let own_rows = match op.communicates() {
            true => (rank * shard_rows).min(m)..((rank + 1) * shard_rows).min(m),
            false => 0..m,
        };
        let (whole_k, own_k) = match op.reduces() {
            true => (world * k, rank * k..(rank + 1) * k),
            false => (k, 0..k),
        };
        let cols_of_b = n * u64::from(epilogue.weight_cols());
        let (b_rows, b_cols) = if transposed {
            (cols_of_b, whole_k)
        } else {
            (whole_k, cols_of_b)
        };
        let whole = lab.matrix(m, whole_k, pad)?;
        let whole_b = lab.matrix(b_rows, b_cols, pad)?;
        let b = match transposed {
            true => whole_b.part(0..cols_of_b, own_k.clone()),
            false => whole_b.part(own_k.clone(), 0..cols_of_b),
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
        let addend =
            |given: bool, rows, cols| given.then(|| lab.matrix(rows, cols, pad)).transpose();
        Ok(Self {
            a,
            shard,
            own_rows,
            b,
            c: lab.matrix_of(epilogue.output.unwrap_or_default(), c_rows, n, pad)?,
            epilogue,
            bias: addend(epilogue.bias, 1, cols_of_b)?,
            residual: addend(epilogue.residual, c_rows, n)?,
            whole,
            whole_b,
            rows,
            transposed,
            parts: if op.reduces() { ranks.world() } else { 1 },
        })
    }

    /// Returns A, B, C, and the addends.
    pub fn raw(&self) -> Vec<RawOperand> {
        let addends = [&self.bias, &self.residual].into_iter().flatten();
        let addends = addends.map(|matrix| matrix.operand());
        [self.a.operand(), self.b.operand(), self.c.operand()]
            .into_iter()
            .chain(addends)
            .collect()
    }

    /// Returns the A of this rank.
    pub fn a(&self) -> View {
        self.a
    }

    /// Fills A with random numbers. All ranks must use one seed.
    pub fn fill_a(&self, lab: &Lab, seed: u64) -> Result<(), Failure> {
        lab.fill(&self.whole, 0, seed)?;
        let shard = self.shard.as_ref();
        shard.map_or(Ok(()), |shard| lab.fill(shard, self.own_rows.start, seed))
    }

    /// Fills A from `seed`, and copies this rank's part of A to `to`.
    pub fn copy_a(&self, lab: &Lab, seed: u64, to: &View) -> Result<(), Failure> {
        self.fill_a(lab, seed)?;
        match self.a.rows {
            0 => Ok(()),
            _ => lab.copy(&self.a, to),
        }
    }

    /// Fills B, the bias and the residual with random numbers, which differ between ranks unless the operator reduces.
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

    /// Enqueues the poisoning of C, a call, and the check of its result.
    pub fn call(
        &self,
        lab: &Lab,
        operator: &Operator,
        verdicts: &CudaSlice<u64>,
        slot: usize,
    ) -> Result<(), Failure> {
        lab.poison(&self.c)?;
        launch(operator, &lab.stream, &self.raw())?;
        self.check(lab, verdicts, slot)
    }

    /// Enqueues the check of every element of C.
    pub fn check(&self, lab: &Lab, verdicts: &CudaSlice<u64>, slot: usize) -> Result<(), Failure> {
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

/// Waits for the calls, and returns the verdicts if all results are right.
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

/// Makes several calls with new data for each, checks the results, and returns the largest relative error. All ranks
/// must call this together.
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
