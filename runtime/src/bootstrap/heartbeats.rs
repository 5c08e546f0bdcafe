//! [`Heartbeats`]: frames that a rank sends at intervals, so that other ranks notice that its process has stopped.
//!
//! A process that is stopped (SIGSTOP), or whose host is suspended, closes no connection, and its kernel still answers TCP. A
//! thread of its own sends the heartbeats, since the other threads of a rank may be in a step, in the compiler or in the driver for
//! any time. A connection is watched from its first heartbeat on.

use super::connection_error::ConnectionError;
use super::limits::POLL;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The number of heartbeats in the time after which a silent rank is lost.
const PER_LIMIT: u32 = 8;

/// The shortest time after which a silent rank is lost. A busy host may delay threads by as much.
const SHORTEST: Duration = Duration::from_secs(1);

/// Returns the time after which a silent rank is lost, so that its loss is known within `timeout`.
pub(super) fn limit(timeout: Duration) -> Duration {
    (timeout * 2 / 3).max(SHORTEST)
}

/// The sending side of a connection, which steps and heartbeats share.
pub(super) struct Sender {
    stream: Arc<TcpStream>,
    /// The bytes of a frame that TCP has not taken yet. TCP must take these bytes before the next frame.
    rest: Mutex<Vec<u8>>,
}

impl Sender {
    pub fn new(stream: Arc<TcpStream>) -> Self {
        Self {
            stream,
            rest: Mutex::default(),
        }
    }

    /// Sends a frame. Gives up when `is_over` returns true while the other end does not read.
    pub fn send_until(
        &self,
        frame: &[u8],
        mut is_over: impl FnMut() -> bool,
    ) -> Result<(), ConnectionError> {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        rest.extend_from_slice(frame);
        while !rest.is_empty() {
            match (&*self.stream).write(&rest) {
                Ok(count) => drop(rest.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if is_over() {
                        // If TCP has taken no byte of this frame, the frame is not sent later.
                        if rest.len() >= frame.len() {
                            let before = rest.len() - frame.len();
                            rest.truncate(before);
                        }
                        return Err(ConnectionError::Deadline);
                    }
                    std::thread::sleep(POLL);
                }
                Err(_) => return Err(ConnectionError::Closed),
            }
        }
        Ok(())
    }

    /// Sends a heartbeat without waiting, unless a frame is being sent.
    fn beat(&self, frame: &[u8]) {
        let Ok(mut rest) = self.rest.try_lock() else {
            return;
        };
        // The rest of an earlier frame is as good a sign of life, and has to go first.
        let is_whole = rest.is_empty();
        if is_whole {
            rest.extend_from_slice(frame);
        }
        match (&*self.stream).write(&rest) {
            Ok(count) => drop(rest.drain(..count)),
            // The connection is full, or the other end is gone.
            Err(_) if is_whole => rest.clear(),
            Err(_) => {}
        }
    }
}

/// The time for which a connection has been silent.
pub(super) struct Silence {
    limit: Duration,
    /// The time since the last bytes, or `None` before the first heartbeat.
    quiet: Option<Duration>,
    looked: Instant,
}

impl Silence {
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            quiet: None,
            looked: Instant::now(),
        }
    }

    /// Records that bytes have arrived.
    pub fn end(&mut self) {
        self.quiet = self.quiet.map(|_| Duration::ZERO);
    }

    /// Records a heartbeat.
    pub fn begin(&mut self) {
        self.quiet = Some(Duration::ZERO);
    }

    /// Returns whether the connection has been silent for too long. Time between two calls counts as one interval of heartbeats at
    /// most: this process may itself have been stopped in the meantime.
    pub fn is_over_limit(&mut self) -> bool {
        let passed = self.looked.elapsed();
        self.looked += passed;
        let Some(quiet) = &mut self.quiet else {
            return false;
        };
        *quiet += passed.min(self.limit / PER_LIMIT);
        *quiet > self.limit
    }
}

/// The heartbeats of a rank to all ranks to which it is connected.
pub(crate) struct Heartbeats {
    frame: Vec<u8>,
    /// The connections, which close when their owner is dropped.
    senders: Vec<Weak<Sender>>,
    interval: Duration,
}

impl Heartbeats {
    /// Creates the heartbeats of a rank whose loss has to be known within `timeout`.
    pub(super) fn new(frame: Vec<u8>, senders: Vec<Weak<Sender>>, timeout: Duration) -> Self {
        Self {
            frame,
            senders,
            interval: limit(timeout) / PER_LIMIT,
        }
    }

    fn send(&self) {
        for sender in self.senders.iter().filter_map(Weak::upgrade) {
            sender.beat(&self.frame);
        }
    }

    /// Starts a thread that sends heartbeats, and sends the first here: other ranks watch the connection when they have received
    /// a later frame of this rank, even if the process is stopped before the thread runs.
    pub fn start(self) -> std::io::Result<Heart> {
        let is_over = Arc::new(AtomicBool::new(false));
        let has_ended = is_over.clone();
        let heartbeats = Arc::new(self);
        let later = heartbeats.clone();
        let thread = std::thread::Builder::new().name("mkernel-beats".into());
        let thread = thread.spawn(move || {
            loop {
                std::thread::park_timeout(later.interval);
                if has_ended.load(Ordering::Acquire) {
                    break;
                }
                later.send();
            }
        })?;
        heartbeats.send();
        Ok(Heart { is_over, thread })
    }
}

/// A thread that sends heartbeats until [`stop`](Self::stop).
pub(crate) struct Heart {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Heart {
    pub fn stop(self) {
        self.is_over.store(true, Ordering::Release);
        self.thread.thread().unpark();
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_from_the_first_heartbeat() {
        let mut silence = Silence::new(Duration::from_millis(80));
        let wait = |silence: &mut Silence, ms| {
            std::thread::sleep(Duration::from_millis(ms));
            silence.is_over_limit()
        };
        assert!((0..20).all(|_| !wait(&mut silence, 10)), "no heartbeat yet");
        silence.begin();
        assert!(
            !wait(&mut silence, 200),
            "this process may have been stopped"
        );
        assert!((0..5).all(|_| !wait(&mut silence, 1)));
        silence.end();
        assert!(
            (0..7).all(|_| !wait(&mut silence, 10)),
            "bytes are signs of life"
        );
        assert!((0..3).any(|_| wait(&mut silence, 10)));
    }
}
