//! [`ProbeMemory`]: the host memory of a probe, in words of 8 bytes.

use mkernel_fabric::{MemoryKind, MemoryRange};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A word that is not a number in each floating-point type.
const POISON: u64 = u64::MAX;

/// Host memory that NICs access. Clones share the memory.
#[derive(Clone)]
pub struct ProbeMemory(Arc<[AtomicU64]>);

/// The words of a put that differ from the words that were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrongWords {
    /// All such words.
    pub wrong: u64,
    /// The words that still have the value of [`ProbeMemory::poison`].
    pub poisoned: u64,
}

impl ProbeMemory {
    /// Allocates at least `bytes` of zeroed memory.
    pub(super) fn new(bytes: u64) -> Self {
        let words = usize::try_from(bytes.div_ceil(8).max(1)).unwrap_or(usize::MAX);
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// Describes the memory for registration.
    pub(super) fn range(&self) -> MemoryRange {
        let (address, bytes) = (self.0.as_ptr() as u64, size_of_val(&*self.0) as u64);
        // SAFETY: the range keeps its owner, which keeps the memory mapped. The words are accessed through atomics only.
        let range = unsafe { MemoryRange::new(address, bytes, MemoryKind::Host) };
        range.with_owner(Arc::new(self.clone()))
    }

    /// Stores NaNs in the words from the word `first` on.
    pub fn poison(&self, first: usize, words: usize) {
        for word in &self.0[first..first + words] {
            word.store(POISON, Ordering::Relaxed);
        }
    }

    /// Stores the pattern of a seed.
    pub fn write(&self, first: usize, words: usize, seed: u64) {
        for (place, word) in self.0[first..first + words].iter().enumerate() {
            word.store(pattern(seed, place), Ordering::Relaxed);
        }
    }

    /// Compares all words with the pattern of a seed.
    #[must_use]
    pub fn compare(&self, first: usize, words: usize, seed: u64) -> WrongWords {
        let mut found = WrongWords::default();
        for (place, word) in self.0[first..first + words].iter().enumerate() {
            let word = word.load(Ordering::Relaxed);
            found.wrong += u64::from(word != pattern(seed, place));
            found.poisoned += u64::from(word == POISON);
        }
        found
    }

    /// Returns whether all words have the value of [`poison`](Self::poison).
    #[must_use]
    pub fn is_poisoned(&self, first: usize, words: usize) -> bool {
        let mut words = self.0[first..first + words].iter();
        words.all(|word| word.load(Ordering::Relaxed) == POISON)
    }
}

/// Returns a word of a pattern, which is never the poison: its highest bit is 0.
fn pattern(seed: u64, place: usize) -> u64 {
    let word = seed.wrapping_add((place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (word ^ (word >> 29)) & (u64::MAX >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poisoned_and_wrong_words_are_counted() {
        let memory = ProbeMemory::new(8 * 100);
        memory.poison(0, 100);
        assert!(memory.is_poisoned(0, 100));
        memory.write(10, 50, 7);
        assert_eq!(memory.compare(10, 50, 7), WrongWords::default());
        assert!(memory.is_poisoned(0, 10) && memory.is_poisoned(60, 40));
        assert!(!memory.is_poisoned(0, 11));
        let all = WrongWords {
            wrong: 52,
            poisoned: 2,
        };
        assert_eq!(memory.compare(10, 52, 8), all);
        assert_eq!(memory.compare(10, 51, 7).wrong, 1);
    }
}
