//! Benchmark of `all_reduce`, `all_gather` and `reduce_scatter`. Needs GPUs.
//!
//! `cargo bench --bench collectives -- --help` lists the options, which are the fields of [`Flags`].

use clap::Parser;
use mkernel::cudarc::driver::sys::CUstream;
use mkernel::half::bf16;
use mkernel::{
    Communicator, KernelConfig, Operand, Operator,
    operands::RawOperand,
    spec::{CollectiveConfig, CollectiveOp, CollectiveShape, Dim, Norm, SumEpilogue},
};
use mkernel_testing::blocks::{Blocks, median};
use mkernel_testing::graph::Graph;
use mkernel_testing::lab::{Failure, Lab, Matrix, TimeLimit};
use std::process::ExitCode;
use std::time::Duration;

/// The number of calls of a graph.
const GRAPH_CALLS: u32 = 20;
/// Tensors of at most this size are timed in graphs, in which launches cost little.
const MAX_GRAPH_BYTES: u64 = 1 << 20;
/// The columns of a tensor with more than one row.
const COLS: u64 = 8192;

/// Times `all_reduce`, `all_gather` and `reduce_scatter` on random bf16, and checks the first row of each result.
///
/// A time is the median over blocks of the time of one call, on the slowest rank. Tensors of up to 1 MiB are timed in a
/// graph of 20 calls that depend on each other. The rate is defined as in NCCL's tests: the bytes of the tensor times 2
/// (W-1)/W or (W-1)/W, divided by the time. `benches/baselines.py --op all_reduce` measures the baselines.
#[derive(Clone, Debug, Parser)]
struct Flags {
    /// Number of GPUs: 1, 2, 4 or 8
    #[arg(long, default_value_t = 2)]
    world: u32,
    /// Number of nodes into which the GPUs are divided, with emulated NICs between them
    #[arg(long, default_value_t = 1)]
    nodes: u32,
    /// Operators [default: all]
    #[arg(long, value_delimiter = ',', value_parser = op)]
    op: Vec<CollectiveOp>,
    /// Sizes of the whole tensor in KiB, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,4,16,64,256,1024,4096,16384,65536,262144"
    )]
    kib: Vec<u64>,
    /// Measure all protocols and numbers of shots instead of the planned ones
    #[arg(long)]
    all: bool,
    /// Measure all_reduce also with a residual and a norm of its rows, in turns with the plain one, and print the difference
    #[arg(long)]
    norm: bool,
    /// Number of blocks of each size
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds after which the process ends, even if it hangs
    #[arg(long, default_value_t = 300)]
    limit_s: u64,
    /// Ignored. Cargo passes this option.
    #[arg(long, hide = true)]
    bench: bool,
}

fn op(name: &str) -> Result<CollectiveOp, String> {
    let found = CollectiveOp::ALL.into_iter().find(|op| op.name() == name);
    found.ok_or_else(|| "unknown operator; use all_reduce, all_gather or reduce_scatter".to_owned())
}

fn main() -> ExitCode {
    match run(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> Result<(), Failure> {
    let _limit = TimeLimit::start("the benchmark", Duration::from_secs(flags.limit_s));
    println!("operator             KiB        µs   bound µs   GB/s  plan");
    let gpus: Vec<usize> = (0..flags.world as usize).collect();
    let communicators = Communicator::local(&gpus)?;
    std::thread::scope(|scope| {
        let start = |ranks: Communicator| scope.spawn(move || one_rank(flags, &ranks));
        let threads: Vec<_> = communicators.into_iter().map(start).collect();
        let results = threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "the thread of a rank panicked")?);
        results.collect::<Vec<_>>().into_iter().collect()
    })
}

fn one_rank(flags: &Flags, ranks: &Communicator) -> Result<(), Failure> {
    ranks.context().bind_to_thread()?;
    let lab = Lab::new(&ranks.context().default_stream())?;
    let blocks = Blocks::new(ranks, &lab)?;
    let ops = match flags.op.as_slice() {
        [] => CollectiveOp::ALL.to_vec(),
        given => given.to_vec(),
    };
    for op in ops {
        for kib in &flags.kib {
            for config in configs(flags, op, *kib) {
                Case {
                    flags,
                    ranks,
                    lab: &lab,
                    blocks: &blocks,
                    config,
                }
                .run()?;
            }
        }
    }
    Ok(())
}

/// Returns the configurations to measure: the planned one, or all.
fn configs(flags: &Flags, op: CollectiveOp, kib: u64) -> Vec<CollectiveConfig> {
    use mkernel::spec::Protocol::{Ll, Simple};
    let elems = kib * 512;
    let rows = (elems / COLS).max(1);
    let planned = CollectiveConfig {
        m: Dim::Static(rows),
        n: Dim::Static(elems / rows),
        ..CollectiveConfig::new(op)
    };
    if !flags.all || flags.world == 1 || flags.nodes > 1 {
        return vec![planned];
    }
    let variants = match op {
        CollectiveOp::AllReduce => vec![(Ll, Some(1)), (Ll, Some(2)), (Simple, None)],
        _ => vec![(Ll, None), (Simple, None)],
    };
    let variants = variants
        .into_iter()
        .map(|(protocol, shots)| CollectiveConfig {
            protocol: Some(protocol),
            shots,
            ..planned
        });
    let kernel = |config: &CollectiveConfig| KernelConfig::new(flags.world, *config);
    variants
        .filter(|config| mkernel::spec::KernelSpec::validate(kernel(config)).is_ok())
        .collect()
}

/// The measurement of a tensor on a rank.
struct Case<'a> {
    flags: &'a Flags,
    ranks: &'a Communicator,
    lab: &'a Lab,
    blocks: &'a Blocks<'a>,
    config: CollectiveConfig,
}

/// An operator with its operands.
struct Prepared {
    operator: Operator,
    operands: Vec<Matrix>,
    /// A graph of [`GRAPH_CALLS`] calls, if the tensor is small.
    graph: Option<Graph>,
}

impl Prepared {
    fn raw(&self) -> Vec<RawOperand> {
        self.operands
            .iter()
            .map(|matrix| matrix.operand())
            .collect()
    }
}

impl Case<'_> {
    fn run(&self) -> Result<(), Failure> {
        let shape = self
            .config
            .shape()
            .ok_or("the configuration has no sizes")?;
        let mut all = vec![self.prepare(self.config, shape)?];
        if self.flags.norm && self.config.op == CollectiveOp::AllReduce {
            let epilogue = SumEpilogue {
                residual: true,
                norm: Norm::Rms,
                ..SumEpilogue::default()
            };
            let normalised = CollectiveConfig {
                epilogue,
                ..self.config
            };
            all.push(self.prepare(normalised, shape)?);
        }
        self.check(shape, &all[0].operands[1])?;
        let times = self.times(&all)?;
        if self.ranks.rank() == 0 {
            for (prepared, us) in all.iter().zip(&times) {
                self.print(shape, prepared, *us);
            }
            if let [plain, normalised] = times[..] {
                println!("residual and norm add {:.2} µs", normalised - plain);
            }
        }
        Ok(self.ranks.barrier()?)
    }

    fn prepare(
        &self,
        config: CollectiveConfig,
        shape: CollectiveShape,
    ) -> Result<Prepared, Failure> {
        let kernel = KernelConfig {
            nodes: self.flags.nodes,
            ..KernelConfig::new(self.flags.world, config)
        };
        let operator = self.ranks.prepare(&kernel, shape)?;
        let rank = self.ranks.rank();
        let mut operands = Vec::new();
        for (seed, spec) in (0..).zip(&operator.plan().operands) {
            let matrix = self.lab.matrix(spec.rows.on(rank).max(1), spec.cols, 0)?;
            // All ranks have the same operands but X.
            let seed = match spec.operand {
                Operand::X => u64::from(rank),
                _ => 1000 + seed,
            };
            if !spec.written {
                self.lab.fill(&matrix, 0, seed)?;
            }
            operands.push(matrix);
        }
        let mut prepared = Prepared {
            operator,
            operands,
            graph: None,
        };
        self.launch(&prepared, self.lab.stream.cu_stream())?;
        self.ranks.synchronize(&self.lab.stream)?;
        if shape.m * shape.n * 2 <= MAX_GRAPH_BYTES {
            prepared.graph = Some(self.captured(&prepared)?);
        }
        Ok(prepared)
    }

    fn launch(&self, prepared: &Prepared, stream: CUstream) -> Result<(), Failure> {
        // SAFETY: the operands are those of the plan in its order, and live until the stream is synchronized.
        unsafe { prepared.operator.launch_raw(stream, &prepared.raw()) }?;
        Ok(())
    }

    fn captured(&self, prepared: &Prepared) -> Result<Graph, Failure> {
        // The default stream cannot be captured.
        let stream = self.ranks.context().new_stream()?;
        Graph::capture(&stream, || {
            (0..GRAPH_CALLS).try_for_each(|_| self.launch(prepared, stream.cu_stream()))
        })
    }

    fn print(&self, shape: CollectiveShape, Prepared { operator, .. }: &Prepared, us: f64) {
        let (bytes, world) = (shape.m * shape.n * 2, f64::from(self.flags.world));
        let steps = if self.config.op == CollectiveOp::AllReduce {
            2.0
        } else {
            1.0
        };
        println!(
            "{:<14} {:>9} {us:>9.1} {:>10.1} {:>6.0}  {}",
            self.config.op.name(),
            bytes >> 10,
            operator.plan().bound.us(),
            bytes as f64 * steps * (world - 1.0) / world / us / 1e3,
            operator.plan().id,
        );
    }

    /// Returns the median time of a call of each operator in µs. Their blocks take turns.
    fn times(&self, all: &[Prepared]) -> Result<Vec<f64>, Failure> {
        let mut times = vec![Vec::new(); all.len()];
        for _ in 0..self.flags.rounds {
            for (prepared, times) in all.iter().zip(&mut times) {
                times.extend(self.block(prepared)?);
            }
        }
        Ok(times.iter().map(|times| median(times)).collect())
    }

    /// Returns the times of calls, launched one by one or in a graph.
    fn block(&self, prepared: &Prepared) -> Result<Vec<f64>, Failure> {
        let stream = self.lab.stream.cu_stream();
        match &prepared.graph {
            None => self.blocks.times_of(1, &|| self.launch(prepared, stream)),
            Some(graph) => self.blocks.times_in_graph(GRAPH_CALLS, graph),
        }
    }

    /// Checks the first row of the result against a reference in fp64.
    fn check(&self, shape: CollectiveShape, y: &Matrix) -> Result<(), Failure> {
        let shard = shape.shard_rows(self.flags.world);
        let (rank, world) = (u64::from(self.ranks.rank()), u64::from(self.flags.world));
        let row_of = |source: u64, row: u64| -> Result<Vec<bf16>, Failure> {
            let one = self.lab.matrix(1, shape.n, 0)?;
            self.lab.fill(&one, row, source)?;
            Ok(self.lab.stream.clone_dtoh(&one.memory)?)
        };
        let (sources, row) = match self.config.op {
            CollectiveOp::AllGather => (0..1, 0),
            CollectiveOp::AllReduce => (0..world, 0),
            CollectiveOp::ReduceScatter if rank * shard >= shape.m => return Ok(()),
            CollectiveOp::ReduceScatter => (0..world, rank * shard),
        };
        let mut sums = vec![0.0; shape.n as usize];
        for source in sources {
            for (sum, x) in sums.iter_mut().zip(row_of(source, row)?) {
                *sum += x.to_f64();
            }
        }
        let found: Vec<bf16> = self.lab.stream.clone_dtoh(&y.memory)?;
        let (mut error2, mut sum2) = (0.0, 0.0);
        for (found, sum) in found.iter().zip(sums) {
            error2 += (found.to_f64() - sum).powi(2);
            sum2 += sum * sum;
        }
        let error = (error2 / sum2).sqrt();
        match error < mkernel_testing::lab::MAX_RELATIVE_ERROR {
            true => Ok(()),
            false => Err(format!("rank {rank}: relative error {error:.1e}").into()),
        }
    }
}
