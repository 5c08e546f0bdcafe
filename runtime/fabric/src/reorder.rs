//! [`ReorderBuffer`]: a receive-side reorder window. It turns deliveries in any order, possibly duplicated, into
//! in-order and exactly-once delivery.

use std::collections::VecDeque;

/// The result of inserting a sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insertion {
    /// The number is new. The payload is the count of numbers that are now complete in order, which is 0 while an earlier
    /// number is missing.
    New(u32),
    /// The number was inserted before.
    Duplicate,
    /// The number lies beyond the window.
    OutOfRange,
}

/// The arrival state of the sequence numbers from the next expected number on. Numbers are given as distances from the next
/// expected number.
#[derive(Clone, Debug)]
pub struct ReorderBuffer {
    size: u32,
    /// Whether the number at each distance has arrived. The first entry, if there is one, is always false.
    received: VecDeque<bool>,
}

impl ReorderBuffer {
    /// Creates a buffer for numbers that are at most `size` - 1 ahead of the next expected number.
    #[must_use]
    pub fn new(size: u32) -> Self {
        Self {
            size,
            received: VecDeque::new(),
        }
    }

    /// Inserts a number. If this completes numbers in order, the next expected number advances by their count.
    pub fn insert(&mut self, distance: u32) -> Insertion {
        if distance >= self.size {
            return Insertion::OutOfRange;
        }
        let at = distance as usize;
        if self.received.len() <= at {
            self.received.resize(at + 1, false);
        }
        if std::mem::replace(&mut self.received[at], true) {
            return Insertion::Duplicate;
        }
        let mut complete = 0;
        while self.received.front() == Some(&true) {
            self.received.pop_front();
            complete += 1;
        }
        Insertion::New(complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares the buffer with the plain definition: numbers in any order, some twice, some too far ahead.
        #[test]
        fn numbers_complete_in_order_and_once(numbers in prop::collection::vec(0u32..60, 0..200)) {
            let mut buffer = ReorderBuffer::new(16);
            let (mut next, mut known) = (0u32, std::collections::BTreeSet::new());
            for number in numbers {
                if number < next {
                    continue;
                }
                let is_new = number - next < 16 && known.insert(number);
                let before = next;
                match buffer.insert(number - next) {
                    Insertion::New(complete) => {
                        prop_assert!(is_new);
                        next += complete;
                    }
                    Insertion::Duplicate => prop_assert!(!is_new && known.contains(&number)),
                    Insertion::OutOfRange => prop_assert!(number - before >= 16),
                }
                prop_assert!((0..next).all(|n| known.contains(&n)) && !known.contains(&next));
            }
        }
    }
}
