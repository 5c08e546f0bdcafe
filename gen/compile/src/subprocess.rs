//! Runs programs with a deadline.

use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Whether programs that run are killed and no other program is started.
static STOPPED: AtomicBool = AtomicBool::new(false);
/// The number of calls of [`output_within`] that have not returned.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// The result and the output of a program.
pub(crate) struct Output {
    pub succeeded: bool,
    /// Standard output and standard error, interleaved.
    pub text: String,
}

/// Kills all C++ compilers that this process runs, waits until they have ended, and lets no other compiler start.
///
/// A program calls this function before a signal ends it. Compilers have process groups of their own, so the signal that a
/// terminal sends to a program does not reach the compilers that the program has started.
pub fn stop_compilers() {
    STOPPED.store(true, Ordering::SeqCst);
    while RUNNING.load(Ordering::SeqCst) > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Counts a call of [`output_within`] until it returns.
struct Running;

impl Running {
    fn new() -> Self {
        RUNNING.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs `command`. If it has not ended after `limit`, it is killed together with all processes that it has started.
pub(crate) fn output_within(command: &mut Command, limit: Duration) -> io::Result<Output> {
    // The call is counted before `STOPPED` is read, so `stop_compilers` waits for each call that has not seen its store.
    let _running = Running::new();
    if STOPPED.load(Ordering::SeqCst) {
        return Err(io::ErrorKind::Interrupted.into());
    }
    // Unlike a pipe, a file need not be read while the program runs.
    let mut written = tempfile::tempfile()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(written.try_clone()?)
        .stderr(written.try_clone()?)
        // Messages are in English, so that users and tests can search for them.
        .env("LC_ALL", "C")
        // Compilers start other programs, which must be killed with them. The compiler and these programs therefore get
        // a process group of their own.
        .process_group(0)
        .spawn()?;
    let status = wait(&mut child, limit)?;
    Ok(Output {
        succeeded: status.success(),
        text: text(&mut written)?,
    })
}

fn wait(child: &mut Child, limit: Duration) -> io::Result<ExitStatus> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let is_stopped = STOPPED.load(Ordering::SeqCst);
        if is_stopped || started.elapsed() >= limit {
            let killed = kill_process_group(Pid::from_child(child), Signal::KILL);
            killed.or_else(|_| child.kill())?;
            child.wait()?;
            if is_stopped {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let message = format!("it did not end within {limit:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn text(file: &mut File) -> io::Result<String> {
    /// The part of a log that is kept.
    const MAX_BYTES: u64 = 1 << 20;
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The first line of `text` that is not blank.
pub(crate) fn first_line(text: &str) -> String {
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| !line.is_empty()).unwrap_or("").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> io::Result<Output> {
        output_within(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn what_programs_write_and_how_they_end() {
        let output = shell("echo out; echo wrong >&2; exit 3", Duration::from_secs(10));
        let output = output.expect("runs");
        assert_eq!((output.succeeded, &*output.text), (false, "out\nwrong\n"));
        assert_eq!(first_line("\n  a \nb"), "a");
        assert!(output_within(&mut Command::new("/nowhere"), Duration::ZERO).is_err());
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_all_that_it_started() {
        let started = Instant::now();
        let result = shell("sleep 60 & sleep 60", Duration::from_millis(50));
        let error = result.err().expect("too slow");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}
