//! [`GenError`]: the errors of rendering, compiling and storing kernels.

use crate::key::Key;
use mkernel_spec::{Backend, Diagnostics};
use std::fmt;
use std::path::PathBuf;

/// An error of rendering, compiling or storing a kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenError {
    /// The configuration is invalid, or there is no plan for it.
    #[error("this kernel cannot be made:\n{0}")]
    Plan(Diagnostics),
    /// A template is wrong, which is a defect of this crate.
    #[cfg(feature = "jit")]
    #[error("kernel {id} cannot be rendered; this is a defect of mkernel-gen, please report it")]
    Render {
        /// The name of the kernel.
        id: String,
        /// The error of Tera.
        source: tera::Error,
    },
    /// libnvrtc was not found, or only in other versions.
    #[error(
        "libnvrtc {}.{} was not found; to install it, run\n  {}\nor, without mkernel-gen,\n  {}\nTried:\n{}",
        version.0,
        version.1,
        commands[0],
        commands[1],
        Lines(looked)
    )]
    NvrtcMissing {
        /// The required version.
        version: (u32, u32),
        /// The command of mkernel-gen that installs the library, and the command of pip that does the same.
        commands: [String; 2],
        /// The paths that were tried.
        looked: Vec<Attempt>,
    },
    /// No C++ compiler was found that can compile kernels for simulated GPUs.
    #[error(
        "kernels for simulated GPUs need a C++20 compiler (g++ 10, clang++ 12 or newer), and none was found; to install one, run\n  {command}\nTried:\n{}",
        Lines(looked)
    )]
    CxxMissing {
        /// The command that installs a compiler.
        command: String,
        /// The programs that were tried.
        looked: Vec<Attempt>,
    },
    /// The C++ compiler could not be run, or did not end in time.
    #[error("the C++ compiler {} cannot be run for kernel {id}", compiler.display())]
    CxxCall {
        /// The path of the compiler.
        compiler: PathBuf,
        /// The name of the kernel.
        id: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A call of libnvrtc failed for a reason other than the kernel's source.
    #[error("{call} failed for kernel {id}: {message}")]
    NvrtcCall {
        /// The C function that failed.
        call: &'static str,
        /// The name of the kernel.
        id: String,
        /// The message of libnvrtc with its log.
        message: String,
    },
    /// The compiler rejected the source.
    #[error("kernel {id} does not compile{}:\n{}", Saved(saved), log.trim_end())]
    Compile {
        /// The name of the kernel.
        id: String,
        /// The log of the compiler. The paths in it are files in `saved`.
        log: String,
        /// The folder that has the source and the log.
        saved: Option<PathBuf>,
    },
    /// The kernel compiled, but with more than 32 spilled registers, without an optimisation that it needs, or with
    /// warnings.
    #[error(
        "kernel {id} compiled, but its machine code is rejected{}; try a smaller tile, or report a defect if no tuning was given:\n{}",
        Saved(saved),
        Lines(faults)
    )]
    Rejected {
        /// The name of the kernel.
        id: String,
        /// The lines of the log for which the kernel was rejected.
        faults: Vec<String>,
        /// The whole log. The paths in it are files in `saved`.
        log: String,
        /// The folder that has the source and the log.
        saved: Option<PathBuf>,
    },
    /// Compiling is disabled by `MKERNEL_JIT=0`, or this program was built without the feature `jit`, and no bundle or cache has a usable copy of the kernel.
    #[error(
        "kernel {id} (key {key}) {}, and {}; {}, or {}",
        Unusable(unusable),
        WHY_NOT_COMPILED.0,
        how_to_store(*backend),
        WHY_NOT_COMPILED.1
    )]
    JitDisabled {
        /// The name of the kernel.
        id: String,
        /// The content address of the kernel.
        key: Key,
        /// The compiler of the kernel.
        backend: Backend,
        /// The copies that were found and the reasons why they cannot be used.
        unusable: Vec<Attempt>,
    },
    /// An ahead-of-time bundle cannot be written.
    #[error("the bundle {} cannot be written", path.display())]
    WriteBundle {
        /// The folder of the bundle.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The folder for a bundle has other files, which a bundle would replace.
    #[error("{} exists and is not a bundle; choose another folder", .0.display())]
    NotABundle(PathBuf),
    /// An ahead-of-time bundle cannot be read.
    #[error("the bundle {} cannot be used; build it again with `mkernel-gen build`", path.display())]
    ReadBundle {
        /// The folder of the bundle.
        path: PathBuf,
        /// The cause.
        source: BundleFault,
    },
    /// The folder of the cache has files that mkernel did not create.
    #[error("nothing is removed: {0}")]
    NotACache(String),
    /// The cache cannot be read, so that no kernel can be removed.
    #[error("the kernel cache {} cannot be cleaned", path.display())]
    Clean {
        /// The folder of the cache.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file or folder cannot be removed from the cache.
    #[error("{} cannot be removed from the cache", path.display())]
    Remove {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

/// The reason why a bundle cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleFault {
    /// The manifest cannot be read.
    #[error("bundle.json cannot be read")]
    Io(#[from] std::io::Error),
    /// The manifest is not valid JSON of this format.
    #[error("bundle.json is damaged")]
    Json(#[from] serde_json::Error),
    /// The bundle was written by another version.
    #[error("it has format {found}, but this version reads format {expected}")]
    Schema {
        /// The format of the bundle.
        found: u32,
        /// The format that this version reads.
        expected: u32,
    },
}

/// Environment variables have values that are not valid. The error lists all such variables.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct InvalidVariables(pub Vec<InvalidVariable>);

/// An environment variable with a value that is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidVariable {
    /// The name of the variable.
    pub name: &'static str,
    /// The value of the variable.
    pub value: String,
    /// A description of the values that are valid.
    pub expected: &'static str,
}

impl fmt::Display for InvalidVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            value,
            expected,
        } = self;
        write!(
            f,
            "environment variable {name} is {value:?}; it should be {expected}"
        )
    }
}

/// A path that was tried and cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// A folder, a program, or a description of the loader's search.
    pub path: String,
    /// The reason why it cannot be used.
    pub reason: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}

/// The reason why nothing is compiled, and a remedy.
const WHY_NOT_COMPILED: (&str, &str) = if cfg!(feature = "jit") {
    (
        "compiling is disabled by MKERNEL_JIT=0",
        "unset MKERNEL_JIT",
    )
} else {
    (
        "this program was built without mkernel's feature jit",
        "build it with this feature",
    )
};

/// Shows each item on a line of its own.
struct Lines<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Lines<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, line) in self.0.iter().enumerate() {
            write!(f, "{}  {line}", if i > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

/// Shows the folder of a saved source, if there is one.
struct Saved<'a>(&'a Option<PathBuf>);

impl fmt::Display for Saved<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |path| {
            write!(f, " (source and log in {})", path.display())
        })
    }
}

/// Shows why no stored copy of a kernel is used.
struct Unusable<'a>(&'a [Attempt]);

impl fmt::Display for Unusable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return write!(f, "is in no bundle and not cached");
        }
        write!(f, "cannot be used from ")?;
        for (i, attempt) in self.0.iter().enumerate() {
            write!(f, "{}{attempt}", if i > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

/// Instructions for storing a kernel so that it need not be compiled.
fn how_to_store(backend: Backend) -> &'static str {
    match backend {
        Backend::Nvrtc => "add it to the bundle with `mkernel-gen build`",
        Backend::HostCxx => {
            "bundles of `mkernel-gen build` have no kernels for simulated GPUs, so run it once without MKERNEL_JIT=0 to cache it"
        }
    }
}

/// The messages of an error and of its causes in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
