//! The host side of the command ring: its memory, its single consumer, and a producer for tests and benchmarks.
//!
//! Kernels write commands to the ring and the proxy reads them. [`CommandProducer`] implements on the host what
//! `mk/comm/command_ring.cuh` implements on the device. `tests/loom.rs` checks this file under every interleaving.

use crate::error::FabricError;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use mkernel_spec::fabric::{Command, MAX_CAPACITY_LOG2, PHASE_BIT, TAG_VALID, phase, tag};
use std::ptr::NonNull;
use std::sync::Arc;

/// as] A [`Command`] as four 64-bit words. The first word holds the tag, the peer and the channel. The other three words carry
/// the [`PHASE_BIT`].
#[repr(C, align(32))]
#[derive(Debug, Default)]
pub struct CommandSlot([AtomicU64; 4]);

impl CommandSlot {
    /// Returns the state in which the previous lap leaves the slot, if `index` is the first command to be written to it.
    fn before(index: u32, capacity_log2: u32) -> Self {
        let stale = phase(index, capacity_log2) ^ PHASE_BIT;
        Self([0, stale, stale, stale].map(AtomicU64::new))
    }
}

/// The progress counters that the proxy publishes, laid out as [`mkernel_spec::fabric::RingWords`].
#[repr(C)]
#[derive(Debug)]
pub struct RingCounters {
    consumed: AtomicU32,
    sent: AtomicU32,
}

/// The state that producers share, like [`mkernel_spec::fabric::RingState`]. Only producers on the host use it.
#[derive(Debug)]
struct ProducerState {
    claimed: AtomicU32,
    consumed_seen: AtomicU32,
}

/// The memory of a ring, which its producers and its consumer share.
pub struct HostRing {
    slots: NonNull<[CommandSlot]>,
    words: NonNull<RingCounters>,
    capacity_log2: u32,
    /// The owner keeps the memory mapped.
    _owner: Box<dyn Send + Sync>,
}

// SAFETY: the pointers lead to atomics only, and the owner may be sent and shared.
unsafe impl Send for HostRing {}
// SAFETY: see above.
unsafe impl Sync for HostRing {}

impl HostRing {
    /// Allocates a ring in ordinary memory. The index of its first command is `first`, which is 0 except in tests of
    /// indices that wrap around.
    ///
    /// # Errors
    ///
    /// [`FabricError::Config`] if the capacity is not 2 to 2^[`MAX_CAPACITY_LOG2`] commands.
    pub fn allocate(capacity_log2: u32, first: u32) -> Result<Arc<Self>, FabricError> {
        check_capacity(capacity_log2)?;
        let capacity = 1 << capacity_log2;
        let first_in = |slot: u32| first.wrapping_add(slot.wrapping_sub(first) & (capacity - 1));
        let slots: Arc<[CommandSlot]> = (0..capacity)
            .map(|slot| CommandSlot::before(first_in(slot), capacity_log2))
            .collect();
        let words = Arc::new(RingCounters {
            consumed: AtomicU32::new(first),
            sent: AtomicU32::new(first),
        });
        let (first_slot, first_word) = (NonNull::from(&*slots).cast(), NonNull::from(&*words));
        let owner = Box::new((slots, words));
        // SAFETY: the owner keeps the memory alive and does not move it. All elements of the memory are atomics.
        unsafe { Self::from_raw(first_slot, first_word, capacity_log2, owner) }
    }

    /// Creates a ring in memory that a device has mapped too. The memory must be zero before the first command.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`allocate`](Self::allocate).
    ///
    /// # Safety
    ///
    /// `slots` must point to 2^`capacity_log2` slots. The slots and `words` must stay mapped as long as `owner`
    /// lives, and only kernels may access them besides this ring.
    pub unsafe fn from_raw(
        slots: NonNull<CommandSlot>,
        words: NonNull<RingCounters>,
        capacity_log2: u32,
        owner: Box<dyn Send + Sync>,
    ) -> Result<Arc<Self>, FabricError> {
        check_capacity(capacity_log2)?;
        Ok(Arc::new(Self {
            slots: NonNull::slice_from_raw_parts(slots, 1 << capacity_log2),
            words,
            capacity_log2,
            _owner: owner,
        }))
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        1 << self.capacity_log2
    }

    /// Returns whether the writes of all published commands have completed.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let words = self.counters();
        // The counter `sent` must be loaded first: a command counts as consumed before it counts as sent.
        let sent = words.sent.load(Ordering::Acquire);
        let consumed = words.consumed.load(Ordering::Acquire);
        let head = self.slot(consumed)[0].load(Ordering::Relaxed);
        sent == consumed && head as u32 != tag(consumed, self.capacity_log2)
    }

    fn slot(&self, index: u32) -> &[AtomicU64; 4] {
        // SAFETY: the slots are mapped while `_owner` lives, and they are atomic.
        let slots = unsafe { self.slots.as_ref() };
        &slots[(index & (self.capacity() - 1)) as usize].0
    }

    fn counters(&self) -> &RingCounters {
        // SAFETY: see `slot`.
        unsafe { self.words.as_ref() }
    }
}

fn check_capacity(capacity_log2: u32) -> Result<(), FabricError> {
    if (1..=MAX_CAPACITY_LOG2).contains(&capacity_log2) {
        return Ok(());
    }
    Err(FabricError::Config(vec![format!(
        "the capacity of a command ring is 2^{capacity_log2}, but it must be 2^1 to 2^{MAX_CAPACITY_LOG2} commands"
    )]))
}

/// The proxy's end of a ring. Each ring has exactly one consumer.
pub struct CommandConsumer {
    ring: Arc<HostRing>,
    next: u32,
    consumed: u32,
    sent: u32,
}

impl CommandConsumer {
    /// Creates the consumer. The consumer starts at the index that the ring's counters hold.
    #[must_use]
    pub fn new(ring: Arc<HostRing>) -> Self {
        let next = ring.counters().consumed.load(Ordering::Relaxed);
        let sent = ring.counters().sent.load(Ordering::Relaxed);
        Self {
            ring,
            next,
            consumed: next,
            sent,
        }
    }

    /// Returns the next command and its index if a producer has published it.
    ///
    /// The slot of the command stays in use until [`publish`](Self::publish).
    ///
    /// # Errors
    ///
    /// [`FabricError::Command`] for a tag of another lap, which means that the slot was overwritten out of turn.
    pub fn take(&mut self) -> Result<Option<(u32, Command)>, FabricError> {
        let (index, log2) = (self.next, self.ring.capacity_log2);
        let slot = self.ring.slot(index);
        let words = [0, 1, 2, 3].map(|word: usize| slot[word].load(Ordering::Relaxed));
        let found = words[0] as u32;
        if found != tag(index, log2) {
            let before = tag(index.wrapping_sub(1 << log2), log2);
            if found == 0 || found == before {
                return Ok(None);
            }
            return Err(FabricError::Command {
                index,
                field: "tag",
                value: u64::from(found),
                limit: format!("the slot may hold {before:#x} or {:#x}", tag(index, log2)),
            });
        }
        if (words[1..].iter()).any(|word| word & PHASE_BIT != phase(index, log2)) {
            return Ok(None);
        }
        // This fence makes everything visible that the producer did before it published the command, in particular
        // the bytes that are to be put.
        fence(Ordering::Acquire);
        self.next = index.wrapping_add(1);
        Ok(Some((index, unpack(words))))
    }

    /// Releases the slots of all taken commands, and reports that the sources of `sent` more commands may be reused.
    pub fn publish(&mut self, sent: u32) {
        let words = self.ring.counters();
        if self.consumed != self.next {
            self.consumed = self.next;
            words.consumed.store(self.consumed, Ordering::Release);
        }
        if sent != 0 {
            self.sent = self.sent.wrapping_add(sent);
            words.sent.store(self.sent, Ordering::Release);
        }
    }
}

fn unpack([head, kinds, source_offset, target_offset]: [u64; 4]) -> Command {
    let [kinds, source_offset, target_offset] =
        [kinds, source_offset, target_offset].map(|word| word & !PHASE_BIT);
    Command {
        tag: head as u32,
        peer: (head >> 32) as u16,
        channel: (head >> 48) as u16,
        source_region: kinds as u8,
        target_region: (kinds >> 8) as u8,
        kind: (kinds >> 16) as u16,
        bytes: (kinds >> 32) as u32,
        source_offset,
        target_offset,
    }
}

fn pack(command: &Command, tag: u32, phase: u64) -> [u64; 4] {
    let head = u64::from(tag) | u64::from(command.peer) << 32 | u64::from(command.channel) << 48;
    let kinds = u64::from(command.source_region)
        | u64::from(command.target_region) << 8
        | u64::from(command.kind) << 16
        | u64::from(command.bytes) << 32;
    let rest = [kinds, command.source_offset, command.target_offset].map(|word| {
        debug_assert!(word & PHASE_BIT == 0);
        word | phase
    });
    [head, rest[0], rest[1], rest[2]]
}

/// Posts commands from the host as a kernel does from the device. Clones share the ring. No kernel may use a ring that has a
/// producer on the host.
#[derive(Clone)]
pub struct CommandProducer {
    ring: Arc<HostRing>,
    state: Arc<ProducerState>,
}

impl CommandProducer {
    /// Creates the first producer of a ring.
    #[must_use]
    pub fn new(ring: Arc<HostRing>) -> Self {
        let first = ring.counters().consumed.load(Ordering::Relaxed);
        let state = Arc::new(ProducerState {
            claimed: AtomicU32::new(first),
            consumed_seen: AtomicU32::new(first),
        });
        Self { ring, state }
    }

    /// Claims the index of the caller's next command. The caller publishes it once it [has a slot](Self::has_slot).
    #[must_use]
    pub fn claim(&self) -> u32 {
        self.state.claimed.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns whether the slot of this index may be written.
    #[must_use]
    pub fn has_slot(&self, index: u32) -> bool {
        let wanted = index.wrapping_add(1).wrapping_sub(self.ring.capacity());
        let reaches = |seen: u32| seen.wrapping_sub(wanted).cast_signed() >= 0;
        if reaches(self.state.consumed_seen.load(Ordering::Acquire)) {
            return true;
        }
        let seen = self.ring.counters().consumed.load(Ordering::Acquire);
        if reaches(seen) {
            self.state.consumed_seen.store(seen, Ordering::Release);
        }
        reaches(seen)
    }

    /// Writes the command to its slot, the four words in any order. The tag in `command` is ignored.
    pub fn publish(&self, index: u32, command: &Command) {
        let log2 = self.ring.capacity_log2;
        let tag = tag(index, log2);
        debug_assert!(tag & TAG_VALID != 0);
        fence(Ordering::Release);
        for (word, value) in
            (self.ring.slot(index).iter()).zip(pack(command, tag, phase(index, log2)))
        {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Returns whether the writes of this command and of all earlier commands have completed.
    #[must_use]
    pub fn is_sent(&self, index: u32) -> bool {
        let sent = self.ring.counters().sent.load(Ordering::Acquire);
        sent.wrapping_sub(index.wrapping_add(1)).cast_signed() >= 0
    }
}
