//! A time limit for a test, so that a test that hangs does not occupy the machine.

use std::io::Write;
use std::time::Duration;

/// Ends the process if this value still exists when the time limit has passed.
pub struct TimeLimit {
    _alive: std::sync::mpsc::Sender<()>,
}

impl TimeLimit {
    /// Starts the clock. `what` names the test in the message.
    pub fn start(what: &'static str, limit: Duration) -> Self {
        let (_alive, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                // The test harness captures `eprintln!`, and its output would be lost with the process.
                let _ = writeln!(
                    std::io::stderr(),
                    "{what} took more than {limit:?}; the process ends"
                );
                std::process::exit(124);
            }
        });
        Self { _alive }
    }
}
