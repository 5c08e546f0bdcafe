//! [`Image`]: a kernel as code of this host.

use super::calls::{CALLS, Calls, VERSION};
use libloading::os::unix::Library;
use rustix::fs::{MemfdFlags, memfd_create};
use std::ffi::c_void;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;

/// A kernel: a shared object that the host's C++ compiler made of its text and the primitives' twins.
pub struct Image {
    run: unsafe extern "C" fn(*const c_void),
    args_bytes: usize,
    start: u64,
    file: File,
    _library: Library,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} bytes of arguments)", self.args_bytes)
    }
}

impl Image {
    /// Loads the shared object of one kernel.
    ///
    /// # Errors
    /// Why it is none.
    pub fn load(bytes: &[u8]) -> Result<Arc<Self>, String> {
        let os = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
        let fd = memfd_create("mkernel-kernel", MemfdFlags::CLOEXEC)
            .map_err(|e| os("memfd_create", &e))?;
        let mut file = File::from(fd);
        file.write_all(bytes)
            .map_err(|e| os("writing the kernel's image", &e))?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        // SAFETY: the image comes from the store, which has checked its digest; it has no initialisers of its own.
        let library =
            unsafe { Library::new(&path) }.map_err(|e| os("loading the kernel's image", &e))?;
        // SAFETY: these are the entry points of MK_SIMULATED_KERNEL (templates/simulator/mk/base.cuh), with its types.
        unsafe {
            let find = |error: libloading::Error| os("the image is no simulated kernel", &error);
            let bind = library
                .get::<unsafe extern "C" fn(*const Calls) -> u64>(c"mk_simulated_bind")
                .map_err(find)?;
            let version = bind(&raw const CALLS);
            if version != VERSION {
                return Err(format!(
                    "the kernel was compiled for calls of version {version}, not {VERSION}"
                ));
            }
            let args_bytes = library
                .get::<unsafe extern "C" fn() -> u64>(c"mk_simulated_args_bytes")
                .map_err(find)?;
            let start = library
                .get::<unsafe extern "C" fn() -> u64>(c"mk_simulated_start")
                .map_err(find)?;
            let run = library
                .get::<unsafe extern "C" fn(*const c_void)>(c"mk_simulated_run")
                .map_err(find)?;
            Ok(Arc::new(Self {
                run: *run,
                args_bytes: args_bytes() as usize,
                start: start(),
                file,
                _library: library,
            }))
        }
    }

    /// Bytes of the kernel's parameter.
    #[must_use]
    pub fn args_bytes(&self) -> usize {
        self.args_bytes
    }

    /// Runs the kernel's body for the thread that is current in the world.
    pub(super) fn run(&self, args: *const c_void) {
        // SAFETY: `args` has the parameter's size and alignment; the world checked that when it started the kernel.
        unsafe { (self.run)(args) }
    }

    /// Where in the kernel's text `place` is: the innermost function first, then what it was inlined into.
    pub(super) fn describe(&self, place: u64) -> Vec<String> {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
        let offset = format!("{:#x}", place.wrapping_sub(self.start));
        let output = Command::new("addr2line")
            .args(["-i", "-f", "-C", "-e", &path, &offset])
            .output();
        let Ok(output) = output
            .as_ref()
            .map(|output| String::from_utf8_lossy(&output.stdout))
        else {
            return vec![format!("offset {offset} (install binutils for lines)")];
        };
        let lines: Vec<&str> = output.lines().collect();
        lines
            .chunks_exact(2)
            // The primitives themselves say nothing that the message does not.
            .filter(|pair| !pair[1].contains("mk/calls.cuh"))
            .map(|pair| {
                let function = pair[0].split('(').next().unwrap_or(pair[0]);
                let function = function.rsplit([' ', ':']).next().unwrap_or(function);
                let place = pair[1].split(" (").next().unwrap_or(pair[1]);
                format!("{function} ({})", place.trim_start_matches("./"))
            })
            .collect()
    }
}
