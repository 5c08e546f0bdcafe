//! [`Workspace`]: the symmetric memory of an operator.

use super::region::{Element, Placer, Region, RegionId};
use crate::abi::State;
use serde::Serialize;

/// Symmetric memory of one operator instance on each rank: zeroed once, never reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Workspace {
    /// The size of the workspace, in bytes.
    pub bytes: u64,
    /// The regions of the workspace: `state`, and the regions of the operator (`flags`, `gathered`, `partials`).
    pub regions: Vec<Region>,
}

impl Workspace {
    /// The handle of the state.
    pub const STATE: RegionId = RegionId::new("state");

    /// The offset at which regions after the state start, a multiple of their alignment.
    pub(crate) const STATE_END_BYTES: u64 = (size_of::<State>() as u64).next_multiple_of(1024);

    /// The state, then regions that start at [`Self::STATE_END_BYTES`] and end at `bytes`.
    pub(crate) fn new(mut regions: Vec<Region>, bytes: u64) -> Self {
        let state = Element::Bytes(size_of::<State>() as u64);
        let state = Placer::new(0, 1024).place(Self::STATE.name(), &[], state, &[]);
        let is_common = true;
        regions.insert(0, Region { is_common, ..state });
        Self { bytes, regions }
    }

    /// Moves the regions of this body behind `end_bytes`. Regions that all bodies have in common get the offsets that they have in
    /// `last`. Returns the new end of the workspace, and the distance by which the regions were moved.
    pub(crate) fn move_behind(&mut self, end_bytes: u64, last: &Self) -> (u64, u64) {
        let by = end_bytes - Self::STATE_END_BYTES;
        for region in &mut self.regions {
            match last.region(region.id()).filter(|_| region.is_common) {
                Some(common) => region.clone_from(common),
                None => region.offset_bytes += by,
            }
        }
        self.bytes += by;
        (self.bytes, by)
    }

    /// The region with this handle, if the plan has the region.
    #[must_use]
    pub fn region(&self, id: RegionId) -> Option<&Region> {
        self.regions.iter().find(|region| region.id() == id)
    }
}
