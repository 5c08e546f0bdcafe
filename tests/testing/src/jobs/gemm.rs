//! Jobs of the GEMM operators. The results are whole numbers, so all bits of the results are known.

pub mod buckets;
pub mod cases;
pub mod norm;
pub mod quantised;

use super::buffer::{Elements, SharedOperand, SharedResult, is_symmetric};
use super::data::{CallData, is_right};
use super::kernel_edits::apply_edits;
use super::machine::{Machine, emulated};
use super::memo::Memo;
use super::rows::{RowsCall, RowsRun};
use super::runs::CallCount;
use super::simulated::{
    Backend, CALLS, CALLS_AFTER, CALLS_BEFORE, ResultElement, Results, SimulatedJob, by_element,
    deadline, set_call_count,
};
use crate::lab::Failure;
use mkernel::testing::prepare_edited;
use mkernel::{
    Communicator, Error, KernelConfig, Operand, Operator,
    network::Faults,
    spec::{BLayout, Dim, Dtype, GemmConfig, GemmShape, Scales, abi::OperandSpec},
};

/// Several calls of a GEMM operator on all ranks.
#[derive(Clone, Debug)]
pub struct GemmJob {
    /// The number of ranks.
    pub world: u32,
    /// The number of nodes into which the ranks are divided.
    pub nodes: u32,
    /// The faults of the emulated network between the nodes. Each run sets their seed.
    pub faults: Faults,
    /// The configuration of the kernel.
    pub config: GemmConfig,
    /// The sizes for which the operator is prepared.
    pub shape: GemmShape,
    /// The number of SMs of a simulated GPU.
    pub sms: u32,
    /// The unfairness of the schedule of simulated GPUs, from 0 to 100.
    pub skew: u32,
    /// If set, the call count of the operator is set to this number after two calls, and four more calls follow.
    pub call_count: Option<u32>,
    /// The rows of each call, if the kernel takes them at run time. `shape.m` is then the most rows of a call.
    pub rows: Vec<u64>,
    /// With rows, whether one call is captured in a graph, which is replayed for all calls.
    pub is_graph: bool,
    /// The edits of the kernel's text, as [`apply_edits`] takes them.
    pub edits: Vec<(String, String)>,
}

impl GemmJob {
    /// Creates a job on one node, whose kernel is not edited.
    pub fn new(world: u32, config: GemmConfig, shape: GemmShape, sms: u32) -> Self {
        Self {
            world,
            nodes: 1,
            faults: Faults::default(),
            config,
            shape,
            sms,
            skew: 60,
            call_count: None,
            rows: Vec::new(),
            is_graph: false,
            edits: Vec::new(),
        }
    }

    /// Returns the data of the calls, which is computed once for each configuration.
    fn calls(&self) -> &'static [CallData] {
        static ALL: Memo<Vec<CallData>> = Memo::new();
        let (config, world, shape) = (&self.config, self.world, self.shape);
        let key = format!("{config:?} {world} {shape:?} {:?}", self.rows);
        ALL.get(key, || match self.rows.as_slice() {
            [] => (0..CALLS)
                .map(|call| CallData::new(config, world, shape, call))
                .collect(),
            rows => {
                let shapes = rows.iter().map(|&m| GemmShape { m, ..shape });
                (0..)
                    .zip(shapes)
                    .map(|(call, shape)| CallData::new(config, world, shape, call))
                    .collect()
            }
        })
    }

    /// Makes a call for each of these numbers of rows, with one operator that takes rows at run time.
    #[must_use]
    pub fn with_rows(mut self, rows: &[u64]) -> Self {
        self.config.m = Dim::Dynamic;
        self.rows = rows.to_vec();
        self
    }

    /// Puts C into symmetric memory, and sets the option for it.
    #[must_use]
    pub fn symmetric(mut self) -> Self {
        self.config.symmetric_result = true;
        self
    }

    /// Puts A into symmetric memory, and sets the option for it.
    #[must_use]
    pub fn with_symmetric_a(mut self) -> Self {
        self.config.symmetric_a = true;
        self
    }

    /// Sets elements of fp16 in place of bf16.
    #[must_use]
    pub fn fp16(mut self) -> Self {
        self.config.dtype = Dtype::Fp16;
        self
    }

    /// Sets elements of e4m3 with these scales.
    #[must_use]
    pub fn scaled(mut self, scales: Scales) -> Self {
        (self.config.dtype, self.config.scales, self.config.b_layout) =
            (Dtype::E4m3, scales, BLayout::Nk);
        self
    }

    /// Captures one call in a graph.
    #[must_use]
    pub fn in_graph(mut self) -> Self {
        self.is_graph = true;
        self
    }

    /// Divides the ranks into `nodes` nodes, whose network has these faults.
    #[must_use]
    pub fn across(mut self, nodes: u32, faults: Faults) -> Self {
        (self.nodes, self.faults) = (nodes, faults);
        self
    }

    /// Computes the operands and expected results of all calls, which is slow on a CPU. The job keeps the results for
    /// its runs.
    pub fn compute(&self) {
        self.calls();
    }

    /// Returns the configuration of the kernel with its ranks and nodes.
    pub fn kernel(&self) -> KernelConfig {
        KernelConfig {
            nodes: self.nodes,
            ..KernelConfig::new(self.world, self.config)
        }
    }

    /// Runs the job and returns its results. On GPUs and with odd seeds, calls may start while the preceding call still
    /// runs.
    ///
    /// # Errors
    /// A call fails, the simulator finds a defect, or a result is wrong.
    pub fn run_on(&self, backend: Backend) -> Result<Results, String> {
        let machine = Machine {
            world: self.world,
            sms: self.sms,
            skew: self.skew,
        };
        let transport = emulated(&self.faults, backend);
        machine.run(backend, |ranks| {
            ranks.set_transport(transport.clone());
            self.rank(ranks, backend.overlaps())
        })
    }

    fn rank(&self, ranks: &Communicator, overlaps: bool) -> Result<Vec<Vec<u32>>, Failure> {
        by_element!(self.config.types().c, Out => self.rank_of::<Out>(ranks, overlaps))
    }

    fn rank_of<Out: ResultElement>(
        &self,
        ranks: &Communicator,
        overlaps: bool,
    ) -> Result<Vec<Vec<u32>>, Failure> {
        ranks.set_timeout(deadline(self.edits.is_empty()));
        let operator = self.prepare(ranks)?;
        // SAFETY: the operands are copied before the first call, or between calls.
        unsafe { operator.overlap_calls(overlaps) };
        if !self.rows.is_empty() {
            return self.with_rows_of::<Out>(ranks, &operator);
        }
        let stream = ranks.default_stream();
        let rank = ranks.rank() as usize;
        let mut buffers = Vec::new();
        let count = self
            .call_count
            .map_or(CALLS, |_| CALLS_BEFORE + CALLS_AFTER);
        let calls = || self.calls().iter().cycle().take(count as usize);
        for call in calls() {
            let inputs = self.upload(ranks, &operator, call)?;
            let c = stream.clone_htod(&vec![Out::POISON; call.expected[rank].len().max(1)])?;
            buffers.push((inputs, c));
        }
        let elems = self.calls()[0].expected[rank].len();
        let is_shared = is_symmetric(&operator, Operand::C);
        let mut shared = SharedResult::new(ranks, &stream, is_shared, elems)?;
        let mut shared_a = SharedOperand::new(ranks, &stream, &operator, Operand::A)?;
        stream.synchronize()?;
        for (index, (inputs, c)) in (0..).zip(&mut buffers) {
            if let Some(calls) = self.call_count.filter(|_| index == CALLS_BEFORE) {
                set_call_count(ranks, &[&operator], calls)?;
            }
            let a = shared_a.with(&stream, &inputs[0].1)?;
            shared.launch(&stream, &mut c.as_view_mut(), |c| {
                let call = operator.call(&stream).write::<Out, _>(Operand::C, c);
                let others = inputs[1..].iter();
                let call = others.fold(a.read_by(call, Operand::A), |call, (operand, elements)| {
                    elements.read_by(call, *operand)
                });
                call.launch()
            })?;
        }
        ranks.synchronize(&stream)?;
        let mut results = Vec::new();
        for (call, (_, c)) in calls().zip(&buffers) {
            let got: Vec<f32> = stream.clone_dtoh(c)?.into_iter().map(Into::into).collect();
            ranks.check()?;
            let wrong = got
                .iter()
                .zip(&call.expected[rank])
                .filter(|(got, want)| !is_right(**got, **want, &self.config))
                .count();
            if wrong > 0 {
                return Err(
                    format!("rank {rank}: {wrong} of {} elements are wrong", got.len()).into(),
                );
            }
            results.push(got.into_iter().map(f32::to_bits).collect());
        }
        Ok(results)
    }

    /// Uploads the operands that a call reads, in memory of their own.
    fn upload(
        &self,
        ranks: &Communicator,
        operator: &Operator,
        call: &CallData,
    ) -> Result<Vec<(Operand, Elements)>, Failure> {
        let stream = ranks.default_stream();
        let mut inputs = Vec::new();
        for (operand, values) in call.inputs(&self.config, ranks.rank() as usize) {
            let mut values = values.to_vec();
            values.resize(values.len().max(1), 1.0); // An allocation cannot be empty.
            let mut specs = operator.plan().operands().iter();
            let spec = specs.find(|spec| spec.operand == operand);
            let own = OperandSpec {
                symmetric: false,
                ..*spec.ok_or("no such operand")?
            };
            inputs.push((operand, Elements::upload(ranks, &stream, &own, &values)?));
        }
        Ok(inputs)
    }

    /// Makes a call for each number of rows on this rank, and checks its results.
    fn with_rows_of<Out: ResultElement>(
        &self,
        ranks: &Communicator,
        operator: &Operator,
    ) -> Result<Vec<Vec<u32>>, Failure> {
        let rank = ranks.rank() as usize;
        let call = |(call, rows): (&CallData, &u64)| {
            let inputs = call.inputs(&self.config, rank).into_iter();
            RowsCall {
                rows: *rows,
                inputs: inputs
                    .map(|(operand, values)| (operand, values.to_vec()))
                    .collect(),
                expected: call.expected[rank].clone(),
            }
        };
        // Ranks that do not communicate have different rows.
        let first = match self.config.op.communicates() {
            true => 0,
            false => rank,
        };
        let calls = self.calls().iter().zip(&self.rows).cycle();
        let run = RowsRun {
            ranks,
            operator,
            result: Operand::C,
            calls: calls.skip(first).take(self.rows.len()).map(call).collect(),
            is_graph: self.is_graph,
            call_count: self.call_count,
            is_right: &|got, want| is_right(got, want, &self.config),
        };
        run.run::<Out>()
    }

    fn prepare(&self, ranks: &Communicator) -> Result<Operator, Error> {
        // SAFETY: mutated kernels run on simulated GPUs only, which check every access.
        unsafe {
            prepare_edited(ranks, &self.kernel(), self.shape, |text| {
                apply_edits(ranks, &self.edits, text)
            })
        }
    }
}

impl SimulatedJob for GemmJob {
    fn run(&self, seed: u64) -> Result<Results, String> {
        self.run_on(Backend::Simulated { seed })
    }

    fn edit(&mut self, edits: Vec<(String, String)>) {
        self.edits = edits;
    }
}

impl CallCount for GemmJob {
    fn with_call_count(mut self, calls: u32) -> Self {
        (self.call_count, self.is_graph) = (Some(calls), false);
        self
    }

    fn replays_a_graph(&self) -> bool {
        self.is_graph
    }
}
