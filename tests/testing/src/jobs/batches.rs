//! Batches of rows whose results are compared bit by bit.
//!
//! The elements of a row depend on the row's number alone, so batches that share rows have equal rows. Elements are random numbers
//! whose sums depend on the order of additions.

use super::buffer::Elements;
use super::kernel_edits::apply_edits;
use super::machine::Machine;
use super::simulated::Backend;
use crate::graph::Graph;
use crate::lab::{Failure, Random};
use mkernel::cudarc::driver::CudaStream;
use mkernel::network::Faults;
use mkernel::spec::abi::OperandSpec;
use mkernel::spec::{CollectiveShape, Dim, GemmShape, Op, Problem, Shape};
use mkernel::testing::prepare_edited;
use mkernel::{Call, Communicator, KernelConfig, Operand, Operator};
use std::sync::Arc;

/// A call of a GEMM operator or a collective on rows of the pool.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The number of ranks.
    pub world: u32,
    /// The number of nodes into which the ranks are divided.
    pub nodes: u32,
    /// The configuration of the operator.
    pub problem: Problem,
    /// The sizes for which the operator is prepared.
    pub shape: Shape,
    /// The numbers of the rows, in the order of the batch. With a constant M, the batch has M rows.
    pub rows: Vec<u64>,
    /// The number of SMs of a simulated GPU.
    pub sms: u32,
    /// Whether the call is captured in a graph, which is replayed. Such calls overlap.
    pub is_graph: bool,
    /// The seed of all elements.
    pub seed: u64,
    /// The edits of the kernel's text, as [`apply_edits`] takes them.
    pub edits: Vec<(String, String)>,
}

/// The results of a batch: for each of its rows, the bits of the row on each rank that has it, as fp32.
pub type RowBits = Vec<Vec<Vec<u32>>>;

impl Batch {
    /// Makes the call twice on all ranks and returns the rows of the second result.
    ///
    /// # Errors
    /// A call fails, or the simulator finds a defect.
    pub fn run(&self, backend: Backend) -> Result<RowBits, String> {
        let machine = Machine {
            world: self.world,
            sms: self.sms,
            skew: 60,
        };
        let rank = |ranks: &Communicator| self.rank(ranks);
        let of_ranks = machine.run_over(&Faults::default(), backend, rank)?;
        let mut rows = vec![Vec::new(); self.rows.len()];
        for (row, bits) in of_ranks.into_iter().flatten() {
            rows[row].push(bits);
        }
        Ok(rows)
    }

    /// Returns the rows of the batch that this rank has of the results, with their bits.
    fn rank(&self, ranks: &Communicator) -> Result<Vec<(usize, Vec<u32>)>, Failure> {
        let config = KernelConfig {
            nodes: self.nodes,
            ..KernelConfig::new(self.world, self.problem)
        };
        // SAFETY: edited kernels run on simulated GPUs only, which check every access.
        let operator = unsafe {
            prepare_edited(ranks, &config, self.shape, |text| {
                // Some plans lack the texts. A mistake that no plan has is not found.
                let has = |(from, _): &&(String, String)| text.contains(from.as_str());
                let edits: Vec<_> = self.edits.iter().filter(has).cloned().collect();
                apply_edits(ranks, &edits, text);
            })
        }?;
        // SAFETY: no work on the stream writes the operands that calls read.
        unsafe { operator.overlap_calls(self.is_graph) };
        // A stream that can be captured.
        let stream = ranks.context().new_stream()?;
        let (mut inputs, mut results) = (Vec::new(), Vec::new());
        for spec in operator.plan().operands() {
            let elements = self.upload(ranks, &stream, spec)?;
            match spec.written {
                true => results.push((spec.operand, elements, spec.cols as usize)),
                false => inputs.push((spec.operand, elements)),
            }
        }
        stream.synchronize()?;
        if self.is_graph {
            let graph = Graph::capture(ranks, &stream, || {
                let call = self.call(&operator, &stream, &inputs, &mut results);
                // SAFETY: the operands live until the last replay has ended, and the test uses one stream.
                Ok(unsafe { call.capture() }?)
            })?;
            graph.launch(&stream)?;
            graph.launch(&stream)?;
        } else {
            for _ in 0..2 {
                self.call(&operator, &stream, &inputs, &mut results)
                    .launch()?;
            }
        }
        ranks.synchronize(&stream)?;
        let mut rows = Vec::new();
        for (operand, elements, cols) in &results {
            let values = elements.values(&stream)?;
            let lines = values.chunks_exact(*cols);
            for (row, line) in self.places(*operand, ranks.rank()).zip(lines) {
                rows.push((row, line.iter().map(|value| value.to_bits()).collect()));
            }
        }
        Ok(rows)
    }

    fn call<'a>(
        &self,
        operator: &'a Operator,
        stream: &'a Arc<CudaStream>,
        inputs: &'a [(Operand, Elements)],
        results: &'a mut [(Operand, Elements, usize)],
    ) -> Call<'a> {
        let mut call = operator.call(stream);
        for (operand, elements) in inputs {
            call = elements.read_by(call, *operand);
        }
        for (operand, elements, _) in results {
            call = elements.written_by(call, *operand);
        }
        if self.takes_rows() {
            call = call.rows(self.rows.len() as u64);
        }
        call
    }

    fn takes_rows(&self) -> bool {
        let m = match &self.problem {
            Problem::Gemm(config) => config.m,
            Problem::Collective(config) => config.m,
            other => panic!("{} has no rows of a batch", other.op()),
        };
        m == Dim::Dynamic
    }

    /// The rows of the batch that a rank has of an operand with the rows of A or C.
    fn places(&self, operand: Operand, rank: u32) -> std::ops::Range<usize> {
        let rows = self.rows.len();
        let is_left = matches!(operand, Operand::A | Operand::AScales | Operand::X);
        let is_sharded = match self.problem.op() {
            Op::AgGemm | Op::AllGather => is_left,
            Op::GemmRs | Op::ReduceScatter => !is_left,
            _ => false,
        };
        if !is_sharded {
            return 0..rows;
        }
        let shard = rows.div_ceil(self.world as usize);
        let first = (shard * rank as usize).min(rows);
        first..(first + shard).min(rows)
    }

    /// Uploads an operand of a rank.
    fn upload(
        &self,
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        spec: &OperandSpec,
    ) -> Result<Elements, Failure> {
        let rank = ranks.rank();
        // Tensors in symmetric memory have the same length on all ranks, and the first rank has the most rows.
        let most_rows = spec.rows.on(if spec.symmetric { 0 } else { rank }).max(1);
        let mut values = vec![f32::NAN; (most_rows * spec.cols) as usize];
        let numbers: Vec<u64> = match spec.operand {
            result if result.is_result() => Vec::new(),
            Operand::B | Operand::Bias | Operand::Weight | Operand::BScales => {
                (0..most_rows).collect()
            }
            rows => self.rows[self.places(rows, rank)].to_vec(),
        };
        // Rows of A and X have exponents of their own, so that sums over ranks depend on their order. Only the inputs of operators
        // that reduce, and B, differ between ranks.
        let is_input = matches!(spec.operand, Operand::A | Operand::X);
        let exponents = if is_input { 20 } else { 1 };
        let is_gathered = matches!(self.problem.op(), Op::AgGemm | Op::AllGather);
        let of_rank = match spec.operand {
            Operand::B => rank + 1,
            _ if is_input && !is_gathered => rank + 1,
            _ => 0,
        };
        for (number, line) in numbers
            .iter()
            .zip(values.chunks_exact_mut(spec.cols as usize))
        {
            let place = (spec.operand as u64) << 56 | u64::from(of_rank) << 48 | number;
            let mut random = Random(self.seed ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let largest = 0.5_f32.powi(random.below(exponents) as i32);
            line.fill_with(|| largest * ((random.draw() >> 40) as f32 / (1 << 23) as f32 - 1.0));
        }
        Elements::upload(ranks, stream, spec, &values)
    }
}

impl Batch {
    /// A batch of these rows on one node, with a constant number of rows. The sizes are N, and K of a GEMM.
    ///
    /// # Panics
    /// The operator has no rows of a batch.
    #[must_use]
    pub fn new(
        world: u32,
        problem: impl Into<Problem>,
        (n, k): (u64, u64),
        rows: Vec<u64>,
    ) -> Self {
        let (mut problem, m) = (problem.into(), 0);
        let shape = match &mut problem {
            Problem::Gemm(config) => {
                (config.n, config.k) = (Dim::Static(n), Dim::Static(k));
                GemmShape { m, n, k }.into()
            }
            Problem::Collective(config) => {
                config.n = Dim::Static(n);
                CollectiveShape { m, n }.into()
            }
            other => panic!("{} has no rows of a batch", other.op()),
        };
        let batch = Self {
            world,
            nodes: 1,
            problem,
            shape,
            rows: Vec::new(),
            sms: 8,
            is_graph: false,
            seed: 0,
            edits: Vec::new(),
        };
        batch.of_rows(rows)
    }

    /// The batch with these rows, whose number is constant.
    #[must_use]
    pub fn of_rows(mut self, rows: Vec<u64>) -> Self {
        let m = rows.len() as u64;
        self.rows = rows;
        self.of_at_most(Dim::Static(m), m)
    }

    /// The batch through a kernel whose M is `m`, prepared for `most` rows.
    #[must_use]
    pub fn of_at_most(mut self, m: Dim, most: u64) -> Self {
        match &mut self.problem {
            Problem::Gemm(config) => config.m = m,
            Problem::Collective(config) => config.m = m,
            other => panic!("{} has no rows of a batch", other.op()),
        }
        match &mut self.shape {
            Shape::Gemm(shape) => shape.m = most,
            Shape::Collective(shape) => shape.m = most,
            other => panic!("{other:?} has no rows of a batch"),
        }
        self
    }
}

/// Returns the first difference between rows that two batches share, in words.
#[must_use]
pub fn difference(a: (&Batch, &RowBits), b: (&Batch, &RowBits)) -> Option<String> {
    for (place, row) in a.0.rows.iter().enumerate() {
        let Some(other) = b.0.rows.iter().position(|other| other == row) else {
            continue;
        };
        if a.1[place] != b.1[other] {
            return Some(format!(
                "row {row} differs: place {place} of {} rows, place {other} of {} rows",
                a.0.rows.len(),
                b.0.rows.len()
            ));
        }
    }
    None
}
