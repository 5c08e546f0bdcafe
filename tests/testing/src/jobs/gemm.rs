//! Jobs of GEMMs.

use super::data::{Call, is_right};
use super::kept::Kept;
use super::machine::{Machine, emulated};
use super::mistakes::apply;
use super::runs::Ages;
use super::simulated::{
    CALLS, CALLS_AFTER, CALLS_BEFORE, Number, Results, Simulated, Where, deadline, grow_old,
};
use mkernel::half::bf16;
use mkernel::{
    Activation, Addends, BLayout, Communicator, Dim, Dtype, Epilogue, Error, Faults, GemmConfig,
    GemmOp, GemmShape, KernelConfig, Operator, Tuning,
};

/// What is run.
#[derive(Clone, Debug)]
pub struct Job {
    pub world: u32,
    /// Into which they are put.
    pub nodes: u32,
    /// Of the network between them; seeded anew in each run.
    pub faults: Faults,
    pub config: GemmConfig,
    pub shape: GemmShape,
    pub sms: u32,
    pub skew: u32,
    /// Calls that are pretended to have been made when two have been; then four follow.
    pub age: Option<u32>,
    /// Replacements in the kernel's text, each of which must be found.
    pub edits: Vec<(String, String)>,
}

impl Job {
    /// The kernel as it is rendered.
    pub fn new(world: u32, config: GemmConfig, shape: GemmShape, sms: u32) -> Self {
        Self {
            world,
            nodes: 1,
            faults: Faults::default(),
            config,
            shape,
            sms,
            skew: 60,
            age: None,
            edits: Vec::new(),
        }
    }

    fn calls(&self) -> &'static [Call] {
        static ALL: Kept<Vec<Call>> = Kept::new();
        let (config, world, shape) = (&self.config, self.world, self.shape);
        ALL.get(format!("{config:?} {world} {shape:?}"), || {
            (0..CALLS)
                .map(|call| Call::new(config, world, shape, call))
                .collect()
        })
    }

    /// Runs it.
    pub fn run_on(&self, place: Where) -> Result<Results, String> {
        let machine = Machine {
            world: self.world,
            sms: self.sms,
            skew: self.skew,
        };
        let transport = emulated(&self.faults, place);
        machine.run(place, |ranks| {
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

    fn rank_of<E: Number>(
        &self,
        ranks: &Communicator,
    ) -> Result<Vec<Vec<u32>>, Box<dyn std::error::Error>> {
        ranks.set_timeout(deadline(self.edits.is_empty()));
        let operator = self.prepare(ranks)?;
        let stream = ranks.context().default_stream();
        let rank = ranks.rank() as usize;
        let mut buffers = Vec::new();
        let count = self.age.map_or(CALLS, |_| CALLS_BEFORE + CALLS_AFTER);
        let calls = || self.calls().iter().cycle().take(count as usize);
        for call in calls() {
            let mut given = Vec::new();
            for operand in [&call.a, &call.b, &call.bias, &call.residual] {
                // An allocation cannot be empty.
                let values = Some(operand[rank].as_slice()).filter(|values| !values.is_empty());
                given.push(stream.clone_htod(values.unwrap_or(&[bf16::NAN]))?);
            }
            let c = stream.clone_htod(&vec![E::POISON; call.expected[rank].len().max(1)])?;
            buffers.push((given, c));
        }
        stream.synchronize()?;
        let epilogue = self.config.epilogue;
        for (index, (given, c)) in (0..).zip(&mut buffers) {
            if let Some(age) = self.age.filter(|_| index == CALLS_BEFORE) {
                grow_old(ranks, &[&operator], age)?;
            }
            let addends = Addends {
                bias: epilogue.bias.then_some(&given[2]),
                residual: epilogue.residual.then_some(&given[3]),
            };
            operator.launch_with(&stream, &given[0], &given[1], c, addends)?;
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
        // SAFETY: planted mistakes are for simulated GPUs, which check every access of a kernel.
        unsafe { ranks.prepare_edited(&config, self.shape, |text| apply(&self.edits, text)) }
    }
}

impl Simulated for Job {
    fn run(&self, seed: u64) -> Result<Results, String> {
        self.run_on(Where::Simulated { seed })
    }

    fn edit(&mut self, edits: Vec<(String, String)>) {
        self.edits = edits;
    }
}

impl Ages for Job {
    fn at_age(mut self, calls: u32) -> Self {
        self.age = Some(calls);
        self
    }
}

/// Jobs that GPUs and simulated GPUs do with the same bits: whole tiles, tails, several rounds, one row.
pub fn agreed(world: u32) -> Vec<(String, Job)> {
    const SHAPES: [(u64, u64, u64); 5] = [
        (128, 256, 256),
        (150, 264, 136),
        (1, 8, 8),
        (256, 520, 72),
        (77, 136, 256),
    ];
    let plain = Epilogue::default();
    // Whole numbers stay exact.
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
        (name, Job::new(world, config, GemmShape { m, n, k }, 8))
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
