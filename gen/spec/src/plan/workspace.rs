//! [`Workspace`]: the symmetric memory of an operator.

use super::region::{Element, Placer, Region};
use crate::abi::State;
use serde::Serialize;

/// Symmetric memory of one operator instance on each rank: zeroed once, never reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Workspace {
    /// All of it.
    pub bytes: u64,
    /// Its parts: `state`, and what the operator needs (`flags`, `gathered`, `partials`).
    pub regions: Vec<Region>,
}

impl Workspace {
    /// Where regions after the state start: on a boundary of theirs.
    pub(crate) const STATE_END_BYTES: u64 = (size_of::<State>() as u64).next_multiple_of(1024);

    /// The state, then regions that start at [`Self::STATE_END_BYTES`] and end at `bytes`.
    pub(crate) fn new(mut regions: Vec<Region>, bytes: u64) -> Self {
        let state = Element::Bytes(size_of::<State>() as u64);
        regions.insert(0, Placer::new(0, 1024).place("state", &[], state, &[]));
        Self { bytes, regions }
    }

    /// The name of a place in it, as in `partials[1][3][7] + 8`; none if it is between regions.
    #[must_use]
    pub fn name_of(&self, offset_bytes: u64) -> Option<String> {
        self.regions.iter().find_map(|r| r.name_of(offset_bytes))
    }

    /// Where region `name` starts, if there is one.
    #[must_use]
    pub fn offset_of(&self, name: &str) -> Option<u64> {
        self.regions
            .iter()
            .find(|r| r.name == name)
            .map(|r| r.offset_bytes)
    }
}
