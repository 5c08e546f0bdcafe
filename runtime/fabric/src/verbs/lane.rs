//! [`Lane`]: one queue pair, with a record of the writes that are posted on it.

use super::queue_pair_type::{Purpose, QueuePairType, WorkRequest};
use super::rail::Rail;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::io;

/// A write that is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PostedWrite {
    pub(super) id: u64,
    pub(super) bytes: u32,
    pub(super) peer: u16,
}

/// A queue pair with its posted writes and its unposted batch.
pub(super) struct Lane<K> {
    pub(super) pair: K,
    pub(super) nonce: u32,
    pub(super) rail: usize,
    /// The peer that the queue pair serves, or `None` if it serves all peers.
    pub(super) peer: Option<u16>,
    posted_writes: PostedWrites,
    /// Writes that were accepted and have not been posted.
    batch: Vec<WorkRequest>,
}

impl<K: QueuePairType> Lane<K> {
    /// Creates a queue pair on the rail with the given index, for one peer or for all peers.
    pub(super) fn new(
        (rail, index): (&Rail, usize),
        peer: Option<u16>,
        random: u32,
    ) -> Result<Self, String> {
        let nonce = K::nonce(random);
        let pair = K::new(rail, nonce, Purpose::Put)?;
        Ok(Self {
            nonce,
            ..Self::with(pair, index, peer, rail.depth.writes)
        })
    }

    /// Creates a lane over a queue pair that has room for the given number of writes.
    pub(super) fn with(pair: K, rail: usize, peer: Option<u16>, writes: u32) -> Self {
        Self {
            pair,
            nonce: 0,
            rail,
            peer,
            posted_writes: PostedWrites::new(K::IN_ORDER, writes),
            batch: Vec::new(),
        }
    }

    /// Returns whether the queue has room for a write.
    pub(super) fn has_room(&self) -> bool {
        self.posted_writes.has_room()
    }

    /// Adds a write to the batch. The queue must have room for it. Returns whether it is the first write of the
    /// batch.
    pub(super) fn accept(&mut self, work: WorkRequest) -> bool {
        let tag = self.posted_writes.add(PostedWrite {
            id: work.id,
            bytes: work.bytes,
            peer: work.peer,
        });
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

    /// Returns the target peer of the posted write with this tag.
    pub(super) fn peer_of(&self, tag: u64) -> Option<u16> {
        self.peer.or_else(|| self.posted_writes.peer_of(tag))
    }

    /// Removes the writes that a completion with this tag ends, and calls `done` with each.
    pub(super) fn complete(&mut self, tag: u64, done: impl FnMut(PostedWrite)) {
        self.posted_writes.remove(tag, done);
    }

    /// Drops all writes, because no write will complete, and calls `gone` with each.
    pub(super) fn drop_writes(&mut self, gone: impl FnMut(PostedWrite)) {
        self.posted_writes.clear(gone);
    }
}

/// The posted writes of a queue pair, which has room for `limit` writes.
#[derive(Debug)]
enum PostedWrites {
    /// Completions come in the order of posting. The tag of the first write is `first`, and each further tag is greater by 1.
    InOrder {
        writes: VecDeque<PostedWrite>,
        first: u64,
        limit: usize,
    },
    /// Completions come in any order. The tag of a write is its id.
    AnyOrder {
        writes: FxHashMap<u64, PostedWrite>,
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
    fn add(&mut self, write: PostedWrite) -> u64 {
        match self {
            Self::InOrder { writes, first, .. } => {
                writes.push_back(write);
                *first + writes.len() as u64 - 1
            }
            Self::AnyOrder { writes, .. } => {
                writes.insert(write.id, write);
                write.id
            }
        }
    }

    /// Returns the peer of the write with this tag.
    fn peer_of(&self, tag: u64) -> Option<u16> {
        let write = match self {
            Self::InOrder { writes, first, .. } => {
                let at = tag.checked_sub(*first)?;
                writes.get(usize::try_from(at).ok()?)
            }
            Self::AnyOrder { writes, .. } => writes.get(&tag),
        };
        write.map(|write| write.peer)
    }

    /// Removes the writes that the completion with this tag ends. An unknown tag has no effect.
    fn remove(&mut self, tag: u64, mut done: impl FnMut(PostedWrite)) {
        match self {
            Self::InOrder { writes, first, .. } => {
                let count = tag
                    .checked_sub(*first)
                    .map_or(0, |before| before as usize + 1)
                    .min(writes.len());
                *first += count as u64;
                writes.drain(..count).for_each(done);
            }
            Self::AnyOrder { writes, .. } => {
                if let Some(write) = writes.remove(&tag) {
                    done(write);
                }
            }
        }
    }

    /// Removes all writes.
    fn clear(&mut self, mut gone: impl FnMut(PostedWrite)) {
        match self {
            Self::InOrder { writes, first, .. } => {
                *first += writes.len() as u64;
                writes.drain(..).for_each(gone);
            }
            Self::AnyOrder { writes, .. } => writes.drain().for_each(|(_, write)| gone(write)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PostedWrite, PostedWrites};

    fn write(id: u64, bytes: u32) -> PostedWrite {
        PostedWrite {
            id,
            bytes,
            peer: id as u16 % 7,
        }
    }

    fn removed(posted_writes: &mut PostedWrites, tag: u64) -> Vec<(u64, u32)> {
        let mut writes = Vec::new();
        posted_writes.remove(tag, |write| writes.push((write.id, write.bytes)));
        writes
    }

    #[test]
    fn an_ordered_completion_acknowledges_all_earlier_writes() {
        let mut posted_writes = PostedWrites::new(true, 3);
        let tags = [70, 71, 72].map(|id| posted_writes.add(write(id, id as u32 * 10)));
        assert_eq!((tags, posted_writes.has_room()), ([0, 1, 2], false));
        assert_eq!(posted_writes.peer_of(2), Some(72 % 7));
        assert_eq!(removed(&mut posted_writes, 1), [(70, 700), (71, 710)]);
        assert_eq!(removed(&mut posted_writes, 1), [], "twice");
        assert_eq!(posted_writes.add(write(73, 3)), 3);
        assert_eq!(posted_writes.add(write(74, 4)), 4);
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
        let tags = [9, 8].map(|id| posted_writes.add(write(id, 5)));
        assert_eq!((tags, posted_writes.has_room()), ([9, 8], false));
        assert_eq!(
            [9, 8, 7].map(|tag| posted_writes.peer_of(tag)),
            [Some(2), Some(1), None]
        );
        assert_eq!(removed(&mut posted_writes, 8), [(8, 5)]);
        assert_eq!(removed(&mut posted_writes, 8), [], "twice");
        assert_eq!(posted_writes.add(write(7, 0)), 7);
        assert!(!posted_writes.has_room());
    }

    #[test]
    fn dropped_writes_do_not_complete() {
        for in_order in [true, false] {
            let mut posted_writes = PostedWrites::new(in_order, 2);
            let tag = posted_writes.add(write(5, 50));
            let mut gone = 0;
            posted_writes.clear(|write| gone += write.bytes);
            assert_eq!((gone, posted_writes.has_room()), (50, true));
            assert_eq!(removed(&mut posted_writes, tag), []);
        }
    }
}
