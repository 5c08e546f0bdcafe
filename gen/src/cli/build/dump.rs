//! `--dump`: PTX, machine code and resources of kernels as files.

use super::job::{Built, Job};
use crate::cli::failure::{Failure, chain};
use crate::cli::output::print_note;
use mkernel_compile::{Env, Nvrtc};
use mkernel_spec::Backend;
use serde::Serialize;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The programs that show machine code, with their flags.
const DISASSEMBLERS: [(&str, &[&str]); 2] = [("nvdisasm", &["-c"]), ("cuobjdump", &["-sass"])];

/// The values of `--dump`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// The code before registers are allocated: ID.ptx
    Ptx,
    /// The machine code, by nvdisasm or cuobjdump of a CUDA toolkit: ID.sass
    Sass,
    /// Registers, shared memory and spills: ID.resources.json
    Resources,
}

/// Files to write beside a bundle.
pub struct Dump<'a> {
    kinds: &'a [Kind],
    /// The disassembler, if machine code is wanted.
    disassembler: Option<(PathBuf, &'static [&'static str])>,
}

/// The resources of an SM that a kernel uses.
#[derive(Serialize)]
struct UsedLine<'a> {
    id: &'a str,
    registers: u32,
    smem_bytes: u32,
    smem_static_bytes: u32,
    spill_store_bytes: u32,
    spill_load_bytes: u32,
    stack_bytes: u32,
}

impl<'a> Dump<'a> {
    /// Looks for the programs that the files need. Simulated GPUs have neither PTX nor registers.
    pub fn new(kinds: &'a [Kind], jobs: &[Job]) -> Result<Self, Failure> {
        let is_simulated = |job: &Job| job.plan.device.backend != Backend::Nvrtc;
        if !kinds.is_empty() && jobs.iter().any(is_simulated) {
            return Err(Failure::Usage(
                "--dump is for kernels of GPUs; leave out --dump, or the device file of a simulated GPU",
            ));
        }
        let disassembler = match kinds.contains(&Kind::Sass) {
            true => Some(disassembler(Env::get())?),
            false => None,
        };
        Ok(Self {
            kinds,
            disassembler,
        })
    }

    /// Writes the files of a kernel into `dir`, and returns their paths.
    pub fn write(&self, dir: &Path, job: &Job, built: &Built) -> Result<Vec<PathBuf>, Failure> {
        let mut paths = Vec::new();
        for kind in self.kinds {
            let (suffix, text) = match kind {
                Kind::Ptx => {
                    let source = job.template.render().map_err(Failure::Gen)?;
                    let ptx = Nvrtc::load().and_then(|nvrtc| nvrtc.ptx(&source));
                    ("ptx", ptx.map_err(Failure::Gen)?)
                }
                Kind::Sass => ("sass", self.sass(&built.cubin.bytes)?),
                Kind::Resources => ("resources.json", resources(job, built)),
            };
            let path = dir.join(format!("{}.{suffix}", job.plan.id));
            fs::write(&path, text).map_err(|source| Failure::Write {
                path: path.clone(),
                source,
            })?;
            paths.push(path);
        }
        Ok(paths)
    }

    fn sass(&self, cubin: &[u8]) -> Result<String, Failure> {
        let Some((program, flags)) = &self.disassembler else {
            return Ok(String::new());
        };
        let failure = |reason: String| Failure::Disassembler {
            program: program.clone(),
            reason,
        };
        let failed = |error: io::Error| failure(chain(&error));
        let file = tempfile::NamedTempFile::new().map_err(failed)?;
        fs::write(file.path(), cubin).map_err(failed)?;
        let output = Command::new(program).args(*flags).arg(file.path()).output();
        let output = output.map_err(failed)?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(failure(format!("{}: {log}", output.status)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Finds a disassembler in the CUDA toolkits of the environment, in PATH and in the usual folder, and says which.
fn disassembler(env: &Env) -> Result<(PathBuf, &'static [&'static str]), Failure> {
    let toolkits = env.cuda_toolkits.iter().map(|toolkit| toolkit.join("bin"));
    let folders: Vec<_> = toolkits
        .chain(env.path.iter().cloned())
        .chain([PathBuf::from("/usr/local/cuda/bin")])
        .collect();
    for (name, flags) in DISASSEMBLERS {
        let mut paths = folders.iter().map(|folder| folder.join(name));
        if let Some(path) = paths.find(|path| path.is_file()) {
            print_note(&format!(
                "machine code is disassembled by {}",
                path.display()
            ));
            return Ok((path, flags));
        }
    }
    Err(Failure::NoDisassembler)
}

fn resources(job: &Job, built: &Built) -> String {
    let used = built.cubin.resources.unwrap_or_default();
    let line = UsedLine {
        id: &job.plan.id,
        registers: used.registers,
        smem_bytes: job.plan.smem_bytes(),
        smem_static_bytes: used.smem_static_bytes,
        spill_store_bytes: used.spill_store_bytes,
        spill_load_bytes: used.spill_load_bytes,
        stack_bytes: used.stack_bytes,
    };
    // Names and numbers are always JSON.
    serde_json::to_string_pretty(&line).unwrap_or_default() + "\n"
}
