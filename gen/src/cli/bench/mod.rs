//! `mkernel-gen bench`: times kernels on the GPUs of this host beside their bound and rivals, and reports the times.

mod job;
mod measurement;
mod output;
mod plot;
mod preset;
mod report;
mod rival_calls;
mod rivals;
mod series;
mod table;
pub mod timing;

use super::Failure;
use super::fabric_test::Network;
use super::format::{micros, table};
use super::input::Kernel;
use super::output::{print, print_json, print_stderr};
use super::plan::Planned;
use super::run::{parse_seed, seed_from_clock};
use super::timed_kernels::TimedKernels;
use job::TimedJob;
pub use job::{Failed, FailedLine};
pub use measurement::Measurement;
use mkernel::KernelPlan;
use mkernel_measure::TimeLimit;
use output::Output;
use preset::Preset;
use std::path::PathBuf;
use std::time::Duration;
use timing::Settings;

/// Arguments of `mkernel-gen bench`.
#[derive(Debug, clap::Args)]
pub struct Bench {
    #[command(flatten)]
    kernels: TimedKernels,
    /// Measure kernels that come with mkernel-gen, on all GPUs of the host or on --ranks GPUs
    #[arg(long, value_enum, conflicts_with = "from")]
    preset: Option<Preset>,
    /// List the kernels with their plans, and measure nothing; needs no GPU
    #[arg(long, conflicts_with = "from")]
    dry_run: bool,
    /// Number of rounds; one more warms up
    #[arg(long, value_name = "COUNT", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seed of the data [default: a new seed each time]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = parse_seed)]
    seed: Option<u64>,
    /// Do not check results, whose references are computed by the CPU and take long for large products
    #[arg(long)]
    no_check: bool,
    /// Seconds that a kernel and its rivals may take, after which the process ends with code 124
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    limit_s: u64,
    /// Do not measure cuBLAS and NCCL
    #[arg(long, help_heading = "Rivals")]
    no_rivals: bool,
    /// Folder of libcublas.so and libcublasLt.so [default: searched in the loader's path, CUDA toolkits and Python packages]
    #[arg(long, value_name = "DIR", help_heading = "Rivals")]
    cublas_dir: Option<PathBuf>,
    /// Folder of libnccl.so.2 [default: searched in the same way]
    #[arg(long, value_name = "DIR", help_heading = "Rivals")]
    nccl_dir: Option<PathBuf>,
    /// Write results.jsonl and report.html, a page with plots, to this folder
    #[arg(long, value_name = "DIR", help_heading = "Results")]
    out: Option<PathBuf>,
    /// Report the results of an earlier results.jsonl instead of measuring; can be given several times, to merge the results of
    /// several hosts
    #[arg(long, value_name = "FILE", help_heading = "Results", conflicts_with_all = ["device", "ranks", "seed", "no_check", "no_rivals", "cublas_dir", "nccl_dir"])]
    from: Vec<PathBuf>,
    #[command(flatten)]
    network: Network,
}

impl Bench {
    /// Measures every kernel, or reads earlier results, and reports. Kernels that fail do not stop the others.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        if !self.from.is_empty() {
            return self.report_earlier(json);
        }
        let kernels = match self.preset {
            Some(preset) => self.kernels.plan_file(preset.file())?,
            None => self.kernels.plan()?,
        };
        if self.dry_run {
            return list(&kernels, json);
        }
        let kernels = self.kernels.on_gpus(kernels)?;
        let seed = self.seed.unwrap_or_else(seed_from_clock);
        let mut output = Output::new(json, self.out.as_deref())?;
        let mut failed = Failed::default();
        for (number, (kernel, plan)) in (1..).zip(&kernels) {
            if !json {
                let (all, label) = (kernels.len(), &kernel.label);
                print_stderr(&format!("kernel {number} of {all}: {label}"));
            }
            match self.measure((kernel, plan), seed)? {
                Ok(measured) => output.add(measured)?,
                Err(outcome) => failed.add(kernel, &outcome, json)?,
            }
        }
        output.finish()?;
        failed.finish(kernels.len() as u64)
    }

    fn measure(
        &self,
        (kernel, plan): (&Kernel, &KernelPlan),
        seed: u64,
    ) -> Result<Result<Measurement, Box<job::Outcome>>, Failure> {
        let limit = Duration::from_secs(self.limit_s);
        let _limit = TimeLimit::start("a kernel with its rivals (see --limit-s)", limit);
        let job = TimedJob {
            kernel,
            plan,
            seed,
            transport: self.network.transport(seed)?,
            checks: !self.no_check,
            settings: Settings {
                rounds: self.rounds,
                rivals: !self.no_rivals,
                cublas_dir: self.cublas_dir.as_deref(),
                nccl_dir: self.nccl_dir.as_deref(),
            },
        };
        Ok(job.run())
    }

    fn report_earlier(&self, json: bool) -> Result<(), Failure> {
        if !self.kernels.sources.is_empty() {
            return Err(Failure::Usage(
                "--from reports earlier results, so no kernel is measured; remove the kernels, or --from",
            ));
        }
        let read = measurement::read_all(&self.from)?;
        // All files are read before a file is written, which may have the same name.
        let mut output = Output::new(json, self.out.as_deref())?;
        read.into_iter()
            .try_for_each(|measured| output.add(measured))?;
        output.finish()
    }
}

/// Prints a line for each kernel.
fn list(kernels: &[(Kernel, KernelPlan)], json: bool) -> Result<(), Failure> {
    if json {
        let mut kernels = kernels.iter();
        return kernels.try_for_each(|(kernel, plan)| print_json(&Planned::new(kernel, plan)));
    }
    let row = |(kernel, plan): &(Kernel, KernelPlan)| {
        vec![
            kernel.label.clone(),
            plan.spec.topology().to_string(),
            micros(plan.body().bound.us()),
            micros(plan.body().estimate_us),
            plan.id.clone(),
        ]
    };
    let heading = ["kernel", "ranks", "bound", "estimate", "plan"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(heading.to_vec())
        .chain(kernels.iter().map(row))
        .collect();
    print(&table(&rows, &[1, 2, 3]))
}
