//! `mkernel-gen bundle`: adds kernels to bundles, merges bundles, and checks and lists their kernels.

use super::build::{self, Compiling, for_bundle};
use super::failure::Failure;
use super::format::count;
use super::output::{Line, print, print_json, print_note};
use super::store;
use clap::Subcommand;
use mkernel_compile::{Bundle, Cubin, CudaSource, Key};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Arguments of `mkernel-gen bundle`.
#[derive(Debug, clap::Args)]
pub struct Bundles {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compile kernels into a bundle, whose other kernels stay
    Add(Box<Add>),
    /// Write the kernels of several bundles as one bundle
    Merge(Merge),
    /// Check all kernels of bundles against their checksums
    Verify(Verify),
    /// List the kernels of a bundle, damaged ones as damaged
    List(List),
}

#[derive(Debug, clap::Args)]
struct Add {
    /// Folder of the bundle, which is created if it does not exist
    bundle: PathBuf,
    #[command(flatten)]
    compiling: Compiling,
}

#[derive(Debug, clap::Args)]
struct Merge {
    /// Folders of bundles; a kernel replaces a kernel of the same name in a bundle before it
    #[arg(required = true)]
    bundles: Vec<PathBuf>,
    /// Folder of the new bundle, which may be one of the others
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Verify {
    /// Folders of bundles
    #[arg(required = true)]
    bundles: Vec<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct List {
    /// Folder of a bundle
    bundle: PathBuf,
}

/// A kernel of a bundle as a JSON object.
#[derive(Serialize, JsonSchema)]
pub struct VerifiedLine<'a> {
    ok: bool,
    bundle: &'a Path,
    id: &'a str,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<&'a str>,
}

impl Line for VerifiedLine<'_> {
    const KIND: &'static str = "verified";
}

/// A bundle that was written, as a JSON object.
#[derive(Serialize, JsonSchema)]
pub struct MergedLine<'a> {
    bundle: &'a Path,
    kernels: usize,
    replaced: &'a [String],
}

impl Line for MergedLine<'_> {
    const KIND: &'static str = "merged";
}

impl Bundles {
    /// Runs the command.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        match &self.command {
            Command::Add(add) => add.run(json),
            Command::Merge(merge) => merge.run(json),
            Command::Verify(verify) => verify.run(json),
            Command::List(list) => store::list_bundle(&list.bundle, json),
        }
    }
}

impl Add {
    fn run(&self, json: bool) -> Result<(), Failure> {
        // A bundle that cannot be used is found before anything is compiled.
        let old = match self.bundle.exists() {
            true => vec![open(&self.bundle)?],
            false => Vec::new(),
        };
        let jobs = self.compiling.jobs(json)?;
        let (built, failed) = self.compiling.compile(jobs)?;
        if failed.is_empty() {
            write(&self.bundle, &old, for_bundle(&built)?)?;
        }
        build::report(&built, json)?;
        match failed.is_empty() {
            true => Ok(()),
            false => Err(Failure::Compile(failed)),
        }
    }
}

impl Merge {
    fn run(&self, json: bool) -> Result<(), Failure> {
        let bundles: Vec<_> = self
            .bundles
            .iter()
            .map(|path| open(path))
            .collect::<Result<_, _>>()?;
        let replaced = write(&self.out, &bundles, Vec::new())?;
        let kernels = open(&self.out)?.kernels().len();
        match json {
            true => print_json(&MergedLine {
                bundle: &self.out,
                kernels,
                replaced: &replaced,
            }),
            false => print(&format!(
                "{}: {}\n",
                self.out.display(),
                count(kernels, "kernel")
            )),
        }
    }
}

/// Writes a bundle, and names the kernels that were replaced. Fails if kernels are damaged; the error names every damaged kernel.
fn write(
    path: &Path,
    bundles: &[Bundle],
    kernels: Vec<(CudaSource, Key, Cubin)>,
) -> Result<Vec<String>, Failure> {
    let damaged: usize = bundles.iter().map(damages).sum();
    if damaged > 0 {
        return Err(Failure::Damaged { damaged });
    }
    let replaced = Bundle::merge(path, bundles, kernels).map_err(Failure::Gen)?;
    for id in &replaced {
        print_note(&format!("replaced by a newer version: {id}"));
    }
    Ok(replaced)
}

/// Prints the damaged kernels of a bundle to standard error, and returns their number.
fn damages(bundle: &Bundle) -> usize {
    let kernels = bundle.kernels().into_iter();
    let damaged = kernels.filter_map(|kernel| Some((kernel.id, kernel.entry.err()?)));
    let shown = damaged.map(|(id, damage)| {
        super::output::print_stderr(&format!(
            "{}: {id}: damaged: {damage}",
            bundle.path().display()
        ));
    });
    shown.count()
}

fn open(path: &Path) -> Result<Bundle, Failure> {
    Bundle::open(path).map_err(Failure::Gen)
}

impl Verify {
    fn run(&self, json: bool) -> Result<(), Failure> {
        let bundles = self.bundles.iter().map(|path| open(path));
        let mut damaged = 0;
        for bundle in bundles.collect::<Result<Vec<_>, _>>()? {
            let kernels = bundle.kernels();
            let wrong = kernels
                .iter()
                .filter(|kernel| kernel.entry.is_err())
                .count();
            damaged += wrong;
            if json {
                kernels.iter().try_for_each(|kernel| {
                    print_json(&VerifiedLine {
                        ok: kernel.entry.is_ok(),
                        bundle: bundle.path(),
                        id: &kernel.id,
                        key: kernel.key.to_string(),
                        damage: kernel.entry.as_ref().err().map(String::as_str),
                    })
                })?;
                continue;
            }
            damages(&bundle);
            let all = count(kernels.len(), "kernel");
            print(&format!(
                "{}: {all}, {wrong} damaged\n",
                bundle.path().display()
            ))?;
        }
        match damaged {
            0 => Ok(()),
            damaged => Err(Failure::Damaged { damaged }),
        }
    }
}
