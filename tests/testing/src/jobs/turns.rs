//! As many simulated machines at a time as there are cores, whatever tests run side by side: proxies and emulated NICs run
//! in real time, and machines that wait for them take cores from them. With twice as many, some tests took four times as long.

use std::num::NonZero;
use std::sync::{Condvar, Mutex, PoisonError};

static TAKEN: Mutex<usize> = Mutex::new(0);
static IS_FREE: Condvar = Condvar::new();

/// A machine may run as long as this is.
pub struct Turn(());

impl Turn {
    pub fn wait() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = IS_FREE
            .wait_while(taken, |taken| *taken >= cores)
            .unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
        Self(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        IS_FREE.notify_one();
    }
}
