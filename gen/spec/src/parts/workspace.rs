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

    /// Whether all buckets of a kernel have this region in common: the state, and what ranks say of a call, perhaps to ranks
    /// that run another bucket.
    pub(crate) fn is_common(region: &Region) -> bool {
        ["state", "begun", "result_place"].contains(&region.name)
    }

    /// Moves the regions of this bucket behind `end_bytes`. Those that all buckets have in common are the ones of `last`.
    /// Returns the end, and by how much the regions were moved.
    pub(crate) fn move_behind(&mut self, end_bytes: u64, last: &Self) -> (u64, u64) {
        let by = end_bytes - Self::STATE_END_BYTES;
        for region in &mut self.regions {
            let common = last.regions.iter().find(|r| r.name == region.name);
            match common.filter(|region| Self::is_common(region)) {
                Some(common) => region.clone_from(common),
                None => region.offset_bytes += by,
            }
        }
        self.bytes += by;
        (self.bytes, by)
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
