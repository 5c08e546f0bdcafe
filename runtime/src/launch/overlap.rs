//! Checks operands that share memory. Memory that a kernel writes must not overlap any other memory that the call uses, unless
//! the plan lets a result take the place of an input.

use crate::error::{InPlace, OperandFault};
use crate::launch::raw_operand::RawOperand;
use crate::launch::rows::Rows;
use mkernel_spec::abi::{Operand, OperandSpec};

/// The plan's description of an operand, and the operand that was passed.
type Passed<'a> = (&'a OperandSpec, &'a RawOperand);

/// The bytes of an operand that a kernel may access: rows of `row_bytes` bytes, whose starts are `stride_bytes` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Region {
    start: u64,
    row_bytes: u64,
    stride_bytes: u64,
    rows: u64,
}

impl Region {
    /// Returns the bytes of an operand on a rank, or `None` if the operand has no rows on the rank.
    fn of((spec, operand): Passed<'_>, rank: u32) -> Option<Self> {
        let (rows, elem_bytes) = (spec.rows.on(rank), spec.dtype.bytes());
        let row_bytes = spec.cols.saturating_mul(elem_bytes);
        let stride_bytes = match spec.cols {
            1 => row_bytes, // Numbers are contiguous for any passed stride.
            _ => operand.row_stride_elems.saturating_mul(elem_bytes),
        };
        let region = Self {
            start: operand.ptr,
            row_bytes,
            stride_bytes,
            rows,
        };
        (rows > 0).then(|| match stride_bytes == row_bytes {
            true => Self::contiguous(operand.ptr, rows.saturating_mul(row_bytes)),
            false => region,
        })
    }

    const fn contiguous(start: u64, bytes: u64) -> Self {
        Self {
            start,
            row_bytes: bytes,
            stride_bytes: bytes,
            rows: 1,
        }
    }

    fn end(&self) -> u64 {
        let last_row = (self.rows - 1).saturating_mul(self.stride_bytes);
        let end = self.start.saturating_add(last_row);
        end.saturating_add(self.row_bytes)
    }

    /// Returns whether the two regions have a byte in common. Regions with different strides count as overlapping if the ranges
    /// from their first bytes to their last bytes overlap.
    fn overlaps(&self, other: &Self) -> bool {
        if self.start >= other.end() || other.start >= self.end() {
            return false;
        }
        let (first, second) = match self.start <= other.start {
            true => (self, other),
            false => (other, self),
        };
        match (first.rows, second.rows) {
            (_, 1) => first.reaches(second),
            (1, _) => true, // `second` begins inside.
            _ => first.stride_bytes != second.stride_bytes || first.reaches(second),
        }
    }

    /// Returns whether a row has bytes of the first row of `other`, which begins after the start of this region and before its
    /// end.
    fn reaches(&self, other: &Self) -> bool {
        let offset = other.start - self.start;
        let row = (offset / self.stride_bytes.max(1)).min(self.rows - 1);
        let column = offset - row * self.stride_bytes;
        let has_next = row + 1 < self.rows;
        column < self.row_bytes
            || has_next && column.saturating_add(other.row_bytes) > self.stride_bytes
    }
}

/// Checks that the memory of each result is separate from the memory of all other operands and from the word with the rows of
/// the call. Operands with a known fault are skipped.
pub(super) fn check(
    specs: &[OperandSpec],
    operands: &[RawOperand],
    rank: u32,
    rows: Rows,
    faults: &mut Vec<(Operand, OperandFault)>,
) {
    let known = faults.len();
    let region = |passed: Passed<'_>, faults: &[(Operand, OperandFault)]| {
        let mut known = faults[..known].iter();
        let is_right = !known.any(|(operand, _)| *operand == passed.0.operand);
        is_right.then(|| Region::of(passed, rank)).flatten()
    };
    let passed = || specs.iter().zip(operands).enumerate();
    for (index, result) in passed().filter(|(_, (spec, _))| spec.written) {
        let Some(written) = region(result, faults) else {
            continue;
        };
        if let Rows::At(word @ 1..) = rows
            && written.overlaps(&Region::contiguous(word, size_of::<u32>() as u64))
        {
            faults.push((result.0.operand, OperandFault::OverlapsRows));
        }
        for (other_index, other) in passed() {
            // An overlap of two results is reported once, at the first result.
            let is_known = other_index == index || other.0.written && other_index < index;
            let Some(used) = region(other, faults).filter(|_| !is_known) else {
                continue;
            };
            let in_place = place_of_input(result, other, rank);
            if written.overlaps(&used) && !in_place.is_some_and(|place| place.is_taken(other, rank))
            {
                let other = other.0.operand;
                faults.push((result.0.operand, OperandFault::Overlaps { other, in_place }));
            }
        }
    }
}

impl InPlace {
    /// Returns whether the input is at this place. The stride of a single row is ignored.
    fn is_taken(&self, (spec, input): Passed<'_>, rank: u32) -> bool {
        let is_single = spec.rows.on(rank) == 1;
        input.ptr == self.address && (is_single || input.row_stride_elems == self.row_stride_elems)
    }
}

/// Returns the place that an input must have to share memory with the result, or `None` if the two may not share memory.
fn place_of_input(
    (spec, result): Passed<'_>,
    (input, _): Passed<'_>,
    rank: u32,
) -> Option<InPlace> {
    if spec.in_place_of != Some(input.operand) || spec.dtype != input.dtype {
        return None;
    }
    let row_stride_elems = result.row_stride_elems;
    let row_bytes = row_stride_elems.saturating_mul(spec.dtype.bytes());
    let address = match spec.rows.first_row_of(input.rows, rank) {
        Some(row) => result.ptr.saturating_add(row.saturating_mul(row_bytes)),
        None => {
            let row = input.rows.first_row_of(spec.rows, rank)?;
            result.ptr.checked_sub(row.saturating_mul(row_bytes))?
        }
    };
    Some(InPlace {
        address,
        row_stride_elems,
    })
}

#[cfg(test)]
mod tests;
