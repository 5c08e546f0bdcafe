//! A queue pair to a peer, what is posted on it, and what it can be.

use super::device::{Device, Port};
use super::offer::{QueuePairOffer, RailOffer};
use super::queue::{Depth, QueuePair};
use super::rail::Rail;
use std::collections::VecDeque;
use std::io;

/// A write as a queue pair gets it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// What its completion says.
    pub(super) id: u64,
    pub(super) local_address: u64,
    pub(super) local_key: u32,
    pub(super) bytes: u32,
    pub(super) remote_address: u64,
    pub(super) remote_key: u32,
    pub(super) immediate: u32,
    /// The CPU may read the source: it is not in a GPU.
    pub(super) on_host: bool,
}

/// What a kind of queue pair can do on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capability {
    pub(super) write_bytes: u32,
    pub(super) depth: Depth,
}

/// A kind of queue pair: RC or SRD.
pub(super) trait Kind: Send + Sized {
    /// What people call it.
    const NAME: &'static str;
    /// What offers call it.
    const SERVICE: u8;
    /// Completions come in the order of posting, and one says that all before it are done.
    const IN_ORDER: bool;

    /// Whether the device has it, and how much of it over a port; what is missing, if not.
    fn capability(device: &Device, port: &Port) -> Result<Capability, String>;

    /// Makes one, with its receives posted. `nonce` is what peers need beside its number.
    fn new(rail: &Rail, depth: Depth, nonce: u32) -> Result<Self, String>;

    /// What all kinds have in common.
    fn pair(&self) -> &QueuePair;

    /// The nonce to offer, of 32 random bits.
    fn nonce(random: u32) -> u32;

    /// Makes it ready to write to a queue pair of a peer, and to be written by that.
    fn connect(&mut self, rail: &Rail, to: &RailOffer, at: QueuePairOffer) -> Result<(), String>;

    /// Posts all of `works`, in order.
    fn post(&mut self, works: &[Work]) -> io::Result<()>;

    /// Posts `count` receives.
    fn receive(&self, rail: &Rail, count: u32) -> io::Result<()>;
}

/// A queue pair and its account.
pub(super) struct Lane<K> {
    pub(super) pair: K,
    pub(super) nonce: u32,
    outstanding: Outstanding,
    /// Accepted, but not posted yet.
    batch: Vec<Work>,
    /// Receives that arrivals have used.
    pub(super) used_receives: u32,
}

impl<K: Kind> Lane<K> {
    pub(super) fn new(rail: &Rail, depth: Depth, random: u32) -> Result<Self, String> {
        let nonce = K::nonce(random);
        Ok(Self {
            pair: K::new(rail, depth, nonce)?,
            nonce,
            outstanding: Outstanding::new(K::IN_ORDER, depth.writes),
            batch: Vec::new(),
            used_receives: 0,
        })
    }

    /// Puts a write into the batch, if the queue has room for it.
    pub(super) fn accept(&mut self, id: u64, work: Work) -> bool {
        let tag = self.outstanding.add(id);
        self.batch.extend(tag.map(|tag| Work { id: tag, ..work }));
        tag.is_some()
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

    /// Posts as many receives as arrivals have used.
    pub(super) fn repost(&mut self, rail: &Rail) -> io::Result<()> {
        match std::mem::take(&mut self.used_receives) {
            0 => Ok(()),
            used => self.pair.receive(rail, used),
        }
    }

    /// Calls `sent` with the ids of all writes that a successful completion stands for.
    pub(super) fn complete(&mut self, tag: u64, sent: impl FnMut(u64)) {
        self.outstanding.remove(tag, sent);
    }
}

/// Which writes are posted. A queue pair has room for `limit`.
#[derive(Debug)]
enum Outstanding {
    /// Ids in the order of posting; the tag of the first is `first`, that of the next one more.
    InOrder {
        ids: VecDeque<u64>,
        first: u64,
        limit: usize,
    },
    /// A tag is an id.
    AnyOrder { count: u32, limit: u32 },
}

impl Outstanding {
    fn new(in_order: bool, limit: u32) -> Self {
        match in_order {
            true => Self::InOrder {
                ids: VecDeque::new(),
                first: 0,
                limit: limit as usize,
            },
            false => Self::AnyOrder { count: 0, limit },
        }
    }

    /// The tag for a new write, if there is room.
    fn add(&mut self, id: u64) -> Option<u64> {
        match self {
            Self::InOrder { ids, first, limit } if ids.len() < *limit => {
                ids.push_back(id);
                Some(*first + ids.len() as u64 - 1)
            }
            Self::AnyOrder { count, limit } if *count < *limit => {
                *count += 1;
                Some(id)
            }
            _ => None,
        }
    }

    /// Takes out what the completion with this tag says is done. A tag that is not known does nothing.
    fn remove(&mut self, tag: u64, sent: impl FnMut(u64)) {
        match self {
            Self::InOrder { ids, first, .. } => {
                let done = tag
                    .checked_sub(*first)
                    .map_or(0, |before| before as usize + 1)
                    .min(ids.len());
                *first += done as u64;
                ids.drain(..done).for_each(sent);
            }
            Self::AnyOrder { count, .. } => {
                *count = count.saturating_sub(1);
                std::iter::once(tag).for_each(sent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Outstanding;

    fn removed(outstanding: &mut Outstanding, tag: u64) -> Vec<u64> {
        let mut ids = Vec::new();
        outstanding.remove(tag, |id| ids.push(id));
        ids
    }

    #[test]
    fn a_completion_in_order_stands_for_all_before_it() {
        let mut outstanding = Outstanding::new(true, 3);
        let tags: Vec<_> = [70, 71, 72, 73].map(|id| outstanding.add(id)).into();
        assert_eq!(tags, [Some(0), Some(1), Some(2), None]);
        assert_eq!(removed(&mut outstanding, 1), [70, 71]);
        assert_eq!(removed(&mut outstanding, 1), [], "twice");
        assert_eq!(outstanding.add(73), Some(3));
        assert_eq!(outstanding.add(74), Some(4));
        assert_eq!(outstanding.add(75), None);
        assert_eq!(removed(&mut outstanding, 4), [72, 73, 74]);
        assert_eq!(removed(&mut outstanding, 99), [], "nothing is posted");
    }

    #[test]
    fn a_completion_out_of_order_stands_for_itself() {
        let mut outstanding = Outstanding::new(false, 2);
        assert_eq!(
            (outstanding.add(9), outstanding.add(8), outstanding.add(7)),
            (Some(9), Some(8), None)
        );
        assert_eq!(removed(&mut outstanding, 8), [8]);
        assert_eq!(outstanding.add(7), Some(7));
        assert_eq!(outstanding.add(6), None);
    }
}
