//! Decoding with a stack of Llama blocks under tensor parallelism, on tensors of candle.
//!
//! Column-parallel layers are products of candle. Row-parallel layers are `RowParallel`, the operator `gemm_ar`: one kernel
//! multiplies and adds up the ranks' products. `all_gather` gathers the logits. On GPUs, a step is a CUDA graph.
//!
//! The model runs on 1, 2 and 4 ranks, and must generate equal tokens in all worlds. Then it runs with candle's products
//! and NCCL, if NCCL is installed.
//!
//! ```text
//! MKERNEL_DEVICE=sim cargo run --release --example candle_llama     # a toy model on simulated GPUs, on any machine
//! cargo run --release --example candle_llama --features cuda        # Llama 3 8B on the GPUs of this host
//! cargo run --release --example candle_llama --features cuda -- --config config.json model-*.safetensors
//! ```
//!
//! The feature `cuda` needs nvcc, and simulated GPUs are not available with it.

#[path = "candle_llama/decode.rs"]
pub(crate) mod decode;
#[path = "candle_llama/model.rs"]
mod model;
#[cfg(feature = "cuda")]
#[path = "candle_llama/nccl.rs"]
mod nccl;
#[path = "candle_llama/parallel.rs"]
mod parallel;
#[path = "candle_llama/weights.rs"]
pub(crate) mod weights;

#[expect(dead_code, reason = "this example starts its ranks itself")]
mod common;

use candle_core::{Device, Result, bail};
use clap::Parser;
use decode::{Choices, compare, decode};
use mkernel::Communicator;
use mkernel_candle::{Ranks, device_for_graphs};
use model::{Model, State};
use parallel::{Fused, Parallel, Unfused};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use weights::{Sizes, Source, Weights};

#[derive(Parser)]
#[command(about = "A stack of Llama blocks under tensor parallelism, with tensors of candle")]
struct Options {
    /// The numbers of ranks, one GPU each.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    world: Vec<u32>,
    /// Tokens of each sequence. [default: 128, or 8 on simulated GPUs]
    #[arg(long)]
    steps: Option<usize>,
    /// Sequences.
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// The seed of random weights. With the default seed, no step of the toy model is a close decision.
    #[arg(long, default_value_t = 142)]
    seed: u64,
    /// The first token of the first sequence.
    #[arg(long, default_value_t = 1)]
    start: u32,
    /// The config.json of the given weights.
    #[arg(long, requires = "files")]
    config: Option<PathBuf>,
    /// Weights in the format of Hugging Face. [default: random weights]
    #[arg(requires = "config")]
    files: Vec<PathBuf>,
    /// Leaves out the comparison with candle's products and NCCL.
    #[arg(long)]
    fused_only: bool,
}

/// A model, and the number and length of its texts.
pub(crate) struct Job {
    pub sizes: Sizes,
    pub source: Source,
    pub batch: usize,
    pub steps: usize,
    pub start: u32,
    pub fused_only: bool,
}

/// The results of a rank.
pub(crate) struct Outcome {
    pub choices: Choices,
    pub fused: Duration,
    /// The choices and the time without operators of mkernel.
    pub unfused: Option<(Choices, Duration)>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let simulated = !cfg!(feature = "cuda");
    let job = Job::new(options, simulated)?;
    let mut first: Option<Choices> = None;
    for &world in &options.world {
        let gpus: Vec<usize> = (0..world as usize).collect();
        let communicators = Communicator::local(&gpus).map_err(candle_core::Error::wrap)?;
        let outcomes = on_ranks(communicators, &job)?;
        let choices = &outcomes[0].choices;
        if outcomes.iter().any(|outcome| &outcome.choices != choices) {
            bail!("the ranks of a world of {world} chose different tokens");
        }
        report(world, &job, &outcomes)?;
        match &first {
            None => first = Some(choices.clone()),
            Some(first) => {
                let found = compare(first, choices).map_err(candle_core::Error::msg)?;
                println!(
                    "  the same tokens as with {} ranks; {found}",
                    options.world[0]
                );
            }
        }
    }
    Ok(())
}

impl Job {
    fn new(options: &Options, simulated: bool) -> Result<Self> {
        let (sizes, source) = match &options.config {
            Some(config) => (Sizes::read(config)?, Source::Files(options.files.clone())),
            None => {
                let (seed, successors) = (options.seed, !simulated);
                let sizes = if simulated {
                    Sizes::TOY
                } else {
                    Sizes::LLAMA_8B
                };
                (sizes, Source::Seed { seed, successors })
            }
        };
        Ok(Self {
            sizes,
            source,
            batch: options.batch,
            steps: options.steps.unwrap_or(if simulated { 8 } else { 128 }),
            start: options.start,
            fused_only: options.fused_only,
        })
    }
}

/// Runs the job on these ranks, and returns the outcome of each rank.
pub(crate) fn on_ranks(communicators: Vec<Communicator>, job: &Job) -> Result<Vec<Outcome>> {
    let outcomes = mkernel::run(communicators, |communicator| on_rank(communicator, job));
    outcomes.map_err(candle_core::Error::wrap)
}

fn on_rank(communicator: Communicator, job: &Job) -> Result<Outcome> {
    let device = match communicator.is_simulated() {
        true => Device::Cpu,
        // SAFETY: a rank uses its tensors only on the stream of its device.
        false => unsafe { device_for_graphs(communicator.context().ordinal())? },
    };
    let ranks = Ranks::new(communicator, &device)?;
    let (choices, fused) = decode_with(&Fused(ranks.clone()), job)?;
    let unfused = match job.fused_only {
        true => None,
        false => Unfused::new(ranks.clone())?,
    };
    let unfused = unfused
        .map(|unfused| decode_with(&unfused, job))
        .transpose()?;
    // No rank frees memory before the others are done.
    ranks
        .communicator()
        .barrier()
        .map_err(candle_core::Error::wrap)?;
    Ok(Outcome {
        choices,
        fused,
        unfused,
    })
}

fn decode_with(parallel: &dyn Parallel, job: &Job) -> Result<(Choices, Duration)> {
    let weights = Weights::open(&job.source)?;
    let model = Model::new(parallel, job.sizes, &weights, job.steps)?;
    let state = State::new(&model, job.batch, job.steps, job.start)?;
    decode(&model, parallel.ranks(), &state, job.steps)
}

fn report(world: u32, job: &Job, outcomes: &[Outcome]) -> Result<()> {
    let rate = |time: Duration| (job.batch * job.steps) as f64 / time.as_secs_f64();
    let slowest = |time: fn(&Outcome) -> Option<Duration>| outcomes.iter().filter_map(time).max();
    let fused = slowest(|outcome| Some(outcome.fused)).map_or(0.0, rate);
    println!("{world} ranks, batch {}: {fused:.1} tokens/s", job.batch);
    let tokens: Vec<u32> = outcomes[0].choices[0]
        .iter()
        .take(16)
        .map(|choice| choice.token)
        .collect();
    println!("  the first sequence goes on with {tokens:?}");
    let Some((choices, _)) = &outcomes[0].unfused else {
        return Ok(());
    };
    let unfused =
        slowest(|outcome| outcome.unfused.as_ref().map(|(_, time)| *time)).map_or(0.0, rate);
    let found = compare(&outcomes[0].choices, choices).map_err(candle_core::Error::msg)?;
    let how = if world == 1 {
        "candle alone"
    } else {
        "candle and NCCL"
    };
    println!("  {how}: {unfused:.1} tokens/s, with the same tokens; {found}");
    Ok(())
}
