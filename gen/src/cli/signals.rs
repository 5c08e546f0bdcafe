//! Signals that end the program.

use super::failure::Failure;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;
use std::thread::{self, JoinHandle};

/// A thread that receives SIGINT, SIGTERM and SIGHUP. The signals end the process again after drop.
pub struct Watch {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Calls `received` with each signal.
    pub fn new(mut received: impl FnMut(i32) + Send + 'static) -> Result<Self, Failure> {
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]);
        let mut signals = signals.map_err(Failure::Signals)?;
        let handle = signals.handle();
        let thread = thread::spawn(move || signals.forever().for_each(&mut received));
        Ok(Self {
            handle,
            thread: Some(thread),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Ends the process as `signal` does by default, so that shells and launchers see how it ended.
pub fn end_by(signal: i32) -> ! {
    let _ = emulate_default_handler(signal);
    std::process::exit(128 + signal)
}
