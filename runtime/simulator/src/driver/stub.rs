//! [`activate`]: makes cudarc call this crate.
//!
//! cudarc opens the driver's library by name, and the loader hands out a library that is open already if it has that
//! name for its own. So a library of a few lines is compiled, whose functions are ours, and opened before cudarc does.

use super::api;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::c_void;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

/// What cudarc tries first: a real driver's `libcuda.so.1` is not looked at then.
const SONAME: &str = "libcuda.so";
/// The stub's own function, by which it is known.
const FILL: &str = "mkernel_simulator_fill";
/// Compilers, in the order in which they are tried.
const COMPILERS: [&str; 4] = ["cc", "c++", "gcc", "clang"];

/// Why cudarc cannot be made to use simulated GPUs.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ActivateError {
    /// No compiler.
    #[error(
        "simulated GPUs need a C compiler, and none of cc, c++, gcc and clang was found; install one, such as Debian's g++"
    )]
    NoCompiler,
    /// A compiler that fails.
    #[error("{compiler} cannot compile the simulated driver:\n{output}")]
    Compiler {
        /// Which.
        compiler: &'static str,
        /// What it said.
        output: String,
    },
    /// Writing a file, or running a compiler.
    #[error("the simulated driver cannot be made: {what}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: Arc<std::io::Error>,
    },
    /// The loader.
    #[error("the simulated driver cannot be loaded")]
    Load(#[source] Arc<libloading::Error>),
    /// cudarc already has another library.
    #[error(
        "this process uses a CUDA driver already, so it cannot use simulated GPUs; decide at its start, with MKERNEL_DEVICE=sim"
    )]
    OtherDriver,
}

/// Makes cudarc use simulated GPUs from now on, in this process. Later calls do nothing.
///
/// Must come before the first use of cudarc's driver.
///
/// # Errors
/// If there is no C compiler, or the process uses another driver already.
pub fn activate() -> Result<(), ActivateError> {
    static ACTIVE: Mutex<bool> = Mutex::new(false);
    let mut active = ACTIVE.lock().unwrap_or_else(PoisonError::into_inner);
    if !*active {
        open()?;
        *active = true;
    }
    if !cudarc_has_it() {
        return Err(ActivateError::OtherDriver);
    }
    Ok(())
}

/// Opens the stub, for good, and fills it.
fn open() -> Result<(), ActivateError> {
    let load = |error| ActivateError::Load(Arc::new(error));
    let functions = api::functions();
    let names: Vec<&str> = functions.iter().map(|entry| entry.name).collect();
    let folder = tempfile::Builder::new()
        .prefix("mkernel-simulator-")
        .tempdir();
    let folder = folder.map_err(os("making a temporary folder"))?;
    let library = compile(folder.path(), &source(&names))?;
    // SAFETY: the stub has no initialisers.
    let library = unsafe { Library::open(Some(library), RTLD_NOW | RTLD_LOCAL) }.map_err(load)?;
    let addresses: &'static [*const c_void] = functions
        .iter()
        .map(|entry| entry.address)
        .collect::<Vec<_>>()
        .leak();
    // SAFETY: the stub declares it so; the table is as long as the names it was made of, and stays.
    unsafe {
        let fill = library.get::<unsafe extern "C" fn(*const *const c_void)>(FILL.as_bytes());
        fill.map_err(load)?(addresses.as_ptr());
    }
    // The name belongs to it as long as it is open.
    std::mem::forget(library);
    Ok(())
}

/// A function's address is asked for when it is looked up, which is after the table was filled.
fn source(names: &[&str]) -> String {
    let mut text = String::from(
        "/* Hands functions of a simulator to those who look for the CUDA driver. */\n",
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

/// Whether the library that cudarc opens, or has opened before, is the stub.
fn cudarc_has_it() -> bool {
    // SAFETY: a library of cudarc's names is open already, so this only looks it up; the symbol is not called.
    unsafe {
        cudarc::driver::sys::culib()
            .get::<*const c_void>(FILL.as_bytes())
            .is_ok()
    }
}
