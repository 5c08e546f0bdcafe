//! Words of global memory through which threads synchronise: the releases at each word, and the threads that poll it.

use crate::world::clock::View;
use crate::world::memory::PhysicalId;
use rustc_hash::FxHashMap;

/// The scope of an ordered access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    Cta,
    Gpu,
    Sys,
}

/// Whether an access acquires or releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOrder {
    pub acquire: bool,
    pub release: bool,
}

/// A word in global memory: the allocation, and the offset in bytes.
pub type Word = (PhysicalId, usize);

/// The knowledge that was published at words, and the threads that poll these words.
#[derive(Debug, Default)]
pub struct SyncWords {
    /// For each word, the releases of each GPU at each scope.
    pub published: FxHashMap<Word, Vec<(u32, Scope, View)>>,
    /// The threads that sleep until a word changes.
    pub polling: FxHashMap<Word, Vec<usize>>,
    /// The threads that poll words of host memory. The host changes these words without informing the simulator.
    pub polling_host: Vec<usize>,
}

impl SyncWords {
    /// Forgets all polling threads. Called when no thread is left.
    pub fn forget_pollers(&mut self) {
        self.polling.clear();
        self.polling_host.clear();
    }
}
