//! Jobs of attention, whose results are compared with fp64.

use super::{Machine, Results, Simulated, Where, apply};
use mkernel::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use mkernel::cudarc::driver::{CudaStream, DevicePtr};
use mkernel::half::bf16;
use mkernel::spec::abi::{Operand, OperandSpec};
use mkernel::{
    AttentionConfig, AttentionOp, AttentionShape, AttentionTuning, Communicator, Dim, KernelConfig,
    Layout, Operator, Placement, RawOperand, Scale,
};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Consecutive calls of a job: each has data of its own.
pub const CALLS: u32 = 3;

/// What Q, K and V hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Numbers in -1 .. 1.
    Random,
    /// Scores up to some ten thousand, of both signs.
    Extreme,
    /// Some keys of -inf, some rows of queries all of whose scores are -inf, some of NaN.
    NotFinite,
}

/// How calls follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Without a pause.
    BackToBack,
    /// Ranks are late, each when it likes.
    OutOfStep,
    /// As a graph, which is replayed.
    Graph,
}

/// What is run.
#[derive(Clone, Debug)]
pub struct AttentionJob {
    pub config: AttentionConfig,
    pub machine: Machine,
    pub data: Data,
    pub pace: Pace,
    pub edits: Vec<(String, String)>,
    /// Made by the first run.
    calls: Arc<OnceLock<Vec<Call>>>,
}

/// Rows of each rank are a part of the sequence: the plan's words, written anew.
#[derive(Clone, Copy)]
struct Place {
    shape: AttentionShape,
    layout: Layout,
    placement: Placement,
    world: u32,
}

/// Operands of the whole sequence by `[B, H, S, D]`, and what becomes of them.
#[derive(Debug)]
pub struct Call {
    q: Vec<bf16>,
    k: Vec<bf16>,
    v: Vec<bf16>,
    o: Vec<Wanted>,
    lse: Vec<f64>,
}

/// An element of O.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    value: f64,
    /// Weights are rounded to bf16 before they meet V: the sum of |weight · V|.
    magnitude: f64,
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
            data: Data::Random,
            pace: Pace::BackToBack,
            edits: Vec::new(),
            calls: Arc::default(),
        }
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
        let config = KernelConfig::new(self.machine.world, self.config);
        self.machine.run(place, |ranks| {
            let edit = |text: &mut String| apply(&self.edits, text);
            let operator = ranks.prepare_edited(&config, self.place().shape, edit)?;
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
        let config = KernelConfig::new(self.machine.world, self.config);
        let operator = ranks.prepare(&config, self.place().shape)?;
        self.rank(ranks, &operator, self.calls(), other)?;
        Ok(())
    }

    /// Operands and results of all calls, which take a CPU long.
    pub fn calls(&self) -> &[Call] {
        self.calls
            .get_or_init(|| (0..CALLS).map(|call| self.call(call)).collect())
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
        ranks.set_timeout(Duration::from_secs(20));
        let place = self.place();
        let stream = match self.pace {
            // The default stream cannot be captured.
            Pace::Graph => ranks.context().new_stream()?,
            _ => ranks.context().default_stream(),
        };
        let rank = ranks.rank();
        let mut buffers = Vec::new();
        for call in calls {
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
            Pace::BackToBack | Pace::OutOfStep => {
                let mut delays = Random(1 + u64::from(rank));
                for (inputs, o, lse, _) in &mut buffers {
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
        for (call, (_, o, lse, rows)) in calls.iter().zip(&buffers) {
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

    fn call(&self, number: u32) -> Call {
        let shape = self.place().shape;
        let mut random = Random(u64::from(number) + 1);
        let mut fill = |heads: u64, size: f32| -> Vec<bf16> {
            let elems = shape.batch * heads * shape.seq * shape.head_dim;
            let element = |_| bf16::from_f32(random.next() * size);
            (0..elems).map(element).collect()
        };
        let size = if self.data == Data::Extreme {
            100.0
        } else {
            1.0
        };
        let mut q = fill(shape.heads, size);
        let mut k = fill(shape.kv_heads, size);
        let v = fill(shape.kv_heads, 1.0);
        if self.data == Data::NotFinite {
            let dim = shape.head_dim as usize;
            // Queries above 0 and keys of -inf have scores of -inf, without NaN. Every third key is such; in the first
            // head all are.
            q.iter_mut()
                .for_each(|x| *x = bf16::from_f32(x.to_f32().abs() + 0.5));
            for (row, key) in k.chunks_mut(dim).enumerate() {
                if row % 3 == 1 || row < shape.seq as usize {
                    key.fill(bf16::NEG_INFINITY);
                }
            }
            for query in q.chunks_mut(dim).skip(5).step_by(11) {
                query[0] = bf16::NAN;
            }
        }
        let mut call = Call {
            q,
            k,
            v,
            o: Vec::new(),
            lse: Vec::new(),
        };
        self.attend(&mut call);
        call
    }

    /// Fills in what should come out.
    fn attend(&self, call: &mut Call) {
        let shape = self.place().shape;
        let (seq, dim) = (shape.seq as usize, shape.head_dim as usize);
        let scale = self.config.scale.of(shape.head_dim);
        let per_kv = (shape.heads / shape.kv_heads) as usize;
        let of_head = |all: &[bf16], head: usize| -> Vec<f64> {
            let elems = &all[head * seq * dim..][..seq * dim];
            elems.iter().map(|x| x.to_f64()).collect()
        };
        for head in 0..(shape.batch * shape.heads) as usize {
            let q = of_head(&call.q, head);
            let (k, v) = (
                of_head(&call.k, head / per_kv),
                of_head(&call.v, head / per_kv),
            );
            for (row, q) in q.chunks(dim).enumerate() {
                let end = if self.config.causal { row + 1 } else { seq };
                let keys = k.chunks(dim).take(end);
                let scores: Vec<f64> = keys.map(|k| dot(q, k) * scale).collect();
                let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| weight(*score, top)).collect();
                let sum: f64 = weights.iter().sum();
                call.lse.push(if sum == 0.0 {
                    f64::NEG_INFINITY
                } else {
                    top + sum.ln()
                });
                let mut o = vec![Wanted::default(); dim];
                if sum != 0.0 {
                    for (weight, v) in weights.iter().zip(v.chunks(dim)) {
                        let weight = weight / sum;
                        for (o, v) in o.iter_mut().zip(v) {
                            o.value += weight * v;
                            o.magnitude += weight * v.abs();
                        }
                    }
                }
                call.o.extend(o);
            }
        }
    }
}

impl Simulated for AttentionJob {
    fn run(&self, seed: u64) -> Result<Results, String> {
        self.run_on(Where::Simulated { seed })
    }

    fn edit(&mut self, edits: Vec<(String, String)>) {
        self.edits = edits;
    }
}

/// Captures calls on operands at `addresses`, and replays them twice.
fn replay(
    operator: &Operator,
    stream: &Arc<CudaStream>,
    addresses: &[Vec<u64>],
) -> Result<(), Failure> {
    let specs = &operator.plan().operands;
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    for of_call in addresses {
        let operand = |(ptr, spec): (&u64, &OperandSpec)| RawOperand {
            ptr: *ptr,
            row_stride_elems: spec.cols,
        };
        let operands: Vec<_> = of_call.iter().zip(specs).map(operand).collect();
        // SAFETY: the operands are the plan's, in its order; the caller waits for the stream before it drops them.
        unsafe { operator.launch_raw(stream.cu_stream(), &operands) }?;
    }
    let graph = stream.end_capture(CUgraphInstantiate_flags(0))?;
    let graph = graph.ok_or("nothing was captured")?;
    graph.launch()?;
    graph.launch()?;
    // The graph goes when this ends.
    Ok(stream.synchronize()?)
}

/// A row all of whose scores are -inf attends to nothing, as in torch.
fn weight(score: f64, top: f64) -> f64 {
    match score == f64::NEG_INFINITY {
        true => 0.0,
        false => (score - top).exp(),
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Place {
    /// The places in the sequence of a rank's rows.
    fn rows(self, rank: u32) -> Vec<usize> {
        let chunks: Vec<u32> = match self.placement {
            Placement::Contiguous => vec![rank],
            Placement::Zigzag => vec![rank, 2 * self.world - 1 - rank],
        };
        let rows = self
            .shape
            .seq
            .div_ceil(u64::from(self.world) * chunks.len() as u64);
        let chunk = |chunk: u32| {
            let first = u64::from(chunk) * rows;
            first..(first + rows).min(self.shape.seq)
        };
        let rows = chunks.into_iter().flat_map(chunk);
        rows.map(|row| row as usize).collect()
    }

    /// `[B, H, S, D]` of all ranks as one rank has it.
    fn shard<T: Copy>(self, whole: &[T], heads: u64, rank: u32) -> Vec<T> {
        let (seq, heads) = (self.shape.seq as usize, heads as usize);
        let dim = whole.len() / (self.shape.batch as usize * heads * seq);
        let rows = self.rows(rank);
        let row_of = |batch: usize, head: usize, row: usize| {
            let at = ((batch * heads + head) * seq + row) * dim;
            whole[at..at + dim].iter().copied()
        };
        let mut shard = Vec::new();
        for batch in 0..self.shape.batch as usize {
            match self.layout {
                Layout::Bshd => {
                    for row in &rows {
                        (0..heads).for_each(|head| shard.extend(row_of(batch, head, *row)));
                    }
                }
                Layout::Bhsd => {
                    for head in 0..heads {
                        rows.iter()
                            .for_each(|row| shard.extend(row_of(batch, head, *row)));
                    }
                }
            }
        }
        shard
    }

    fn judge(
        self,
        call: &Call,
        rank: u32,
        (o, lse): (&[bf16], &[f32]),
        data: Data,
    ) -> Result<(), String> {
        // The rounding of a large score in fp32 is part of the weight.
        let slack = if data == Data::Extreme { 4.0 } else { 1.0 };
        let wanted = self.shard(&call.o, self.shape.heads, rank);
        let is_right = |got: &bf16, want: &Wanted| {
            let near = (got.to_f64() - want.value).abs()
                <= slack * (want.value.abs() + want.magnitude) / 256.0 + 1e-30;
            near || (got.is_nan() && want.value.is_nan())
        };
        let wrong_o = wrong(o, &wanted, is_right);
        // [B, H, S], whatever the layout.
        let by_head = Self {
            layout: Layout::Bhsd,
            ..self
        };
        let wanted = by_head.shard(&call.lse, self.shape.heads, rank);
        let is_right = |got: &f32, want: &f64| {
            let got = f64::from(*got);
            got == *want
                || (got - want).abs() <= 1e-5 + slack * want.abs() * 1e-6
                || (got.is_nan() && want.is_nan())
        };
        let wrong_lse = wrong(lse, &wanted, is_right);
        match (wrong_o, wrong_lse) {
            (0, 0) => Ok(()),
            _ => Err(format!(
                "rank {rank}: {wrong_o} of {} elements of O and {wrong_lse} of {} of LSE are wrong",
                o.len(),
                lse.len()
            )),
        }
    }
}

fn wrong<A, B>(got: &[A], wanted: &[B], is_right: impl Fn(&A, &B) -> bool) -> usize {
    assert_eq!(got.len(), wanted.len());
    got.iter()
        .zip(wanted)
        .filter(|(got, want)| !is_right(got, want))
        .count()
}

/// Numbers that depend on the call.
struct Random(u64);

impl Random {
    /// In -1 .. 1.
    fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
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
