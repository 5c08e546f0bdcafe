//! `mkernel-gen build`: compiles kernels into the cache, and into a bundle if one is given.

mod dump;
mod job;

use super::failure::Failure;
use super::fetch;
use super::format::{bytes, micros, registers, table};
use super::input::{Input, Kernel};
use super::output::{print, print_json, print_note};
use super::{check, plan, progress, store};
use dump::{Dump, Kind};
use job::{Built, Job};
use mkernel_compile::{Bundle, Env, GenError, HostCxx, KernelTemplate, Key, Nvrtc, Store};
use mkernel_spec::Backend;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// Arguments of `mkernel-gen build`.
#[derive(Debug, clap::Args)]
pub struct Build {
    #[command(flatten)]
    input: Input,
    /// Write a bundle to this folder; set MKERNEL_BUNDLE to let the runtime find it
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Compile this many kernels at a time [default: one per core]
    #[arg(short, long, value_name = "COUNT")]
    jobs: Option<NonZeroUsize>,
    /// Install NVRTC first if it is missing
    #[arg(long)]
    fetch: bool,
    /// Also write these files of each kernel into the folder of --out; sass needs nvdisasm or cuobjdump
    #[arg(long, value_name = "KINDS", value_delimiter = ',', requires = "out")]
    dump: Vec<Kind>,
    /// Show the plan of each kernel too, as `plan` does
    #[arg(long)]
    plan: bool,
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
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    dumps: &'a [PathBuf],
    bound_us: f64,
    bound_reason: &'static str,
    estimate_us: f64,
}

impl Build {
    /// Compiles all kernels that are not cached. A kernel that fails does not stop the other kernels.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        let jobs = self.jobs(json)?;
        let dump = Dump::new(&self.dump, &jobs)?;
        let cache = store::cache()?;
        let is_cached: Vec<bool> = jobs
            .iter()
            .map(|job| cache.get(&job.key).is_some())
            .collect();
        let missing = jobs.iter().zip(&is_cached).filter(|(_, cached)| !**cached);
        // A missing compiler is reported once, not for every kernel.
        if let Some((job, _)) = missing.into_iter().next() {
            self.find_compiler(job.template.backend)?;
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
            let kernels = built.iter().map(|(job, done)| {
                let source = job.template.render().map_err(Failure::Gen)?;
                Ok((source, job.key, done.cubin.clone()))
            });
            let kernels = kernels.collect::<Result<Vec<_>, Failure>>()?;
            let dropped = dropped_kernels(dir, &built);
            Bundle::write(dir, kernels).map_err(Failure::Gen)?;
            if !dropped.is_empty() {
                print_note(&format!(
                    "the bundle was replaced and no longer has these kernels: {}; build all kernels of a bundle with one command",
                    dropped.join(", ")
                ));
            }
            for (job, done) in &mut built {
                done.dumps = dump.write(dir, job, done)?;
            }
            print_note(&format!("bundle written to {}", dir.display()));
        }
        self.report(&built, json)?;
        if failed.is_empty() {
            Ok(())
        } else {
            Err(Failure::Compile(failed))
        }
    }

    /// Plans the kernels to build. Kernels of a crate with unknown sizes are skipped with a message, since `prepare`
    /// compiles them.
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
            let template = KernelTemplate::of(&plan);
            let key = Key::of_template(&template);
            Job {
                kernel,
                plan,
                template,
                key,
            }
        };
        Ok(planned.into_iter().map(job).collect())
    }

    /// Loads the compiler of `backend`. With `--fetch`, NVRTC is installed if it is missing.
    fn find_compiler(&self, backend: Backend) -> Result<(), Failure> {
        if backend == Backend::HostCxx {
            return HostCxx::load().map(|_| ()).map_err(Failure::Gen);
        }
        match Nvrtc::load() {
            // If MKERNEL_NVRTC is set, no other folder is searched, so an installation would not be found.
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
        let template = "compiling {wide_bar} {pos}/{len} kernels {elapsed}";
        let progress = progress::bar(template, jobs.len() as u64);
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

/// The kernels of the old bundle in `dir` that are not in the new one.
fn dropped_kernels(dir: &Path, built: &[(Job, Built)]) -> Vec<String> {
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
    let cubin = cache.get_or_render(&job.template)?;
    Ok(Built {
        cubin,
        cached,
        millis: started.elapsed().as_secs_f64() * 1e3,
        dumps: Vec::new(),
    })
}

/// Reports that a kernel is not built because some of its sizes are unknown.
fn skip(kernel: &Kernel, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(&check::checked(kernel));
    }
    let unknown = kernel.unknown_dims();
    print_note(&format!(
        "{}: {}: not built, since the size of {} is unknown; give --{} SIZES, or let `prepare` compile it",
        kernel.location,
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
    // The simulator has no model of time.
    let [bound, reason, estimate] = match job.plan.device.backend {
        Backend::Nvrtc => [
            micros(job.plan.body().bound.us()),
            job.plan.body().bound.reason().to_owned(),
            micros(job.plan.body().estimate_us),
        ],
        Backend::HostCxx => ["-"; 3].map(str::to_owned),
    };
    vec![
        job.kernel.label.clone(),
        registers(done.cubin.resources),
        bytes(job.plan.smem_bytes().into()),
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
        place: &job.kernel.location,
        ok: true,
        id: &job.plan.id,
        key: job.key.to_string(),
        registers: done.cubin.resources.map(|used| used.registers),
        smem_bytes: job.plan.smem_bytes(),
        cubin_bytes: done.cubin.bytes.len(),
        cached: done.cached,
        millis: done.millis,
        dumps: &done.dumps,
        bound_us: job.plan.body().bound.us(),
        bound_reason: job.plan.body().bound.reason(),
        estimate_us: job.plan.body().estimate_us,
    }
}
