//! Which of the numbers after the next expected one have come: order and exactly-once out of neither.

use std::collections::VecDeque;

/// What a number turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insertion {
    /// New. So many numbers are now complete in order: 0 while one before it is missing.
    New(u32),
    /// Known already.
    Duplicate,
    /// Beyond the buffer.
    OutOfRange,
}

/// Numbers come, in any order, by their distance from the next expected one.
#[derive(Clone, Debug)]
pub struct ReorderBuffer {
    size: u32,
    /// By distance; the first one, if any, has not come.
    received: VecDeque<bool>,
}

impl ReorderBuffer {
    /// Numbers may be `size` - 1 ahead of the next expected one.
    #[must_use]
    pub fn new(size: u32) -> Self {
        Self {
            size,
            received: VecDeque::new(),
        }
    }

    /// A number came. If it completes some, the next expected one is that many further on.
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

    /// Whether some number has come before one that is still missing.
    #[must_use]
    pub fn has_gap(&self) -> bool {
        !self.received.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against the plain definition: numbers in any order, some twice, some too far ahead.
        #[test]
        fn numbers_become_complete_in_order_and_once(numbers in prop::collection::vec(0u32..60, 0..200)) {
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
