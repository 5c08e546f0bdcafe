//! [`HostCxx`]: compiles kernels for simulated GPUs with the host's C++ compiler.
//!
//! The source of a kernel is compiled unchanged, but with other headers of the same names. This file finds and checks
//! the compiler, and `subprocess` runs it.

use crate::cubin::Cubin;
use crate::env::Env;
use crate::error::{Attempt, GenError};
use crate::source::{CudaSource, file_name};
use crate::subprocess::{first_line, output_within};
use crate::templates::not_inlined;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The options that affect the result.
///
/// The line table must be exact even for inlined functions (`-g1`), because findings of the simulator name lines. The
/// compiler must not fuse multiplications and additions that the source does not fuse.
pub(crate) const OPTIONS: [&str; 12] = [
    "-std=c++20",
    "-Og",
    "-g1",
    // Locations of variables are not needed, and take a quarter of the compile time.
    "-fno-var-tracking",
    // Version 5 puts the current folder into the line table in spite of the prefix maps.
    "-gdwarf-4",
    "-gno-record-gcc-switches",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    // NVRTC gives the warnings.
    "-w",
    "-Wno-psabi",
];

/// The file that is compiled. It includes and exports the kernel.
pub(crate) const WRAPPER: &str = "kernel.cpp";

/// The file that the compiler writes.
const OUTPUT: &str = "kernel.so";

/// The deadline of a compilation, many times its usual duration on a busy host.
const COMPILE_LIMIT: Duration = Duration::from_secs(120);

/// The deadline for the compiler's name and features. It is long, because the name is part of keys: without it, kernels
/// would be compiled again.
const PROBE_LIMIT: Duration = Duration::from_secs(60);

/// The host's C++ compiler, found and checked. Any number of threads may compile at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCxx {
    program: PathBuf,
    /// The arguments after the program in `MKERNEL_CXX` or `CXX`.
    args: Vec<String>,
    name: String,
}

/// The name of the compiler for keys.
pub(crate) fn key_name() -> String {
    HostCxx::load().map_or_else(|_| "no C++ compiler".into(), |cxx| cxx.name.clone())
}

impl HostCxx {
    /// Finds the compiler once per process. After a failure, the next call searches again.
    ///
    /// The compiler is `MKERNEL_CXX`, or the first of `CXX`, `c++`, `g++` and `clang++` that supports C++20.
    ///
    /// # Errors
    /// [`GenError::CxxMissing`] with the programs that were tried and the command that installs one.
    pub fn load() -> Result<&'static Self, GenError> {
        Self::load_within(PROBE_LIMIT)
    }

    /// Finds the compiler as [`Self::load`] does, and stops programs that have not answered after `limit`.
    ///
    /// # Errors
    /// [`GenError::CxxMissing`]
    pub fn load_within(limit: Duration) -> Result<&'static Self, GenError> {
        static FOUND: OnceLock<HostCxx> = OnceLock::new();
        static FINDING: Mutex<()> = Mutex::new(());
        if let Some(cxx) = FOUND.get() {
            return Ok(cxx);
        }
        let _guard = crate::lock::lock(&FINDING);
        if let Some(cxx) = FOUND.get() {
            return Ok(cxx);
        }
        let cxx = Self::find(Env::get(), limit)?;
        tracing::debug!("{} from {}", cxx.name, cxx.program.display());
        Ok(FOUND.get_or_init(|| cxx))
    }

    /// A command that runs the compiler, for compiling other programs than kernels.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        command
    }

    fn find(env: &Env, limit: Duration) -> Result<Self, GenError> {
        let mut looked = Vec::new();
        for (program, args) in candidates(env) {
            match Self::probe(&program, &args, limit) {
                Ok(cxx) => return Ok(cxx),
                Err(reason) => looked.push(Attempt {
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

    /// Determines the version of a compiler, and checks that it supports C++20.
    fn probe(program: &Path, args: &[String], limit: Duration) -> Result<Self, String> {
        let run = |arguments: &[&str]| {
            let mut command = Command::new(program);
            let output = output_within(command.args(args).args(arguments), limit);
            let output = output.map_err(|error| error.to_string())?;
            if output.succeeded {
                Ok(output.text)
            } else {
                match first_line(&output.text) {
                    none if none.is_empty() => Err("it failed without a message".to_owned()),
                    message => Err(message),
                }
            }
        };
        let version = first_line(&run(&["--version"])?);
        run(&["-std=c++20", "-fsyntax-only", "-x", "c++", "/dev/null"])
            .map_err(|reason| format!("{version} does not support C++20: {reason}"))?;
        let words = [&[version], args].concat();
        Ok(Self {
            program: absolute(program),
            args: args.to_vec(),
            name: format!("{}, {}", words.join(" "), std::env::consts::ARCH),
        })
    }

    /// The name and version of the compiler, and the architecture of its code.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of the compiler, or its name if it was found in `PATH`.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Compiles a kernel to a shared object that exports it. Equal sources give equal bytes.
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
                "{:?} is not a valid name of a function",
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
        // The compiler sees the real path of the folder, which its prefix map must match.
        let path = fs::canonicalize(folder.path()).map_err(failed)?;
        write(&path, source).map_err(failed)?;
        let output =
            output_within(&mut self.kernel_command(&path), COMPILE_LIMIT).map_err(failed)?;
        let folder_prefix = format!("{}/", path.display());
        let log = output.text.replace(&folder_prefix, "");
        let log = log.replace("./mk/", "mk/"); // The header is found through `-I.`.
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
            arch: source.arch,
            backend: source.backend,
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
            // File names in the result are the names in the includes, so that they do not depend on the folder.
            .arg(format!("-ffile-prefix-map={}=", folder.display()))
            .arg("-ffile-prefix-map=./=")
            .args(["-o", OUTPUT, WRAPPER])
            .current_dir(folder)
            // If the compiler is killed, its temporary files are removed together with the folder.
            .env("TMPDIR", folder);
        command
    }
}

/// The programs to try with their first arguments, in order of preference.
fn candidates(env: &Env) -> Vec<(PathBuf, Vec<String>)> {
    if let Some(given) = &env.mkernel_cxx {
        // A path may have spaces. Otherwise the variable is read as `CXX` is.
        let words = given.to_str().filter(|_| !given.is_file());
        return vec![
            words
                .and_then(program_with_arguments)
                .unwrap_or_else(|| (given.clone(), Vec::new())),
        ];
    }
    let usual = ["c++", "g++", "clang++"].map(str::to_owned);
    env.cxx
        .iter()
        .chain(&usual)
        .filter_map(|text| program_with_arguments(text))
        .collect()
}

/// Splits a command at spaces, as make does: `ccache g++` is the program `ccache` with an argument.
fn program_with_arguments(text: &str) -> Option<(PathBuf, Vec<String>)> {
    let mut words = text.split_whitespace().map(str::to_owned);
    Some((words.next()?.into(), words.collect()))
}

/// Makes the path of a program absolute. A plain name, which is searched in `PATH`, is returned unchanged.
fn absolute(program: &Path) -> PathBuf {
    let is_name = program.components().count() == 1 && !program.is_absolute();
    if is_name {
        return program.to_owned();
    }
    std::path::absolute(program).unwrap_or_else(|_| program.to_owned())
}

/// The command that installs a compiler on this system.
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
    // This is the usual name of the package on other systems.
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

/// Whether `id` is an identifier of C++.
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

/// Writes the source, the wrapper and the headers that are not inlined to `folder`.
fn write(folder: &Path, source: &CudaSource) -> io::Result<()> {
    for (name, text) in not_inlined() {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(path, text)?;
    }
    // Findings quote lines of the source and of the headers that are inlined into it.
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
        let given = env(&[("MKERNEL_CXX", "/opt/bin/c++"), ("CXX", "g++")]);
        assert_eq!(candidates(&given), [("/opt/bin/c++".into(), Vec::new())]);
        let make = env(&[("CXX", "ccache g++ -m64")]);
        let programs: Vec<_> = candidates(&make);
        assert_eq!(
            programs[0],
            ("ccache".into(), vec!["g++".into(), "-m64".into()])
        );
        assert_eq!(programs.len(), 4);
    }

    #[test]
    fn a_compiler_given_by_hand_has_arguments_unless_it_is_a_file() {
        let words = env(&[("MKERNEL_CXX", " ccache  g++ ")]);
        assert_eq!(candidates(&words), [("ccache".into(), vec!["g++".into()])]);
        let dir = tempfile::tempdir().expect("temporary folder");
        let file = dir.path().join("my c++");
        fs::write(&file, "").expect("file");
        let path = file.to_str().expect("UTF-8");
        let whole = env(&[("MKERNEL_CXX", path)]);
        assert_eq!(candidates(&whole), [(file.clone(), Vec::new())]);
    }

    #[test]
    fn without_a_compiler_there_is_a_way_out() {
        let error =
            HostCxx::find(&env(&[("MKERNEL_CXX", "/nowhere/c++")]), PROBE_LIMIT).expect_err("none");
        let text = error.to_string();
        assert!(text.contains("/nowhere/c++: "), "{text}");
        assert!(text.contains("unset MKERNEL_CXX"), "{text}");
        // A program that is no compiler.
        let error =
            HostCxx::find(&env(&[("MKERNEL_CXX", "false")]), PROBE_LIMIT).expect_err("none");
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
