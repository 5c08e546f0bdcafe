//! [`Lane`]: one queue pair to a peer, with a record of the writes that are posted on it.

use super::queue_pair::QueueDepth;
use super::queue_pair_type::{QueuePairType, WorkRequest};
use super::rail::Rail;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::io;

/// A queue pair with its posted writes, its unposted batch and its consumed receives.
pub(super) struct Lane<K> {
    pub(super) pair: K,
    pub(super) nonce: u32,
    posted_writes: PostedWrites,
    /// Writes that were accepted and have not been posted.
    batch: Vec<WorkRequest>,
    /// The number of receives that arrivals have consumed and that have not been replaced.
    pub(super) consumed_receives: u32,
}

impl<K: QueuePairType> Lane<K> {
    pub(super) fn new(rail: &Rail, depth: QueueDepth, random: u32) -> Result<Self, String> {
        let nonce = K::nonce(random);
        Ok(Self::with(K::new(rail, depth, nonce)?, nonce, depth.writes))
    }

    /// Creates a lane over a queue pair that has room for this many writes.
    pub(super) fn with(pair: K, nonce: u32, writes: u32) -> Self {
        Self {
            pair,
            nonce,
            posted_writes: PostedWrites::new(K::IN_ORDER, writes),
            batch: Vec::new(),
            consumed_receives: 0,
        }
    }

    /// Returns whether the queue has room for a write.
    pub(super) fn has_room(&self) -> bool {
        self.posted_writes.has_room()
    }

    /// Adds a write to the batch. The queue must have room for it. Returns whether it is the first write of the
    /// batch.
    pub(super) fn accept(&mut self, work: WorkRequest) -> bool {
        let tag = self.posted_writes.add(work.id, work.bytes);
        self.batch.push(WorkRequest { id: tag, ..work });
        self.batch.len() == 1
    }

    /// Posts the batch.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let posted = if self.batch.is_empty() {
            Ok(())
        } else {
            self.pair.post(&self.batch)
        };
        self.batch.clear();
        posted
    }

    /// Calls `sent` with the id and the size of each write that a successful completion acknowledges.
    pub(super) fn complete(&mut self, tag: u64, sent: impl FnMut(u64, u32)) {
        self.posted_writes.remove(tag, sent);
    }

    /// Drops all writes, because none of them will complete. Calls `gone` with the size of each.
    pub(super) fn drop_writes(&mut self, gone: impl FnMut(u32)) {
        self.posted_writes.clear(gone);
    }
}

/// The writes that are posted, with their sizes. A queue pair has room for `limit` of them.
#[derive(Debug)]
enum PostedWrites {
    /// Completions come in the order of posting. The tag of the first write is `first`, and each further tag is
    /// greater by one.
    InOrder {
        writes: VecDeque<(u64, u32)>,
        first: u64,
        limit: usize,
    },
    /// Completions come in any order. The tag of a write is its id.
    AnyOrder {
        writes: FxHashMap<u64, u32>,
        limit: usize,
    },
}

impl PostedWrites {
    fn new(in_order: bool, limit: u32) -> Self {
        let limit = limit as usize;
        match in_order {
            true => Self::InOrder {
                writes: VecDeque::new(),
                first: 0,
                limit,
            },
            false => Self::AnyOrder {
                writes: FxHashMap::default(),
                limit,
            },
        }
    }

    fn has_room(&self) -> bool {
        match self {
            Self::InOrder { writes, limit, .. } => writes.len() < *limit,
            Self::AnyOrder { writes, limit } => writes.len() < *limit,
        }
    }

    /// Adds a write and returns its tag.
    fn add(&mut self, id: u64, bytes: u32) -> u64 {
        match self {
            Self::InOrder { writes, first, .. } => {
                writes.push_back((id, bytes));
                *first + writes.len() as u64 - 1
            }
            Self::AnyOrder { writes, .. } => {
                writes.insert(id, bytes);
                id
            }
        }
    }

    /// Removes the writes that the completion with this tag acknowledges. An unknown tag has no effect.
    fn remove(&mut self, tag: u64, mut sent: impl FnMut(u64, u32)) {
        match self {
            Self::InOrder { writes, first, .. } => {
                let done = tag
                    .checked_sub(*first)
                    .map_or(0, |before| before as usize + 1)
                    .min(writes.len());
                *first += done as u64;
                writes.drain(..done).for_each(|(id, bytes)| sent(id, bytes));
            }
            Self::AnyOrder { writes, .. } => {
                if let Some(bytes) = writes.remove(&tag) {
                    sent(tag, bytes);
                }
            }
        }
    }

    /// Removes all writes.
    fn clear(&mut self, mut gone: impl FnMut(u32)) {
        match self {
            Self::InOrder { writes, first, .. } => {
                *first += writes.len() as u64;
                writes.drain(..).for_each(|(_, bytes)| gone(bytes));
            }
            Self::AnyOrder { writes, .. } => writes.drain().for_each(|(_, bytes)| gone(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PostedWrites;

    fn removed(posted_writes: &mut PostedWrites, tag: u64) -> Vec<(u64, u32)> {
        let mut writes = Vec::new();
        posted_writes.remove(tag, |id, bytes| writes.push((id, bytes)));
        writes
    }

    #[test]
    fn an_ordered_completion_acknowledges_all_earlier_writes() {
        let mut posted_writes = PostedWrites::new(true, 3);
        let tags = [70, 71, 72].map(|id| posted_writes.add(id, id as u32 * 10));
        assert_eq!((tags, posted_writes.has_room()), ([0, 1, 2], false));
        assert_eq!(removed(&mut posted_writes, 1), [(70, 700), (71, 710)]);
        assert_eq!(removed(&mut posted_writes, 1), [], "twice");
        assert_eq!(posted_writes.add(73, 3), 3);
        assert_eq!(posted_writes.add(74, 4), 4);
        assert!(!posted_writes.has_room());
        assert_eq!(
            removed(&mut posted_writes, 4),
            [(72, 720), (73, 3), (74, 4)]
        );
        assert_eq!(removed(&mut posted_writes, 99), [], "nothing is posted");
    }

    #[test]
    fn an_unordered_completion_acknowledges_one_write() {
        let mut posted_writes = PostedWrites::new(false, 2);
        let tags = [9, 8].map(|id| posted_writes.add(id, 5));
        assert_eq!((tags, posted_writes.has_room()), ([9, 8], false));
        assert_eq!(removed(&mut posted_writes, 8), [(8, 5)]);
        assert_eq!(removed(&mut posted_writes, 8), [], "twice");
        assert_eq!(posted_writes.add(7, 0), 7);
        assert!(!posted_writes.has_room());
    }

    #[test]
    fn dropped_writes_do_not_complete() {
        for in_order in [true, false] {
            let mut posted_writes = PostedWrites::new(in_order, 2);
            let tag = posted_writes.add(5, 50);
            let mut gone = 0;
            posted_writes.clear(|bytes| gone += bytes);
            assert_eq!((gone, posted_writes.has_room()), (50, true));
            assert_eq!(removed(&mut posted_writes, tag), []);
        }
    }
}
