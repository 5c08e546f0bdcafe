//! [`KnownOperators`]: the existing operators of a communicator, which share memory if they are equal.

use super::core::OperatorCore;
use std::sync::{Arc, Weak};

/// The operators that a communicator has prepared and that still exist on this rank.
#[derive(Default)]
pub(crate) struct KnownOperators(Vec<Known>);

struct Known {
    /// The identity, which must be equal on all ranks and in all operators that share a core.
    identity: Vec<u8>,
    core: Weak<OperatorCore>,
}

impl KnownOperators {
    /// Returns the core of the operators with this identity.
    pub fn find(&self, identity: &[u8]) -> Option<Arc<OperatorCore>> {
        let known = self.0.iter().find(|known| known.identity == identity)?;
        known.core.upgrade()
    }

    /// Adds a core. It replaces an earlier core with an equal identity, which no longer exists on all ranks.
    pub fn add(&mut self, identity: Vec<u8>, core: &Arc<OperatorCore>) {
        self.0
            .retain(|known| known.core.strong_count() > 0 && known.identity != identity);
        self.0.push(Known {
            identity,
            core: Arc::downgrade(core),
        });
    }
}
