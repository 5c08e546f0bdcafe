//! [`Detached`]: a value that is dropped while other threads of Python run.

use pyo3::prelude::*;

/// A value whose drop may wait for other ranks, which may be threads of this interpreter. Dropping it releases the GIL.
pub struct Detached<T: Send>(Option<T>);

impl<T: Send> Detached<T> {
    pub const fn new(value: T) -> Self {
        Self(Some(value))
    }

    /// Returns the value, unless it was taken.
    pub const fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }
}

impl<T: Send> Drop for Detached<T> {
    fn drop(&mut self) {
        let value = &mut self.0;
        // Without an interpreter there is no lock, and the value is dropped as usual.
        Python::try_attach(|py| {
            let value = value.take();
            py.detach(|| drop(value));
        });
    }
}
