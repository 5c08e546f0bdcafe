//! Programs that this crate runs: each ends, by itself or at its deadline.

use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How a program ended, and what it wrote.
pub(crate) struct Output {
    pub succeeded: bool,
    /// Standard output and standard error, as they came.
    pub text: String,
}

/// Runs `command` to its end, or kills it and all that it started after `limit`.
pub(crate) fn output_within(command: &mut Command, limit: Duration) -> io::Result<Output> {
    // A file, unlike a pipe, needs nobody who reads it meanwhile.
    let mut written = tempfile::tempfile()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(written.try_clone()?)
        .stderr(written.try_clone()?)
        // Messages that tests and people can search for.
        .env("LC_ALL", "C")
        // A group of its own: compilers start others, which must end with them.
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
        if started.elapsed() >= limit {
            let killed = kill_process_group(Pid::from_child(child), Signal::KILL);
            killed.or_else(|_| child.kill())?;
            child.wait()?;
            let message = format!("it did not end within {limit:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn text(file: &mut File) -> io::Result<String> {
    /// Nobody reads more of a log.
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
