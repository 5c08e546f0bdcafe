//! The boxes of tensors that TMA copies, and the swizzle of shared memory.

use crate::tensor_map::TensorMap;

/// Returns the address in shared memory of a byte whose address without a swizzle is `address`, in a tile with rows of
/// `row_bytes`. The swizzle permutes the 16-byte chunks of 8 rows by bits of the address (PTX ISA, "Swizzling Modes").
pub(super) fn swizzled(address: u32, row_bytes: u32) -> u32 {
    let mask = match row_bytes {
        128 => 0x70,
        64 => 0x30,
        32 => 0x10,
        _ => 0,
    };
    address ^ (address >> 3 & mask)
}

/// A row of a box: a run of bytes that is contiguous in global memory and, before the swizzle, in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// The offset of the row in the box.
    pub box_offset: u32,
    /// The size of the row, including parts outside of the tensor.
    pub row_bytes: u32,
    /// The address in global memory of the first byte inside the tensor. The address has no meaning if `bytes` is 0.
    pub address: u64,
    /// The number of bytes inside the tensor.
    pub bytes: u32,
    /// The number of bytes of the row before the first one inside the tensor.
    pub skipped: u32,
}

/// Returns the rows of the box of `map` at the coordinates `at`, innermost coordinate first.
pub(super) fn runs(map: &TensorMap, at: &[u32]) -> Vec<Run> {
    let row_bytes = map.box_elems[0] * u32::from(map.elem_bytes);
    let rows: u32 = map.box_elems[1..map.rank as usize].iter().product();
    let x = i64::from(at[0].cast_signed());
    let (begin, end) = (
        x.max(0),
        (x + i64::from(map.box_elems[0])).min(map.dims[0] as i64),
    );
    (0..rows)
        .map(|row| {
            let (mut rest, mut address, mut inside) = (row, map.address, end > begin);
            for (dim, first) in at.iter().enumerate().take(map.rank as usize).skip(1) {
                let coordinate =
                    i64::from(first.cast_signed()) + i64::from(rest % map.box_elems[dim]);
                rest /= map.box_elems[dim];
                inside &= coordinate >= 0 && coordinate < map.dims[dim] as i64;
                address = address
                    .wrapping_add((coordinate as u64).wrapping_mul(map.strides_bytes[dim - 1]));
            }
            let elem_bytes = i64::from(map.elem_bytes);
            let bytes = if inside {
                ((end - begin) * elem_bytes) as u32
            } else {
                0
            };
            let skipped = if inside {
                ((begin - x) * elem_bytes) as u32
            } else {
                0
            };
            let address = address.wrapping_add((begin * elem_bytes) as u64);
            Run {
                box_offset: row * row_bytes,
                row_bytes,
                address,
                bytes,
                skipped,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> TensorMap {
        TensorMap::new(1 << 60, (2, 128), &[100, 10, 2], &[256, 2560], &[64, 8, 1]).expect("a map")
    }

    #[test]
    fn rows_are_clipped_at_the_tensors_ends() {
        let all = runs(&map(), &[64, 6, 1]);
        assert_eq!(all.len(), 8);
        let address = (1 << 60) + 128 + 6 * 256 + 2560;
        assert_eq!(
            all[0],
            Run {
                box_offset: 0,
                row_bytes: 128,
                address,
                bytes: 72,
                skipped: 0
            }
        );
        assert_eq!(all[3].bytes, 72);
        assert_eq!((all[4].bytes, all[4].box_offset), (0, 512), "row 10 of 10");
        assert!(runs(&map(), &[64, 0, 2]).iter().all(|run| run.bytes == 0));
        let before = runs(&map(), &[u32::MAX - 1, 0, 0])[0];
        assert_eq!(
            (before.bytes, before.skipped, before.address),
            (124, 4, 1 << 60),
            "from column -2"
        );
    }

    #[test]
    fn the_swizzle_permutes_chunks_of_eight_rows() {
        assert_eq!(swizzled(0x400, 128), 0x400);
        assert_eq!(swizzled(0x480, 128), 0x490);
        assert_eq!(swizzled(0x7f0, 128), 0x780);
        assert_eq!(swizzled(0x4f0, 0), 0x4f0);
        assert_eq!(swizzled(swizzled(0x6b4, 64), 64), 0x6b4);
    }
}
