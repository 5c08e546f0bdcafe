//! [`TensorMap`]: a tensor map, as `cuTensorMapEncodeTiled` encodes it in 128 bytes, with readable fields.

/// The largest number of dimensions of a map.
pub const MAX_RANK: usize = 5;
/// The size of an encoded map in bytes.
pub const ENCODED_BYTES: usize = 128;

/// The first word of an encoded map, which distinguishes it from other bytes.
const MAGIC: u64 = u64::from_le_bytes(*b"mk-tmap1");
const MAX_DIM: u64 = 1 << 32;
const STRIDE_LIMIT_BYTES: u64 = 1 << 40;
const MAX_BOX_ELEMS: u32 = 256;
/// Addresses, strides and rows of a box are multiples of this.
const STEP_BYTES: u64 = 16;

/// A tensor in global memory, and the size of the box that TMA copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TensorMap {
    magic: u64,
    /// Address of the first byte.
    pub address: u64,
    /// Elements of each dimension, innermost first. Dimensions beyond the rank have 1.
    pub dims: [u64; MAX_RANK],
    /// Bytes from one index to the next, from dimension 1 on. Dimensions beyond the rank have 0.
    pub strides_bytes: [u64; MAX_RANK - 1],
    /// Elements of the box in each dimension. Dimensions beyond the rank have 1.
    pub box_elems: [u32; MAX_RANK],
    /// The number of dimensions, from 1 to 5.
    pub rank: u8,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub elem_bytes: u8,
    /// Bytes of the swizzled rows in shared memory: 32, 64 or 128, or 0 without a swizzle.
    pub swizzle_bytes: u8,
    padding: u8,
}

const _: () = assert!(size_of::<TensorMap>() <= ENCODED_BYTES);

/// The reason why a tensor map is not valid. A real driver only returns `CUDA_ERROR_INVALID_VALUE`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorMapFault {
    /// The bytes are not the result of [`TensorMap::to_bytes`].
    #[error("these 128 bytes are not a tensor map")]
    NotAMap,
    /// The slices do not describe 1 to 5 dimensions.
    #[error(
        "{dims} sizes, {strides} strides and {box_elems} box sizes were given; a map of n dimensions (1 to 5) has n sizes, n box sizes and n - 1 strides"
    )]
    Rank {
        /// The number of sizes.
        dims: usize,
        /// The number of strides.
        strides: usize,
        /// The number of box sizes.
        box_elems: usize,
    },
    /// The size of an element is not possible.
    #[error("elements of {0} bytes; 1, 2, 4 or 8 are possible")]
    Element(u8),
    /// The swizzle is not possible.
    #[error("swizzle of {0} bytes; 0, 32, 64 or 128 are possible")]
    Swizzle(u8),
    /// The address is null or not aligned.
    #[error("address {0:#x} is null or not a multiple of 16")]
    Address(u64),
    /// The size of a dimension is out of range.
    #[error("dimension {index} has {elems} elements; 1 to 2^32 are possible")]
    Dim {
        /// The dimension.
        index: usize,
        /// The size of the dimension in elements.
        elems: u64,
    },
    /// A stride is out of range or not aligned.
    #[error(
        "the stride of dimension {index} is {bytes} bytes; multiples of 16 below 2^40 are possible"
    )]
    Stride {
        /// The dimension.
        index: usize,
        /// The stride in bytes.
        bytes: u64,
    },
    /// The size of the box is out of range.
    #[error("the box has {elems} elements in dimension {index}; 1 to 256 are possible")]
    Box {
        /// The dimension.
        index: usize,
        /// The size of the box in elements.
        elems: u32,
    },
    /// The size of a row of the box is not possible.
    #[error(
        "rows of the box have {bytes} bytes; multiples of 16 are possible, and with a swizzle at most its size ({swizzle_bytes} bytes)"
    )]
    BoxRow {
        /// The size of a row in bytes.
        bytes: u64,
        /// The swizzle in bytes.
        swizzle_bytes: u8,
    },
}

impl TensorMap {
    /// Creates a map, with the checks of the driver.
    ///
    /// # Errors
    /// Returns the first mistake.
    pub fn new(
        address: u64,
        (elem_bytes, swizzle_bytes): (u8, u8),
        dims: &[u64],
        strides_bytes: &[u64],
        box_elems: &[u32],
    ) -> Result<Self, TensorMapFault> {
        let rank = dims.len();
        if !(1..=MAX_RANK).contains(&rank)
            || strides_bytes.len() + 1 != rank
            || box_elems.len() != rank
        {
            return Err(TensorMapFault::Rank {
                dims: rank,
                strides: strides_bytes.len(),
                box_elems: box_elems.len(),
            });
        }
        let mut map = Self {
            magic: MAGIC,
            address,
            dims: [1; MAX_RANK],
            strides_bytes: [0; MAX_RANK - 1],
            box_elems: [1; MAX_RANK],
            rank: rank as u8,
            elem_bytes,
            swizzle_bytes,
            padding: 0,
        };
        map.dims[..rank].copy_from_slice(dims);
        map.strides_bytes[..rank - 1].copy_from_slice(strides_bytes);
        map.box_elems[..rank].copy_from_slice(box_elems);
        map.check()?;
        Ok(map)
    }

    /// Returns the encoded map, which a kernel's argument holds.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ENCODED_BYTES] {
        let mut bytes = [0; ENCODED_BYTES];
        let words = [self.magic, self.address]
            .into_iter()
            .chain(self.dims)
            .chain(self.strides_bytes);
        let small = [self.rank, self.elem_bytes, self.swizzle_bytes, self.padding];
        let packed = words
            .flat_map(u64::to_ne_bytes)
            .chain(self.box_elems.into_iter().flat_map(u32::to_ne_bytes))
            .chain(small);
        bytes
            .iter_mut()
            .zip(packed)
            .for_each(|(to, byte)| *to = byte);
        bytes
    }

    /// Decodes the map in a kernel's argument.
    ///
    /// # Errors
    /// Returns [`TensorMapFault::NotAMap`] if the bytes are not a map, or the first mistake of the map.
    pub fn from_bytes(bytes: &[u8; ENCODED_BYTES]) -> Result<Self, TensorMapFault> {
        let mut rest = bytes.as_slice();
        let mut take_word = || take::<8>(&mut rest).map(u64::from_ne_bytes);
        let mut map = Self {
            magic: take_word()?,
            address: take_word()?,
            dims: [0; MAX_RANK],
            strides_bytes: [0; MAX_RANK - 1],
            box_elems: [0; MAX_RANK],
            rank: 0,
            elem_bytes: 0,
            swizzle_bytes: 0,
            padding: 0,
        };
        for word in map.dims.iter_mut().chain(&mut map.strides_bytes) {
            *word = take_word()?;
        }
        for elems in &mut map.box_elems {
            *elems = u32::from_ne_bytes(take(&mut rest)?);
        }
        [map.rank, map.elem_bytes, map.swizzle_bytes, map.padding] = take(&mut rest)?;
        if map.magic != MAGIC || !(1..=MAX_RANK).contains(&usize::from(map.rank)) {
            return Err(TensorMapFault::NotAMap);
        }
        map.check()?;
        Ok(map)
    }

    fn check(&self) -> Result<(), TensorMapFault> {
        if !matches!(self.elem_bytes, 1 | 2 | 4 | 8) {
            return Err(TensorMapFault::Element(self.elem_bytes));
        }
        if !matches!(self.swizzle_bytes, 0 | 32 | 64 | 128) {
            return Err(TensorMapFault::Swizzle(self.swizzle_bytes));
        }
        if self.address == 0 || !self.address.is_multiple_of(STEP_BYTES) {
            return Err(TensorMapFault::Address(self.address));
        }
        let rank = usize::from(self.rank);
        for (index, &elems) in self.dims[..rank].iter().enumerate() {
            if elems == 0 || elems > MAX_DIM {
                return Err(TensorMapFault::Dim { index, elems });
            }
        }
        for (index, &bytes) in (1..).zip(&self.strides_bytes[..rank - 1]) {
            if bytes == 0 || !bytes.is_multiple_of(STEP_BYTES) || bytes >= STRIDE_LIMIT_BYTES {
                return Err(TensorMapFault::Stride { index, bytes });
            }
        }
        for (index, &elems) in self.box_elems[..rank].iter().enumerate() {
            if elems == 0 || elems > MAX_BOX_ELEMS {
                return Err(TensorMapFault::Box { index, elems });
            }
        }
        let (bytes, swizzle_bytes) = (
            u64::from(self.box_elems[0]) * u64::from(self.elem_bytes),
            self.swizzle_bytes,
        );
        let too_long = swizzle_bytes != 0 && bytes > u64::from(swizzle_bytes);
        if !bytes.is_multiple_of(STEP_BYTES) || too_long {
            return Err(TensorMapFault::BoxRow {
                bytes,
                swizzle_bytes,
            });
        }
        Ok(())
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], TensorMapFault> {
    let (first, rest) = bytes.split_first_chunk().ok_or(TensorMapFault::NotAMap)?;
    *bytes = rest;
    Ok(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> TensorMap {
        TensorMap::new(0x1000, (2, 128), &[520, 37], &[1056], &[64, 128]).expect("a map")
    }

    #[test]
    fn a_map_survives_its_encoding() {
        let stack = TensorMap::new(
            0x40,
            (4, 0),
            &[8, 1 << 32, 3, 4, 5],
            &[32, 64, 128, 256],
            &[8, 256, 1, 1, 2],
        )
        .expect("a map");
        for map in [matrix(), stack] {
            assert_eq!(TensorMap::from_bytes(&map.to_bytes()), Ok(map));
        }
    }

    #[test]
    fn bytes_that_are_not_a_map_are_refused() {
        assert_eq!(
            TensorMap::from_bytes(&[0; 128]),
            Err(TensorMapFault::NotAMap)
        );
        let mut bytes = matrix().to_bytes();
        bytes[108] = 6;
        assert_eq!(TensorMap::from_bytes(&bytes), Err(TensorMapFault::NotAMap));
        let broken = TensorMap {
            address: 0x1008,
            ..matrix()
        };
        assert_eq!(
            TensorMap::from_bytes(&broken.to_bytes()),
            Err(TensorMapFault::Address(0x1008))
        );
    }

    #[test]
    fn maps_that_the_driver_refuses_are_refused() {
        use TensorMapFault as Fault;
        let fault = |address, form, dims: &[u64], strides: &[u64], boxes: &[u32]| {
            TensorMap::new(address, form, dims, strides, boxes).expect_err("a mistake")
        };
        let bf16 = (2, 128);
        assert!(matches!(
            fault(16, bf16, &[], &[], &[]),
            Fault::Rank { dims: 0, .. }
        ));
        assert!(matches!(
            fault(16, bf16, &[8, 8], &[], &[8, 8]),
            Fault::Rank { strides: 0, .. }
        ));
        assert_eq!(fault(16, (3, 128), &[8], &[], &[8]), Fault::Element(3));
        assert_eq!(fault(16, (2, 16), &[8], &[], &[8]), Fault::Swizzle(16));
        assert_eq!(fault(0, bf16, &[8], &[], &[8]), Fault::Address(0));
        assert_eq!(fault(24, bf16, &[8], &[], &[8]), Fault::Address(24));
        assert!(matches!(
            fault(16, bf16, &[8, 0], &[16], &[8, 1]),
            Fault::Dim { index: 1, .. }
        ));
        for bytes in [0, 24, 1 << 40] {
            assert_eq!(
                fault(16, bf16, &[8, 8], &[bytes], &[8, 1]),
                Fault::Stride { index: 1, bytes }
            );
        }
        for elems in [0, 257] {
            assert_eq!(
                fault(16, bf16, &[8, 8], &[16], &[8, elems]),
                Fault::Box { index: 1, elems }
            );
        }
        for (elems, bytes) in [(4, 8), (72, 144)] {
            assert_eq!(
                fault(16, bf16, &[8], &[], &[elems]),
                Fault::BoxRow {
                    bytes,
                    swizzle_bytes: 128
                }
            );
        }
        TensorMap::new(16, (2, 0), &[8], &[], &[72])
            .expect("without a swizzle, rows may be longer");
    }
}
