//! [`Timing`]: the times of operators and of rivals, on one rank of several.

#[cfg(test)]
mod tests;

use super::rival_calls::{Libraries, RivalCalls};
use super::rivals;
use crate::cli::run::call_memory::CallMemory;
use crate::cli::run::inputs::Inputs;
use mkernel::cudarc::driver::CudaStream;
use mkernel::operands::{RawOperand, Rows};
use mkernel::spec::abi::OperandSpec;
use mkernel::{Communicator, KernelPlan, Operator};
use mkernel_measure::blocks::{Blocks, in_turns, median};
use mkernel_measure::graph::Graph;
use mkernel_measure::{Failure, agreed};
use std::path::Path;
use std::sync::Arc;

/// The time of a graph, and the most calls in a graph. Between graphs, a GPU waits for its launch.
const GRAPH_US: f64 = 2000.0;
const MAX_CALLS: u32 = 20;
/// Bytes of operands that L2 does not hold.
const UNCACHED_BYTES: u64 = 256 << 20;

/// The settings of the measurement of all kernels.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    pub rounds: u32,
    /// Whether rivals are measured.
    pub rivals: bool,
    pub cublas_dir: Option<&'a Path>,
    pub nccl_dir: Option<&'a Path>,
}

/// The times of a kernel and of its rivals in µs, by round, on the slowest rank of each call.
#[derive(Debug)]
pub struct Timed {
    /// The number of calls of a graph.
    pub calls: u32,
    /// The number of copies of the operands.
    pub copies: u32,
    /// The clock of the SMs of rank 0 in MHz, after a first block of the kernel and after all rounds. `None` without NVML.
    pub sm_mhz: Option<[u32; 2]>,
    pub kernel: Vec<f64>,
    pub rivals: Vec<(String, Vec<f64>)>,
    pub notes: Vec<String>,
}

/// The operands of operators that compute the same, and their measurement on one rank.
pub struct Timing<'a> {
    ranks: &'a Communicator,
    /// The stream on which graphs are captured.
    captured: Arc<CudaStream>,
    calls: u32,
    /// The operands, which the calls of a graph take in turn.
    memory: Vec<CallMemory>,
    rows: Rows,
}

impl<'a> Timing<'a> {
    /// Uploads the operands. All ranks must call this together.
    pub fn new(
        ranks: &'a Communicator,
        plan: &KernelPlan,
        inputs: &Inputs,
    ) -> Result<Self, Failure> {
        ranks.context().bind_to_thread()?;
        let calls = calls_of_graph(plan);
        let stream = ranks.default_stream();
        let memory = (0..copies(plan, calls)).map(|_| CallMemory::new(ranks, &stream, inputs));
        let memory = memory.collect::<Result<_, _>>()?;
        ranks.synchronize(&stream)?;
        ranks.barrier()?;
        Ok(Self {
            ranks,
            // The default stream cannot be captured.
            captured: ranks.context().new_stream()?,
            calls,
            memory,
            rows: inputs.rows.map_or(Rows::Most, Rows::Count),
        })
    }

    /// The times of operators in turns, by operator and round. All ranks must call this together.
    pub fn of_operators(
        &self,
        operators: &[Operator],
        rounds: u32,
    ) -> Result<Vec<Vec<f64>>, Failure> {
        let blocks = Blocks::new(self.ranks, &self.ranks.default_stream())?;
        let graphs = operators.iter().map(|operator| self.kernel_graph(operator));
        let graphs = graphs.collect::<Result<Vec<_>, _>>()?;
        let times = self.of_graphs(&blocks, &graphs, rounds)?;
        // Memory may be freed only while no kernel of any rank runs.
        self.ranks.barrier()?;
        Ok(times)
    }

    /// The times of a call of each graph, by graph and round.
    fn of_graphs(
        &self,
        blocks: &Blocks<'_>,
        graphs: &[Graph],
        rounds: u32,
    ) -> Result<Vec<Vec<f64>>, Failure> {
        in_turns(rounds, graphs.len(), |index| {
            let of_calls = blocks.times_in_graph(self.calls, &graphs[index])?;
            Ok(vec![median(&of_calls)])
        })
    }

    /// Times an operator and its rivals in turns. All ranks must call this together.
    pub fn run(&self, operator: &Operator, settings: Settings<'_>) -> Result<Timed, Failure> {
        let stream = self.ranks.default_stream();
        let blocks = Blocks::new(self.ranks, &stream)?;
        let (rivals, mut notes) = match settings.rivals {
            true => rivals::of(operator.plan()),
            false => (
                Vec::new(),
                vec!["rivals were not measured (--no-rivals)".to_owned()],
            ),
        };
        let dirs = (settings.cublas_dir, settings.nccl_dir);
        let libraries = Libraries::load(self.ranks, &self.captured, &rivals, dirs)?;
        notes.extend(libraries.missing());
        let spans: Vec<_> = self.memory.iter().map(|of| of.spans(&stream)).collect();
        let (mut names, mut calls) = (Vec::new(), Vec::new());
        let mut graphs = vec![self.kernel_graph(operator)?];
        for rival in rivals.iter().filter(|rival| libraries.can_run(rival)) {
            let of_rival = RivalCalls::new(rival, &libraries, &spans, [&stream, &self.captured]);
            let graph = match agreed(self.ranks, of_rival)? {
                Ok(of_rival) => {
                    let graph = self.rival_graph(&of_rival)?;
                    calls.push(of_rival);
                    graph
                }
                Err(error) => Err(error),
            };
            match graph {
                Ok(graph) => {
                    graphs.push(graph);
                    names.push(rival.name.clone());
                }
                Err(error) => notes.push(format!("{} was not compared: {error}", rival.name)),
            }
        }
        blocks.times_in_graph(self.calls, &graphs[0])?;
        let before = self.ranks.sm_clock_mhz();
        let mut times = self.of_graphs(&blocks, &graphs, settings.rounds)?;
        let clocks = before.zip(self.ranks.sm_clock_mhz());
        // Memory may be freed only while no kernel of any rank runs.
        self.ranks.barrier()?;
        let of_rivals = times.split_off(1);
        Ok(Timed {
            calls: self.calls,
            copies: self.memory.len() as u32,
            sm_mhz: clocks.map(|(before, after)| [before, after]),
            kernel: times.remove(0),
            rivals: names.into_iter().zip(of_rivals).collect(),
            notes,
        })
    }

    /// Captures calls of the operator.
    fn kernel_graph(&self, operator: &Operator) -> Result<Graph, Failure> {
        let stream = self.ranks.default_stream();
        let plan = operator.plan();
        let copies = self.memory.iter().map(|memory| {
            let spans = memory.spans(&stream);
            let operand = |spec: &OperandSpec| {
                let span = spans.iter().find(|span| span.operand == spec.operand)?;
                Some(RawOperand {
                    ptr: span.address,
                    row_stride_elems: spec.cols,
                })
            };
            let all: Option<Vec<_>> = plan.operands().iter().map(operand).collect();
            all.ok_or("an operand has no memory")
        });
        let copies = copies.collect::<Result<Vec<_>, _>>()?;
        Graph::capture(self.ranks, &self.captured, || {
            for call in 0..self.calls as usize {
                let operands = &copies[call % copies.len()];
                // SAFETY: the operands are those of the plan in its order. They outlive the graph, whose replays `run` waits for.
                unsafe {
                    operator.launch_raw_rows(self.captured.cu_stream(), operands, self.rows)
                }?;
            }
            Ok(())
        })
    }

    /// Calls a rival, and captures its calls. The inner error is one of the rival on any rank.
    fn rival_graph(&self, rival: &RivalCalls) -> Result<Result<Graph, Failure>, Failure> {
        // The first call allocates and connects, which a capture does not allow.
        let first = rival.enqueue(0);
        let ended = self.ranks.synchronize(&self.captured);
        if let Err(error) = agreed(self.ranks, first.and(ended.map_err(Failure::from)))? {
            return Ok(Err(error));
        }
        let graph = Graph::capture(self.ranks, &self.captured, || {
            let copies = self.memory.len();
            (0..self.calls as usize).try_for_each(|call| rival.enqueue(call % copies))
        });
        graph.map(Ok)
    }
}

/// The number of calls of a graph: several if a call is short.
fn calls_of_graph(plan: &KernelPlan) -> u32 {
    let calls = GRAPH_US / plan.body().estimate_us;
    (calls as u32).clamp(1, MAX_CALLS)
}

/// The number of copies of the operands that L2 does not hold together. It is equal on all ranks.
fn copies(plan: &KernelPlan, calls: u32) -> u64 {
    let operands = plan.operands().iter();
    // The first rank has the most rows.
    let bytes = operands.map(|spec| spec.rows.on(0) * spec.cols * spec.dtype.bytes());
    let bytes = bytes.sum::<u64>().max(1);
    UNCACHED_BYTES.div_ceil(bytes).clamp(1, calls.into())
}
