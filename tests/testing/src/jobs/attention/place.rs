//! The places of the rows of a call in operands that have room for more rows.

/// The value of all elements of results before a call: a number that no call computes.
pub(super) const UNWRITTEN: f32 = 77.0;

/// A place of rows in an operand: `groups` times `rows` rows of `elems` elements. A group begins `room` rows after the
/// previous group, and the operand has room for the most rows.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub groups: usize,
    pub rows: usize,
    pub room: usize,
    pub elems: usize,
    pub most: usize,
}

impl Place {
    /// Returns an operand with these rows, and `rest` in all other elements.
    pub(super) fn spread<T: Copy>(self, dense: &[T], rest: T) -> Vec<T> {
        let mut spread = vec![rest; (self.groups * self.most * self.elems).max(1)];
        for group in 0..self.groups {
            let len = self.rows * self.elems;
            spread[group * self.room * self.elems..][..len]
                .copy_from_slice(&dense[group * len..][..len]);
        }
        spread
    }

    /// Returns the rows of an operand, and the number of other elements that are not `rest`.
    pub(super) fn gather<T: Copy + PartialEq>(self, spread: &[T], rest: T) -> (Vec<T>, usize) {
        let (mut dense, mut written) = (Vec::new(), 0);
        for (index, element) in spread.iter().enumerate() {
            let row = index / self.elems;
            let (group, row) = (row / self.room.max(1), row % self.room.max(1));
            if group < self.groups && row < self.rows {
                dense.push(*element);
            } else {
                written += usize::from(*element != rest);
            }
        }
        (dense, written)
    }
}
