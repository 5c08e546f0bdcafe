//! [`Wire`]: a stream of bytes in both directions between two emulated NICs, within a process or between processes of
//! a host.

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

/// One end of a two-way stream. No call waits.
pub trait Wire: Send {
    /// Sends bytes from the front of the slice and returns the number of sent bytes.
    ///
    /// # Errors
    ///
    /// Returns the reason why no more bytes will be accepted.
    fn send(&mut self, bytes: &[u8]) -> Result<usize, String>;

    /// Appends the bytes that have arrived.
    ///
    /// # Errors
    ///
    /// Returns the reason why no more bytes will arrive.
    fn receive(&mut self, into: &mut Vec<u8>) -> Result<(), String>;
}

const CLOSED: &str = "the other end of the wire is closed";

/// A wire within the process.
pub struct Pipe {
    ours: Arc<Mutex<Vec<u8>>>,
    theirs: Arc<Mutex<Vec<u8>>>,
}

/// Creates both ends of a wire within the process.
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

/// The most bytes that one call receives from a socket.
const CHUNK_BYTES: usize = 1 << 20;

impl Wire for UnixStream {
    fn send(&mut self, bytes: &[u8]) -> Result<usize, String> {
        match send(self, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => Ok(sent),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(error) => Err(format!("cannot send to its socket: {error}")),
        }
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> Result<(), String> {
        into.reserve(CHUNK_BYTES);
        // The memory is not cleared first, because most calls receive nothing.
        match recv(&*self, spare_capacity(into), RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(CLOSED.into()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(format!("cannot receive from its socket: {error}")),
        }
    }
}
