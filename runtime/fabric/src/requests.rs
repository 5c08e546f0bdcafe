//! [`Requests`]: calls that the owner of a proxy asks the proxy's thread to make.

use crate::endpoint::Endpoint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A call that the thread makes between two steps.
pub type Request = Box<dyn FnOnce(&mut Endpoint) + Send>;

/// Requests of the owner, in order.
pub struct Requests {
    /// Whether the queue may hold requests. The thread checks this first and so rarely takes the lock.
    has_some: AtomicBool,
    /// The requests. `None` after the thread has ended, so that no request waits for it.
    queue: Mutex<Option<Vec<Request>>>,
}

impl Requests {
    pub fn new() -> Self {
        Self {
            has_some: AtomicBool::new(false),
            queue: Mutex::new(Some(Vec::new())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Request>>> {
        // Every statement leaves the guarded value consistent, so a poisoned lock can still be used.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request, unless the thread has ended.
    pub fn add(&self, request: Request) {
        if let Some(queue) = self.lock().as_mut() {
            queue.push(request);
            self.has_some.store(true, Ordering::Release);
        }
    }

    /// Returns the requests since the last call.
    pub fn take(&self) -> Vec<Request> {
        if !self.has_some.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }
}

/// Drops all requests when the thread ends, however it ends. Their owners then stop waiting.
pub struct EndRequests<'a>(pub &'a Requests);

impl Drop for EndRequests<'_> {
    fn drop(&mut self) {
        self.0.lock().take();
    }
}
