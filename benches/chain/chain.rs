//! [`Bench`]: measures chains of calls on one rank, and checks the first call of each chain.

use crate::flags::Flags;
use crate::{Case, Row};
use mkernel::cudarc::driver::CudaStream;
use mkernel::half::bf16;
use mkernel::operands::{RawOperand, Rows};
use mkernel::spec::{BLayout, Dim, GemmConfig, GemmOp, GemmShape, Tuning};
use mkernel::{Communicator, KernelConfig, Operand, Operator};
use mkernel_testing::blocks::{Blocks, in_turns, median};
use mkernel_testing::cublas::Cublas;
use mkernel_testing::graph::Graph;
use mkernel_testing::lab::{Failure, Lab, MAX_RELATIVE_ERROR, Matrix};
use mkernel_testing::unfused::nics_us;
use std::sync::Arc;

/// The standard deviation of the elements that [`Lab::fill`] writes.
const DEVIATION: f64 = 0.577;
/// The number of checked columns of a result.
const CHECKED_COLS: u64 = 512;

/// A rank, which runs on its own thread.
pub struct Bench<'a> {
    pub flags: &'a Flags,
    pub ranks: &'a Communicator,
    pub lab: &'a Lab,
    /// The stream of captures and of the handle of cuBLAS.
    pub captured: Arc<CudaStream>,
    pub cublas: Cublas,
    pub blocks: Blocks<'a>,
    pub seed: u64,
}

/// The calls of a chain: a graph or separate launches.
enum Candidate<'a> {
    Graph(Graph),
    /// Enqueues all calls.
    Eager(Box<dyn Fn() -> Result<(), Failure> + 'a>),
}

/// The memory of a chain. All weights are `[N, K]`.
struct Chain {
    weights: Vec<Matrix>,
    /// The input of the first call, and the results that calls write in turn. Each matrix has room for A and for C.
    first: Matrix,
    results: [Matrix; 2],
}

impl Chain {
    /// Returns the memory that call number `call` reads and writes.
    fn of_call(&self, call: u32) -> (&Matrix, &Matrix, &Matrix) {
        let written = &self.results[call as usize % 2];
        let read = match call {
            0 => &self.first,
            _ => &self.results[(call as usize + 1) % 2],
        };
        (
            read,
            &self.weights[call as usize % self.weights.len()],
            written,
        )
    }
}

impl Bench<'_> {
    pub fn case(&self, case: Case) -> Result<Row, Failure> {
        let (op, shape) = case;
        let chain = self.chain(op, shape)?;
        let operators = self.prepare(op, shape)?;
        for operator in &operators {
            self.check(operator, &chain, op, shape)?;
        }
        let captured = &self.captured;
        let product = |call| self.product(&chain, shape, call);
        let graph = Graph::capture(self.ranks, captured, || self.every_call(&product))?;
        let mut candidates = vec![Candidate::Graph(graph)];
        let mut ids = Vec::new();
        for operator in &operators {
            let calls = |stream| {
                let (chain, fused) = (&chain, Self::fused);
                move || self.every_call(&|call| fused(self, (operator, stream), chain, shape, call))
            };
            let graph = Graph::capture(self.ranks, captured, calls(captured))?;
            candidates.push(Candidate::Graph(graph));
            ids.push(operator.plan().id.clone());
            if self.flags.eager {
                candidates.push(Candidate::Eager(Box::new(calls(&self.lab.stream))));
                ids.push(format!("{}, without a graph", operator.plan().id));
            }
        }
        let times = self.measure(&candidates)?;
        let row = Row {
            case,
            ours: ids.into_iter().zip(times[1..].iter().copied()).collect(),
            cublas_us: times[0],
            nics_us: nics_us(self.ranks, operators[0].plan(), &self.flags.network)?,
        };
        // Memory may be freed only while no kernel of any rank runs.
        self.ranks.barrier()?;
        Ok(row)
    }

    /// Creates random weights, and a random first operand. The weights are scaled so that results do not grow.
    fn chain(&self, op: GemmOp, GemmShape { m, n, k }: GemmShape) -> Result<Chain, Failure> {
        let world = u64::from(self.ranks.world());
        let rank_seed = self.seed + 1000 * (u64::from(self.ranks.rank()) + 1);
        let terms = if op.reduces() { world * k } else { k };
        let scale = (1.0 / (DEVIATION * (terms as f64).sqrt())) as f32;
        let weights = (0..u64::from(self.flags.weights)).map(|index| {
            let weight = self.lab.matrix(n, k, 0)?;
            self.lab.fill_scaled(&weight, 0, rank_seed + index, scale)?;
            Ok(weight)
        });
        let operand = |seed| {
            let matrix = self.lab.matrix(1, m * n.max(k), 0)?;
            self.lab.fill(&matrix, 0, seed)?;
            Ok::<_, Failure>(matrix)
        };
        Ok(Chain {
            weights: weights.collect::<Result<_, Failure>>()?,
            first: operand(rank_seed + 500)?,
            results: [operand(rank_seed + 501)?, operand(rank_seed + 502)?],
        })
    }

    fn prepare(&self, op: GemmOp, shape: GemmShape) -> Result<Vec<Operator>, Failure> {
        let config = |m, tuning| {
            let config = GemmConfig {
                m,
                b_layout: BLayout::Nk,
                tuning,
                ..GemmConfig::new(op)
            };
            KernelConfig {
                nodes: self.flags.network.nodes,
                ..KernelConfig::new(self.ranks.world(), config)
            }
        };
        let tunings = match self.flags.tunings.as_slice() {
            [] => vec![Tuning::default()],
            given => given.iter().map(|tune| tune.tuning).collect(),
        };
        let mut operators = Vec::new();
        for tuning in tunings {
            // A call with a constant number of rows needs no buckets.
            let alone = Tuning {
                buckets: None,
                ..tuning
            };
            let constant = config(Dim::Static(shape.m), alone);
            operators.push(self.ranks.prepare(&constant, shape)?);
            if self.flags.overlap {
                let operator = self.ranks.prepare(&constant, shape)?;
                // SAFETY: nothing writes the weights while the chains run.
                unsafe { operator.overlap_calls(true) };
                operators.push(operator);
            }
            for most in &self.flags.max_rows {
                let most = GemmShape { m: *most, ..shape };
                operators.push(self.ranks.prepare(&config(Dim::Dynamic, tuning), most)?);
            }
        }
        Ok(operators)
    }

    /// Enqueues the product of cuBLAS alone.
    fn product(&self, chain: &Chain, shape: GemmShape, call: u32) -> Result<(), Failure> {
        let GemmShape { m, n, k } = shape;
        let (read, weight, written) = chain.of_call(call);
        self.cublas
            .gemm(&read.reshaped(m, k), weight, &written.reshaped(m, n), true)
    }

    /// Enqueues a call of the operator on the stream.
    fn fused(
        &self,
        (operator, stream): (&Operator, &CudaStream),
        chain: &Chain,
        shape: GemmShape,
        call: u32,
    ) -> Result<(), Failure> {
        let GemmShape { m, n, k } = shape;
        let (read, weight, written) = chain.of_call(call);
        let plan = operator.plan();
        let operands = plan.operands().iter().map(|spec| match spec.operand {
            Operand::A => read.reshaped(m, k).operand(),
            Operand::C => written.reshaped(m, n).operand(),
            _ => weight.operand(),
        });
        let operands: Vec<RawOperand> = operands.collect();
        let rows = match plan.max_rows() {
            Some(_) => Rows::Count(m),
            None => Rows::Most,
        };
        // SAFETY: the operands are at least as large as those of the plan, and outlive the graphs, whose replays
        // `measure` waits for.
        Ok(unsafe { operator.launch_raw_rows(stream.cu_stream(), &operands, rows) }?)
    }

    /// Enqueues all calls of a chain.
    fn every_call(&self, call: &dyn Fn(u32) -> Result<(), Failure>) -> Result<(), Failure> {
        (0..self.flags.calls).try_for_each(call)
    }

    /// Returns the median times in µs per call. The blocks of the candidates take turns, in both orders.
    fn measure(&self, candidates: &[Candidate<'_>]) -> Result<Vec<f64>, Failure> {
        let calls = self.flags.calls;
        let times = in_turns(
            self.flags.rounds,
            candidates.len(),
            |index| match &candidates[index] {
                Candidate::Graph(graph) => self.blocks.times_in_graph(calls, graph),
                Candidate::Eager(all) => self.blocks.times_per_call(calls, all),
            },
        )?;
        Ok(times.iter().map(|times| median(times)).collect())
    }

    /// Makes the first call of a chain, and compares a row of this rank's C with a reference in fp64.
    fn check(
        &self,
        operator: &Operator,
        chain: &Chain,
        op: GemmOp,
        shape: GemmShape,
    ) -> Result<(), Failure> {
        let (_, _, written) = chain.of_call(0);
        self.lab.poison(written)?;
        // The call is on another stream.
        self.lab.stream.synchronize()?;
        self.fused((operator, &self.captured), chain, shape, 0)?;
        self.ranks.synchronize(&self.captured)?;
        let expected = self.expected(chain, op, shape)?;
        let written = written.memory.slice(..expected.len());
        let found: Vec<bf16> = self.lab.stream.clone_dtoh(&written)?;
        let (mut error2, mut sum2) = (0.0, 0.0);
        for (found, expected) in found.iter().zip(expected) {
            error2 += (found.to_f64() - expected).powi(2);
            sum2 += expected * expected;
        }
        match error2 <= MAX_RELATIVE_ERROR.powi(2) * sum2 {
            true => Ok(()),
            false => {
                let error = (error2 / sum2).sqrt();
                let (id, rank) = (&operator.plan().id, self.ranks.rank());
                Err(format!("{id} on rank {rank}: relative error {error:.1e}").into())
            }
        }
    }

    /// Returns the first columns of this rank's first row of the result of the first call, or nothing if the rank has no
    /// row.
    fn expected(&self, chain: &Chain, op: GemmOp, shape: GemmShape) -> Result<Vec<f64>, Failure> {
        let GemmShape { m, n, k } = shape;
        let (rank, world) = (self.ranks.rank() as usize, u64::from(self.ranks.world()));
        let (read, weight, _) = chain.of_call(0);
        let cols = n.min(CHECKED_COLS);
        let b = weight.memory.slice(..(cols * k) as usize);
        let b: Vec<bf16> = self.lab.stream.clone_dtoh(&b)?;
        let row = |index: u64| -> Result<Vec<bf16>, Failure> {
            let row = (index * k) as usize..((index + 1) * k) as usize;
            Ok(self.lab.stream.clone_dtoh(&read.memory.slice(row))?)
        };
        let products = |a: &[bf16]| -> Vec<f64> {
            let columns = b.chunks_exact(k as usize);
            columns.map(|column| dot(a, column)).collect()
        };
        if !op.communicates() {
            return Ok(products(&row(0)?));
        }
        if !op.reduces() {
            // Rank 0 has the first row of A.
            let bits: Vec<u8> = row(0)?.iter().flat_map(|x| x.to_le_bytes()).collect();
            let rows = self.ranks.all_gather(&bits)?;
            let (halves, _) = rows[0].as_chunks();
            let a: Vec<bf16> = halves.iter().map(|x| bf16::from_le_bytes(*x)).collect();
            return Ok(products(&a));
        }
        // Every rank has an addend of every rank's row.
        let row_of = |rank: u64| match op {
            GemmOp::GemmRs => rank * m.div_ceil(world),
            _ => 0,
        };
        let mut parts = Vec::new();
        for index in (0..world).map(row_of).filter(|index| *index < m) {
            parts.extend(products(&row(index)?));
        }
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
        let mut sums = Vec::new();
        for parts in self.ranks.all_gather(&bytes)? {
            let (words, _) = parts.as_chunks();
            let rows = words.chunks_exact(cols as usize);
            let own = rows.skip(rank).flatten().take(cols as usize);
            let own: Vec<f64> = own.map(|word| f64::from_le_bytes(*word)).collect();
            sums.resize(own.len(), 0.0);
            for (sum, part) in sums.iter_mut().zip(own) {
                *sum += part;
            }
        }
        Ok(sums)
    }
}

fn dot(a: &[bf16], b: &[bf16]) -> f64 {
    let products = a.iter().zip(b).map(|(a, b)| a.to_f64() * b.to_f64());
    products.sum()
}
