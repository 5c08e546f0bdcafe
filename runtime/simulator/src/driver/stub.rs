//! [`activate`]: makes cudarc call this crate instead of the CUDA driver.
//!
//! cudarc opens the driver's library by name. If a library with this name is already open, the loader returns the open
//! library. This module therefore compiles a small stub library with this name, which leads to the functions of this
//! crate, and opens the stub before cudarc opens the driver.

use super::api;
use crate::memory_file::memory_file;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::c_void;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

/// The name that cudarc tries first. If cudarc finds a library with this name, it does not look for `libcuda.so.1` of a
/// real driver.
const SONAME: &str = "libcuda.so";
/// The name of a function that only the stub has, which identifies the stub.
const FILL: &str = "mkernel_simulator_fill";
/// The compilers in the order in which they are tried.
const COMPILERS: [&str; 4] = ["cc", "c++", "gcc", "clang"];

/// The reason why cudarc cannot be made to use simulated GPUs.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ActivateError {
    /// No C compiler was found.
    #[error(
        "simulated GPUs need a C compiler, and none of cc, c++, gcc and clang was found; install one, such as Debian's g++"
    )]
    NoCompiler,
    /// The compiler failed.
    #[error("{compiler} cannot compile the simulated driver:\n{output}")]
    Compiler {
        /// The compiler.
        compiler: &'static str,
        /// The output of the compiler.
        output: String,
    },
    /// Writing a file or running a compiler failed.
    #[error("the simulated driver cannot be built: {what} failed")]
    Os {
        /// The step that failed.
        what: &'static str,
        /// The cause.
        source: Arc<std::io::Error>,
    },
    /// The stub library cannot be loaded.
    #[error("the simulated driver cannot be loaded")]
    Load(#[source] Arc<libloading::Error>),
    /// cudarc has already opened another driver, or is linked with another driver.
    #[error(
        "this process already uses a CUDA driver, so it cannot use simulated GPUs; set MKERNEL_DEVICE=sim before it starts. If another crate enables cudarc's feature dynamic-linking, as candle does, build the program that uses simulated GPUs without that crate"
    )]
    OtherDriver,
}

/// Makes cudarc use simulated GPUs in this process from now on. Later calls do nothing.
///
/// This function must be called before the first use of cudarc's driver.
///
/// # Errors
/// Returns an error if there is no C compiler, or if the process already uses another driver.
pub fn activate() -> Result<(), ActivateError> {
    static ACTIVE: Mutex<bool> = Mutex::new(false);
    let mut active = ACTIVE.lock().unwrap_or_else(PoisonError::into_inner);
    if !*active {
        open()?;
        *active = true;
    }
    if !cudarc_uses_stub() {
        return Err(ActivateError::OtherDriver);
    }
    Ok(())
}

/// Builds the stub, opens it for the rest of the process, and fills its table of functions.
fn open() -> Result<(), ActivateError> {
    let load = |error| ActivateError::Load(Arc::new(error));
    let functions = api::functions();
    let names: Vec<&str> = functions.iter().map(|entry| entry.name).collect();
    let folder = tempfile::Builder::new()
        .prefix("mkernel-simulator-")
        .tempdir();
    let folder = folder.map_err(os("making a temporary folder"))?;
    let compiled = compile(folder.path(), &source(&names))?;
    let compiled = std::fs::read(compiled).map_err(os("reading its library"))?;
    let (file, path) = memory_file(SONAME, &compiled).map_err(os("copying its library"))?;
    // SAFETY: the stub has no initialisers.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(load)?;
    let addresses: &'static [*const c_void] = functions
        .iter()
        .map(|entry| entry.address)
        .collect::<Vec<_>>()
        .leak();
    // SAFETY: the stub declares the function with this type. The table has an address for each name, and lives forever.
    unsafe {
        let fill = library.get::<unsafe extern "C" fn(*const *const c_void)>(FILL.as_bytes());
        fill.map_err(load)?(addresses.as_ptr());
    }
    // The loader returns the stub for its name as long as it is open, so it is never closed.
    std::mem::forget((library, file));
    Ok(())
}

/// Returns the C source of the stub. The address of a function is resolved when cudarc looks it up, which is after the
/// table was filled.
fn source(names: &[&str]) -> String {
    let mut text = String::from(
        "/* Provides the functions of a simulator under the names of the CUDA driver. */\n",
    );
    let _ = writeln!(text, "static void *const *table;");
    let _ = writeln!(
        text,
        "void {FILL}(void *const *addresses) {{ table = addresses; }}"
    );
    for (i, name) in names.iter().enumerate() {
        let _ = writeln!(
            text,
            "static void *resolve{i}(void) {{ return table[{i}]; }}"
        );
        let _ = writeln!(
            text,
            "void {name}(void) __attribute__((ifunc(\"resolve{i}\")));"
        );
    }
    text
}

/// Compiles the stub in `folder` with the first compiler that exists.
fn compile(folder: &Path, source: &str) -> Result<std::path::PathBuf, ActivateError> {
    let (input, library) = (folder.join("driver.c"), folder.join(SONAME));
    std::fs::write(&input, source).map_err(os("writing its source"))?;
    for compiler in COMPILERS {
        let output = Command::new(compiler)
            .args(["-x", "c", "-O1", "-fPIC", "-shared", "-o"])
            .arg(&library)
            .arg(format!("-Wl,-soname,{SONAME}"))
            .arg(&input)
            .output();
        match output {
            Ok(output) if output.status.success() => return Ok(library),
            Ok(output) => {
                return Err(ActivateError::Compiler {
                    compiler,
                    output: String::from_utf8_lossy(&output.stderr).into_owned(),
                });
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(os("running a C compiler")(error)),
        }
    }
    Err(ActivateError::NoCompiler)
}

fn os(what: &'static str) -> impl Fn(std::io::Error) -> ActivateError {
    move |error| ActivateError::Os {
        what,
        source: Arc::new(error),
    }
}

/// Returns whether the calls of cudarc reach this crate. A call shows it, since a program that links with the driver has
/// no library to look into.
fn cudarc_uses_stub() -> bool {
    let (before, mut version) = (api::version_calls(), 0);
    // SAFETY: the pointer refers to a live integer. The call needs no initialisation, and changes nothing else.
    let _ = unsafe { cudarc::driver::sys::cuDriverGetVersion(&raw mut version) };
    api::version_calls() > before
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The temporary folder may be mounted with `noexec`.
    #[test]
    fn the_driver_is_loaded_from_memory() {
        activate().expect("a C compiler");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("own mappings");
        let stub: Vec<_> = maps.lines().filter(|line| line.contains(SONAME)).collect();
        assert!(!stub.is_empty(), "{maps}");
        for line in stub {
            assert!(line.contains("/memfd:"), "{line}");
        }
    }
}
