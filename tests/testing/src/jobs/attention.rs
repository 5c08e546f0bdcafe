//! Jobs of `ring_attention`, whose results are compared with a reference in fp64.

mod buffers;
mod cache;
pub mod cached_cases;
mod call_pattern;
pub mod cases;
pub mod compared;
mod one_call;
mod packed;
mod place;
mod plans;
mod reference;
mod run_time_rows;

pub use call_pattern::CallPattern;
pub use reference::InputKind;

use buffers::{Buffers, floats};
use reference::{CallData, Sharding};

use super::memo::Memo;
use super::random::Random;
use super::simulated::{ResultElement, by_element};
use super::{
    Backend, CALLS, CALLS_AFTER, CALLS_BEFORE, CallCount, Machine, Results, SimulatedJob,
    apply_edits, replay, set_call_count, stream_of,
};
use crate::lab::Failure;
use mkernel::cudarc::driver::CudaStream;
use mkernel::testing::prepare_edited;
use mkernel::{
    Communicator, KernelConfig, Operator,
    network::Faults,
    spec::{
        AttentionConfig, AttentionOp, AttentionShape, AttentionTuning, Dim, Layout, Placement,
        Scale, plan::PUSH_LEAD,
    },
};
use std::sync::Arc;
use std::time::Duration;

/// Several calls of `ring_attention` on all ranks.
#[derive(Clone, Debug)]
pub struct AttentionJob {
    /// The configuration of the kernel.
    pub config: AttentionConfig,
    /// The GPUs.
    pub machine: Machine,
    /// The number of nodes into which the ranks are divided.
    pub nodes: u32,
    /// The faults of the emulated network between the nodes. Each run sets their seed.
    pub faults: Faults,
    /// The kind of numbers in Q, K and V.
    pub inputs: InputKind,
    /// The way in which the ranks make the calls.
    pub pattern: CallPattern,
    /// If set, the call count of the operator is set to this number after two calls, and four more calls follow.
    pub call_count: Option<u32>,
    /// The length of the sequence in each call, if the kernel takes it at run time. `config.seq` is then the most.
    pub rows: Vec<u64>,
    /// The lengths of the packed sequences in each call, if the kernel takes packed sequences. `config.batch` is then
    /// the most sequences of a call, and `config.seq` the most rows of all sequences together.
    pub sequences: Vec<Vec<u64>>,
    /// Across nodes, if set, the number of own parts that a rank sends before it forwards a part.
    pub forward_lag: Option<u32>,
    /// The edits of the kernel's text, as [`apply_edits`] takes them.
    pub edits: Vec<(String, String)>,
}

impl AttentionJob {
    /// Creates a job on one node of `world` ranks. `sizes` are the batch, the length of the sequence, the heads of Q,
    /// the heads of K and V, and the dimension of a head.
    pub fn new(world: u32, sizes: [u64; 5], sms: u32) -> Self {
        let [batch, seq, heads, kv_heads, head_dim] = sizes.map(Dim::Static);
        Self {
            config: AttentionConfig {
                batch,
                seq,
                heads,
                kv_heads,
                head_dim,
                ..AttentionConfig::new(AttentionOp::RingAttention)
            },
            machine: Machine {
                world,
                sms,
                skew: 60,
            },
            nodes: 1,
            faults: Faults::default(),
            inputs: InputKind::Random,
            pattern: CallPattern::BackToBack,
            call_count: None,
            rows: Vec::new(),
            sequences: Vec::new(),
            forward_lag: None,
            edits: Vec::new(),
        }
    }

    /// Divides the ranks into `nodes` nodes, whose network has these faults.
    #[must_use]
    pub fn across(mut self, nodes: u32, faults: Faults) -> Self {
        (self.nodes, self.faults) = (nodes, faults);
        self
    }

    /// Sets the number of communication CTAs.
    #[must_use]
    pub fn pushed_by(mut self, comm_ctas: u32) -> Self {
        self.config.tuning.comm_ctas = Some(comm_ctas);
        self
    }

    /// Sets a causal mask, and the placement of the sequence.
    #[must_use]
    pub fn causal(mut self, placement: Placement) -> Self {
        self.config.causal = true;
        self.config.placement = placement;
        self
    }

    /// Sets the zigzag placement, without a mask.
    #[must_use]
    pub fn zigzag(mut self) -> Self {
        self.config.placement = Placement::Zigzag;
        self
    }

    /// Sets the layout `[B, H, S, D]`.
    #[must_use]
    pub fn bhsd(mut self) -> Self {
        self.config.layout = Layout::Bhsd;
        self
    }

    /// Sets the scale of the scores.
    #[must_use]
    pub fn scale(mut self, scale: f32) -> Self {
        self.config.scale = Scale::new(scale);
        self
    }

    /// Sets the number of slots for heads of K and V, and the number of communication CTAs.
    #[must_use]
    pub fn slots(mut self, kv_slots: u32, comm_ctas: u32) -> Self {
        self.config.tuning = AttentionTuning {
            comm_ctas: Some(comm_ctas),
            kv_slots: Some(kv_slots),
        };
        self
    }

    /// Sets the kind of numbers in Q, K and V.
    #[must_use]
    pub fn inputs(mut self, inputs: InputKind) -> Self {
        self.inputs = inputs;
        self
    }

    /// Sets the way in which the ranks make the calls.
    #[must_use]
    pub fn pattern(mut self, pattern: CallPattern) -> Self {
        self.pattern = pattern;
        self
    }

    /// Makes a call for each of these lengths of the sequence, with one operator that takes lengths at run time.
    #[must_use]
    pub fn with_rows(mut self, rows: &[u64]) -> Self {
        self.rows = rows.to_vec();
        self
    }

    /// Lets each rank have up to `most` cached rows of K and V in each batch. Calls draw their numbers of cached rows.
    #[must_use]
    pub fn cached(mut self, most: u32) -> Self {
        self.config.cached = Some(most);
        self
    }

    /// Makes a call for each of these lists of lengths of packed sequences, with one operator.
    #[must_use]
    pub fn with_sequences(mut self, sequences: &[&[u64]]) -> Self {
        self.config.packed = true;
        self.sequences = sequences.iter().map(|lengths| lengths.to_vec()).collect();
        self
    }

    /// Lets a rank forward a part after it has sent `parts` own parts.
    #[must_use]
    pub fn forwarding_after(mut self, parts: u32) -> Self {
        self.forward_lag = Some(parts);
        self
    }

    /// Runs the job and returns its results.
    ///
    /// # Errors
    /// A call fails, the simulator finds a defect, or a result is wrong.
    pub fn run_on(&self, backend: Backend) -> Result<Results, String> {
        self.compute();
        self.machine.run_over(&self.faults, backend, |ranks| {
            let lag = self.forward_lag.map(|parts| {
                let planned = format!("kForwardLag = {PUSH_LEAD};");
                (planned, format!("kForwardLag = {parts};"))
            });
            let edits: Vec<_> = lag.into_iter().chain(self.edits.iter().cloned()).collect();
            let edit = |text: &mut String| apply_edits(ranks, &edits, text);
            // SAFETY: mutated kernels run on simulated GPUs only, which check every access.
            let operator =
                unsafe { prepare_edited(ranks, &self.kernel(), self.sharding().shape, edit) }?;

            by_element!(self.config.dtype, Element => match (self.config.packed, self.rows.is_empty()) {
                (true, _) => {
                    self.rank_with_sequences::<Element>(ranks, &operator, self.packed_calls())
                }
                (false, true) => {
                    self.rank::<Element>(ranks, &operator, self.calls(), &|| Ok(()))
                }
                (false, false) => {
                    self.rank_with_rows::<Element>(ranks, &operator, self.calls())
                }
            })
        })
    }

    /// Makes the calls of one rank of an existing communicator, and calls `other` after each launch.
    ///
    /// # Errors
    /// A call fails, or a result is wrong.
    pub fn run_beside(
        &self,
        ranks: &Communicator,
        other: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let operator = ranks.prepare(&self.kernel(), self.sharding().shape)?;
        by_element!(self.config.dtype, Element => {
            self.rank::<Element>(ranks, &operator, self.calls(), other)
        })?;
        Ok(())
    }

    /// Computes the operands and expected results of all calls, which is slow on a CPU. The job keeps the results for
    /// its runs.
    pub fn compute(&self) {
        match self.config.packed {
            true => drop(self.packed_calls()),
            false => drop(self.calls()),
        }
    }

    fn calls(&self) -> &'static [CallData] {
        static ALL: Memo<Vec<CallData>> = Memo::new();
        let (config, sharding, inputs) = (&self.config, self.sharding(), self.inputs);
        let rows = match self.rows.is_empty() {
            true => vec![sharding.shape.seq; CALLS as usize],
            false => self.rows.clone(),
        };
        let key = format!("{config:?} {} {inputs:?} {rows:?}", sharding.world);
        ALL.get(key, || {
            let of_call = |(call, rows): (u32, &u64)| {
                CallData::new(config, sharding.with_rows(*rows), inputs, call)
            };
            (0..).zip(&rows).map(of_call).collect()
        })
    }

    /// Returns the configuration of the kernel with its ranks and nodes.
    pub fn kernel(&self) -> KernelConfig {
        let mut config = self.config;
        if !self.rows.is_empty() || config.packed {
            config.seq = Dim::Dynamic;
        }
        KernelConfig {
            nodes: self.nodes,
            ..KernelConfig::new(self.machine.world, config)
        }
    }

    /// Returns the sizes for which the kernel is prepared.
    pub fn shape(&self) -> AttentionShape {
        self.config.shape().expect("sizes")
    }

    fn sharding(&self) -> Sharding {
        Sharding {
            shape: self.shape(),
            layout: self.config.layout,
            placement: self.config.placement,
            world: self.machine.world,
        }
    }

    /// Makes the calls of one rank, compares their results, and returns the bits. `other` is called after each launch.
    fn rank<E: ResultElement>(
        &self,
        ranks: &Communicator,
        operator: &Operator,
        calls: &[CallData],
        other: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<Vec<Vec<u32>>, Failure> {
        // The host also has this deadline. The deadlines of kernels pass in simulated time.
        ranks.set_timeout(match self.pattern {
            CallPattern::AbsentRank { .. } => Duration::from_millis(300),
            _ => super::deadline(self.edits.is_empty()),
        });
        if self.pattern == (CallPattern::AbsentRank { rank: ranks.rank() }) {
            return Ok(Vec::new());
        }
        let sharding = self.sharding();
        let stream = stream_of(ranks, self.pattern == CallPattern::Graph)?;
        let count = self
            .call_count
            .map_or(CALLS, |_| CALLS_BEFORE + CALLS_AFTER);
        let calls = || calls.iter().cycle().take(count as usize);
        let mut buffers = calls()
            .map(|call| Buffers::<E>::new(&stream, sharding, call, ranks.rank()))
            .collect::<Result<Vec<_>, _>>()?;
        stream.synchronize()?;
        match self.pattern {
            CallPattern::Graph => {
                let operands = buffers.iter().map(|buffers| buffers.addresses(&stream));
                replay(ranks, operator, &stream, &operands.collect::<Vec<_>>())?;
            }
            _ => self.launch_all(ranks, operator, &stream, &mut buffers, other)?,
        }
        ranks.synchronize(&stream)?;
        let mut results = Vec::new();
        for (call, buffers) in calls().zip(&buffers) {
            let mut o = floats(&stream, &buffers.o)?;
            let mut lse = stream.clone_dtoh(&buffers.lse)?;
            ranks.check()?;
            o.truncate(buffers.rows * sharding.shape.head_dim as usize);
            lse.truncate(buffers.rows);
            sharding.check(call, ranks.rank(), (&o, &lse), self.inputs)?;
            let o = o.iter().map(|x| x.to_bits());
            results.push(o.chain(lse.iter().map(|x| x.to_bits())).collect());
        }
        Ok(results)
    }

    /// Launches a call for each of `buffers`.
    fn launch_all<E: ResultElement>(
        &self,
        ranks: &Communicator,
        operator: &Operator,
        stream: &Arc<CudaStream>,
        buffers: &mut [Buffers<E>],
        other: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut delays = Random(1 + u64::from(ranks.rank()));
        for (index, buffers) in (0..).zip(buffers) {
            if let Some(calls) = self.call_count.filter(|_| index == CALLS_BEFORE) {
                set_call_count(ranks, &[operator], calls)?;
            }
            if self.pattern == CallPattern::OutOfStep {
                let us = delays.next().abs() * 2000.0;
                std::thread::sleep(Duration::from_micros(us as u64));
            }
            buffers.launch(stream, operator)?;
            other()?;
        }
        Ok(())
    }
}

impl SimulatedJob for AttentionJob {
    fn run(&self, seed: u64) -> Result<Results, String> {
        self.run_on(Backend::Simulated { seed })
    }

    fn edit(&mut self, edits: Vec<(String, String)>) {
        self.edits.extend(edits);
    }
}

/// The call count cannot be changed between the calls of one graph, so such a job launches each call.
impl CallCount for AttentionJob {
    fn with_call_count(mut self, calls: u32) -> Self {
        (self.call_count, self.pattern) = (Some(calls), CallPattern::BackToBack);
        self
    }

    fn replays_a_graph(&self) -> bool {
        self.pattern == CallPattern::Graph
    }
}
