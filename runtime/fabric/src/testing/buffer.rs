//! [`Buffer`]: host memory that tests use as regions, and the patterns that they write to it.

use crate::transport::{MemoryKind, MemoryRange};
use std::sync::atomic::{AtomicU8, Ordering};

/// Host memory for a region. It is never freed: a region has to outlive all transports.
#[derive(Clone, Copy, Debug)]
pub struct Buffer(&'static [AtomicU8]);

impl Buffer {
    /// Zeros.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let memory: *mut [u8] = vec![0; bytes].leak();
        // SAFETY: leaked and from here on reached through atomics only, which have the layout of what they hold.
        Self(unsafe { &*(memory as *mut [AtomicU8]) })
    }

    /// For [`Transport::register`].
    #[must_use]
    pub fn memory(&self) -> MemoryRange {
        let address = self.0.as_ptr() as u64;
        // SAFETY: leaked, so it stays mapped; only reached through atomics.
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

/// Bytes of which no two ranges are alike by accident.
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
