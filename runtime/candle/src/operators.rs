//! [`Operators`]: the operators that have been prepared, by configuration and sizes.

use mkernel::{Communicator, Error, KernelConfig, Operator, Shape};
use std::sync::Arc;

/// The default number of operators that a cache keeps.
pub(crate) const DEFAULT_CAPACITY: usize = 64;

/// A cache of operators. All ranks make the same calls, so their caches hold the same operators.
#[derive(Debug)]
pub(crate) struct Operators {
    capacity: usize,
    /// The operators, in the order of their last use.
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    config: KernelConfig,
    shape: Shape,
    operator: Arc<Operator>,
}

impl Default for Operators {
    fn default() -> Self {
        Self {
            capacity: DEFAULT_CAPACITY,
            entries: Vec::new(),
        }
    }
}

impl Operators {
    /// Returns the operator of this configuration and size. The first call prepares the operator, which is a collective
    /// step.
    pub fn get(
        &mut self,
        communicator: &Communicator,
        config: &KernelConfig,
        shape: Shape,
    ) -> Result<Arc<Operator>, Error> {
        let is_wanted = |entry: &Entry| entry.shape == shape && entry.config == *config;
        let entry = match self.entries.iter().position(is_wanted) {
            Some(at) => self.entries.remove(at),
            None => {
                let operator = Arc::new(communicator.prepare(config, shape)?);
                self.make_room(1);
                Entry {
                    config: config.clone(),
                    shape,
                    operator,
                }
            }
        };
        let operator = entry.operator.clone();
        self.entries.push(entry);
        Ok(operator)
    }

    /// Sets how many operators are kept, at least one.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity.max(1);
        self.make_room(0);
    }

    /// Drops the operators that have not been used for longest, until the cache has room for `wanted` more operators.
    fn make_room(&mut self, wanted: usize) {
        let kept = self.capacity - wanted;
        let dropped = self.entries.len().saturating_sub(kept);
        self.entries.drain(..dropped);
    }

    /// Returns the number of operators.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}
