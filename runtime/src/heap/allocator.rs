//! [`Allocator`]: places blocks in the extents of a heap. Placement is pure and deterministic: ranks that make the same calls
//! in the same order get equal places and need not exchange them.

use crate::stats::HeapStats;
use std::collections::BTreeMap;

/// The alignment of blocks and the minimum distance between two blocks, in bytes. The distance keeps a small access past the
/// end of a block from reaching the next block.
pub(super) const SPACING_BYTES: u64 = 4096;

/// The most extents of a heap. Each extent is a region of an endpoint.
pub(super) const MAX_EXTENTS: usize = mkernel_fabric::MAX_REGIONS;

/// The purpose of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    /// The workspace of an operator.
    Workspace,
    /// A tensor of the program.
    Tensor,
}

/// The place of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The number of the block, counted from 0.
    pub id: u64,
    pub kind: BlockKind,
    pub extent: usize,
    pub offset_bytes: u64,
    pub bytes: u64,
    /// Whether no block has ever used this range, so that the memory is still zero.
    pub is_fresh: bool,
}

#[derive(Debug)]
struct Extent {
    bytes: u64,
    /// Free ranges by offset. No two ranges are adjacent.
    free: BTreeMap<u64, u64>,
    /// The offset from which the memory was never part of a block.
    fresh_from: u64,
}

/// The free ranges of a heap's extents.
#[derive(Debug, Default)]
pub(super) struct Allocator {
    extents: Vec<Extent>,
    blocks: BTreeMap<u64, Place>,
    /// The number of blocks so far.
    placed: u64,
}

impl Allocator {
    /// Places a block in the smallest free range that has room for it. Returns `None` if no range has room.
    pub fn place(&mut self, kind: BlockKind, bytes: u64) -> Option<Place> {
        let padded_bytes = padded(bytes);
        let ranges = self
            .extents
            .iter()
            .enumerate()
            .flat_map(|(number, extent)| {
                let free = extent.free.iter();
                free.map(move |(offset, bytes)| (*bytes, number, *offset))
            });
        let (range_bytes, number, offset_bytes) =
            ranges.filter(|(range, ..)| *range >= padded_bytes).min()?;
        let extent = &mut self.extents[number];
        extent.free.remove(&offset_bytes);
        let end = offset_bytes + padded_bytes;
        if range_bytes > padded_bytes {
            extent.free.insert(end, range_bytes - padded_bytes);
        }
        let place = Place {
            id: self.placed,
            kind,
            extent: number,
            offset_bytes,
            bytes,
            is_fresh: offset_bytes >= extent.fresh_from,
        };
        extent.fresh_from = extent.fresh_from.max(end);
        self.placed += 1;
        self.blocks.insert(place.id, place);
        Some(place)
    }

    /// Frees the range of a block. A number that no block has is ignored.
    pub fn free(&mut self, id: u64) {
        let Some(place) = self.blocks.remove(&id) else {
            return;
        };
        let free = &mut self.extents[place.extent].free;
        let (mut start, mut bytes) = (place.offset_bytes, padded(place.bytes));
        if let Some((&before, &length)) = free.range(..start).next_back()
            && before + length == start
        {
            free.remove(&before);
            (start, bytes) = (before, length + bytes);
        }
        if let Some(after) = free.remove(&(start + bytes)) {
            bytes += after;
        }
        free.insert(start, bytes);
    }

    pub fn stats(&self) -> HeapStats {
        let count = |kind| {
            let of_kind = self.blocks.values().filter(|place| place.kind == kind);
            of_kind.count()
        };
        HeapStats {
            extents: self.extents.len(),
            bytes: self.extents.iter().map(|extent| extent.bytes).sum(),
            workspaces: count(BlockKind::Workspace),
            tensors: count(BlockKind::Tensor),
            used_bytes: self.blocks.values().map(|place| place.bytes).sum(),
        }
    }

    /// Returns the size of the extent to add for a block: at least `least_bytes` and at least a quarter of the heap, so that a
    /// heap of any size has few extents.
    pub fn extent_bytes_for(&self, bytes: u64, least_bytes: u64) -> u64 {
        let all: u64 = self.extents.iter().map(|extent| extent.bytes).sum();
        padded(bytes).max(all / 4).max(least_bytes)
    }

    /// Adds an extent of this size.
    pub fn add_extent(&mut self, bytes: u64) {
        self.extents.push(Extent {
            bytes,
            free: BTreeMap::from([(0, bytes)]),
            fresh_from: 0,
        });
    }
}

/// Returns the size of a block with the space behind it. A block of 0 bytes has a place too.
fn padded(bytes: u64) -> u64 {
    let blocks = bytes.div_ceil(SPACING_BYTES).saturating_add(1);
    blocks.saturating_mul(SPACING_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A step of a test: place a block of the given size, or free an existing block.
    #[derive(Clone, Debug)]
    enum Step {
        Place(u64),
        Free(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let place = prop_oneof![0..70_000u64, Just(1 << 20)].prop_map(Step::Place);
        let free = any::<prop::sample::Index>().prop_map(Step::Free);
        prop::collection::vec(prop_oneof![place, free], 1..120)
    }

    fn place(allocator: &mut Allocator, bytes: u64) -> Place {
        allocator
            .place(BlockKind::Tensor, bytes)
            .unwrap_or_else(|| {
                let extent = allocator.extent_bytes_for(bytes, 1 << 16);
                allocator.add_extent(extent);
                let placed = allocator.place(BlockKind::Tensor, bytes);
                placed.expect("the extent is large enough")
            })
    }

    proptest! {
        #[test]
        fn blocks_are_apart_and_free_space_comes_back(steps in steps()) {
            let (mut allocator, mut live) = (Allocator::default(), Vec::<Place>::new());
            let mut used: Vec<(usize, u64, u64)> = Vec::new();
            for step in steps {
                match step {
                    Step::Place(bytes) => {
                        let new = place(&mut allocator, bytes);
                        let end = new.offset_bytes + bytes + SPACING_BYTES;
                        prop_assert!(new.offset_bytes.is_multiple_of(SPACING_BYTES));
                        prop_assert!(end <= allocator.extents[new.extent].bytes);
                        for other in live.iter().filter(|other| other.extent == new.extent) {
                            let other_end = other.offset_bytes + other.bytes + SPACING_BYTES;
                            prop_assert!(end <= other.offset_bytes || other_end <= new.offset_bytes);
                        }
                        let touches = |&(extent, start, stop): &(usize, u64, u64)| {
                            extent == new.extent && start < new.offset_bytes + bytes && new.offset_bytes < stop
                        };
                        prop_assert!(!new.is_fresh || !used.iter().any(touches));
                        used.push((new.extent, new.offset_bytes, new.offset_bytes + bytes));
                        live.push(new);
                    }
                    Step::Free(index) if !live.is_empty() => {
                        allocator.free(live.swap_remove(index.index(live.len())).id);
                    }
                    Step::Free(_) => (),
                }
            }
            live.iter().for_each(|place| allocator.free(place.id));
            for extent in &allocator.extents {
                prop_assert_eq!(&extent.free, &BTreeMap::from([(0, extent.bytes)]));
            }
        }
    }

    #[test]
    fn space_between_blocks_is_used_again_and_the_heap_does_not_grow() {
        let mut allocator = Allocator::default();
        let blocks: Vec<Place> = (0..64).map(|_| place(&mut allocator, 10_000)).collect();
        let extents = allocator.extents.len();
        for _ in 0..50 {
            // Every second block is replaced by a smaller and then by an equal one.
            for at in (0..64).step_by(2) {
                allocator.free(blocks[at].id);
                let small = place(&mut allocator, 5_000);
                allocator.free(small.id);
                let equal = place(&mut allocator, 10_000);
                allocator.blocks.remove(&equal.id);
                allocator.blocks.insert(
                    blocks[at].id,
                    Place {
                        id: blocks[at].id,
                        ..equal
                    },
                );
            }
        }
        assert_eq!(allocator.extents.len(), extents);
    }

    #[test]
    fn a_heap_of_any_size_has_few_extents() {
        let mut allocator = Allocator::default();
        for _ in 0..100_000 {
            place(&mut allocator, 3 << 20);
        }
        let bytes: u64 = allocator.extents.iter().map(|extent| extent.bytes).sum();
        assert!(
            allocator.extents.len() <= MAX_EXTENTS,
            "{} extents",
            allocator.extents.len()
        );
        assert!(bytes < 100_000 * ((3 << 20) + SPACING_BYTES) * 5 / 4 + (1 << 20));
        assert_eq!(allocator.place(BlockKind::Tensor, u64::MAX), None);
    }
}
