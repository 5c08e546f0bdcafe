//! Jobs of `all_reduce`, `all_gather`, `reduce_scatter`, `broadcast` and `all_to_all`. The reference adds in the order that the documentation of
//! the operators states, so every bit of the results is known.

pub mod buckets;
pub mod cases;
mod in_place;
pub mod norm;
mod options;
pub mod scaled;

use super::buffer::{Buffer, SharedResult, is_symmetric};
use super::memo::Memo;
use super::random::Random;
use super::rows::{RowsCall, RowsRun};
use super::simulated::{ResultElement, by_element, rounded};
use super::{
    Backend, CALLS, CALLS_AFTER, CALLS_BEFORE, CallCount, Machine, Results, SimulatedJob,
    apply_edits, replay, set_call_count, stream_of,
};
use crate::lab::Failure;
use mkernel::Operand;
use mkernel::cudarc::driver::DevicePtr;
use mkernel::testing::prepare_edited;
use mkernel::{
    Communicator, KernelConfig, Operator,
    network::Faults,
    spec::{CollectiveConfig, CollectiveOp, CollectiveShape, Dim},
};

/// Several calls of a collective on all ranks.
#[derive(Clone, Debug)]
pub struct CollectiveJob {
    /// The configuration of the kernel.
    pub config: CollectiveConfig,
    /// The GPUs.
    pub machine: Machine,
    /// The number of nodes into which the ranks are divided.
    pub nodes: u32,
    /// The faults of the emulated network between the nodes. Each run sets their seed.
    pub faults: Faults,
    /// Whether the calls are captured in a graph, which is replayed.
    pub is_graph: bool,
    /// If set, the call count of the operator is set to this number after two calls, and four more calls follow.
    pub call_count: Option<u32>,
    /// The rows of each call, if the kernel takes them at run time. `config.m` is then the most rows of a call.
    pub rows: Vec<u64>,
    /// Whether the result has the memory of the input, with each element at its place in the input.
    pub is_in_place: bool,
    /// The edits of the kernel's text, as [`apply_edits`] takes them.
    pub edits: Vec<(String, String)>,
}

/// The inputs of all ranks for one call, and the expected results.
#[derive(Debug)]
struct CallData {
    x: Vec<Vec<f32>>,
    y: Vec<Vec<f32>>,
}

impl CollectiveJob {
    /// Creates a job on one node of `world` ranks, for a tensor of `m` rows and `n` columns.
    pub fn new(op: CollectiveOp, world: u32, (m, n): (u64, u64), sms: u32) -> Self {
        Self {
            config: CollectiveConfig {
                m: Dim::Static(m),
                n: Dim::Static(n),
                ..CollectiveConfig::new(op)
            },
            machine: Machine {
                world,
                sms,
                skew: 60,
            },
            nodes: 1,
            faults: Faults::default(),
            is_graph: false,
            call_count: None,
            rows: Vec::new(),
            is_in_place: false,
            edits: Vec::new(),
        }
    }

    /// Runs the job and returns its results.
    ///
    /// # Errors
    /// A call fails, the simulator finds a defect, or a result is wrong.
    pub fn run_on(&self, backend: Backend) -> Result<Results, String> {
        self.machine.run_over(&self.faults, backend, |ranks| {
            by_element!(self.config.dtype, Element => match self.is_in_place {
                true => self.rank_in_place::<Element>(ranks),
                false if self.rows.is_empty() => self.rank::<Element>(ranks),
                false => self.rank_with_rows::<Element>(ranks),
            })
        })
    }

    /// Returns the configuration of the kernel with its ranks and nodes.
    pub fn kernel(&self) -> KernelConfig {
        let mut config = self.config;
        if !self.rows.is_empty() {
            config.m = Dim::Dynamic;
        }
        KernelConfig {
            nodes: self.nodes,
            ..KernelConfig::new(self.machine.world, config)
        }
    }

    /// Returns the sizes. If the calls have different numbers of rows, the sizes have the most rows.
    pub fn shape(&self) -> CollectiveShape {
        self.config.shape().expect("sizes")
    }

    fn prepare(&self, ranks: &Communicator) -> Result<Operator, mkernel::Error> {
        let edit = |text: &mut String| apply_edits(ranks, &self.edits, text);
        // SAFETY: mutated kernels run on simulated GPUs only, which check every access.
        unsafe { prepare_edited(ranks, &self.kernel(), self.shape(), edit) }
    }

    fn rank<E: ResultElement>(&self, ranks: &Communicator) -> Result<Vec<Vec<u32>>, Failure> {
        ranks.set_timeout(super::deadline(self.edits.is_empty()));
        let operator = self.prepare(ranks)?;
        let stream = stream_of(ranks, self.is_graph)?;
        let rank = ranks.rank() as usize;
        let symmetric = is_symmetric(&operator, Operand::Y);
        let count = self
            .call_count
            .map_or(CALLS, |_| CALLS_BEFORE + CALLS_AFTER);
        let calls = || self.calls().iter().cycle().take(count as usize);
        let mut buffers = Vec::new();
        for call in calls() {
            let mut x: Vec<E> = call.x[rank].iter().copied().map(E::of).collect();
            x.resize(x.len().max(1), E::POISON); // An allocation cannot be empty.
            // Rank 0 has the most rows. Symmetric memory is equally long on all ranks.
            let y = vec![E::POISON; call.y[0].len().max(1)];
            let in_graph = symmetric && self.is_graph;
            let y = Buffer::upload(ranks, &stream, in_graph, &y)?;
            buffers.push((stream.clone_htod(&x)?, y));
        }
        let elems = self.calls()[0].y[0].len();
        let is_shared = symmetric && !self.is_graph;
        let mut shared = SharedResult::new(ranks, &stream, is_shared, elems)?;
        stream.synchronize()?;
        if self.is_graph {
            let addresses = buffers
                .iter()
                .map(|(x, y)| vec![x.device_ptr(&stream).0, y.view().device_ptr(&stream).0]);
            replay(ranks, &operator, &stream, &addresses.collect::<Vec<_>>())?;
        } else {
            for (index, (x, y)) in (0..).zip(&mut buffers) {
                if let Some(calls) = self.call_count.filter(|_| index == CALLS_BEFORE) {
                    set_call_count(ranks, &[&operator], calls)?;
                }
                shared.launch(&stream, &mut y.view_mut(), |y| {
                    let call = operator.call(&stream).read(Operand::X, x);
                    call.write(Operand::Y, y).launch()
                })?;
            }
        }
        ranks.synchronize(&stream)?;
        let mut results = Vec::new();
        for (call, (_, y)) in calls().zip(&buffers) {
            let mut got: Vec<f32> = stream
                .clone_dtoh(&y.view())?
                .into_iter()
                .map(Into::into)
                .collect();
            ranks.check()?;
            got.truncate(call.y[rank].len());
            results.push(right_bits(rank, &got, &call.y[rank])?);
        }
        Ok(results)
    }

    /// Makes a call for each number of rows on this rank, and checks its results.
    fn rank_with_rows<E: ResultElement>(
        &self,
        ranks: &Communicator,
    ) -> Result<Vec<Vec<u32>>, Failure> {
        ranks.set_timeout(super::deadline(self.edits.is_empty()));
        let rank = ranks.rank() as usize;
        let call = |(call, rows): (&CallData, &u64)| RowsCall {
            rows: *rows,
            inputs: vec![(Operand::X, call.x[rank].clone())],
            expected: call.y[rank].iter().map(|y| f64::from(*y)).collect(),
        };
        let run = RowsRun {
            ranks,
            operator: &self.prepare(ranks)?,
            result: Operand::Y,
            calls: self.calls().iter().zip(&self.rows).map(call).collect(),
            is_graph: self.is_graph,
            call_count: self.call_count,
            is_right: &|got, want| got.to_bits() == (want as f32).to_bits(),
        };
        run.run::<E>()
    }

    /// Computes the operands and expected results of all calls, which is slow on a CPU. The job keeps the results for
    /// its runs.
    pub fn compute(&self) {
        self.calls();
    }

    fn calls(&self) -> &'static [CallData] {
        static ALL: Memo<Vec<CallData>> = Memo::new();
        let (config, world) = (self.config, self.machine.world);
        let key = format!("{config:?} {world} {} {:?}", self.nodes, self.rows);
        let most = self.shape().m;
        ALL.get(key, || match self.rows.as_slice() {
            [] => (0..CALLS).map(|call| self.call(call, most)).collect(),
            rows => (0..)
                .zip(rows)
                .map(|(call, m)| self.call(call, *m))
                .collect(),
        })
    }

    /// Computes the data of call `number`, which has `m` rows.
    fn call(&self, number: u32, m: u64) -> CallData {
        let (world, shape) = (
            u64::from(self.machine.world),
            CollectiveShape { m, ..self.shape() },
        );
        let shard = (shape.shard_rows(self.machine.world) * shape.n) as usize;
        let whole = (shape.m * shape.n) as usize;
        let rows_of = |rank: u64| {
            let first = (rank as usize * shard).min(whole);
            first..(first + shard).min(whole)
        };
        let mut state = Random(u64::from(number) + 1);
        let mut random = |len: usize| -> Vec<f32> {
            // Some elements are -0 on all ranks, and so are their sums.
            let of_element = |index: usize| match index % 29 == 5 {
                true => -0.0,
                false => self.rounded(state.next()),
            };
            (0..len).map(of_element).collect()
        };
        if let Some(root) = self.config.root(self.machine.world) {
            let all = random(whole);
            let of_rank = |rank| match rank == u64::from(root) {
                true => all.clone(),
                false => Vec::new(),
            };
            return CallData {
                x: (0..world).map(of_rank).collect(),
                y: (0..world).map(|_| all.clone()).collect(),
            };
        }
        if self.config.op == CollectiveOp::AllGather {
            let all = random(whole);
            return CallData {
                x: (0..world).map(|rank| all[rows_of(rank)].to_vec()).collect(),
                y: (0..world).map(|_| all.clone()).collect(),
            };
        }
        let x: Vec<Vec<f32>> = (0..world).map(|_| random(whole)).collect();
        if self.config.op == CollectiveOp::AllToAll {
            let of_all = |rank| x.iter().flat_map(|x| x[rows_of(rank)].to_vec()).collect();
            let y = (0..world).map(of_all).collect();
            return CallData { x, y };
        }
        let owned = self.owned_elems(shape);
        let sum = |index: usize| self.rounded(self.sum(&x, index, index / owned));
        let all: Vec<f32> = (0..whole).map(sum).collect();
        let y = (0..world).map(|rank| match self.config.op {
            CollectiveOp::AllReduce => all.clone(),
            _ => all[rows_of(rank)].to_vec(),
        });
        let y = y.collect();
        CallData { x, y }
    }

    /// Returns the number of elements that a rank reduces, but at least 1.
    fn owned_elems(&self, shape: CollectiveShape) -> usize {
        let world = self.machine.world;
        let owned = match self.config.op {
            CollectiveOp::AllReduce => {
                let elems = 16 / self.config.dtype.bytes();
                (shape.m * shape.n / elems).div_ceil(world.into()) * elems
            }
            _ => shape.shard_rows(world) * shape.n,
        };
        owned.max(1) as usize
    }

    /// Returns the sum of an element over all ranks, computed in fp32 in the order of ranks. The sum of each node
    /// except the owner's node is rounded before it is added.
    fn sum(&self, x: &[Vec<f32>], index: usize, owner: usize) -> f32 {
        let local_world = (self.machine.world / self.nodes) as usize;
        let of_node = |ranks: &[Vec<f32>]| ranks.iter().fold(-0.0f32, |sum, x| sum + x[index]);
        let sums = x.chunks(local_world).map(of_node).enumerate();
        sums.fold(-0.0f32, |total, (node, sum)| {
            total
                + match node == owner / local_world {
                    true => sum,
                    false => self.rounded(sum),
                }
        })
    }

    /// Rounds a number to the type of the elements.
    fn rounded(&self, value: f32) -> f32 {
        rounded(f64::from(value), self.config.dtype)
    }
}

impl SimulatedJob for CollectiveJob {
    fn run(&self, seed: u64) -> Result<Results, String> {
        self.run_on(Backend::Simulated { seed })
    }

    fn edit(&mut self, edits: Vec<(String, String)>) {
        self.edits = edits;
    }
}

impl CallCount for CollectiveJob {
    fn with_call_count(mut self, calls: u32) -> Self {
        (self.call_count, self.is_graph) = (Some(calls), false);
        self
    }

    fn replays_a_graph(&self) -> bool {
        self.is_graph
    }
}

/// Compares a result with the expected result, and returns its bits.
fn right_bits(rank: usize, got: &[f32], expected: &[f32]) -> Result<Vec<u32>, Failure> {
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let (got, expected) = (bits(got), bits(expected));
    let wrong = got.iter().zip(&expected).filter(|(a, b)| a != b).count();
    if wrong > 0 {
        let elements = got.len();
        return Err(format!("rank {rank}: {wrong} of {elements} elements are wrong").into());
    }
    Ok(got)
}
