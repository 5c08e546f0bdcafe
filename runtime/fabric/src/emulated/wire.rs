//! Between two emulated NICs: a stream of bytes each way, in a process or between two of one host.

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

/// The end of a two-way stream. No call waits.
pub trait Wire: Send {
    /// Takes bytes from the front and returns how many.
    ///
    /// # Errors
    ///
    /// Why nothing will be taken any more.
    fn send(&mut self, bytes: &[u8]) -> Result<usize, String>;

    /// Appends what has come.
    ///
    /// # Errors
    ///
    /// Why nothing more will come.
    fn receive(&mut self, into: &mut Vec<u8>) -> Result<(), String>;
}

const CLOSED: &str = "the other end of the wire is closed";

/// A wire within the process.
pub struct Pipe {
    ours: Arc<Mutex<Vec<u8>>>,
    theirs: Arc<Mutex<Vec<u8>>>,
}

/// Both ends of a wire within the process.
#[must_use]
pub fn pipe() -> (Pipe, Pipe) {
    let (a, b) = (Arc::default(), Arc::default());
    let end = |ours: &Arc<_>, theirs: &Arc<_>| Pipe {
        ours: Arc::clone(ours),
        theirs: Arc::clone(theirs),
    };
    (end(&a, &b), end(&b, &a))
}

impl Wire for Pipe {
    fn send(&mut self, bytes: &[u8]) -> Result<usize, String> {
        if Arc::strong_count(&self.theirs) == 1 {
            return Err(CLOSED.into());
        }
        let mut theirs = self.theirs.lock().unwrap_or_else(PoisonError::into_inner);
        theirs.extend(bytes);
        Ok(bytes.len())
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> Result<(), String> {
        let is_closed = Arc::strong_count(&self.ours) == 1;
        let mut ours = self.ours.lock().unwrap_or_else(PoisonError::into_inner);
        if is_closed && ours.is_empty() {
            return Err(CLOSED.into());
        }
        if into.is_empty() {
            std::mem::swap(into, &mut ours);
        } else {
            into.append(&mut ours);
        }
        Ok(())
    }
}

/// Room for what one call takes from a socket.
const CHUNK_BYTES: usize = 1 << 20;

impl Wire for UnixStream {
    fn send(&mut self, bytes: &[u8]) -> Result<usize, String> {
        match send(self, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => Ok(sent),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(error) => Err(format!("its socket refuses bytes: {error}")),
        }
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> Result<(), String> {
        into.reserve(CHUNK_BYTES);
        // Into memory that nobody has cleared: this is called for nothing most of the time.
        match recv(&*self, spare_capacity(into), RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(CLOSED.into()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(format!("its socket gives no bytes: {error}")),
        }
    }
}
