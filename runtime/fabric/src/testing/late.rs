//! Copies that take their time: a [`Mover`] for tests, like one over a GPU's copy engines.

use crate::emulated::{HostMover, Mover, Placed};
use crate::transport::MemoryRange;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The most polls that a copy takes.
const MAX_POLLS: u64 = 12;

/// The sources of all writes on their way, which movers of one job share.
#[derive(Clone, Default)]
pub struct Sources(Arc<Mutex<Known>>);

/// By number: in which memory, and where. The last number.
#[derive(Default)]
struct Known {
    places: HashMap<u64, (MemoryRange, u64)>,
    last: u64,
}

/// Reads sources and writes targets some polls after it was told to, in any order, all depending on a seed.
pub struct LateMover {
    sources: Sources,
    random: u64,
    copies: Vec<Pending>,
    /// Copies that succeed before one fails.
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

impl LateMover {
    /// For one endpoint. After `successes` copies, the next one fails.
    #[must_use]
    pub fn new(sources: Sources, seed: u64, successes: u64) -> Self {
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
            return Err("a copy failed, as it was set to".to_owned());
        }
        self.successes -= 1;
        let (from, at) = self.sources.remove(copy.source).ok_or("it has no source")?;
        let mut bytes = Vec::new();
        HostMover.take(&from, at, copy.bytes, &mut bytes)?;
        HostMover
            .place(&copy.to, copy.offset, copy.bytes, &bytes, copy.token)
            .map(drop)
    }
}

impl Sources {
    fn add(&self, from: &MemoryRange, offset: u64) -> u64 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.last += 1;
        let number = known.last;
        known.places.insert(number, (from.clone(), offset));
        number
    }

    fn remove(&self, number: u64) -> Option<(MemoryRange, u64)> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.places.remove(&number)
    }
}

impl Mover for LateMover {
    fn check(&self, memory: &MemoryRange) -> Result<(), String> {
        HostMover.check(memory)
    }

    fn take(
        &mut self,
        from: &MemoryRange,
        offset: u64,
        _: u32,
        payload: &mut Vec<u8>,
    ) -> Result<(), String> {
        payload.extend(self.sources.add(from, offset).to_le_bytes());
        Ok(())
    }

    fn place(
        &mut self,
        to: &MemoryRange,
        offset: u64,
        bytes: u32,
        payload: &[u8],
        token: u64,
    ) -> Result<Placed, String> {
        let source = payload.try_into().map_err(|_| "it says no source")?;
        let polls = self.below(MAX_POLLS);
        self.copies.push(Pending {
            token,
            polls,
            source: u64::from_le_bytes(source),
            to: to.clone(),
            offset,
            bytes,
        });
        Ok(Placed::Pending)
    }

    fn poll(&mut self, placed: &mut Vec<u64>) -> Result<(), String> {
        let copies = std::mem::take(&mut self.copies);
        let (mut over, mut rest): (Vec<Pending>, Vec<Pending>) =
            copies.into_iter().partition(|copy| copy.polls == 0);
        rest.iter_mut().for_each(|copy| copy.polls -= 1);
        self.copies = rest;
        while !over.is_empty() {
            let at = self.below(over.len() as u64) as usize;
            let copy = over.swap_remove(at);
            self.copy(&copy)?;
            placed.push(copy.token);
        }
        Ok(())
    }
}
