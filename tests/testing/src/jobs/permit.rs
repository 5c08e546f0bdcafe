//! A limit on the number of simulated machines that run at the same time: the number of cores, whichever tests run.
//!
//! Proxies and emulated NICs run in real time, and simulated machines that wait for them take cores from them. With
//! twice this number of machines, some tests took four times as long.

use std::num::NonZero;
use std::sync::{Condvar, Mutex, PoisonError};

static TAKEN: Mutex<usize> = Mutex::new(0);
static IS_FREE: Condvar = Condvar::new();

/// The permission to run a simulated machine. It is returned on drop.
pub struct Permit(());

impl Permit {
    /// Waits for a permit.
    pub fn acquire() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = IS_FREE
            .wait_while(taken, |taken| *taken >= cores)
            .unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
        Self(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        IS_FREE.notify_one();
    }
}

/// Lets another machine run in place of one that is stuck.
pub fn abandon_machine() {
    *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
    IS_FREE.notify_one();
}
