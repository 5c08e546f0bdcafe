//! Locks by which threads and processes avoid compiling a kernel twice. Locks save time only: without locks, results are equal.

use crate::cubin::Cubin;
use crate::folder::Folder;
use crate::key::Key;
use rustix::fs::{FlockOperation, flock};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The time between two attempts to acquire a lock that another process holds.
const POLL: Duration = Duration::from_millis(10);

/// A lock between processes, which is released on drop. The operating system releases it if the process dies.
pub(crate) struct FileLock(
    #[expect(dead_code, reason = "the lock is held as long as the file is open")] File,
);

/// The result of waiting for a lock.
pub(crate) enum LockOutcome<T> {
    /// The lock was acquired.
    Locked(FileLock),
    /// The kernel appeared while waiting, so the lock is not needed.
    Appeared(T),
    /// The deadline has passed.
    TimedOut,
    /// The file system of the cache has no locks.
    Unavailable(io::Error),
}

impl FileLock {
    /// Waits until the lock of `key` in the folder `dir` is acquired, `lookup` finds something, or `limit` has passed.
    ///
    /// Keys share 256 lock files, so that their number is bounded. Two keys with the same file only wait for each
    /// other.
    pub fn wait<T>(
        dir: &Folder,
        key: &Key,
        limit: Duration,
        mut lookup: impl FnMut() -> Option<T>,
    ) -> io::Result<LockOutcome<T>> {
        let file = dir.create_file(&key.to_string()[..2])?;
        let started = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(LockOutcome::Locked(Self(file))),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(errno) => return Ok(LockOutcome::Unavailable(errno.into())),
            }
            if let Some(found) = lookup() {
                return Ok(LockOutcome::Appeared(found));
            }
            if started.elapsed() >= limit {
                return Ok(LockOutcome::TimedOut);
            }
            std::thread::sleep(POLL);
        }
    }
}

/// The kernels that threads of this process are compiling. The first thread compiles a kernel, and the others wait for
/// it.
#[derive(Debug, Default)]
pub(crate) struct InFlight(Mutex<HashMap<Key, Weak<PendingCubin>>>);

/// A kernel that some threads wait for; `None` while it is compiled. The kernel is dropped when the last thread has received it.
pub(crate) type PendingCubin = Mutex<Option<Cubin>>;

impl InFlight {
    /// The pending kernel of `key`, shared by all threads that wait for it.
    pub fn pending(&self, key: &Key) -> Arc<PendingCubin> {
        let mut pending = lock(&self.0);
        if let Some(found) = pending.get(key).and_then(Weak::upgrade) {
            return found;
        }
        pending.retain(|_, cubin| cubin.strong_count() > 0);
        let new = Arc::default();
        pending.insert(*key, Arc::downgrade(&new));
        new
    }
}

/// Locks a mutex whose data is valid even if a thread has panicked while holding it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
