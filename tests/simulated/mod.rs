//! Jobs on simulated GPUs, for `simulator` and `mutations`: back-to-back calls with exact results.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod attention;
mod data;
mod kept;
mod turns;

use data::{Call, is_right};
use kept::Kept;
use mkernel::cudarc::driver::DeviceRepr;
use mkernel::half::bf16;
use mkernel::{
    Activation, Addends, BLayout, Communicator, Dim, Dtype, Element, Epilogue, Error, Faults,
    GemmConfig, GemmOp, GemmShape, KernelConfig, Nic, Operator, Simulation, Transport, Tuning,
};
use std::num::NonZero;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use turns::Turn;

/// Consecutive calls of a job: two buffers are used by turns, so the third reuses the first.
pub const CALLS: u32 = 3;

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

/// Calls after which the epoch of the next but one has its highest bit set for the first time, or is 0 again.
pub const AGES: [u32; 2] = [(1 << 31) - 2, u32::MAX - 1];

/// Of an aged job: calls before it is pretended to be old, so that both buffers have been used, and after.
pub const CALLS_BEFORE: u32 = 2;
pub const CALLS_AFTER: u32 = 4;

/// What it runs on.
#[derive(Clone, Copy, Debug)]
pub enum Where {
    Simulated { seed: u64 },
    Gpus,
}

/// Bits of the results as fp32, by rank and call.
pub type Results = Vec<Vec<Vec<u32>>>;

/// What runs on simulated GPUs.
pub trait Simulated {
    /// Runs it with `seed`; an error, or what is wrong with the results.
    fn run(&self, seed: u64) -> Result<Results, String>;

    /// Replaces parts of the kernel's text, each of which must be found.
    fn edit(&mut self, edits: Vec<(String, String)>);
}

/// GPUs of a job.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub world: u32,
    pub sms: u32,
    pub skew: u32,
}

/// What C can be made of.
trait Number: Element + DeviceRepr + Copy + Into<f32> {
    /// What no kernel computes.
    const POISON: Self;
}

impl Number for bf16 {
    const POISON: Self = Self::NAN;
}

impl Number for f32 {
    const POISON: Self = Self::NAN;
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

/// The deadline of kernels, which passes in simulated time. A planted mistake may end in a trap after eight deadlines.
pub fn deadline(is_right: bool) -> std::time::Duration {
    std::time::Duration::from_secs(if is_right { 20 } else { 5 })
}

/// Pretends, on each rank at the same time, that operators that have made [`CALLS_BEFORE`] calls have made `calls`.
pub fn grow_old(ranks: &Communicator, operators: &[&Operator], calls: u32) -> Result<(), Error> {
    ranks.synchronize(&ranks.context().default_stream())?;
    ranks.barrier()?;
    for operator in operators {
        // SAFETY: all ranks have waited for their calls, and make no other before all have come here again.
        unsafe { operator.pretend_calls(CALLS_BEFORE, calls)? };
    }
    ranks.barrier()
}

/// Emulated NICs whose faults depend on the seed.
pub fn emulated(faults: &Faults, place: Where) -> Transport {
    let seed = match place {
        Where::Simulated { seed } => seed,
        Where::Gpus => 0,
    };
    Transport::Emulated {
        nic: Nic::default(),
        faults: Faults {
            seed,
            ..faults.clone()
        },
    }
}

/// Plants a mistake in a kernel's text. `from` is text that is replaced by `to`, or the tag of a line: `@name` is the line
/// that ends with the comment `// @name`. Of a tagged line, `to` is what takes its place, if anything does; or, as in
/// `a => b`, what becomes of a part of it.
pub fn apply(edits: &[(String, String)], text: &mut String) {
    for (from, to) in edits {
        *text = match from.strip_prefix('@') {
            Some(tag) => edited_line(text, tag, to),
            None => {
                assert!(text.contains(from.as_str()), "the kernel has no\n{from}");
                text.replace(from.as_str(), to)
            }
        };
    }
}

fn edited_line(text: &str, tag: &str, to: &str) -> String {
    let comment = format!("// @{tag}");
    let mut found = 0;
    let edited = |line: &str| {
        if !line.ends_with(&comment) {
            return line.to_owned();
        }
        found += 1;
        match to.split_once(" => ") {
            None => to.to_owned(),
            Some((part, other)) => {
                assert!(
                    line.contains(part),
                    "the line @{tag} has no {part}:\n{line}"
                );
                line.replace(part, other)
            }
        }
    };
    let lines: Vec<String> = text.lines().map(edited).collect();
    assert_eq!(found, 1, "lines of the kernel with the tag @{tag}");
    lines.join("\n") + "\n"
}

impl Machine {
    /// Runs `body` on every rank; the first failure ends the others' kernels.
    pub fn run<T: Send>(
        self,
        place: Where,
        body: impl Fn(&Communicator) -> Result<T, Box<dyn std::error::Error>> + Sync,
    ) -> Result<Vec<T>, String> {
        let results = self.each(place, |rank, all| {
            // The others end at once then, not at their deadlines.
            body(rank).inspect_err(|_| all.iter().for_each(Communicator::abort))
        })?;
        // What the simulator found says more than what came of it.
        let mut failures: Vec<String> = results
            .iter()
            .filter_map(|result| result.as_ref().err().cloned())
            .collect();
        failures.sort_by_key(|failure| !failure.contains("simulator found"));
        match failures.first() {
            None => Ok(results.into_iter().flatten().collect()),
            Some(failure) => Err(failure.clone()),
        }
    }

    /// Runs `body` on every rank, of all ranks; what each says.
    pub fn each<T: Send>(
        self,
        place: Where,
        body: impl Fn(&Communicator, &[Communicator]) -> Result<T, Box<dyn std::error::Error>> + Sync,
    ) -> Result<Vec<Result<T, String>>, String> {
        let world = self.world;
        let _turn = matches!(place, Where::Simulated { .. }).then(Turn::wait);
        let ranks = match place {
            Where::Simulated { seed } => Communicator::simulated(&Simulation {
                ranks: world,
                seed,
                sms: self.sms,
                skew: self.skew,
                timeline: false,
            }),
            Where::Gpus => Communicator::local(&(0..world as usize).collect::<Vec<_>>()),
        };
        let ranks = ranks.map_err(|error| error.to_string())?;
        let (all, body) = (&ranks, &body);
        std::thread::scope(|scope| {
            // Ranks stay until the last is done.
            let threads: Vec<_> = ranks
                .iter()
                .map(|rank| scope.spawn(move || body(rank, all).map_err(|e| with_causes(&*e))))
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            Ok(joined
                .map(|result| result.unwrap_or_else(|_| Err("a rank panicked".into())))
                .collect())
        })
    }
}

fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
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

/// Runs `body` for each of `items`, over all cores.
pub fn in_parallel<T: Sync>(items: &[T], body: impl Fn(&T) + Sync) {
    let next = AtomicU64::new(0);
    let cores = std::thread::available_parallelism()
        .map_or(1, NonZero::get)
        .min(8);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    body(item);
                }
            });
        }
    });
}

/// `job` with replacements in its kernel's text: a planted mistake.
pub fn planted<J: Simulated>(mut job: J, edits: &[(&str, &str)]) -> J {
    let owned = |(from, to): &(&str, &str)| ((*from).to_owned(), (*to).to_owned());
    job.edit(edits.iter().map(owned).collect());
    job
}

/// Of each mistake, by name, some seed below `seeds` finds something.
pub fn all_are_found<J: Simulated + Sync>(mistakes: &[(&str, J)], seeds: u64) {
    none_fails(mistakes, |(name, job)| {
        let started = std::time::Instant::now();
        let found = (0..seeds).find_map(|seed| Some((seed, job.run(seed).err()?)));
        let (seed, failure) = found.ok_or(format!("{name}: not found"))?;
        let mut lines = failure.lines();
        let line = lines.find(|line| !line.contains("simulator found"));
        println!(
            "{name}: seed {seed}, {:?}: {}",
            started.elapsed(),
            line.unwrap_or("")
        );
        // A text that does not compile, or a replacement that finds nothing, proves nothing.
        let nothing = ["does not compile", "a rank panicked"];
        match nothing.iter().any(|text| failure.contains(text)) {
            true => Err(format!("{name}: {failure}")),
            false => Ok(()),
        }
    });
}

/// What can be as old as if it had made many calls.
pub trait Ages: Simulated + Clone {
    /// The same, that old after [`CALLS_BEFORE`] calls.
    fn at_age(self, calls: u32) -> Self;
}

impl Ages for Job {
    fn at_age(mut self, calls: u32) -> Self {
        self.age = Some(calls);
        self
    }
}

/// Each job, by name, is right when the count of its calls passes 2^31 and 2^32, and has the same bits both times.
pub fn all_are_right_when_old<J: Ages + Sync>(jobs: &[(impl AsRef<str> + Sync, J)]) {
    none_fails(jobs, |(name, job)| {
        let name = name.as_ref();
        let mut first = None;
        for (seed, age) in (0..).zip(AGES) {
            let results = job.clone().at_age(age).run(seed);
            let results = results.map_err(|failure| format!("{name}, {age} calls: {failure}"))?;
            if *first.get_or_insert_with(|| results.clone()) != results {
                return Err(format!("{name}, {age} calls: other bits than before"));
            }
        }
        Ok(())
    });
}

/// Each job, by name, is right with all seeds below `seeds`.
pub fn all_are_right<J: Simulated + Sync>(jobs: &[(impl AsRef<str> + Sync, J)], seeds: u64) {
    none_fails(jobs, |(name, job)| {
        always_right(name.as_ref(), job, 0..seeds)
    });
}

/// Does `body` for each of `items`, over all cores; then panics with all that failed.
pub fn none_fails<T: Sync>(items: &[T], body: impl Fn(&T) -> Result<(), String> + Sync) {
    let failures = Mutex::new(Vec::new());
    in_parallel(items, |item| {
        if let Err(failure) = body(item) {
            failures.lock().expect("no panic").push(failure);
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Runs `job` with all `seeds`: right every time, and the same bits. Failures are told with their seeds.
pub fn always_right(name: &str, job: &impl Simulated, seeds: Range<u64>) -> Result<(), String> {
    let first: Mutex<Option<Results>> = Mutex::default();
    for seed in seeds {
        let results = job
            .run(seed)
            .map_err(|failure| format!("{name}, seed {seed}: {failure}"))?;
        let mut first = first.lock().map_err(|_| "a run panicked")?;
        if first.get_or_insert_with(|| results.clone()) != &results {
            return Err(format!("{name}, seed {seed}: other bits than before"));
        }
    }
    Ok(())
}
