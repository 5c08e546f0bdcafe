//! A limit on the number of simulated machines that run at the same time, for all tests: the number of cores.
//!
//! Proxies and emulated NICs run in real time, and simulated machines that wait for proxies and NICs take cores from
//! these. With twice this number of machines, some tests took four times as long.

use std::num::NonZero;
use std::sync::{Condvar, Mutex, PoisonError};

static TAKEN: Mutex<usize> = Mutex::new(0);
static IS_FREE: Condvar = Condvar::new();

/// The permission to run a simulated machine, which is returned on drop.
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
