//! `mkernel-gen trace`: shows when the waits and the steps of a kernel's roles begin and end, on GPUs or simulated GPUs.

mod arrows;
mod file;
mod rows;
mod summary;
mod times;

use super::Failure;
use super::fabric_test::Network;
use super::failure::chain;
use super::files::write_text;
use super::input::{Kernel, Sources};
use super::machine::Machine;
use super::output::{print, print_json, print_stderr};
use super::run::call_memory::CallMemory;
use super::run::inputs::Inputs;
use super::run::ranks::{Job, RankError, RankFailure};
use super::run::routing::TokenLoad;
use super::run::{MachineFlags, parse_seed, seed_or_environment};
pub use file::TraceFile;
use mkernel::trace::Trace;
use mkernel::{Communicator, KernelConfig, KernelPlan};
use std::path::PathBuf;
pub use summary::TraceLine;
use times::Aligned;

/// Arguments of `mkernel-gen trace`.
#[derive(Debug, clap::Args)]
pub struct TraceKernel {
    #[command(flatten)]
    sources: Sources,
    #[command(flatten)]
    machine: MachineFlags,
    /// Number of calls, one behind the other; the last one is shown
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    calls: u32,
    /// Seed of the data, and of the order of events on simulated GPUs [default: MKERNEL_SIM_SEED, else a new seed
    /// each time]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = parse_seed)]
    seed: Option<u64>,
    /// Most events of a warp, rounded up to a power of 2 [default: 2048, on simulated GPUs 256]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(2..=65536))]
    events: Option<u32>,
    /// Write the trace as JSON for ui.perfetto.dev to this file
    #[arg(long, value_name = "FILE", default_value = "trace.json")]
    out: PathBuf,
    #[command(flatten)]
    network: Network,
}

impl TraceKernel {
    /// Runs the kernel, writes its trace, and prints where its time goes.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        let (machine, kernels) = self.machine.choose(&self.sources, false)?;
        let [(kernel, plan)] = &kernels[..] else {
            return Err(Failure::Usage(
                "a trace is of one kernel of one size; choose the kernel by --kernel, and give one size",
            ));
        };
        if machine == Machine::Gpus && self.machine.is_simulated() {
            return Err(Failure::Usage(
                "--sms and --skew are for simulated GPUs; add --device sim",
            ));
        }
        let (plan, traces) = self.traces(machine, (kernel, plan))?;
        let is_simulated = machine != Machine::Gpus;
        let aligned = Aligned::new(traces, is_simulated);
        let file = TraceFile::new(&aligned, &plan, is_simulated);
        let text = serde_json::to_string(&file).map_err(|error| Failure::Output(error.into()))?;
        write_text(&self.out, &text)?;
        let line = TraceLine::new(kernel, &plan, &aligned, (&self.out, is_simulated));
        match json {
            true => print_json(&line),
            false => print(&line.text()),
        }
    }

    /// The plan of the kernel that ran, and the trace of its last call on each rank.
    fn traces(
        &self,
        machine: Machine,
        (kernel, plan): (&Kernel, &KernelPlan),
    ) -> Result<(KernelPlan, Vec<Trace>), Failure> {
        let seed = seed_or_environment(self.seed)?;
        let config = KernelConfig {
            traced: true,
            ..kernel.spec.config().clone()
        };
        let job = Job {
            config: &config,
            plan,
            machine,
            load: TokenLoad::Full,
            seed,
            calls: self.calls,
            threads: 1,
            transport: self.network.transport(seed)?,
            launched: None,
        };
        let calls = job.inputs();
        let results = job.on_ranks(|ranks| self.trace_on(ranks, &job, &calls));
        let mut found = None;
        let mut traces = Vec::new();
        let mut failed = Vec::new();
        match results {
            Ok(results) => {
                for (rank, result) in (0..).zip(results) {
                    match result {
                        Ok((plan, trace)) => {
                            found = found.or(Some(plan));
                            traces.push(trace);
                        }
                        Err(error) => failed.push(RankFailure {
                            rank: Some(rank),
                            error,
                        }),
                    }
                }
            }
            Err(errors) => failed = errors,
        }
        match found {
            Some(plan) if failed.is_empty() => Ok((plan, traces)),
            _ => Err(report(&kernel.label, &failed)),
        }
    }

    /// Makes all calls on a rank and reads the trace of the last call.
    fn trace_on(
        &self,
        ranks: &Communicator,
        job: &Job,
        calls: &[Inputs],
    ) -> Result<(KernelPlan, Trace), RankError> {
        ranks.set_transport(job.transport.clone());
        if let Some(events) = self.events {
            ranks.set_trace_events(events);
        }
        let operator = ranks.prepare(job.config, job.plan.shape())?;
        let stream = ranks.default_stream();
        let on_gpu = calls
            .iter()
            .map(|call| CallMemory::new(ranks, &stream, call));
        let mut on_gpu = on_gpu.collect::<Result<Vec<_>, _>>()?;
        ranks.barrier()?;
        for call in &mut on_gpu {
            call.launch(&operator, &stream)?;
        }
        ranks.synchronize(&stream)?;
        let trace = operator.trace()?;
        // Memory may be freed only while no kernel of any rank runs.
        ranks.barrier()?;
        Ok((operator.plan().clone(), trace))
    }
}

/// Prints why ranks failed.
fn report(label: &str, failed: &[RankFailure]) -> Failure {
    for RankFailure { rank, error } in failed {
        let who = rank.map_or("all ranks".to_owned(), |rank| format!("rank {rank}"));
        print_stderr(&format!("{label}: {who}: {}", chain(error)));
    }
    Failure::Runs {
        failed: 1,
        ran: 1,
        code: super::run::exit_code::code_of(failed),
    }
}
