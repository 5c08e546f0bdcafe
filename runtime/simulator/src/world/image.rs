//! [`Image`]: a kernel as code of this host.

use super::calls::{CALLS, Calls, VERSION};
use libloading::os::unix::Library;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

/// A kernel: a shared object that the host's C++ compiler made of its text and the primitives' twins.
pub struct Image {
    run: unsafe extern "C" fn(*const c_void),
    args_bytes: usize,
    start: u64,
    source: String,
    /// What [`Self::describe`] has found, since it runs a program.
    described: Mutex<HashMap<u64, Vec<String>>>,
    // Before `file`: the loader knows libraries by their paths. While this one is loaded, its path, which is the
    // number of the open file, must not come to mean another kernel.
    _library: Library,
    file: File,
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
        // SAFETY: loading runs what initialisers the image has. It comes from the compiler, or from the store, which has
        // checked that nobody but this user and root can have written it; mkernel's kernels have none but the compiler's.
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
            let source = library
                .get::<*const c_char>(c"mk_simulated_source")
                .map_err(find)?;
            let source = CStr::from_ptr(source.into_raw().cast())
                .to_string_lossy()
                .into_owned();
            Ok(Arc::new(Self {
                run: *run,
                args_bytes: args_bytes() as usize,
                start: start(),
                source,
                described: Mutex::default(),
                _library: library,
                file,
            }))
        }
    }

    /// Bytes of the kernel's parameter.
    #[must_use]
    pub fn args_bytes(&self) -> usize {
        self.args_bytes
    }

    /// The kernel's text.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Runs the kernel's body for the thread that is current in the world.
    pub(super) fn run(&self, args: *const c_void) {
        // SAFETY: `args` has the parameter's size and alignment; the world checked that when it started the kernel.
        unsafe { (self.run)(args) }
    }

    /// Where in the kernel's text `place` is: a line per function, the innermost first, with what is written there.
    pub(super) fn describe(&self, place: u64) -> Vec<String> {
        let mut described = self
            .described
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let lines = described
            .entry(place)
            .or_insert_with(|| self.look_up(place));
        lines.clone()
    }

    fn look_up(&self, place: u64) -> Vec<String> {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
        let offset = format!("{:#x}", place.wrapping_sub(self.start));
        let mut command = Command::new("addr2line");
        let output = command
            .args(["-i", "-f", "-C", "-e", &path, &offset])
            .output();
        let Ok(output) = output
            .as_ref()
            .map(|output| String::from_utf8_lossy(&output.stdout))
        else {
            return vec![format!(
                "offset {offset} of the kernel (install binutils to see lines)"
            )];
        };
        let lines: Vec<&str> = output.lines().collect();
        let frames: Vec<Frame<'_>> = lines
            .chunks_exact(2)
            .map(|pair| Frame::of(pair[0], pair[1]))
            .collect();
        // The primitives say nothing that the finding does not; the entry says nothing that its roles do not.
        let is_own = |frame: &&Frame<'_>| line_of(&self.source, frame.file, frame.line).is_some();
        let mut told: Vec<&Frame<'_>> = frames.iter().filter(is_own).collect();
        if told.len() > 1 {
            told.pop();
        }
        let told = if told.is_empty() {
            frames.iter().collect()
        } else {
            told
        };
        told.into_iter().map(|frame| self.tell(frame)).collect()
    }

    fn tell(&self, frame: &Frame<'_>) -> String {
        let Frame {
            function,
            file,
            line,
        } = frame;
        if *file == "??" {
            return "code that the kernel calls, which is not its text's (the C library's, mostly)"
                .into();
        }
        let name = name_of(file);
        let quoted = line_of(&self.source, file, line);
        let quoted = quoted.map_or_else(String::new, |text| format!(": {}", text.trim()));
        format!("{name}:{line} in {function}{quoted}")
    }
}

/// The name of a file, as kernels include it.
fn name_of(file: &str) -> &str {
    match file.rfind("mk/") {
        Some(start) if file.ends_with(".cuh") => &file[start..],
        _ => file.rsplit('/').next().unwrap_or(file),
    }
}

/// A line of a file that is in the kernel's text: of the kernel itself, or of a header between `#line` directives.
fn line_of<'a>(source: &'a str, file: &str, line: &str) -> Option<&'a str> {
    let (file, wanted): (_, usize) = (name_of(file), line.parse().ok()?);
    // The kernel's own text comes first, and has no name in it.
    let (mut is_there, mut number) = (!file.ends_with(".cuh"), 1);
    for text in source.lines() {
        if let Some(directive) = text.strip_prefix("#line ") {
            let (first, name) = directive.split_once(' ')?;
            (is_there, number) = (name.trim_matches('"') == file, first.parse().ok()?);
            continue;
        }
        if is_there && number == wanted {
            return Some(text);
        }
        number += 1;
    }
    None
}

/// A function into which a place was inlined.
struct Frame<'a> {
    function: &'a str,
    file: &'a str,
    line: &'a str,
}

impl<'a> Frame<'a> {
    /// From two lines of addr2line: a demangled signature; a file, a line and remarks.
    fn of(signature: &'a str, place: &'a str) -> Self {
        let function = signature.split(['(', '<']).next().unwrap_or(signature);
        let function = function.rsplit([' ', ':']).next().unwrap_or(function);
        let place = place.split(" (").next().unwrap_or(place);
        let (file, line) = place.rsplit_once(':').unwrap_or((place, "?"));
        Self {
            function,
            file,
            line,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Frame, line_of};

    #[test]
    fn lines_of_headers_in_the_text_are_found_and_no_others() {
        let source = "first\n#line 1 \"mk/gemm/a.cuh\"\nof a\n#line 3 \"k.cu\"\nthird\n";
        assert_eq!(line_of(source, "/tmp/k.cu", "1"), Some("first"));
        assert_eq!(line_of(source, "/tmp/x/mk/gemm/a.cuh", "1"), Some("of a"));
        assert_eq!(line_of(source, "k.cu", "3"), Some("third"));
        assert_eq!(line_of(source, "k.cu", "2"), None);
        assert_eq!(line_of(source, "mk/memory.cuh", "1"), None);
    }

    #[test]
    fn frames_are_read_as_addr2line_writes_them() {
        let frame = Frame::of(
            "void mk::sim::store<mk::Vec16>(mk::Vec16*)",
            "./mk/memory.cuh:18 (discriminator 3)",
        );
        assert_eq!(
            (frame.function, frame.file, frame.line),
            ("store", "./mk/memory.cuh", "18")
        );
        let frame = Frame::of("push_role", "k.cu:220");
        assert_eq!(
            (frame.function, frame.file, frame.line),
            ("push_role", "k.cu", "220")
        );
    }

    #[test]
    fn other_files_are_no_kernels() {
        for bytes in [&b"not an image"[..], &[]] {
            assert!(super::Image::load(bytes).is_err());
        }
    }
}
