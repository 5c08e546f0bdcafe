//! [`Nvrtc`]: compiles kernels for GPUs with NVIDIA's run-time compiler.
//!
//! This file finds, checks and loads the library, and `program` calls it.

use crate::cubin::Cubin;
use crate::env::Env;
use crate::error::{Attempt, GenError, with_causes};
use crate::folder::Folder;
use crate::library::LibraryFile;
use crate::locate::{SearchPath, check_digest, fetch_command_lines, search_paths};
use crate::nvrtc_log::read_log;
use crate::nvrtc_options::{PINNED_VERSION, options, ptx_options};
use crate::program::{Functions, Program};
use crate::source::CudaSource;
use libloading::Library;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

/// The library libnvrtc, loaded and checked. Any number of threads may compile at the same time.
pub struct Nvrtc {
    path: PathBuf,
    version: (u32, u32),
    functions: Functions,
    /// The library of `functions` and its builtins, which must stay loaded.
    _libraries: [Library; 2],
}

impl Nvrtc {
    /// Finds and loads libnvrtc once per process. After a failure, the next call searches again.
    ///
    /// If `MKERNEL_NVRTC` is set, the library must be there. Otherwise it is searched in `CUDA_HOME`, `CUDA_PATH`,
    /// `CUDA_ROOT`, `/usr/local/cuda*`, the loader's path, the folder of `mkernel-gen fetch-nvrtc`, and Python's site-packages.
    ///
    /// # Errors
    /// [`GenError::NvrtcMissing`] with the paths that were searched and the commands that install the library.
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
        for candidate in search_paths(env) {
            let (path, file) = match candidate.clone() {
                SearchPath::File(path) => (path.display().to_string(), Ok(path)),
                SearchPath::Folder(path) | SearchPath::Fetched(path) => {
                    (path.display().to_string(), library_in(&path, env.nvrtc_any))
                }
                SearchPath::Loader => ("the loader's path".into(), Ok(soname().into())),
            };
            let origin = match candidate {
                SearchPath::Loader => Origin::Loader,
                SearchPath::Fetched(_) => Origin::Fetched,
                SearchPath::File(_) | SearchPath::Folder(_) => Origin::Installed,
            };
            match file.and_then(|file| Self::open(file, origin, env.nvrtc_any)) {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(reason) => looked.push(Attempt { path, reason }),
            }
        }
        Err(GenError::NvrtcMissing {
            version: PINNED_VERSION,
            commands: fetch_command_lines(),
            looked,
        })
    }

    /// Loads a library, checks its version and loads its builtins.
    fn open(path: PathBuf, origin: Origin, any: bool) -> Result<Self, String> {
        let (path, library) = open_library(path, origin)?;
        let functions = Functions::find(&library)
            .map_err(|error| format!("it is not libnvrtc: {}", with_causes(&error)))?;
        let (major, minor) = functions.version().ok_or("its version is unknown")?;
        if (major, minor) != PINNED_VERSION && !any {
            return Err(format!(
                "its version is {major}.{minor} (MKERNEL_NVRTC_ANY=1 allows it)"
            ));
        }
        // NVRTC opens its builtins by their plain name when it first compiles. The loader then uses the copy that is
        // already loaded. The builtins are in the same folder as the real file.
        let name = format!("libnvrtc-builtins.so.{major}.{minor}");
        let (_, builtins) = open_library(path.with_file_name(&name), origin)
            .map_err(|error| without_builtins(&path, &name, &error))?;
        Ok(Self {
            path,
            version: (major, minor),
            functions,
            _libraries: [library, builtins],
        })
    }

    /// The version of the library.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The path of the library, or its name if the loader has found it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Compiles a kernel. The kernel is rejected if the log has a warning or a lost optimisation, or if more than 32
    /// registers are spilled. Fewer spilled registers cause a warning through `tracing`.
    ///
    /// # Errors
    /// [`GenError::Compile`], [`GenError::Rejected`], [`GenError::NvrtcCall`]
    pub fn compile(&self, source: &CudaSource) -> Result<Cubin, GenError> {
        let started = Instant::now();
        let program = Program::create(&self.functions, source)?;
        program.compile(&options(source.arch))?;
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
                "kernel {} spills {} bytes of registers, which may make it slower; try another tile",
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
            arch: source.arch,
            backend: source.backend,
            bytes,
            resources: Some(report.resources),
            log: report.log,
        })
    }
}

impl Nvrtc {
    /// Compiles a kernel to PTX, which is the code before registers are allocated.
    ///
    /// # Errors
    /// [`GenError::Compile`] with the log if the compiler rejects the source.
    pub fn ptx(&self, source: &CudaSource) -> Result<String, GenError> {
        let program = Program::create(&self.functions, source)?;
        program.compile(&ptx_options(source.arch))?;
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

/// The file name of the pinned major version.
fn soname() -> String {
    format!("libnvrtc.so.{}", PINNED_VERSION.0)
}

/// The origin of a library, which determines how it is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The loader finds it.
    Loader,
    /// A library in a folder in which a user has installed it.
    Installed,
    /// A library in the folder of `mkernel-gen fetch-nvrtc`, so that its digest is known.
    Fetched,
}

/// The path of the library in a folder. With `any`, the highest major version is taken if the pinned version is
/// missing.
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
        (None, Some((_, name))) => Err(format!("it has only {name}")),
        (None, None) => Err(format!("it has no {}", soname())),
    }
}

/// Loads a library. Returns it with its real path, or with its name if the loader has found it.
fn open_library(path: PathBuf, origin: Origin) -> Result<(PathBuf, Library), String> {
    if origin == Origin::Loader {
        // SAFETY: the initialisers of NVIDIA's libraries have no requirements. The loader searches the folders of the
        // system, which belong to root, and those that this user has set in LD_LIBRARY_PATH.
        let library = unsafe { Library::new(&path) }.map_err(|error| with_causes(&error))?;
        return Ok((path, library));
    }
    let file = LibraryFile::open(&path).map_err(|error| error.to_string())?;
    if origin == Origin::Fetched {
        check_digest(&file, &path)?;
    }
    let path = file.path.clone();
    // SAFETY: as above. Nobody but this user and root can have written the file, which was checked on the descriptor
    // that is loaded.
    let library = unsafe { file.load() }?;
    Ok((path, library))
}

/// The reason why a library without loadable builtins cannot be used.
fn without_builtins(library: &Path, name: &str, error: &str) -> String {
    format!(
        "{} is there, but {name}, without which it compiles nothing, cannot be loaded from the same folder ({error}); \
         install both from one package, as the command above does, or put {name} beside it",
        library.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_cxx::HostCxx;
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
            Err("it has no libnvrtc.so.13".into())
        );
        add("libnvrtc.so.12");
        add("libnvrtc.so.9");
        assert_eq!(
            library_in(folder, false),
            Err("it has only libnvrtc.so.12".into())
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
        for source in [Origin::Installed, Origin::Fetched] {
            let reason = refused(0o664, source);
            assert!(reason.contains("other users can write"), "{reason}");
        }
        let reason = refused(0o644, Origin::Fetched);
        assert!(reason.contains("its SHA-256 is"), "{reason}");
        // A file that belongs to this user gets as far as the loader.
        let reason = refused(0o644, Origin::Installed);
        assert!(reason.contains("/proc/self/fd/"), "{reason}");
    }

    /// A library of the pinned version whose functions do nothing.
    const NVRTC: &str = r#"
extern "C" {
int nvrtcVersion(int* major, int* minor) { *major = 13; *minor = 0; return 0; }
int nvrtcCreateProgram, nvrtcCompileProgram, nvrtcDestroyProgram, nvrtcGetErrorString, nvrtcGetProgramLogSize;
int nvrtcGetProgramLog, nvrtcGetCUBINSize, nvrtcGetCUBIN, nvrtcGetPTXSize, nvrtcGetPTX;
}
"#;

    #[test]
    fn a_library_without_its_builtins_says_what_is_missing() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("temporary folder");
        let (text, library) = (
            dir.path().join("nvrtc.cpp"),
            dir.path().join("libnvrtc.so.13"),
        );
        fs::write(&text, NVRTC).expect("file");
        let mut cxx = HostCxx::load().expect("a C++ compiler").command();
        let compiled = cxx
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &text])
            .status();
        assert!(compiled.expect("the compiler starts").success());
        fs::set_permissions(&library, fs::Permissions::from_mode(0o644)).expect("own");
        let opened = Nvrtc::open(library.clone(), Origin::Installed, false);
        let reason = opened.expect_err("no builtins");
        let ways = [
            library.to_str().expect("UTF-8"),
            "libnvrtc-builtins.so.13.0, without which",
            "No such file",
            "install both from one package",
        ];
        for way in ways {
            assert!(reason.contains(way), "{way}: {reason}");
        }
        // Any library can stand for the builtins.
        let builtins = dir.path().join("libnvrtc-builtins.so.13.0");
        fs::copy(&library, builtins).expect("own");
        Nvrtc::open(library, Origin::Installed, false).expect("whole");
    }
}
