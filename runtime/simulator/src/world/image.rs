//! [`Image`]: a kernel as machine code of this host, and the source lines of its instructions.

use crate::memory_file::memory_file;
use libloading::os::unix::Library;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

/// A kernel: a shared object that the host's C++ compiler made from the kernel's text and the simulator's headers.
pub struct Image {
    run: unsafe extern "C" fn(*const c_void),
    args_bytes: usize,
    /// The address from which the addresses in the shared object count.
    start: u64,
    source: String,
    /// The results of [`Self::describe`], which runs a program for each new address.
    described: Mutex<HashMap<u64, Vec<String>>>,
    // The library must be dropped before `file`. The loader identifies libraries by their paths, and the path of this
    // library contains the number of the open file. While the library is loaded, that number must not be given to the
    // file of another kernel.
    _library: Library,
    file: File,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} bytes of arguments)", self.args_bytes)
    }
}

impl Image {
    /// Loads the shared object of one kernel, and binds it to the table `calls` of `version`.
    ///
    /// # Errors
    /// Returns the reason if the bytes are not a kernel for this version of the table.
    ///
    /// # Safety
    /// `calls` must point to a table of this version that lives forever.
    pub(super) unsafe fn load_bound_to(
        bytes: &[u8],
        calls: *const c_void,
        version: u64,
    ) -> Result<Arc<Self>, String> {
        let os = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
        let (file, path) = memory_file("mkernel-kernel", bytes)
            .map_err(|e| os("writing the kernel's image", &e))?;
        // SAFETY: loading runs the initialisers of the image. The image comes from the compiler, or from the store,
        // which has checked that only this user and root can have written it. Kernels have no initialisers but the
        // compiler's.
        let library =
            unsafe { Library::new(&path) }.map_err(|e| os("loading the kernel's image", &e))?;
        // SAFETY: the entry points have the types that MK_SIMULATED_KERNEL declares (templates/simulator/mk/base.cuh).
        // The table is valid by the contract of this function.
        unsafe {
            let find = |error: libloading::Error| os("the image is not a simulated kernel", &error);
            let bind = library
                .get::<unsafe extern "C" fn(*const c_void) -> u64>(c"mk_simulated_bind")
                .map_err(find)?;
            let compiled_for = bind(calls);
            if compiled_for != version {
                return Err(format!(
                    "the kernel was compiled for version {compiled_for} of the simulator's calls, but this simulator has version {version}; compile it again"
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

    /// Returns the size of the kernel's parameter in bytes.
    #[must_use]
    pub fn args_bytes(&self) -> usize {
        self.args_bytes
    }

    /// Returns the kernel's text.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Runs the kernel's body for the current thread of the machine.
    pub(super) fn run(&self, args: *const c_void) {
        // SAFETY: `args` has the parameter's size and alignment, which were checked when the kernel was started.
        unsafe { (self.run)(args) }
    }

    /// Returns the source lines of the instruction at `pc`: one line for each function that was inlined there, the
    /// innermost first, with the text of the line.
    pub(super) fn describe(&self, pc: u64) -> Vec<String> {
        let mut described = self
            .described
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let lines = described.entry(pc).or_insert_with(|| self.look_up(pc));
        lines.clone()
    }

    fn look_up(&self, pc: u64) -> Vec<String> {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
        let offset = format!("{:#x}", pc.wrapping_sub(self.start));
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
        // Lines of primitives add nothing to the finding, and the line of the entry adds nothing to the line of the role.
        let is_own = |frame: &&Frame<'_>| line_of(&self.source, frame.file, frame.line).is_some();
        let mut shown: Vec<&Frame<'_>> = frames.iter().filter(is_own).collect();
        if shown.len() > 1 {
            shown.pop();
        }
        if shown.is_empty() {
            shown = frames.iter().collect();
        }
        shown
            .into_iter()
            .map(|frame| self.describe_frame(frame))
            .collect()
    }

    /// Returns the file, line and function of a frame, and the text of the line if it is the kernel's.
    fn describe_frame(&self, frame: &Frame<'_>) -> String {
        let Frame {
            function,
            file,
            line,
        } = frame;
        if *file == "??" {
            return "code outside of the kernel's text, usually in the C library".into();
        }
        let name = name_of(file);
        let quoted = line_of(&self.source, file, line);
        let quoted = quoted.map_or_else(String::new, |text| format!(": {}", text.trim()));
        format!("{name}:{line} in {function}{quoted}")
    }
}

/// Returns the name of a file, as kernels include it.
fn name_of(file: &str) -> &str {
    match file.rfind("mk/") {
        Some(start) if file.ends_with(".cuh") => &file[start..],
        _ => file.rsplit('/').next().unwrap_or(file),
    }
}

/// Returns the text of a line if it is in the kernel's text: in the kernel itself, or in a header between `#line`
/// directives.
fn line_of<'a>(source: &'a str, file: &str, line: &str) -> Option<&'a str> {
    let (file, wanted): (_, usize) = (name_of(file), line.parse().ok()?);
    // The kernel's own text comes first, before any `#line` directive.
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

/// A function that an instruction belongs to, directly or by inlining.
struct Frame<'a> {
    function: &'a str,
    file: &'a str,
    line: &'a str,
}

impl<'a> Frame<'a> {
    /// Parses two lines of addr2line: a demangled signature, and a file with a line number and remarks.
    fn of(signature: &'a str, location: &'a str) -> Self {
        let function = signature.split(['(', '<']).next().unwrap_or(signature);
        let function = function.rsplit([' ', ':']).next().unwrap_or(function);
        let location = location.split(" (").next().unwrap_or(location);
        let (file, line) = location.rsplit_once(':').unwrap_or((location, "?"));
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
    fn other_files_are_refused() {
        for bytes in [&b"not an image"[..], &[]] {
            assert!(super::Image::load(bytes).is_err());
        }
    }
}
