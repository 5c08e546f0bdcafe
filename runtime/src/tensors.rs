//! [`Tensors`]: the places of the tensors in the symmetric memory, by address.

use mkernel_spec::abi::MAX_RANKS;
use mkernel_spec::fabric::PLACE_OFFSET_BITS;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The tensors of a communicator that exist on this rank.
#[derive(Default)]
pub(crate) struct Tensors(Mutex<BTreeMap<u64, Tensor>>);

/// A tensor in the symmetric memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensor {
    /// The addresses of the tensor in this process on all ranks of this host, by local rank. Unused entries are 0.
    pub addresses: [u64; MAX_RANKS],
    pub bytes: u64,
    /// The number of the extent that contains the tensor, which is the same on all ranks.
    pub extent: u32,
    /// The offset of the tensor in its extent, which is the same on all ranks.
    pub offset_bytes: u64,
}

/// The place of an operand in the symmetric memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SymmetricPlace {
    /// The addresses of the operand in this process on all ranks of this host, by local rank. Unused entries are 0.
    pub addresses: [u64; MAX_RANKS],
    /// The extent and the offset in the extent, packed into one number.
    pub number: u64,
}

impl SymmetricPlace {
    /// Returns the extent and the offset in bytes of a place with this number.
    pub fn parts_of(number: u64) -> (u64, u64) {
        (
            number >> PLACE_OFFSET_BITS,
            number & ((1 << PLACE_OFFSET_BITS) - 1),
        )
    }
}

impl Tensors {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Tensor>> {
        // Every statement leaves the guarded value consistent, so a poisoned lock can still be used.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a tensor with its address on this rank.
    pub fn insert(&self, address: u64, tensor: Tensor) {
        self.lock().insert(address, tensor);
    }

    pub fn remove(&self, address: u64) {
        self.lock().remove(&address);
    }

    /// Returns the place of `bytes` bytes at `address`, or `None` if the bytes are not all in one tensor.
    pub fn find(&self, address: u64, bytes: u64) -> Option<SymmetricPlace> {
        let tensors = self.lock();
        let (start, tensor) = tensors.range(..=address).next_back()?;
        let from = address - start;
        (from.checked_add(bytes)? <= tensor.bytes).then(|| SymmetricPlace {
            addresses: tensor.addresses.map(|start| match start {
                0 => 0,
                start => start + from,
            }),
            number: u64::from(tensor.extent) << PLACE_OFFSET_BITS | (tensor.offset_bytes + from),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operand_is_found_only_if_all_of_it_is_in_a_tensor() {
        let tensors = Tensors::default();
        let mut addresses = [0; MAX_RANKS];
        addresses[..2].copy_from_slice(&[0x1_0000, 0x9_0000]);
        let tensor = Tensor {
            addresses,
            bytes: 256,
            extent: 3,
            offset_bytes: 4096,
        };
        tensors.insert(0x1_0000, tensor);
        let found = tensors.find(0x1_0010, 240).expect("inside");
        assert_eq!(found.addresses[..3], [0x1_0010, 0x9_0010, 0]);
        assert_eq!(SymmetricPlace::parts_of(found.number), (3, 4112));
        for (address, bytes) in [
            (0xffff, 16),
            (0x1_0010, 241),
            (0x1_0100, 1),
            (0x1_0000, u64::MAX),
        ] {
            assert_eq!(tensors.find(address, bytes), None, "{address:#x}, {bytes}");
        }
        tensors.remove(0x1_0000);
        assert_eq!(tensors.find(0x1_0010, 240), None);
    }
}
