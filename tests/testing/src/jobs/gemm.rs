//! Jobs of the GEMM operators. The results are whole numbers, so every bit of them is known.

use super::data::{CallData, is_right};
use super::machine::{Machine, emulated};
use super::memo::Memo;
use super::mutations::apply_edits;
use super::runs::CallCount;
use super::simulated::{
    Backend, CALLS, CALLS_AFTER, CALLS_BEFORE, ResultElement, Results, SimulatedJob, deadline,
    set_call_count,
};
use mkernel::half::bf16;
use mkernel::testing::prepare_edited;
use mkernel::{
    Communicator, Error, KernelConfig, Operator,
    network::Faults,
    operands::Addends,
    spec::{Activation, BLayout, Dim, Dtype, Epilogue, GemmConfig, GemmOp, GemmShape, Tuning},
};

/// Several calls of a GEMM operator on all ranks.
#[derive(Clone, Debug)]
pub struct GemmJob {
    /// The number of ranks.
    pub world: u32,
    /// The number of nodes that the ranks are divided into.
    pub nodes: u32,
    /// The faults of the emulated network between the nodes. Each run sets their seed.
    pub faults: Faults,
    /// The configuration of the kernel.
    pub config: GemmConfig,
    /// The sizes for which the operator is prepared.
    pub shape: GemmShape,
    /// The number of SMs of a simulated GPU.
    pub sms: u32,
    /// How unfair the schedule of simulated GPUs is, from 0 to 100.
    pub skew: u32,
    /// If set, the call count of the operator is set to this number after two calls, and four more calls follow.
    pub call_count: Option<u32>,
    /// The edits of the kernel's text, as [`mutated`](super::mutated) takes them.
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
            edits: Vec::new(),
        }
    }

    /// Returns the data of the calls, which is computed once for each configuration.
    fn calls(&self) -> &'static [CallData] {
        static ALL: Memo<Vec<CallData>> = Memo::new();
        let (config, world, shape) = (&self.config, self.world, self.shape);
        ALL.get(format!("{config:?} {world} {shape:?}"), || {
            (0..CALLS)
                .map(|call| CallData::new(config, world, shape, call))
                .collect()
        })
    }

    /// Runs the job and returns its results.
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
            self.rank(ranks)
        })
    }

    fn rank(&self, ranks: &Communicator) -> Result<Vec<Vec<u32>>, Box<dyn std::error::Error>> {
        match self.config.epilogue.output {
            Dtype::Bf16 => self.rank_of::<bf16>(ranks),
            _ => self.rank_of::<f32>(ranks),
        }
    }

    fn rank_of<E: ResultElement>(
        &self,
        ranks: &Communicator,
    ) -> Result<Vec<Vec<u32>>, Box<dyn std::error::Error>> {
        ranks.set_timeout(deadline(self.edits.is_empty()));
        let operator = self.prepare(ranks)?;
        let stream = ranks.context().default_stream();
        let rank = ranks.rank() as usize;
        let mut buffers = Vec::new();
        let count = self
            .call_count
            .map_or(CALLS, |_| CALLS_BEFORE + CALLS_AFTER);
        let calls = || self.calls().iter().cycle().take(count as usize);
        for call in calls() {
            let mut inputs = Vec::new();
            for operand in [&call.a, &call.b, &call.bias, &call.residual] {
                // An allocation cannot be empty.
                let values = Some(operand[rank].as_slice()).filter(|values| !values.is_empty());
                inputs.push(stream.clone_htod(values.unwrap_or(&[bf16::NAN]))?);
            }
            let c = stream.clone_htod(&vec![E::POISON; call.expected[rank].len().max(1)])?;
            buffers.push((inputs, c));
        }
        stream.synchronize()?;
        let epilogue = self.config.epilogue;
        for (index, (inputs, c)) in (0..).zip(&mut buffers) {
            if let Some(calls) = self.call_count.filter(|_| index == CALLS_BEFORE) {
                set_call_count(ranks, &[&operator], calls)?;
            }
            let addends = Addends {
                bias: epilogue.bias.then_some(&inputs[2]),
                residual: epilogue.residual.then_some(&inputs[3]),
            };
            operator.launch_with(&stream, &inputs[0], &inputs[1], c, addends)?;
        }
        ranks.synchronize(&stream)?;
        let mut results = Vec::new();
        for (call, (_, c)) in calls().zip(&buffers) {
            let got: Vec<f32> = stream.clone_dtoh(c)?.into_iter().map(Into::into).collect();
            ranks.check()?;
            let wrong = got
                .iter()
                .zip(&call.expected[rank])
                .filter(|(got, want)| !is_right(**got, **want, epilogue))
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

    fn prepare(&self, ranks: &Communicator) -> Result<Operator, Error> {
        let config = KernelConfig {
            nodes: self.nodes,
            ..KernelConfig::new(self.world, self.config)
        };
        // SAFETY: mutated kernels run on simulated GPUs only, which check every access.
        unsafe {
            prepare_edited(ranks, &config, self.shape, |text| {
                apply_edits(&self.edits, text)
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
        self.call_count = Some(calls);
        self
    }
}

/// Returns jobs that run on simulated GPUs and on real ones, and must give the same bits on both. Their shapes have
/// whole tiles, partial tiles, several rounds of tiles, and a single row.
pub fn common_jobs(world: u32) -> Vec<(String, GemmJob)> {
    const SHAPES: [(u64, u64, u64); 5] = [
        (128, 256, 256),
        (150, 264, 136),
        (1, 8, 8),
        (256, 520, 72),
        (77, 136, 256),
    ];
    let plain = Epilogue::default();
    // With ReLU, whole numbers stay exact.
    let finished = Epilogue {
        bias: true,
        residual: true,
        activation: Activation::Relu,
        output: Dtype::Bf16,
    };
    let fp32 = Epilogue {
        output: Dtype::Fp32,
        ..finished
    };
    let job = |op: GemmOp, index: usize, epilogue: Epilogue| {
        let (m, n, k) = SHAPES[index];
        let layouts = [BLayout::Nk, BLayout::Kn];
        let config = GemmConfig {
            op,
            m: Dim::Static(m),
            n: Dim::Static(n),
            k: Dim::Static(k),
            b_layout: layouts[index % 2],
            epilogue,
            tuning: Tuning::default(),
        };
        let name = format!(
            "{}{} of {m}x{n}x{k} on {world} ranks",
            op.name(),
            epilogue.suffix()
        );
        (name, GemmJob::new(world, config, GemmShape { m, n, k }, 8))
    };
    let jobs = (0..SHAPES.len()).map(|index| (index, plain));
    let jobs: Vec<_> = jobs
        .chain([(1, finished), (1, fp32), (4, finished)])
        .collect();
    let of = |op: GemmOp| {
        jobs.iter()
            .map(move |(index, epilogue)| (op, *index, *epilogue))
    };
    GemmOp::ALL
        .into_iter()
        .flat_map(of)
        .map(|(op, index, epilogue)| job(op, index, epilogue))
        .collect()
}
