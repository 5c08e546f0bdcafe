//! Processes of their own for runs that a mutant may end by a signal, or may keep from ending.

use std::io::{PipeWriter, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};

/// A lock that is held while a process is created: a new process has the locks of all threads in their present state, but
/// only one thread. A thread that holds a lock that a run needs must also hold this lock.
pub static FORK: Mutex<()> = Mutex::new(());

/// The pipe to the process that has created this process.
pub struct Report(PipeWriter);

impl Report {
    /// Passes a text to the other process.
    pub fn say(&mut self, text: &str) {
        // The other process ends only after this process.
        let _ = self.0.write_all(text.as_bytes());
    }

    /// Ends this process by SIGALRM after the given seconds of real time, in place of an earlier limit.
    pub fn limit(&self, seconds: u32) {
        // SAFETY: any number is valid.
        unsafe { libc::alarm(seconds) };
    }
}

/// Runs `body` in a new process. Returns its text and the status of the process: the value of `body`, or a signal.
///
/// # Panics
/// The operating system cannot create a process.
pub fn run(body: impl FnOnce(&mut Report) -> u8) -> (String, ExitStatus) {
    let lock = FORK.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    // SAFETY: the child ends in this function. The lock ensures which other locks are free in the child.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        drop(reader);
        let mut report = Report(writer);
        let code = catch_unwind(AssertUnwindSafe(|| body(&mut report)));
        // SAFETY: `_exit` does not return, and runs no destructors, which belong to the other process.
        unsafe { libc::_exit(code.unwrap_or(PANICKED).into()) };
    }
    // Later processes must not hold the end of this pipe.
    drop(writer);
    drop(lock);
    let mut text = Vec::new();
    reader.read_to_end(&mut text).expect("a pipe");
    let mut status = 0;
    // SAFETY: the process is a child that nobody else waits for.
    unsafe { libc::waitpid(child, &mut status, 0) };
    let text = String::from_utf8_lossy(&text).into_owned();
    (text, ExitStatus::from_raw(status))
}

/// The value of a body that panics.
const PANICKED: u8 = 101;
