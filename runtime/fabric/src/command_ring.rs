//! The ring of commands, on the host: its memory, its one consumer, and a producer that does what `mk/comm/command_ring.cuh` does.

use crate::error::FabricError;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use mkernel_spec::fabric::{Command, MAX_CAPACITY_LOG2, PHASE_BIT, TAG_VALID, phase, tag};
use std::ptr::NonNull;
use std::sync::Arc;

/// A [`Command`] as four words: one with its tag, peer and channel, three with their [`PHASE_BIT`].
#[repr(C, align(32))]
#[derive(Debug, Default)]
pub struct CommandSlot([AtomicU64; 4]);

impl CommandSlot {
    /// As the lap before left it that will first write the command `index`.
    fn before(index: u32, capacity_log2: u32) -> Self {
        let stale = phase(index, capacity_log2) ^ PHASE_BIT;
        Self([0, stale, stale, stale].map(AtomicU64::new))
    }
}

/// [`mkernel_spec::fabric::RingWords`].
#[repr(C)]
#[derive(Debug)]
pub struct RingCounters {
    consumed: AtomicU32,
    sent: AtomicU32,
}

/// [`mkernel_spec::fabric::RingState`]; of use to producers on the host only.
#[derive(Debug)]
struct ProducerState {
    claimed: AtomicU32,
    consumed_seen: AtomicU32,
}

/// Memory of a ring.
pub struct HostRing {
    slots: NonNull<[CommandSlot]>,
    words: NonNull<RingCounters>,
    capacity_log2: u32,
    /// What keeps the memory.
    _owner: Box<dyn Send + Sync>,
}

// SAFETY: all that the pointers lead to is atomic, and the owner may be sent and shared.
unsafe impl Send for HostRing {}
// SAFETY: as above.
unsafe impl Sync for HostRing {}

impl HostRing {
    /// A ring in ordinary memory whose first command has the index `first`: 0, but in tests of wrapping.
    ///
    /// # Errors
    ///
    /// [`FabricError::Config`] for a capacity above 2^[`MAX_CAPACITY_LOG2`], or 1.
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
        // SAFETY: the owner keeps the memory and does not move it; all of it is atomic.
        unsafe { Self::from_raw(first_slot, first_word, capacity_log2, owner) }
    }

    /// A ring in memory that is mapped on a device too. It is zero before the first command.
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate).
    ///
    /// # Safety
    ///
    /// `slots` leads to 2^`capacity_log2` slots; they and `words` stay mapped as long as `owner` lives, and nobody but
    /// kernels accesses them otherwise.
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

    /// Slots.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        1 << self.capacity_log2
    }

    /// Whether all commands that were published have left.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let words = self.counters();
        // In this order: a command counts as read before it counts as sent.
        let sent = words.sent.load(Ordering::Acquire);
        let consumed = words.consumed.load(Ordering::Acquire);
        let head = self.slot(consumed)[0].load(Ordering::Relaxed);
        sent == consumed && head as u32 != tag(consumed, self.capacity_log2)
    }

    fn slot(&self, index: u32) -> &[AtomicU64; 4] {
        // SAFETY: mapped while `_owner` lives, and atomic.
        let slots = unsafe { self.slots.as_ref() };
        &slots[(index & (self.capacity() - 1)) as usize].0
    }

    fn counters(&self) -> &RingCounters {
        // SAFETY: as in `slot`.
        unsafe { self.words.as_ref() }
    }
}

fn check_capacity(capacity_log2: u32) -> Result<(), FabricError> {
    if (1..=MAX_CAPACITY_LOG2).contains(&capacity_log2) {
        return Ok(());
    }
    Err(FabricError::Config(vec![format!(
        "a ring of 2^{capacity_log2} commands, but it may have 2^1 to 2^{MAX_CAPACITY_LOG2}"
    )]))
}

/// The proxy's end. A ring has one.
pub struct CommandConsumer {
    ring: Arc<HostRing>,
    next: u32,
    consumed: u32,
    sent: u32,
}

impl CommandConsumer {
    /// Starts where the ring's words say.
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

    /// The next command and its index, if it was published. Its slot stays taken until [`publish`](Self::publish).
    ///
    /// # Errors
    ///
    /// [`FabricError::Command`] for a tag of another lap: somebody wrote the slot who had no right to.
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
                limit: format!(
                    "the slot's tags are {before:#x}, then {:#x}",
                    tag(index, log2)
                ),
            });
        }
        if (words[1..].iter()).any(|word| word & PHASE_BIT != phase(index, log2)) {
            return Ok(None);
        }
        // What the producer did before, above all the bytes to be put, is seen from here on.
        fence(Ordering::Acquire);
        self.next = index.wrapping_add(1);
        Ok(Some((index, unpack(words))))
    }

    /// Gives the slots of all taken commands back, and tells that the sources of `sent` more commands may be reused.
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

/// Posts commands from the host, as a kernel does from the device. Clones share a ring; no kernel may use it besides.
#[derive(Clone)]
pub struct CommandProducer {
    ring: Arc<HostRing>,
    state: Arc<ProducerState>,
}

impl CommandProducer {
    /// The first producer of a ring.
    #[must_use]
    pub fn new(ring: Arc<HostRing>) -> Self {
        let first = ring.counters().consumed.load(Ordering::Relaxed);
        let state = Arc::new(ProducerState {
            claimed: AtomicU32::new(first),
            consumed_seen: AtomicU32::new(first),
        });
        Self { ring, state }
    }

    /// The index of the caller's command, which is to be published once it [has a slot](Self::has_slot).
    #[must_use]
    pub fn claim(&self) -> u32 {
        self.state.claimed.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether the index's slot may be written.
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

    /// Fills the slot, its words in any order. The command's own tag is of no account.
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

    /// Whether the command and all before it have left.
    #[must_use]
    pub fn is_sent(&self, index: u32) -> bool {
        let sent = self.ring.counters().sent.load(Ordering::Acquire);
        sent.wrapping_sub(index.wrapping_add(1)).cast_signed() >= 0
    }
}
