//! [`Buffer`]: host memory that tests use as regions, and the patterns in this memory.

use crate::transport::{MemoryKind, MemoryRange};
use std::sync::atomic::{AtomicU8, Ordering};

/// Host memory for a region. It is never freed, because a region has to outlive all transports.
#[derive(Clone, Copy, Debug)]
pub struct Buffer(&'static [AtomicU8]);

impl Buffer {
    /// Allocates a buffer of zeros.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let memory: *mut [u8] = vec![0; bytes].leak();
        // SAFETY: the memory is leaked and from here on accessed through atomics only, which have the layout of their
        // content.
        Self(unsafe { &*(memory as *mut [AtomicU8]) })
    }

    /// Describes the buffer for [`Transport::register`](crate::Transport::register).
    #[must_use]
    pub fn memory(&self) -> MemoryRange {
        let address = self.0.as_ptr() as u64;
        // SAFETY: the memory is leaked, so it stays mapped. It is accessed through atomics only.
        unsafe { MemoryRange::new(address, self.0.len() as u64, MemoryKind::Host) }
    }

    /// Stores bytes.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        for (to, from) in self.0[offset..offset + bytes.len()].iter().zip(bytes) {
            to.store(*from, Ordering::Relaxed);
        }
    }

    /// Loads bytes.
    #[must_use]
    pub fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let range = &self.0[offset..offset + bytes];
        range
            .iter()
            .map(|byte| byte.load(Ordering::Relaxed))
            .collect()
    }
}

/// Returns pseudorandom bytes, so that no two ranges are equal by accident.
#[must_use]
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        (word >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}
