//! [`HostCxx`]: CUDA → code of this host for simulated GPUs, by the host's C++ compiler.
//!
//! The kernel's text is compiled as it is, against headers that have the same names as the device's. Here the
//! compiler is found and checked; `subprocess` runs it.

use crate::cubin::Cubin;
use crate::env::Env;
use crate::error::{GenError, Place};
use crate::source::{CudaSource, file_name};
use crate::subprocess::{first_line, output_within};
use crate::templates::headers;
use mkernel_spec::Target;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// All options that decide what is made.
///
/// Lines must be those of the kernel's text, inlined functions included (`-g1`), since findings name them; arithmetic
/// must be that of the text, without fused multiply-adds that the compiler makes up.
pub(crate) const OPTIONS: [&str; 12] = [
    "-std=c++20",
    "-Og",
    "-g1",
    // Where variables are is a quarter of a compile, and nobody asks.
    "-fno-var-tracking",
    // Version 5 has the folder of the compile in its line table, whatever the prefix maps say.
    "-gdwarf-4",
    "-gno-record-gcc-switches",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    // Warnings about CUDA's text are NVRTC's to give.
    "-w",
    "-Wno-psabi",
];

/// What is compiled: it includes the kernel, and exports it.
pub(crate) const WRAPPER: &str = "kernel.cpp";

/// What is made of it.
const OUTPUT: &str = "kernel.so";

/// Many times what a compile takes on a busy host.
const COMPILE_LIMIT: Duration = Duration::from_secs(120);

/// For questions that a compiler answers at once; but its name is part of keys, so that one given up for slow would mean
/// another compile.
const PROBE_LIMIT: Duration = Duration::from_secs(60);

/// The host's C++ compiler, found and checked. Any number of threads may compile at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCxx {
    program: PathBuf,
    /// Those that `CXX` has behind the program.
    args: Vec<String>,
    name: String,
}

/// The name of the compiler that keys are made for.
pub(crate) fn key_name() -> String {
    HostCxx::load().map_or_else(|_| "no C++ compiler".into(), |cxx| cxx.name.clone())
}

impl HostCxx {
    /// Finds the compiler, once per process. A failure is not kept: it may be installed meanwhile.
    ///
    /// It is `MKERNEL_CXX`; or the first of `CXX`, `c++`, `g++` and `clang++` that knows C++20.
    ///
    /// # Errors
    /// [`GenError::CxxMissing`] with what was tried, and the command that gets one.
    pub fn load() -> Result<&'static Self, GenError> {
        static FOUND: OnceLock<HostCxx> = OnceLock::new();
        static FINDING: Mutex<()> = Mutex::new(());
        if let Some(cxx) = FOUND.get() {
            return Ok(cxx);
        }
        let _guard = crate::lock::lock(&FINDING);
        if let Some(cxx) = FOUND.get() {
            return Ok(cxx);
        }
        let cxx = Self::find(Env::get())?;
        tracing::debug!("{} from {}", cxx.name, cxx.program.display());
        Ok(FOUND.get_or_init(|| cxx))
    }

    /// The compiler as a command, for programs beside kernels.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        command
    }

    fn find(env: &Env) -> Result<Self, GenError> {
        let mut looked = Vec::new();
        for (program, args) in candidates(env) {
            match Self::probe(&program, &args) {
                Ok(cxx) => return Ok(cxx),
                Err(reason) => looked.push(Place {
                    path: program.display().to_string(),
                    reason,
                }),
            }
        }
        Err(GenError::CxxMissing {
            command: install_command(env),
            looked,
        })
    }

    /// Asks a compiler who it is, and whether it knows C++20.
    fn probe(program: &Path, args: &[String]) -> Result<Self, String> {
        let ask = |questions: &[&str]| {
            let mut command = Command::new(program);
            let output = output_within(command.args(args).args(questions), PROBE_LIMIT);
            let output = output.map_err(|error| error.to_string())?;
            if output.succeeded {
                Ok(output.text)
            } else {
                Err(first_line(&output.text))
            }
        };
        let version = first_line(&ask(&["--version"])?);
        ask(&["-std=c++20", "-fsyntax-only", "-x", "c++", "/dev/null"])
            .map_err(|reason| format!("{version} does not know C++20: {reason}"))?;
        let words = [&[version], args].concat();
        Ok(Self {
            program: absolute(program),
            args: args.to_vec(),
            name: format!("{}, {}", words.join(" "), std::env::consts::ARCH),
        })
    }

    /// Its name and version, with the architecture that it compiles for.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its file, or its name if it was found in `PATH`.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Compiles a kernel to a shared object that exports it. Equal sources make equal bytes.
    ///
    /// # Errors
    /// [`GenError::Compile`]; [`GenError::CxxCall`] if the compiler cannot be run or takes longer than two minutes.
    pub fn compile(&self, source: &CudaSource) -> Result<Cubin, GenError> {
        let started = Instant::now();
        let rejected = |log: String| GenError::Compile {
            id: source.id.clone(),
            log,
            saved: None,
        };
        if !is_identifier(&source.id) {
            return Err(rejected(format!(
                "{:?} is no name of a function",
                source.id
            )));
        }
        let failed = |error: io::Error| GenError::CxxCall {
            compiler: self.program.clone(),
            id: source.id.clone(),
            source: error,
        };
        let folder = tempfile::Builder::new()
            .prefix("mkernel-")
            .tempdir()
            .map_err(failed)?;
        // The compiler knows the folder by its real path, and is to leave out just that.
        let path = fs::canonicalize(folder.path()).map_err(failed)?;
        write(&path, source).map_err(failed)?;
        let output =
            output_within(&mut self.kernel_command(&path), COMPILE_LIMIT).map_err(failed)?;
        let folder_prefix = format!("{}/", path.display());
        let log = output.text.replace(&folder_prefix, "");
        let log = log.replace("./mk/", "mk/"); // Found through `-I.`.
        if !output.succeeded {
            return Err(rejected(log));
        }
        let bytes = fs::read(path.join(OUTPUT)).map_err(failed)?;
        tracing::info!(
            "compiled {} for simulated GPUs in {} ms",
            source.id,
            started.elapsed().as_millis()
        );
        Ok(Cubin {
            id: source.id.clone(),
            target: source.target,
            bytes,
            resources: None,
            log,
        })
    }

    fn kernel_command(&self, folder: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .args(OPTIONS)
            .arg("-I.")
            // Names of files are those by which the kernel includes them, wherever it is compiled.
            .arg(format!("-ffile-prefix-map={}=", folder.display()))
            .arg("-ffile-prefix-map=./=")
            .args(["-o", OUTPUT, WRAPPER])
            .current_dir(folder)
            // What a compiler that is killed leaves goes with the folder.
            .env("TMPDIR", folder);
        command
    }
}

/// Programs to try with their first arguments, best first.
fn candidates(env: &Env) -> Vec<(PathBuf, Vec<String>)> {
    if let Some(program) = &env.mkernel_cxx {
        return vec![(program.clone(), Vec::new())];
    }
    let usual = ["c++", "g++", "clang++"].map(str::to_owned);
    env.cxx
        .iter()
        .chain(&usual)
        .filter_map(|text| {
            // As make takes it: `ccache g++` is a program and its argument.
            let mut words = text.split_whitespace().map(str::to_owned);
            Some((words.next()?.into(), words.collect()))
        })
        .collect()
}

/// A path that holds in another folder too; a name that `PATH` finds stays a name.
fn absolute(program: &Path) -> PathBuf {
    let is_name = program.components().count() == 1 && !program.is_absolute();
    if is_name {
        return program.to_owned();
    }
    std::path::absolute(program).unwrap_or_else(|_| program.to_owned())
}

/// How a person gets a compiler on this system.
fn install_command(env: &Env) -> String {
    const MANAGERS: [(&str, &str); 5] = [
        ("apt-get", "apt-get install --yes g++"),
        ("dnf", "dnf install --assumeyes gcc-c++"),
        ("zypper", "zypper --non-interactive install gcc-c++"),
        ("pacman", "pacman --sync --noconfirm gcc"),
        ("apk", "apk add g++"),
    ];
    let found = MANAGERS
        .iter()
        .find(|(program, _)| env.path.iter().any(|dir| dir.join(program).is_file()));
    // Unknown systems have a package of this name more often than not.
    let install = found.map_or("install g++", |(_, command)| command);
    let sudo = if rustix::process::geteuid().is_root() {
        ""
    } else {
        "sudo "
    };
    let unset = if env.mkernel_cxx.is_some() {
        " && unset MKERNEL_CXX"
    } else {
        ""
    };
    format!("{sudo}{install}{unset}")
}

fn is_identifier(id: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    id.chars().all(is_word) && id.chars().next().is_some_and(|c| !c.is_ascii_digit())
}

/// The text of [`WRAPPER`] for the kernel `id`, whose text is in `stem.cu`.
pub(crate) fn wrapper(stem: &str, id: &str) -> String {
    format!(
        "#include \"{}\"\nMK_SIMULATED_KERNEL({id})\n",
        file_name(stem)
    )
}

fn write(folder: &Path, source: &CudaSource) -> io::Result<()> {
    for (name, text) in headers(Target::Simulator) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(path, text)?;
    }
    // Findings quote the text, and the headers in it.
    fs::write(folder.join(file_name(&source.id)), source.with_headers())?;
    fs::write(folder.join(WRAPPER), wrapper(&source.id, &source.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(vars: &[(&str, &str)]) -> Env {
        Env::read(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into()))
    }

    #[test]
    fn a_compiler_given_by_hand_is_the_only_one() {
        let given = env(&[("MKERNEL_CXX", "/opt/my c++"), ("CXX", "g++")]);
        assert_eq!(candidates(&given), [("/opt/my c++".into(), Vec::new())]);
        let make = env(&[("CXX", "ccache g++ -m64")]);
        let programs: Vec<_> = candidates(&make);
        assert_eq!(
            programs[0],
            ("ccache".into(), vec!["g++".into(), "-m64".into()])
        );
        assert_eq!(programs.len(), 4);
    }

    #[test]
    fn without_a_compiler_there_is_a_way_out() {
        let error = HostCxx::find(&env(&[("MKERNEL_CXX", "/nowhere/c++")])).expect_err("none");
        let text = error.to_string();
        assert!(text.contains("/nowhere/c++: "), "{text}");
        assert!(text.contains("unset MKERNEL_CXX"), "{text}");
        // A program that is no compiler.
        let error = HostCxx::find(&env(&[("MKERNEL_CXX", "false")])).expect_err("none");
        assert!(matches!(error, GenError::CxxMissing { .. }), "{error}");
    }

    #[test]
    fn ids_are_names_of_functions() {
        assert!(is_identifier("ag_gemm_w8") && is_identifier("_"));
        for wrong in ["", "8k", "a-b", "a/b", "../a", "ä"] {
            assert!(!is_identifier(wrong), "{wrong}");
        }
    }
}
