//! [`Nvrtc`]: CUDA → machine code, by NVIDIA's run-time compiler.
//!
//! Here the library is found and checked; `program` calls it.

use crate::cubin::{Cubin, read_log};
use crate::env::Env;
use crate::error::{GenError, Place, with_causes};
use crate::folder::Folder;
use crate::library::LibraryFile;
use crate::locate::{Candidate, PINNED_VERSION, candidates, check_digest, fetch_command_line};
use crate::program::{Functions, Program};
use crate::source::CudaSource;
use libloading::Library;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

/// The GPU architecture that kernels are compiled for.
pub const ARCH: &str = "sm_90a";

/// All options of the compiler. With an `sm_` architecture ptxas runs too, and checks inline PTX.
pub(crate) const OPTIONS: [&str; 4] = [
    "--gpu-architecture=sm_90a",
    "--std=c++20",
    "--ptxas-options=-v",
    "--ptxas-options=--warn-on-spills",
];

/// The same for PTX.
const PTX_OPTIONS: [&str; 2] = ["--gpu-architecture=compute_90a", "--std=c++20"];

/// The NVRTC version that keys are made for: the pinned one even where there is no libnvrtc, so that bundles and caches
/// made elsewhere serve there.
pub(crate) fn key_version() -> (u32, u32) {
    if !Env::get().nvrtc_any {
        return PINNED_VERSION;
    }
    Nvrtc::load().map_or(PINNED_VERSION, Nvrtc::version)
}

/// libnvrtc, loaded and checked. Any number of threads may compile at once.
pub struct Nvrtc {
    path: PathBuf,
    version: (u32, u32),
    functions: Functions,
    /// Keeps the code that `functions` point to, and what it opens by name.
    _libraries: [Library; 2],
}

impl Nvrtc {
    /// Finds and loads libnvrtc, once per process. A failure is not kept: the library may be installed meanwhile.
    ///
    /// It is looked for at `MKERNEL_NVRTC`; or in `CUDA_HOME`, `/usr/local/cuda*`, the loader's path, the folder of
    /// `mkernel-gen fetch-nvrtc`, and Python's site-packages.
    ///
    /// # Errors
    /// [`GenError::NvrtcMissing`] with the places that were searched, and the command that gets it.
    pub fn load() -> Result<&'static Self, GenError> {
        static LOADED: OnceLock<Nvrtc> = OnceLock::new();
        static LOADING: Mutex<()> = Mutex::new(());
        if let Some(nvrtc) = LOADED.get() {
            return Ok(nvrtc);
        }
        let _guard = crate::lock::lock(&LOADING);
        if let Some(nvrtc) = LOADED.get() {
            return Ok(nvrtc);
        }
        let nvrtc = Self::find(Env::get())?;
        tracing::debug!(
            "NVRTC {}.{} from {}",
            nvrtc.version.0,
            nvrtc.version.1,
            nvrtc.path.display()
        );
        Ok(LOADED.get_or_init(|| nvrtc))
    }

    fn find(env: &Env) -> Result<Self, GenError> {
        let mut looked = Vec::new();
        for candidate in candidates(env) {
            let (place, file) = match candidate.clone() {
                Candidate::File(path) => (path.display().to_string(), Ok(path)),
                Candidate::Folder(path) | Candidate::Fetched(path) => {
                    (path.display().to_string(), library_in(&path, env.nvrtc_any))
                }
                Candidate::Loader => ("the loader's path".into(), Ok(soname().into())),
            };
            let source = match candidate {
                Candidate::Loader => Source::Loader,
                Candidate::Fetched(_) => Source::Fetched,
                Candidate::File(_) | Candidate::Folder(_) => Source::Installed,
            };
            match file.and_then(|file| Self::open(file, source, env.nvrtc_any)) {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(reason) => looked.push(Place {
                    path: place,
                    reason,
                }),
            }
        }
        Err(GenError::NvrtcMissing {
            version: PINNED_VERSION,
            command: fetch_command_line(),
            looked,
        })
    }

    /// Loads a library, checks its version and loads its builtins.
    fn open(path: PathBuf, source: Source, any: bool) -> Result<Self, String> {
        let (path, library) = open_library(path, source)?;
        let functions = Functions::find(&library)
            .map_err(|error| format!("it is not libnvrtc: {}", with_causes(&error)))?;
        let (major, minor) = functions.version().ok_or("it does not tell its version")?;
        if (major, minor) != PINNED_VERSION && !any {
            return Err(format!(
                "its version is {major}.{minor} (MKERNEL_NVRTC_ANY=1 allows it)"
            ));
        }
        // NVRTC opens its builtins by bare name when it first compiles; the loader then finds them loaded already.
        // They lie beside the real file.
        let builtins = path.with_file_name(format!("libnvrtc-builtins.so.{major}.{minor}"));
        let (_, builtins) =
            open_library(builtins, source).map_err(|error| format!("its builtins: {error}"))?;
        Ok(Self {
            path,
            version: (major, minor),
            functions,
            _libraries: [library, builtins],
        })
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Its file, or its name if the loader found it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Compiles a kernel. Its log must be that of a sound kernel: no lost optimisations, no warnings, no spills but of two
    /// registers, of which a warning tells (through `tracing`).
    ///
    /// # Errors
    /// [`GenError::Compile`], [`GenError::Rejected`], [`GenError::NvrtcCall`]
    pub fn compile(&self, source: &CudaSource) -> Result<Cubin, GenError> {
        let started = Instant::now();
        let program = Program::create(&self.functions, source)?;
        program.compile(&OPTIONS)?;
        let report = read_log(&program.log()?);
        let bytes = program.cubin()?;
        if !report.faults.is_empty() {
            return Err(GenError::Rejected {
                id: source.id.clone(),
                faults: report.faults,
                log: report.log,
                saved: None,
            });
        }
        if report.resources.spill_store_bytes > 0 {
            tracing::warn!(
                "kernel {} spills {} bytes of registers, which may cost it some speed; another tile may not",
                source.id,
                report.resources.spill_store_bytes
            );
        }
        tracing::info!(
            "compiled {} in {} ms",
            source.id,
            started.elapsed().as_millis()
        );
        Ok(Cubin {
            id: source.id.clone(),
            target: source.target,
            bytes,
            resources: Some(report.resources),
            log: report.log,
        })
    }
}

impl Nvrtc {
    /// The PTX of a kernel: what the compiler makes of it before registers are assigned.
    ///
    /// # Errors
    /// [`GenError::Compile`] with the log if the text is wrong.
    pub fn ptx(&self, source: &CudaSource) -> Result<String, GenError> {
        let program = Program::create(&self.functions, source)?;
        program.compile(&PTX_OPTIONS)?;
        program.ptx()
    }
}

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nvrtc")
            .field("path", &self.path)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

fn soname() -> String {
    format!("libnvrtc.so.{}", PINNED_VERSION.0)
}

/// How a library is got at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// By the loader's own search.
    Loader,
    /// From a folder where somebody installed it.
    Installed,
    /// From the folder where `mkernel-gen fetch-nvrtc` installs it: its contents are known.
    Fetched,
}

/// The library in a folder: of the pinned major version, or, if `any`, the highest.
fn library_in(folder: &Path, any: bool) -> Result<PathBuf, String> {
    let names = Folder::open(folder).and_then(|folder| folder.names());
    let names = names.map_err(|error| error.to_string())?;
    let names = names.iter().filter_map(|name| name.to_str());
    let major = |name: &str| name.strip_prefix("libnvrtc.so.")?.parse::<u32>().ok();
    let mut found: Vec<_> = names
        .filter_map(|name| Some((major(name)?, name)))
        .collect();
    found.sort();
    let pinned = found.iter().find(|(major, _)| *major == PINNED_VERSION.0);
    match (pinned, found.last()) {
        (Some((_, name)), _) => Ok(folder.join(name)),
        (None, Some((_, name))) if any => Ok(folder.join(name)),
        (None, Some((_, name))) => Err(format!("has {name} only")),
        (None, None) => Err(format!("has no {}", soname())),
    }
}

/// Loads a library; its path comes without links, or is the name that the loader was given.
fn open_library(path: PathBuf, source: Source) -> Result<(PathBuf, Library), String> {
    if source == Source::Loader {
        // SAFETY: the initialisers of NVIDIA's libraries have no requirements. The loader searches the system's folders,
        // which are root's, and those that this user names in LD_LIBRARY_PATH.
        let library = unsafe { Library::new(&path) }.map_err(|error| with_causes(&error))?;
        return Ok((path, library));
    }
    let file = LibraryFile::open(&path).map_err(|error| error.to_string())?;
    if source == Source::Fetched {
        check_digest(&file)?;
    }
    let path = file.path.clone();
    // SAFETY: as above. Nobody but this user and root can have written the file, which was checked on the descriptor that
    // is loaded.
    let library = unsafe { file.load() }?;
    Ok((path, library))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_library_in_a_folder() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let folder = dir.path();
        let add = |name: &str| fs::write(folder.join(name), "").expect("file");
        assert!(library_in(&folder.join("absent"), false).is_err());
        add("libnvrtc.alt.so.13");
        add("libnvrtc-builtins.so.13.0");
        assert_eq!(
            library_in(folder, true),
            Err("has no libnvrtc.so.13".into())
        );
        add("libnvrtc.so.12");
        add("libnvrtc.so.9");
        assert_eq!(
            library_in(folder, false),
            Err("has libnvrtc.so.12 only".into())
        );
        assert_eq!(library_in(folder, true), Ok(folder.join("libnvrtc.so.12")));
        add("libnvrtc.so.13");
        add("libnvrtc.so.14");
        for any in [false, true] {
            assert_eq!(library_in(folder, any), Ok(folder.join("libnvrtc.so.13")));
        }
    }

    #[test]
    fn libraries_that_somebody_planted_are_not_loaded() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("temporary folder");
        let library = dir.path().join("libnvrtc.so.13");
        fs::write(&library, "planted").expect("file");
        let refused = |mode, source| {
            fs::set_permissions(&library, fs::Permissions::from_mode(mode)).expect("own");
            let opened = Nvrtc::open(library.clone(), source, true);
            opened.expect_err("not loaded")
        };
        for source in [Source::Installed, Source::Fetched] {
            let reason = refused(0o664, source);
            assert!(reason.contains("others can write"), "{reason}");
        }
        let reason = refused(0o644, Source::Fetched);
        assert!(reason.contains("its SHA-256 is"), "{reason}");
        // A file of this user's own gets as far as the loader.
        let reason = refused(0o644, Source::Installed);
        assert!(reason.contains("/proc/self/fd/"), "{reason}");
    }
}
