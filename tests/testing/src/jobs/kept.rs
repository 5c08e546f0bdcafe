//! What takes a CPU long to compute, once: a planted mistake has the operands and results of the kernel without it.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};

/// Values by all that decides them, as long as the process.
pub struct Kept<T: 'static>(Mutex<BTreeMap<String, &'static OnceLock<T>>>);

impl<T> Kept<T> {
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// The value of `key`. Others are computed meanwhile, if need be.
    pub fn get(&self, key: String, compute: impl FnOnce() -> T) -> &'static T {
        let mut cells = self.0.lock().expect("no panic");
        let cell = *cells
            .entry(key)
            .or_insert_with(|| Box::leak(Box::default()));
        drop(cells);
        cell.get_or_init(compute)
    }
}
