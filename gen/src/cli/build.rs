//! `mkernel-gen build`: compile kernels into the cache, and perhaps into a bundle.

use super::failure::Failure;
use super::fetch;
use super::format::{bytes, micros, registers, table};
use super::input::{Input, Kernel};
use super::output::{print, print_json, say};
use super::{check, plan, store};
use indicatif::{ProgressBar, ProgressStyle};
use mkernel_compile::{Bundle, Cubin, CudaSource, Env, GenError, HostCxx, Key, Nvrtc, Store};
use mkernel_spec::{KernelPlan, Target};
use serde::Serialize;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// What to build, and where it goes.
#[derive(Debug, clap::Args)]
pub struct Build {
    #[command(flatten)]
    input: Input,
    /// Write a bundle to this folder; the runtime finds it through MKERNEL_BUNDLE
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Compile this many kernels at a time [default: one per core]
    #[arg(short, long, value_name = "COUNT")]
    jobs: Option<NonZeroUsize>,
    /// Install NVRTC first if it is not found
    #[arg(long)]
    fetch: bool,
    /// Show each kernel's plan too, as `plan` does
    #[arg(long)]
    plan: bool,
}

/// A kernel to build.
struct Job {
    kernel: Kernel,
    plan: KernelPlan,
    source: CudaSource,
    key: Key,
}

/// A kernel that was compiled, or found.
struct Built {
    cubin: Cubin,
    cached: bool,
    millis: f64,
}

#[derive(Serialize)]
struct BuiltLine<'a> {
    label: &'a str,
    place: &'a str,
    ok: bool,
    id: &'a str,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    registers: Option<u32>,
    smem_bytes: u32,
    cubin_bytes: usize,
    cached: bool,
    millis: f64,
    bound_us: f64,
    bound_reason: &'static str,
    estimate_us: f64,
}

impl Build {
    /// Compiles what is not cached; kernels that fail don't stop the others.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        let jobs = self.jobs(json)?;
        let cache = store::cache();
        let is_cached: Vec<bool> = jobs
            .iter()
            .map(|job| cache.get(&job.key).is_some())
            .collect();
        let missing = jobs.iter().zip(&is_cached).filter(|(_, cached)| !**cached);
        // A compiler that is not there is one mistake, not one of every kernel.
        if let Some((job, _)) = missing.into_iter().next() {
            self.find_compiler(job.source.target)?;
        }
        let results = self.compile(&jobs, &is_cached, &cache);
        let (mut built, mut failed) = (Vec::new(), Vec::new());
        for (job, result) in jobs.into_iter().zip(results) {
            match result {
                Ok(done) => built.push((job, done)),
                Err(error) => failed.push((job.kernel.label, error)),
            }
        }
        if let (Some(dir), true) = (&self.out, failed.is_empty()) {
            let kernels = built.iter();
            let kernels =
                kernels.map(|(job, done)| (job.source.clone(), job.key, done.cubin.clone()));
            let lost = lost_kernels(dir, &built);
            Bundle::write(dir, kernels).map_err(Failure::Gen)?;
            if !lost.is_empty() {
                say(&format!(
                    "the bundle that was there had other kernels, which are gone: {}; build all that a bundle should have by one command",
                    lost.join(", ")
                ));
            }
            say(&format!("bundle written to {}", dir.display()));
        }
        self.report(&built, json)?;
        if failed.is_empty() {
            Ok(())
        } else {
            Err(Failure::Compile(failed))
        }
    }

    /// The kernels to build, rendered. Those of a crate that need sizes are only listed: `prepare` compiles them.
    fn jobs(&self, json: bool) -> Result<Vec<Job>, Failure> {
        let planned = if self.input.is_crate() {
            let mut planned = Vec::new();
            for mut kernel in self.input.load_valid()? {
                match kernel.plan.take() {
                    Some(plan) => planned.push((kernel, plan)),
                    None => skip(&kernel, json)?,
                }
            }
            planned
        } else {
            self.input.load_planned()?
        };
        let job = |(kernel, plan)| {
            let source = mkernel_compile::render(&plan).map_err(Failure::Gen)?;
            let key = Key::of(&source);
            Ok(Job {
                kernel,
                plan,
                source,
                key,
            })
        };
        planned.into_iter().map(job).collect()
    }

    /// All kernels are for the one device.
    fn find_compiler(&self, target: Target) -> Result<(), Failure> {
        if target == Target::Simulator {
            return HostCxx::load().map(|_| ()).map_err(Failure::Gen);
        }
        match Nvrtc::load() {
            // A path given by hand is the only one that is searched.
            Err(GenError::NvrtcMissing { .. }) if self.fetch && Env::get().nvrtc.is_none() => {
                fetch::fetch(None)?;
                Nvrtc::load().map(|_| ()).map_err(Failure::Gen)
            }
            result => result.map(|_| ()).map_err(Failure::Gen),
        }
    }

    fn compile(
        &self,
        jobs: &[Job],
        is_cached: &[bool],
        cache: &Store,
    ) -> Vec<Result<Built, GenError>> {
        let cores = || thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let threads = self.jobs.unwrap_or_else(cores).get().min(jobs.len());
        let progress = progress_bar(jobs.len());
        let next = AtomicUsize::new(0);
        let results = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(job) = jobs.get(index) else { break };
                        let result = build_one(job, is_cached[index], cache);
                        progress.inc(1);
                        results
                            .lock()
                            .expect("no thread panics here")
                            .push((index, result));
                    }
                });
            }
        });
        progress.finish_and_clear();
        let mut results = results.into_inner().expect("no thread panics here");
        results.sort_by_key(|(index, _)| *index);
        results.into_iter().map(|(_, result)| result).collect()
    }

    fn report(&self, built: &[(Job, Built)], json: bool) -> Result<(), Failure> {
        if json {
            return built
                .iter()
                .try_for_each(|(job, done)| print_json(&built_line(job, done)));
        }
        if self.plan {
            for (job, _) in built {
                print(&format!(
                    "{}\n",
                    plan::describe(&job.kernel.label, &job.plan)
                ))?;
            }
        }
        if built.is_empty() {
            return Ok(());
        }
        let header = [
            "kernel",
            "registers",
            "shared",
            "compile",
            "bound",
            "by",
            "estimate",
            "id",
        ];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        rows.extend(built.iter().map(|(job, done)| row(job, done)));
        print(&table(&rows, &[1, 2, 3, 4, 6]))
    }
}

/// Kernels of the bundle `dir` that are not among those that replace it.
fn lost_kernels(dir: &Path, built: &[(Job, Built)]) -> Vec<String> {
    let Ok(bundle) = Bundle::open(dir) else {
        return Vec::new();
    };
    let entries = bundle.entries().into_iter();
    entries
        .filter(|entry| built.iter().all(|(job, _)| job.key != entry.key))
        .map(|entry| entry.id)
        .collect()
}

fn build_one(job: &Job, cached: bool, cache: &Store) -> Result<Built, GenError> {
    let started = Instant::now();
    let cubin = cache.get_or_build(&job.source)?;
    Ok(Built {
        cubin,
        cached,
        millis: started.elapsed().as_secs_f64() * 1e3,
    })
}

/// Hidden by itself where standard error is no terminal.
fn progress_bar(kernels: usize) -> ProgressBar {
    if kernels < 2 {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("compiling {wide_bar} {pos}/{len} kernels {elapsed}");
    let bar = ProgressBar::new(kernels as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

fn skip(kernel: &Kernel, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(&check::checked(kernel));
    }
    let unknown = kernel.unknown_dims();
    say(&format!(
        "{}: {}: not built, the size of {} is not known; `prepare` compiles it, or give --{} SIZES",
        kernel.place,
        kernel.label,
        unknown.join(" and "),
        unknown.join(" SIZES --"),
    ));
    Ok(())
}

fn row(job: &Job, done: &Built) -> Vec<String> {
    let compile = if done.cached {
        "cached".to_owned()
    } else {
        format!("{:.0} ms", done.millis)
    };
    // Of simulated time nothing is known.
    let [bound, reason, estimate] = match job.plan.device.target {
        Target::Sm90a => [
            micros(job.plan.bound.us()),
            job.plan.bound.reason().to_owned(),
            micros(job.plan.estimate_us),
        ],
        Target::Simulator => ["-"; 3].map(str::to_owned),
    };
    vec![
        job.kernel.label.clone(),
        registers(done.cubin.resources),
        bytes(job.plan.smem_bytes.into()),
        compile,
        bound,
        reason,
        estimate,
        job.plan.id.clone(),
    ]
}

fn built_line<'a>(job: &'a Job, done: &'a Built) -> BuiltLine<'a> {
    BuiltLine {
        label: &job.kernel.label,
        place: &job.kernel.place,
        ok: true,
        id: &job.plan.id,
        key: job.key.to_string(),
        registers: done.cubin.resources.map(|used| used.registers),
        smem_bytes: job.plan.smem_bytes,
        cubin_bytes: done.cubin.bytes.len(),
        cached: done.cached,
        millis: done.millis,
        bound_us: job.plan.bound.us(),
        bound_reason: job.plan.bound.reason(),
        estimate_us: job.plan.estimate_us,
    }
}
