//! [`DelayedCopyEngine`]: a [`CopyEngine`] for tests whose copies take time, like the copies of a GPU's copy engines.

use crate::emulated::{CopyEngine, CopyStatus, HostCopyEngine};
use crate::transport::MemoryRange;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The most polls that a copy takes.
const MAX_POLLS: u64 = 12;

/// The sources of all writes in flight. The copy engines of one run share it.
#[derive(Clone, Default)]
pub struct SourceTable(Arc<Mutex<Entries>>);

/// The content of a [`SourceTable`].
#[derive(Default)]
struct Entries {
    /// The sources by number: the memory of each source, and the offset in this memory.
    sources: HashMap<u64, (MemoryRange, u64)>,
    /// The last number that was given to a source.
    last: u64,
}

/// Copies some polls after a copy was requested, in any order. A seed determines delays and order.
pub struct DelayedCopyEngine {
    sources: SourceTable,
    random: u64,
    copies: Vec<Pending>,
    /// The number of copies that succeed before one fails.
    successes: u64,
}

struct Pending {
    token: u64,
    polls: u64,
    source: u64,
    to: MemoryRange,
    offset: u64,
    bytes: u32,
}

impl DelayedCopyEngine {
    /// Creates the engine of one endpoint. After `successes` copies, the next one fails.
    #[must_use]
    pub fn new(sources: SourceTable, seed: u64, successes: u64) -> Self {
        Self {
            sources,
            random: seed | 1,
            copies: Vec::new(),
            successes,
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) % end
    }

    fn copy(&mut self, copy: &Pending) -> Result<(), String> {
        if self.successes == 0 {
            return Err("a copy failed, as configured".to_owned());
        }
        self.successes -= 1;
        let (from, at) = self
            .sources
            .remove(copy.source)
            .ok_or("the source of the copy is unknown")?;
        let mut bytes = Vec::new();
        HostCopyEngine.stage(&from, at, copy.bytes, &mut bytes)?;
        HostCopyEngine
            .start_copy(&copy.to, copy.offset, copy.bytes, &bytes, copy.token)
            .map(drop)
    }
}

impl SourceTable {
    fn add(&self, from: &MemoryRange, offset: u64) -> u64 {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.last += 1;
        let number = entries.last;
        entries.sources.insert(number, (from.clone(), offset));
        number
    }

    fn remove(&self, number: u64) -> Option<(MemoryRange, u64)> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.sources.remove(&number)
    }
}

impl CopyEngine for DelayedCopyEngine {
    fn check(&self, memory: &MemoryRange) -> Result<(), String> {
        HostCopyEngine.check(memory)
    }

    fn stage(
        &mut self,
        from: &MemoryRange,
        offset: u64,
        _: u32,
        payload: &mut Vec<u8>,
    ) -> Result<(), String> {
        payload.extend(self.sources.add(from, offset).to_le_bytes());
        Ok(())
    }

    fn start_copy(
        &mut self,
        to: &MemoryRange,
        offset: u64,
        bytes: u32,
        payload: &[u8],
        token: u64,
    ) -> Result<CopyStatus, String> {
        let source = payload
            .try_into()
            .map_err(|_| "the payload does not name a source")?;
        let polls = self.below(MAX_POLLS);
        self.copies.push(Pending {
            token,
            polls,
            source: u64::from_le_bytes(source),
            to: to.clone(),
            offset,
            bytes,
        });
        Ok(CopyStatus::Pending)
    }

    fn poll(&mut self, completed: &mut Vec<u64>) -> Result<(), String> {
        let copies = std::mem::take(&mut self.copies);
        let (mut over, mut rest): (Vec<Pending>, Vec<Pending>) =
            copies.into_iter().partition(|copy| copy.polls == 0);
        rest.iter_mut().for_each(|copy| copy.polls -= 1);
        self.copies = rest;
        while !over.is_empty() {
            let at = self.below(over.len() as u64) as usize;
            let copy = over.swap_remove(at);
            self.copy(&copy)?;
            completed.push(copy.token);
        }
        Ok(())
    }
}
