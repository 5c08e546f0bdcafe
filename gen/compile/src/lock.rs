//! Locks that make threads and processes compile a kernel once. They only save work: a store without them is right too.

use crate::cubin::Cubin;
use crate::folder::Folder;
use crate::key::Key;
use rustix::fs::{FlockOperation, flock};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Between two looks at a lock that another process holds.
const POLL: Duration = Duration::from_millis(10);

/// Holds a lock of other processes out until it is dropped; the kernel of the operating system drops it for a process
/// that dies.
pub(crate) struct FileLock(
    #[expect(dead_code, reason = "the lock lives as long as the open file")] File,
);

/// How waiting for a lock ended.
pub(crate) enum Waited<T> {
    /// The lock is held.
    Locked(FileLock),
    /// What the lock was wanted for has appeared meanwhile.
    Appeared(T),
    /// The time was up.
    TimedOut,
}

impl FileLock {
    /// Waits until the lock for `key` in the folder `dir` is free, `look` finds something, or `limit` has passed.
    ///
    /// Keys share 256 lock files, so their number is bounded; two keys that share one wait for each other, no more.
    pub fn wait<T>(
        dir: &Folder,
        key: &Key,
        limit: Duration,
        mut look: impl FnMut() -> Option<T>,
    ) -> io::Result<Waited<T>> {
        let file = dir.made_file(&key.to_string()[..2])?;
        let started = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Waited::Locked(Self(file))),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            if let Some(found) = look() {
                return Ok(Waited::Appeared(found));
            }
            if started.elapsed() >= limit {
                return Ok(Waited::TimedOut);
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Kernels that threads of this process are getting right now; the first gets one, the others wait for it.
#[derive(Debug, Default)]
pub(crate) struct InFlight(Mutex<HashMap<Key, Weak<Slot>>>);

/// A kernel that some threads want, empty until one has it. It lives no longer than they want it.
pub(crate) type Slot = Mutex<Option<Cubin>>;

impl InFlight {
    /// The slot of `key`, shared by all threads that hold it now.
    pub fn slot(&self, key: &Key) -> Arc<Slot> {
        let mut slots = lock(&self.0);
        if let Some(slot) = slots.get(key).and_then(Weak::upgrade) {
            return slot;
        }
        slots.retain(|_, slot| slot.strong_count() > 0);
        let slot = Arc::default();
        slots.insert(*key, Arc::downgrade(&slot));
        slot
    }
}

/// Locks a mutex whose data is sound even if a thread panicked while it held it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
