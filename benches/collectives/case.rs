//! [`Case`]: the measurement of one plan on a rank.

use crate::Flags;
use mkernel::cudarc::driver::{CudaSlice, sys::CUstream};
use mkernel::half::bf16;
use mkernel::operands::{RawOperand, Rows};
use mkernel::spec::{CollectiveConfig, CollectiveOp, CollectiveShape, Dtype};
use mkernel::{Communicator, KernelConfig, Operand, Operator};
use mkernel_testing::blocks::Blocks;
use mkernel_testing::graph::Graph;
use mkernel_testing::lab::{Failure, Lab, Matrix, SymmetricMatrix, View};

/// The number of calls of a graph.
const GRAPH_CALLS: u32 = 20;
/// The largest tensor that is timed in a graph, where launches cost little.
const MAX_GRAPH_BYTES: u64 = 1 << 20;

/// The memory of a result.
enum Output {
    Own(Matrix),
    Symmetric(SymmetricMatrix),
}

/// The measurement of a plan on a rank.
pub struct Case<'a> {
    flags: &'a Flags,
    ranks: &'a Communicator,
    lab: &'a Lab,
    blocks: &'a Blocks<'a>,
    config: CollectiveConfig,
    /// The sizes of a call.
    shape: CollectiveShape,
    operator: Operator,
    /// The operands except Y.
    _others: Vec<Matrix>,
    y: Output,
    raw: Vec<RawOperand>,
    /// The graph of the calls, if the tensor is small.
    graph: Option<Graph>,
}

impl<'a> Case<'a> {
    /// Prepares the operator and its operands for calls of `rows` rows. All ranks must call this function.
    pub fn new(
        (flags, ranks): (&'a Flags, &'a Communicator),
        (lab, blocks): (&'a Lab, &'a Blocks<'a>),
        config: CollectiveConfig,
        rows: u64,
    ) -> Result<Self, Failure> {
        let most = config.shape().ok_or("the configuration has no sizes")?;
        let shape = CollectiveShape { m: rows, ..most };
        let kernel = KernelConfig {
            nodes: flags.network.nodes,
            ..KernelConfig::new(flags.world, config)
        };
        let operator = ranks.prepare(&kernel, most)?;
        let operands = operator.plan().operands();
        let rows = operands[1].rows.on(ranks.rank()).max(1);
        let y = match config.symmetric_result {
            true => Output::Symmetric(lab.symmetric_matrix(ranks, Dtype::Bf16, rows, shape.n)?),
            false => Output::Own(lab.matrix(rows, shape.n, 0)?),
        };
        let (mut others, mut raw) = (Vec::new(), Vec::new());
        for (seed, spec) in (0..).zip(operands) {
            if spec.operand == Operand::Y {
                raw.push(y.view().operand());
                continue;
            }
            // Matrices are of bf16. Scales of fp32 are twice as long.
            let cols = spec.cols * spec.dtype.bytes() / Dtype::Bf16.bytes();
            let matrix = lab.matrix(spec.rows.on(ranks.rank()).max(1), cols, 0)?;
            // All operands except X are equal on all ranks.
            let seed = match spec.operand {
                Operand::X => u64::from(ranks.rank()),
                _ => 1000 + seed,
            };
            lab.fill(&matrix, 0, seed)?;
            raw.push(RawOperand {
                row_stride_elems: spec.cols,
                ..matrix.operand()
            });
            others.push(matrix);
        }
        let mut case = Self {
            flags,
            ranks,
            lab,
            blocks,
            config,
            shape,
            operator,
            raw,
            _others: others,
            y,
            graph: None,
        };
        if shape.m * shape.n * 2 <= MAX_GRAPH_BYTES {
            case.graph = Some(case.capture()?);
        }
        Ok(case)
    }

    fn launch(&self, stream: CUstream) -> Result<(), Failure> {
        let rows = match self.operator.plan().max_rows() {
            Some(_) => Rows::Count(self.shape.m),
            None => Rows::Most,
        };
        // SAFETY: the operands are in the order of the plan, and live as long as this value, whose user waits for the
        // calls.
        Ok(unsafe { self.operator.launch_raw_rows(stream, &self.raw, rows) }?)
    }

    /// Captures a chain of dependent calls.
    fn capture(&self) -> Result<Graph, Failure> {
        // The default stream cannot be captured.
        let stream = self.ranks.context().new_stream()?;
        Graph::capture(self.ranks, &stream, || {
            (0..GRAPH_CALLS).try_for_each(|_| self.launch(stream.cu_stream()))
        })
    }

    /// Returns the times of calls in µs, each on its slowest rank.
    pub fn times(&self) -> Result<Vec<f64>, Failure> {
        let stream = self.lab.stream.cu_stream();
        match &self.graph {
            None => self.blocks.times_of(1, &|| self.launch(stream)),
            Some(graph) => self.blocks.times_in_graph(GRAPH_CALLS, graph),
        }
    }

    /// Prints the time of a call on rank 0.
    pub fn print(&self, us: f64) {
        if self.ranks.rank() != 0 {
            return;
        }
        let plan = self.operator.plan();
        let (bytes, world) = (self.shape.m * self.shape.n * 2, f64::from(self.flags.world));
        let steps = match self.config.op {
            CollectiveOp::AllReduce => 2.0 * (world - 1.0) / world,
            CollectiveOp::Broadcast => 1.0,
            _ => (world - 1.0) / world,
        };
        println!(
            "{:<14} {:>9} {us:>9.1} {:>10.1} {:>6.0}  {}{}",
            self.config.op.op().name(),
            bytes >> 10,
            plan.body().bound.us(),
            bytes as f64 * steps / us / 1e3,
            plan.id,
            // Names of plans mention symmetric results only if the kernel writes to them directly.
            if self.config.symmetric_result {
                ", symmetric"
            } else {
                ""
            },
        );
    }

    /// Makes a call, and checks the first row of the result against a reference in fp64.
    pub fn check(&self) -> Result<(), Failure> {
        self.launch(self.lab.stream.cu_stream())?;
        self.ranks.synchronize(&self.lab.stream)?;
        if self.config.epilogue.normalises() {
            // The reference has no norms. Tests compare norms.
            return Ok(());
        }
        let shape = self.shape;
        let shard = shape.shard_rows(self.flags.world);
        let (rank, world) = (u64::from(self.ranks.rank()), u64::from(self.flags.world));
        let row_of = |source: u64, row: u64| -> Result<Vec<bf16>, Failure> {
            let one = self.lab.matrix(1, shape.n, 0)?;
            self.lab.fill(&one, row, source)?;
            Ok(self.lab.stream.clone_dtoh(&one.memory)?)
        };
        let (sources, row) = match self.config.op {
            CollectiveOp::AllGather | CollectiveOp::Broadcast => (0..1, 0),
            CollectiveOp::AllReduce => (0..world, 0),
            _ if rank * shard >= shape.m => return Ok(()),
            CollectiveOp::AllToAll => (0..1, rank * shard),
            CollectiveOp::ReduceScatter => (0..world, rank * shard),
        };
        let mut sums = vec![0.0; shape.n as usize];
        for source in sources {
            for (sum, x) in sums.iter_mut().zip(row_of(source, row)?) {
                *sum += x.to_f64();
            }
        }
        let (mut error2, mut sum2) = (0.0, 0.0);
        for (found, sum) in self.y.download(self.lab)?.iter().zip(sums) {
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

impl Output {
    fn view(&self) -> &View {
        match self {
            Self::Own(matrix) => &matrix.view,
            Self::Symmetric(matrix) => &matrix.view,
        }
    }

    fn download(&self, lab: &Lab) -> Result<Vec<bf16>, Failure> {
        Ok(match self {
            Self::Own(matrix) => lab
                .stream
                .clone_dtoh::<bf16, CudaSlice<bf16>>(&matrix.memory)?,
            Self::Symmetric(matrix) => lab.stream.clone_dtoh(&matrix.memory)?,
        })
    }
}
