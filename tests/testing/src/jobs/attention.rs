//! Jobs of attention, whose results are compared with fp64.

mod reference;

pub use reference::Data;

use reference::{Call, Place, Random};

use super::kept::Kept;
use super::{
    Ages, CALLS_AFTER, CALLS_BEFORE, Machine, Results, Simulated, Where, apply, emulated, grow_old,
    replay,
};
use mkernel::cudarc::driver::DevicePtr;
use mkernel::half::bf16;
use mkernel::spec::abi::Operand;
use mkernel::{
    AttentionConfig, AttentionOp, AttentionTuning, Communicator, Dim, Faults, KernelConfig, Layout,
    Operator, Placement, Scale,
};
use std::time::Duration;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Consecutive calls of a job: each has data of its own.
pub const CALLS: u32 = 3;

/// How calls follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Without a pause.
    BackToBack,
    /// Ranks are late, each when it likes.
    OutOfStep,
    /// As a graph, which is replayed.
    Graph,
    /// A rank makes none.
    Without { rank: u32 },
    /// A rank does not make the last.
    WithoutLast { rank: u32 },
}

/// What is run.
#[derive(Clone, Debug)]
pub struct AttentionJob {
    pub config: AttentionConfig,
    pub machine: Machine,
    /// Into which its GPUs are put.
    pub nodes: u32,
    /// Of the network between them; seeded anew in each run.
    pub faults: Faults,
    pub data: Data,
    pub pace: Pace,
    /// As of a [`Job`](super::Job).
    pub age: Option<u32>,
    pub edits: Vec<(String, String)>,
}

impl AttentionJob {
    /// `[B, S, H, H of K and V, D]` on `world` ranks.
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
            data: Data::Random,
            pace: Pace::BackToBack,
            age: None,
            edits: Vec::new(),
        }
    }

    /// Over so many nodes, with a network of these faults between them.
    pub fn across(mut self, nodes: u32, faults: Faults) -> Self {
        (self.nodes, self.faults) = (nodes, faults);
        self
    }

    /// With so many CTAs that push.
    pub fn pushed_by(mut self, comm_ctas: u32) -> Self {
        self.config.tuning.comm_ctas = Some(comm_ctas);
        self
    }

    pub fn causal(mut self, placement: Placement) -> Self {
        self.config.causal = true;
        self.config.placement = placement;
        self
    }

    pub fn zigzag(mut self) -> Self {
        self.config.placement = Placement::Zigzag;
        self
    }

    pub fn bhsd(mut self) -> Self {
        self.config.layout = Layout::Bhsd;
        self
    }

    pub fn scale(mut self, scale: f32) -> Self {
        self.config.scale = Scale::new(scale);
        self
    }

    /// With room for so many heads of K and V, and so many CTAs that push.
    pub fn slots(mut self, kv_slots: u32, comm_ctas: u32) -> Self {
        self.config.tuning = AttentionTuning {
            comm_ctas: Some(comm_ctas),
            kv_slots: Some(kv_slots),
        };
        self
    }

    pub fn of(mut self, data: Data) -> Self {
        self.data = data;
        self
    }

    pub fn at(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Runs it.
    pub fn run_on(&self, place: Where) -> Result<Results, String> {
        let calls = self.calls();
        let transport = emulated(&self.faults, place);
        self.machine.run(place, |ranks| {
            ranks.set_transport(transport.clone());
            let edit = |text: &mut String| apply(&self.edits, text);
            // SAFETY: planted mistakes are for simulated GPUs, which check every access of a kernel.
            let operator =
                unsafe { ranks.prepare_edited(&self.kernel(), self.place().shape, edit) }?;
            let found = self.rank(ranks, &operator, calls, &|| Ok(()));
            found.map_err(|failure| failure as Box<dyn std::error::Error>)
        })
    }

    /// Runs it on a rank that launches something else behind each call; an error if a result is wrong.
    pub fn run_beside(
        &self,
        ranks: &Communicator,
        other: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let operator = ranks.prepare(&self.kernel(), self.place().shape)?;
        self.rank(ranks, &operator, self.calls(), other)?;
        Ok(())
    }

    /// Operands and results of all calls, which take a CPU long.
    pub fn calls(&self) -> &'static [Call] {
        static ALL: Kept<Vec<Call>> = Kept::new();
        let (config, place, data) = (&self.config, self.place(), self.data);
        ALL.get(format!("{config:?} {} {data:?}", place.world), || {
            (0..CALLS)
                .map(|call| Call::new(config, place, data, call))
                .collect()
        })
    }

    /// As it is declared.
    pub fn kernel(&self) -> KernelConfig {
        KernelConfig {
            nodes: self.nodes,
            ..KernelConfig::new(self.machine.world, self.config)
        }
    }

    fn place(&self) -> Place {
        Place {
            shape: self.config.shape().expect("sizes"),
            layout: self.config.layout,
            placement: self.config.placement,
            world: self.machine.world,
        }
    }

    fn rank(
        &self,
        ranks: &Communicator,
        operator: &Operator,
        calls: &[Call],
        other: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<Vec<Vec<u32>>, Failure> {
        // The kernel's own deadlines pass in simulated time.
        ranks.set_timeout(match self.pace {
            Pace::Without { .. } => Duration::from_millis(300),
            _ => super::deadline(self.edits.is_empty()),
        });
        if self.pace == (Pace::Without { rank: ranks.rank() }) {
            return Ok(Vec::new());
        }
        let place = self.place();
        let stream = match self.pace {
            // The default stream cannot be captured.
            Pace::Graph => ranks.context().new_stream()?,
            _ => ranks.context().default_stream(),
        };
        let rank = ranks.rank();
        let mut buffers = Vec::new();
        let count = self.age.map_or(CALLS, |_| CALLS_BEFORE + CALLS_AFTER);
        let calls = || calls.iter().cycle().take(count as usize);
        for call in calls() {
            let mut inputs = Vec::new();
            for (whole, heads) in [
                (&call.q, place.shape.heads),
                (&call.k, place.shape.kv_heads),
                (&call.v, place.shape.kv_heads),
            ] {
                let mut own = place.shard(whole, heads, rank);
                own.resize(own.len().max(1), bf16::NAN); // an allocation cannot be empty
                inputs.push(stream.clone_htod(&own)?);
            }
            let rows = place.rows(rank).len() * (place.shape.batch * place.shape.heads) as usize;
            let elems = rows * place.shape.head_dim as usize;
            let o = stream.clone_htod(&vec![bf16::from_f32(77.0); elems.max(1)])?;
            let lse = stream.clone_htod(&vec![77.0f32; rows.max(1)])?;
            buffers.push((inputs, o, lse, rows));
        }
        stream.synchronize()?;
        match self.pace {
            Pace::Graph => {
                let operands = buffers.iter().map(|(inputs, o, lse, _)| {
                    let inputs = inputs.iter().map(|x| x.device_ptr(&stream).0);
                    let results = [o.device_ptr(&stream).0, lse.device_ptr(&stream).0];
                    inputs.chain(results).collect()
                });
                replay(operator, &stream, &operands.collect::<Vec<_>>())?;
            }
            _ => {
                let mut delays = Random(1 + u64::from(rank));
                for (index, (inputs, o, lse, _)) in (0..).zip(&mut buffers) {
                    if let Some(age) = self.age.filter(|_| index == CALLS_BEFORE) {
                        grow_old(ranks, &[operator], age)?;
                    }
                    if self.pace == Pace::OutOfStep {
                        let us = delays.next().abs() * 2000.0;
                        std::thread::sleep(Duration::from_micros(us as u64));
                    }
                    operator
                        .call(&stream)
                        .read(Operand::Q, &inputs[0])
                        .read(Operand::K, &inputs[1])
                        .read(Operand::V, &inputs[2])
                        .write(Operand::O, o)
                        .write(Operand::Lse, lse)
                        .launch()?;
                    other()?;
                }
            }
        }
        ranks.synchronize(&stream)?;
        let mut results = Vec::new();
        for (call, (_, o, lse, rows)) in calls().zip(&buffers) {
            let mut o = stream.clone_dtoh(o)?;
            let mut lse = stream.clone_dtoh(lse)?;
            ranks.check()?;
            o.truncate(rows * place.shape.head_dim as usize);
            lse.truncate(*rows);
            place.judge(call, rank, (&o, &lse), self.data)?;
            let o = o.iter().map(|x| x.to_f32().to_bits());
            results.push(o.chain(lse.iter().map(|x| x.to_bits())).collect());
        }
        Ok(results)
    }
}

impl Simulated for AttentionJob {
    fn run(&self, seed: u64) -> Result<Results, String> {
        self.run_on(Where::Simulated { seed })
    }

    fn edit(&mut self, edits: Vec<(String, String)>) {
        self.edits.extend(edits);
    }
}

/// Calls of a graph cannot be told from each other, so an old job makes them one by one.
impl Ages for AttentionJob {
    fn at_age(mut self, calls: u32) -> Self {
        (self.age, self.pace) = (Some(calls), Pace::BackToBack);
        self
    }
}

/// Jobs that CPUs can do: odd lengths, masks, both placements and layouts, heads that share K and V, ranks without rows,
/// and few slots.
pub fn small(world: u32) -> Vec<(String, AttentionJob)> {
    use Placement::{Contiguous, Zigzag};
    let job = |sizes, sms| AttentionJob::new(world, sizes, sms);
    let mut jobs = vec![
        ("all keys", job([1, 260, 2, 2, 64], 3)),
        ("wide heads", job([1, 257, 2, 1, 128], 2).bhsd()),
        ("a mask", job([1, 301, 2, 1, 64], 3).causal(Contiguous)),
        ("zigzag", job([2, 150, 2, 1, 64], 3).causal(Zigzag).bhsd()),
        (
            "zigzag, all keys",
            job([1, 299, 2, 2, 64], 3).zigzag().scale(0.3),
        ),
        ("a graph", job([1, 140, 2, 2, 64], 2).at(Pace::Graph)),
        ("a row", job([2, 1, 3, 3, 64], 2)),
        (
            "scores of all sizes",
            job([1, 200, 2, 1, 64], 2).of(Data::Extreme),
        ),
        ("not finite", job([1, 200, 4, 2, 64], 2).of(Data::NotFinite)),
        (
            "not finite, a mask",
            job([1, 200, 2, 2, 64], 2)
                .causal(Zigzag)
                .of(Data::NotFinite),
        ),
    ];
    if world > 1 {
        jobs.extend([
            ("one slot", job([2, 150, 2, 2, 64], 3).slots(1, 1)),
            (
                "one slot, a graph",
                job([2, 100, 2, 1, 64], 2).slots(1, 1).at(Pace::Graph),
            ),
            ("two slots", job([3, 260, 2, 1, 64], 4).slots(2, 2).bhsd()),
            (
                "one slot, a mask",
                job([1, 300, 4, 2, 64], 3).slots(1, 1).causal(Zigzag),
            ),
            (
                "two slots, a mask",
                job([1, 150, 6, 3, 64], 2).slots(2, 1).causal(Contiguous),
            ),
        ]);
    }
    let name = |(name, job)| (format!("attention, {name}, on {world} ranks"), job);
    jobs.into_iter().map(name).collect()
}
