//! [`TimeLimit`].

use std::io::Write;
use std::time::Duration;

/// Ends the process if it is alive after `limit`: whatever hangs, the machine is free again.
pub struct TimeLimit {
    _alive: std::sync::mpsc::Sender<()>,
}

impl TimeLimit {
    pub fn start(what: &'static str, limit: Duration) -> Self {
        let (_alive, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                // Not `eprintln`, which the test harness keeps to itself.
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
