//! [`GenError`]: one variant per operation that can fail.

use crate::key::Key;
use mkernel_spec::{Diagnostics, Target};
use std::fmt;
use std::path::PathBuf;

/// What could not be rendered, compiled or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenError {
    /// The configuration has mistakes, or no plan fits it.
    #[error("this kernel cannot be made:\n{0}")]
    Plan(Diagnostics),
    /// A template is wrong: a defect of this crate.
    #[error("kernel {id} cannot be rendered; this is a defect of mkernel-gen, please report it")]
    Render {
        /// The kernel.
        id: String,
        /// What Tera says.
        source: tera::Error,
    },
    /// libnvrtc was not found, or only other versions of it.
    #[error("libnvrtc {}.{} was not found; to get it, run\n  {command}\nLooked in:\n{}", version.0, version.1, Lines(looked))]
    NvrtcMissing {
        /// The version that is needed.
        version: (u32, u32),
        /// The one command that gets it.
        command: String,
        /// Where it was looked for.
        looked: Vec<Place>,
    },
    /// No C++ compiler was found that can make kernels for simulated GPUs.
    #[error(
        "kernels for simulated GPUs need a C++20 compiler (g++ 10, clang++ 12 or newer), and none was found; to get it, run\n  {command}\nTried:\n{}",
        Lines(looked)
    )]
    CxxMissing {
        /// The one command that gets it.
        command: String,
        /// What was tried.
        looked: Vec<Place>,
    },
    /// The C++ compiler could not be run, or did not end.
    #[error("the C++ compiler {} cannot be run for kernel {id}", compiler.display())]
    CxxCall {
        /// The program.
        compiler: PathBuf,
        /// The kernel.
        id: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A call of libnvrtc failed for another reason than the kernel's text.
    #[error("{call} failed for kernel {id}: {message}")]
    NvrtcCall {
        /// The C function.
        call: &'static str,
        /// The kernel.
        id: String,
        /// What libnvrtc says, with its log.
        message: String,
    },
    /// The compiler rejects the text.
    #[error("kernel {id} does not compile{}:\n{}", Saved(saved), log.trim_end())]
    Compile {
        /// The kernel.
        id: String,
        /// The compiler's log; its places are files of `saved`.
        log: String,
        /// The folder with source and log.
        saved: Option<PathBuf>,
    },
    /// It compiles, but spills more than two registers, loses an optimisation it was written for, or has warnings.
    #[error(
        "kernel {id} compiles, but is rejected{}; try a smaller tile, and report it if no tuning was given:\n{}",
        Saved(saved),
        Lines(faults)
    )]
    Rejected {
        /// The kernel.
        id: String,
        /// The lines of the log that say why.
        faults: Vec<String>,
        /// The whole log; its places are files of `saved`.
        log: String,
        /// The folder with source and log.
        saved: Option<PathBuf>,
    },
    /// The kernel is in no bundle and not cached, or cannot be used from there, and `MKERNEL_JIT=0`.
    #[error(
        "kernel {id} (key {key}) {}, and compiling is switched off; {}, or remove MKERNEL_JIT=0",
        Unusable(unusable),
        how_to_store(*target)
    )]
    JitDisabled {
        /// The kernel.
        id: String,
        /// Its content address.
        key: Key,
        /// Whose machine code is wanted.
        target: Target,
        /// Where it was found, and why it cannot be used.
        unusable: Vec<Place>,
    },
    /// Writing an ahead-of-time bundle.
    #[error("the bundle {} cannot be written", path.display())]
    WriteBundle {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The folder for a bundle holds something else, which would be lost.
    #[error("{} exists and is not a bundle; choose another folder, or remove it", .0.display())]
    NotABundle(PathBuf),
    /// Reading an ahead-of-time bundle.
    #[error("the bundle {} cannot be used; make it anew with `mkernel-gen build`", path.display())]
    ReadBundle {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: BundleFault,
    },
    /// The folder of the cache holds something else.
    #[error("nothing is removed: {0}")]
    NotACache(String),
    /// Reading the cache, to remove kernels from it.
    #[error("the kernel cache {} cannot be cleaned", path.display())]
    Clean {
        /// Its folder.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Removing kernels from the cache.
    #[error("{} cannot be removed from the cache", path.display())]
    Remove {
        /// What.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

/// Why a bundle cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleFault {
    /// Its manifest cannot be read.
    #[error("bundle.json cannot be read")]
    Io(#[from] std::io::Error),
    /// Its manifest is not what this version writes.
    #[error("bundle.json is damaged")]
    Json(#[from] serde_json::Error),
    /// It was written by another version.
    #[error("it has format {found}, this version reads format {expected}")]
    Schema {
        /// The format found.
        found: u32,
        /// The format that is read.
        expected: u32,
    },
}

/// A place where a compiler was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// A folder, a program, or a name for the loader.
    pub path: String,
    /// What was wrong with it.
    pub reason: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}

struct Lines<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Lines<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, line) in self.0.iter().enumerate() {
            write!(f, "{}  {line}", if i > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

struct Saved<'a>(&'a Option<PathBuf>);

impl fmt::Display for Saved<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |path| {
            write!(f, " (source and log in {})", path.display())
        })
    }
}

struct Unusable<'a>(&'a [Place]);

impl fmt::Display for Unusable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return write!(f, "is in no bundle and not cached");
        }
        write!(f, "cannot be used from ")?;
        for (i, place) in self.0.iter().enumerate() {
            write!(f, "{}{place}", if i > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

/// How a kernel gets to where it is found without compiling.
fn how_to_store(target: Target) -> &'static str {
    match target {
        Target::Sm90a => "add it to the bundle with `mkernel-gen build`",
        Target::Simulator => {
            "bundles of `mkernel-gen build` have no kernels for simulated GPUs: run once without MKERNEL_JIT=0, which caches it"
        }
    }
}

/// The message of an error and of its causes, in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
