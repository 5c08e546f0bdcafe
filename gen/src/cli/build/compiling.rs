//! [`Compiling`]: compiles kernels into the cache.

use super::job::{Built, Job};
use crate::cli::failure::Failure;
use crate::cli::input::{Input, Kernel};
use crate::cli::output::{print_json, print_note};
use crate::cli::parallel::in_parallel;
use crate::cli::{check, fetch, progress, store};
use mkernel_compile::{
    Cubin, CudaSource, Env, GenError, HostCxx, KernelTemplate, Key, Nvrtc, Store,
};
use mkernel_spec::Backend;
use std::num::NonZeroUsize;
use std::thread;
use std::time::Instant;

/// Kernels that were built.
pub type Kernels = Vec<(Job, Built)>;
/// The labels of kernels that do not compile, and the errors.
pub type Failed = Vec<(String, GenError)>;

/// Flags of commands that compile kernels.
#[derive(Debug, clap::Args)]
pub struct Compiling {
    #[command(flatten)]
    input: Input,
    /// Compile this many kernels at a time [default: one per core]
    #[arg(short, long, value_name = "COUNT")]
    jobs: Option<NonZeroUsize>,
    /// Install NVRTC first if it is missing
    #[arg(long)]
    fetch: bool,
}

impl Compiling {
    /// Plans the kernels to build. Kernels of a crate with unknown sizes are skipped with a message, since `prepare`
    /// compiles them.
    pub fn jobs(&self, json: bool) -> Result<Vec<Job>, Failure> {
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

    /// Compiles all kernels that are not cached. A kernel that fails does not stop the others.
    pub fn compile(&self, jobs: Vec<Job>) -> Result<(Kernels, Failed), Failure> {
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
        let results = self.results(&jobs, &is_cached, &cache);
        let (mut built, mut failed) = (Vec::new(), Vec::new());
        for (job, result) in jobs.into_iter().zip(results) {
            match result {
                Ok(done) => built.push((job, done)),
                Err(error) => failed.push((job.kernel.label, error)),
            }
        }
        Ok((built, failed))
    }

    fn results(
        &self,
        jobs: &[Job],
        is_cached: &[bool],
        cache: &Store,
    ) -> Vec<Result<Built, GenError>> {
        let cores = || thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let threads = self.jobs.unwrap_or_else(cores).get();
        let template = "compiling {wide_bar} {pos}/{len} kernels {elapsed}";
        let progress = progress::bar(template, jobs.len() as u64);
        let results = in_parallel(threads, jobs.len(), |index| {
            let result = build_one(&jobs[index], is_cached[index], cache);
            progress.inc(1);
            result
        });
        progress.finish_and_clear();
        results
    }
}

/// The kernels as a bundle takes them.
pub fn for_bundle(built: &[(Job, Built)]) -> Result<Vec<(CudaSource, Key, Cubin)>, Failure> {
    let kernels = built.iter().map(|(job, done)| {
        let source = job.template.render().map_err(Failure::Gen)?;
        Ok((source, job.key, done.cubin.clone()))
    });
    kernels.collect()
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
