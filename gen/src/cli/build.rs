//! `mkernel-gen build`: compiles kernels into the cache, and into a bundle if one is given.

mod compiling;
mod dump;
mod job;

use super::failure::Failure;
use super::format::{bytes, micros, registers, table};
use super::output::{Line, print, print_json, print_note};
use super::plan;
pub use compiling::{Compiling, for_bundle};
use dump::{Dump, Kind};
use job::{Built, Job};
use mkernel_compile::Bundle;
use mkernel_spec::Backend;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Arguments of `mkernel-gen build`.
#[derive(Debug, clap::Args)]
pub struct Build {
    #[command(flatten)]
    compiling: Compiling,
    /// Write a bundle to this folder; set MKERNEL_BUNDLE to let the runtime find it
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Also write these files of each kernel into the folder of --out; sass needs nvdisasm or cuobjdump
    #[arg(long, value_name = "KINDS", value_delimiter = ',', requires = "out")]
    dump: Vec<Kind>,
    /// Show the plan of each kernel too, as `plan` does
    #[arg(long)]
    plan: bool,
}

#[derive(Serialize, JsonSchema)]
pub struct BuiltLine<'a> {
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

impl Line for BuiltLine<'_> {
    const KIND: &'static str = "built";
}

impl Build {
    /// Compiles all kernels that are not cached. A kernel that fails does not stop the other kernels.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        let jobs = self.compiling.jobs(json)?;
        let dump = Dump::new(&self.dump, &jobs)?;
        let (mut built, failed) = self.compiling.compile(jobs)?;
        if let (Some(dir), true) = (&self.out, failed.is_empty()) {
            let dropped = dropped_kernels(dir, &built);
            Bundle::write(dir, for_bundle(&built)?).map_err(Failure::Gen)?;
            if !dropped.is_empty() {
                print_note(&format!(
                    "the bundle was replaced and no longer has these kernels: {}; build all kernels of a bundle with one command, or use `mkernel-gen bundle add`",
                    dropped.join(", ")
                ));
            }
            for (job, done) in &mut built {
                done.dumps = dump.write(dir, job, done)?;
            }
            print_note(&format!("bundle written to {}", dir.display()));
        }
        if self.plan && !json {
            for (job, _) in &built {
                print(&format!(
                    "{}\n",
                    plan::describe(&job.kernel.label, &job.plan)
                ))?;
            }
        }
        report(&built, json)?;
        if failed.is_empty() {
            Ok(())
        } else {
            Err(Failure::Compile(failed))
        }
    }
}

/// Prints the kernels that were built.
pub fn report(built: &[(Job, Built)], json: bool) -> Result<(), Failure> {
    if json {
        return built
            .iter()
            .try_for_each(|(job, done)| print_json(&built_line(job, done)));
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
