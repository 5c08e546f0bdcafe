//! [`Failure`]: the errors that end a command, and the exit code of each.

use super::format::count;
use mkernel_compile::{GenError, InvalidVariables};
use mkernel_declare::SpannedDiagnostic;
use mkernel_topology::NicConfigError;
use std::error::Error;
use std::io;
use std::path::PathBuf;

/// An error that ends a command.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Errors in the configuration of kernels.
    #[error("{} in the configuration", count(.0.len(), "error"))]
    Diagnostics(Vec<SpannedDiagnostic<String>>),
    /// Arguments that do not fit together.
    #[error("{0}")]
    Usage(&'static str),
    /// Wrong lines of files of results.
    #[error("{} in the results", count(.0.len(), "error"))]
    Results(Vec<SpannedDiagnostic<String>>),
    #[error(
        "the kernels need {}, and this host has {found}: times of simulated GPUs mean nothing; use another host, or give fewer --ranks",
        count(*.needed as usize, "GPU")
    )]
    TooFewGpus { needed: u32, found: u32 },
    #[error("cannot plot the results: {0}")]
    Plot(String),
    #[error("environment variable {name} is {value:?}; set it to {expected}")]
    Variable {
        name: &'static str,
        value: String,
        expected: String,
    },
    #[error(transparent)]
    Variables(InvalidVariables),
    /// Kernels that did not compile, by label.
    #[error("{} did not compile", count(.0.len(), "kernel"))]
    Compile(Vec<(String, GenError)>),
    #[error(
        "the bundle {} lacks {}, or has copies that are damaged or from other sources; build all kernels of a bundle with one `mkernel-gen build --out`",
        .path.display(), count(*.missing, "kernel")
    )]
    NotBundled { path: PathBuf, missing: usize },
    #[error(
        "{} of a bundle; build the bundle anew with `mkernel-gen build KERNELS --out DIR`, or copy it again", count(*.damaged, "damaged kernel")
    )]
    Damaged { damaged: usize },
    #[error(transparent)]
    Gen(GenError),
    /// Runs that failed, and the exit code.
    #[error("{failed} of {} failed", count(*.ran as usize, "run"))]
    Runs { failed: u64, ran: u64, code: u8 },
    #[error(
        "{label} needs about {needed} of host memory on simulated GPUs, but only {available} are free; use smaller sizes, fewer --calls, or GPUs"
    )]
    HostMemory {
        label: String,
        needed: String,
        available: String,
    },
    /// The measured choices of the environment cannot be used.
    #[error(transparent)]
    Tuned(mkernel::Error),
    #[error("{} has no measured choices; name another file by --out", .path.display())]
    NotTuned {
        path: PathBuf,
        source: mkernel_spec::plan::TunedError,
    },
    #[error("the ranks of the job are not connected")]
    Connect(#[source] mkernel::Error),
    #[error("the fabric test failed")]
    Fabric(#[source] mkernel::Error),
    #[error("{failed} of {} failed; see the remedies above", count(*.ran as usize, "check"))]
    Checks { failed: u64, ran: u64 },
    #[error("cannot read {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}", .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{} does not describe a device", .path.display())]
    Device {
        path: PathBuf,
        source: toml::de::Error,
    },
    #[error(
        "machine code needs nvdisasm or cuobjdump, and neither is in PATH, in the toolkits of CUDA_HOME, CUDA_PATH and CUDA_ROOT, or in /usr/local/cuda/bin; leave out `sass`, or run `pip install nvidia-cuda-nvdisasm` and add the folder of nvdisasm to PATH"
    )]
    NoDisassembler,
    #[error("{} cannot show the machine code: {reason}; leave out `sass`, or use nvdisasm of CUDA 13 or newer", .program.display())]
    Disassembler { program: PathBuf, reason: String },
    #[error("{faults} of this machine; see the remedies above")]
    Machine { faults: String },
    #[error("cannot install NVRTC: {what}")]
    Fetch {
        what: String,
        source: Option<io::Error>,
    },
    #[error(transparent)]
    Nics(NicConfigError),
    #[error("cannot start {}; write its path, such as ./program, or a name in a folder of PATH", .program.display())]
    Start { program: PathBuf, source: io::Error },
    #[error("no port and no secret for the ranks")]
    Rendezvous(#[source] io::Error),
    #[error(
        "{nproc} processes of one host cannot share simulated GPUs; start one process, which makes a thread per rank (`Communicator::local`, `mkernel-gen run`), or give --as-hosts to try how ranks meet without operators"
    )]
    SimulatedProcesses { nproc: usize },
    /// The first rank that failed, and its exit code.
    #[error("rank {rank} {how}")]
    Rank { rank: usize, how: String, code: u8 },
    #[error("signals cannot be received")]
    Signals(#[source] io::Error),
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
}

impl Failure {
    /// The exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Diagnostics(_)
            | Self::Results(_)
            | Self::Plot(_)
            | Self::Device { .. }
            | Self::NotTuned { .. }
            | Self::Connect(_)
            | Self::Fabric(_)
            | Self::Checks { .. }
            | Self::Damaged { .. }
            | Self::NotBundled { .. } => 1,
            Self::Usage(_)
            | Self::SimulatedProcesses { .. }
            | Self::Variable { .. }
            | Self::Variables(_)
            | Self::Nics(_) => 2,
            Self::Compile(failed) => failed
                .iter()
                .map(|(_, error)| exit_code(error))
                .max()
                .unwrap_or(3),
            Self::Gen(error) => exit_code(error),
            Self::Runs { code, .. } | Self::Rank { code, .. } => *code,
            Self::HostMemory { .. }
            | Self::TooFewGpus { .. }
            | Self::Tuned(_)
            | Self::Read { .. }
            | Self::Write { .. }
            | Self::Fetch { .. }
            | Self::Machine { .. }
            | Self::NoDisassembler
            | Self::Disassembler { .. }
            | Self::Signals(_)
            | Self::Start { .. }
            | Self::Rendezvous(_)
            | Self::Output(_) => 4,
        }
    }
}

/// The exit code of an error: 3 for the source of a kernel, 1 for its configuration, and 4 for the environment.
pub fn exit_code(error: &GenError) -> u8 {
    match error {
        GenError::Render { .. }
        | GenError::NvrtcCall { .. }
        | GenError::Compile { .. }
        | GenError::Rejected { .. } => 3,
        GenError::Plan(_) => 1,
        _ => 4,
    }
}

/// The message of an error, followed by the messages of its causes, one per line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str("\n    caused by: ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile_error() -> GenError {
        GenError::Compile {
            id: "k".into(),
            log: "k.cu(1): error".into(),
            saved: None,
        }
    }

    fn missing() -> GenError {
        GenError::NvrtcMissing {
            version: (13, 0),
            commands: ["fetch-nvrtc".into(), "pip".into()],
            looked: Vec::new(),
        }
    }

    #[test]
    fn exit_codes_distinguish_kernels_and_the_environment() {
        let failed = |errors: Vec<GenError>| {
            let named = errors.into_iter().map(|error| ("k".to_owned(), error));
            Failure::Compile(named.collect()).exit_code()
        };
        assert_eq!(failed(vec![compile_error()]), 3);
        assert_eq!(failed(vec![compile_error(), missing()]), 4);
        assert_eq!(Failure::Gen(missing()).exit_code(), 4);
        assert_eq!(Failure::Diagnostics(Vec::new()).exit_code(), 1);
    }

    #[test]
    fn causes_follow_on_their_own_lines() {
        let path = PathBuf::from("f.toml");
        let source = io::Error::other("gone");
        let text = chain(&Failure::Read { path, source });
        assert_eq!(text, "cannot read f.toml\n    caused by: gone");
    }
}
