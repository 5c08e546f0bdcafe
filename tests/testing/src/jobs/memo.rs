//! Values that are computed once per process, since their computation is slow on a CPU. Jobs with mutated kernels share
//! operands and expected results with the job without the mutation.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};

/// Values by key, which are kept until the process ends. A key names everything that a value depends on.
pub struct Memo<T: 'static>(Mutex<BTreeMap<String, &'static OnceLock<T>>>);

impl<T> Memo<T> {
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Returns the value of `key`, and computes it on the first call. Values of other keys can be computed at the same
    /// time.
    pub fn get(&self, key: String, compute: impl FnOnce() -> T) -> &'static T {
        let mut cells = self.0.lock().expect("no panic");
        let cell = *cells
            .entry(key)
            .or_insert_with(|| Box::leak(Box::default()));
        drop(cells);
        cell.get_or_init(compute)
    }
}
