//! Who accessed each word last, and whether the next access is ordered after it.

use super::clock::{Clock, Component};

/// Bytes that one [`Cell`] stands for. What is smaller counts as the whole word.
pub(super) const WORD_BYTES: usize = 4;

/// Of the number of a place in [`Shadow::longer`], which fits the first cache with this.
const LONGER_BITS: u32 = 10;

/// The last accesses of a word.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    /// Of the last write; 0: never written.
    write: u32,
    /// Reads since then, as an index into [`Shadow::reads`]; 0: none.
    reads: u32,
}

/// How a word is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By an ordinary access of a thread.
    Weak,
    /// By an ordinary read that promises that the kernel does not write the word.
    Constant,
    /// By an ordinary access that another launch may race: a launch that overlaps with it does not use the value.
    Early,
    /// By an atomic or ordered access that reaches this GPU only.
    AtomicGpu,
    /// The same for all GPUs and the host.
    AtomicSys,
    /// By the async proxy: TMA or tensor cores.
    Async,
    /// By a copy of the host's.
    Host,
}

impl Way {
    /// Whether the access is ordinary: it neither acquires nor publishes anything.
    pub fn is_ordinary(self) -> bool {
        matches!(self, Self::Weak | Self::Constant | Self::Early)
    }
}

/// One access, or many by the same thread at the same place without a step in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    pub way: Way,
    /// Known to whoever knows this step of this component ...
    pub component: Component,
    pub step: u32,
    /// ... or, for a thread's own access, this step of what the thread published on its own.
    pub slot: u32,
    pub solo_step: u32,
    pub who: Who,
}

/// Who made an access, for people and for rules about GPUs and launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Who {
    pub device: u32,
    pub launch: u32,
    pub cta: u32,
    pub thread: u32,
    pub place: u64,
}

/// No thread's own slot.
pub(super) const NO_SLOT: u32 = u32::MAX;

/// Who accesses, and what is known to it.
pub(super) struct Accessor<'a> {
    /// Index of its stamp.
    pub stamp: u32,
    /// By ordinary accesses.
    pub generic: &'a [&'a Clock],
    /// By the async proxy, if this is an access by it.
    pub proxy: Option<&'a [&'a Clock]>,
    /// The thread that accesses, or that issued the access ...
    pub slot: u32,
    /// ... whose own accesses up to this solo step came before ...
    pub own: u32,
    /// ... and whose own ordinary writes up to this one are known to the proxy.
    pub fenced: u32,
}

impl<'a> Accessor<'a> {
    /// For an ordinary or atomic access of the thread with `slot`, which knows `generic`.
    pub fn ordinary(stamp: u32, slot: u32, generic: &'a [&'a Clock]) -> Self {
        Self {
            stamp,
            generic,
            proxy: None,
            slot,
            own: u32::MAX,
            fenced: 0,
        }
    }
}

/// What is wrong with an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fault {
    /// Nobody wrote the word before.
    Uninitialised,
    /// Two accesses, one of them a write, without order between them.
    Race {
        earlier_writes: bool,
        later_writes: bool,
    },
    /// They are ordered, but no proxy fence stands between an ordinary write and an access by TMA or tensor cores.
    Unfenced,
    /// A read that promised a constant, of what the same kernel wrote.
    NotConstant,
}

/// Everything about order that is not per word.
#[derive(Debug)]
pub(super) struct Shadow {
    pub stamps: Vec<Stamp>,
    /// Sets of reads as chains: (rest, stamp).
    reads: Vec<(u32, u32)>,
    /// Chains made lately, each (rest, stamp, chain) at a place of its own: one forgotten is made anew.
    longer: Vec<(u32, u32, u32)>,
    /// The last (access, write before it) in good order: neighbours ask the same.
    last_ordered: (u32, u32),
    /// By slot: the component of what a thread published on its own, if it did.
    pub solos: Vec<Option<Component>>,
}

impl Default for Shadow {
    fn default() -> Self {
        let nobody = Stamp {
            way: Way::Host,
            component: 0,
            step: 0,
            slot: NO_SLOT,
            solo_step: 0,
            who: Who::default(),
        };
        Self {
            stamps: vec![nobody],
            reads: vec![(0, 0)],
            longer: vec![(0, 0, 0); 1 << LONGER_BITS],
            last_ordered: (0, 0),
            solos: Vec::new(),
        }
    }
}

impl Shadow {
    pub fn stamp(&mut self, stamp: Stamp) -> u32 {
        self.stamps.push(stamp);
        (self.stamps.len() - 1) as u32
    }

    /// Reads words; `fault` gets what is wrong and the stamp of the earlier access.
    pub fn read(
        &mut self,
        cells: &mut [Cell],
        by: &Accessor<'_>,
        mut fault: impl FnMut(Fault, u32, usize),
    ) {
        let (mut known, mut from, mut to) = (u32::MAX, u32::MAX, 0);
        for (index, cell) in cells.iter_mut().enumerate() {
            if cell.write != known {
                if let Some(found) = self.conflict(cell.write, by, false) {
                    fault(found, cell.write, index);
                }
                known = cell.write;
            }
            if cell.reads != from {
                from = cell.reads;
                to = self.with_read(from, by.stamp);
            }
            cell.reads = to;
        }
    }

    /// Writes words.
    pub fn write(
        &mut self,
        cells: &mut [Cell],
        by: &Accessor<'_>,
        mut fault: impl FnMut(Fault, u32, usize),
    ) {
        let (mut known, mut known_reads) = (0, 0);
        for (index, cell) in cells.iter_mut().enumerate() {
            if cell.write != known {
                if let Some(found) = self.conflict(cell.write, by, true) {
                    fault(found, cell.write, index);
                }
                known = cell.write;
            }
            if cell.reads != known_reads {
                known_reads = cell.reads;
                let mut chain = cell.reads;
                while chain != 0 {
                    let (rest, stamp) = self.reads[chain as usize];
                    if !self.is_ordered(stamp, by, false) {
                        fault(
                            Fault::Race {
                                earlier_writes: false,
                                later_writes: true,
                            },
                            stamp,
                            index,
                        );
                        break;
                    }
                    chain = rest;
                }
            }
            *cell = Cell {
                write: by.stamp,
                reads: 0,
            };
        }
    }

    fn with_read(&mut self, chain: u32, stamp: u32) -> u32 {
        if self.reads[chain as usize].1 == stamp {
            return chain;
        }
        let hash = (u64::from(chain) << 32 | u64::from(stamp)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let lately = &mut self.longer[(hash >> (64 - LONGER_BITS)) as usize];
        // Stamp 0 is nobody's.
        if (lately.0, lately.1) != (chain, stamp) {
            self.reads.push((chain, stamp));
            *lately = (chain, stamp, (self.reads.len() - 1) as u32);
        }
        lately.2
    }

    /// What is wrong with an access after the write of stamp `earlier`.
    fn conflict(&mut self, earlier: u32, by: &Accessor<'_>, later_writes: bool) -> Option<Fault> {
        if self.last_ordered == (by.stamp, earlier) {
            return None;
        }
        if earlier == 0 {
            return (!later_writes).then_some(Fault::Uninitialised);
        }
        if !self.is_ordered(earlier, by, false) {
            return Some(Fault::Race {
                earlier_writes: true,
                later_writes,
            });
        }
        if !self.is_ordered(earlier, by, true) {
            return Some(Fault::Unfenced);
        }
        let (stamp, mine) = (
            &self.stamps[earlier as usize],
            &self.stamps[by.stamp as usize],
        );
        let is_constant = mine.way == Way::Constant;
        if is_constant && stamp.who.launch == mine.who.launch && stamp.who.device == mine.who.device
        {
            return Some(Fault::NotConstant);
        }
        // What is known once stays known.
        self.last_ordered = (by.stamp, earlier);
        None
    }

    /// Whether `by` comes after the access of stamp `earlier`; with `by_proxy`, also where it accesses by the async
    /// proxy and the earlier access was an ordinary write.
    fn is_ordered(&self, earlier: u32, by: &Accessor<'_>, by_proxy: bool) -> bool {
        let (stamp, mine) = (
            &self.stamps[earlier as usize],
            &self.stamps[by.stamp as usize],
        );
        let same_gpu = stamp.who.device == mine.who.device;
        match (stamp.way, mine.way) {
            // Atomics that reach each other need no order.
            (Way::AtomicSys, Way::AtomicSys) => return true,
            (Way::AtomicGpu | Way::AtomicSys, Way::AtomicGpu | Way::AtomicSys) if same_gpu => {
                return true;
            }
            (Way::Early, Way::Early) if same_gpu && stamp.who.launch != mine.who.launch => {
                return true;
            }
            _ => {}
        }
        let (clocks, own) = match by.proxy {
            Some(proxy) if by_proxy && stamp.way != Way::Async => (proxy, by.fenced),
            _ => (by.generic, by.own),
        };
        let is_own =
            stamp.slot != NO_SLOT && stamp.slot == by.slot && stamp.who.launch == mine.who.launch;
        if is_own && stamp.solo_step <= own {
            return true;
        }
        let solo = self.solos.get(stamp.slot as usize).copied().flatten();
        clocks.iter().all(|clock| {
            clock.at(stamp.component) >= stamp.step
                || solo.is_some_and(|component| clock.at(component) >= stamp.solo_step)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that publishes on its own: slot and solo component are the same number, the warp's is 10 + slot.
    fn stamp_of(shadow: &mut Shadow, slot: u32, step: u32, way: Way) -> u32 {
        shadow.solos.resize(4, None);
        shadow.solos[slot as usize] = Some(slot);
        let who = Who {
            thread: slot,
            ..Who::default()
        };
        shadow.stamp(Stamp {
            way,
            component: 10 + slot,
            step,
            slot,
            solo_step: step,
            who,
        })
    }

    fn faults(
        shadow: &mut Shadow,
        cells: &mut [Cell],
        stamp: u32,
        clock: &Clock,
        write: bool,
    ) -> Vec<Fault> {
        let mut found = Vec::new();
        let slot = shadow.stamps[stamp as usize].slot;
        let by = Accessor {
            stamp,
            generic: &[clock],
            proxy: None,
            slot,
            own: u32::MAX,
            fenced: 0,
        };
        if write {
            shadow.write(cells, &by, |fault, _, _| found.push(fault));
        } else {
            shadow.read(cells, &by, |fault, _, _| found.push(fault));
        }
        found
    }

    #[test]
    fn order_is_what_makes_accesses_right() {
        let mut shadow = Shadow::default();
        let mut cells = [Cell::default(); 3];
        let none = Clock::default();
        let (a, b) = (
            stamp_of(&mut shadow, 0, 1, Way::Weak),
            stamp_of(&mut shadow, 1, 1, Way::Weak),
        );
        assert_eq!(
            faults(&mut shadow, &mut cells, a, &none, false),
            [Fault::Uninitialised],
            "once for the range"
        );
        assert_eq!(faults(&mut shadow, &mut cells, a, &none, true), []);
        let race = Fault::Race {
            earlier_writes: true,
            later_writes: false,
        };
        assert_eq!(faults(&mut shadow, &mut cells, b, &none, false), [race]);
        let mut after_a = Clock::default();
        after_a.raise(0, 1);
        assert_eq!(faults(&mut shadow, &mut cells, b, &after_a, false), []);
        let race = Fault::Race {
            earlier_writes: false,
            later_writes: true,
        };
        let third = stamp_of(&mut shadow, 2, 1, Way::Weak);
        assert_eq!(
            faults(&mut shadow, &mut cells, third, &after_a, true),
            [race],
            "b still reads"
        );
    }

    #[test]
    fn atomics_need_no_order_where_they_reach_each_other() {
        let mut shadow = Shadow::default();
        let mut cells = [Cell::default()];
        let none = Clock::default();
        let (a, b) = (
            stamp_of(&mut shadow, 0, 1, Way::AtomicSys),
            stamp_of(&mut shadow, 1, 1, Way::AtomicSys),
        );
        assert_eq!(faults(&mut shadow, &mut cells, a, &none, true), []);
        assert_eq!(faults(&mut shadow, &mut cells, b, &none, true), []);
        let gpu = stamp_of(&mut shadow, 2, 1, Way::AtomicGpu);
        shadow.stamps[gpu as usize].who.device = 1;
        let race = Fault::Race {
            earlier_writes: true,
            later_writes: true,
        };
        assert_eq!(
            faults(&mut shadow, &mut cells, gpu, &none, true),
            [race],
            "of another GPU"
        );
    }

    #[test]
    fn early_accesses_need_order_within_a_launch_only() {
        let mut shadow = Shadow::default();
        let none = Clock::default();
        let [own, other, weak] = [Way::Early, Way::Early, Way::Weak].map(|way| {
            let mut cells = [Cell::default()];
            let first = stamp_of(&mut shadow, 0, 1, Way::Early);
            faults(&mut shadow, &mut cells, first, &none, true);
            let read = stamp_of(&mut shadow, 1, 1, way);
            (cells, read)
        });
        for (_, read) in [&other, &weak] {
            shadow.stamps[*read as usize].who.launch = 1;
        }
        let race = Fault::Race {
            earlier_writes: true,
            later_writes: false,
        };
        for ((mut cells, read), expected) in
            [(own, vec![race]), (other, vec![]), (weak, vec![race])]
        {
            assert_eq!(
                faults(&mut shadow, &mut cells, read, &none, false),
                expected
            );
        }
    }

    #[test]
    fn the_async_proxy_needs_a_fence_after_ordinary_writes() {
        let mut shadow = Shadow::default();
        let mut cells = [Cell::default()];
        let (write, tma) = (
            stamp_of(&mut shadow, 0, 1, Way::Weak),
            stamp_of(&mut shadow, 1, 1, Way::Async),
        );
        faults(&mut shadow, &mut cells, write, &Clock::default(), true);
        let (mut known, unknown) = (Clock::default(), Clock::default());
        known.raise(0, 1);
        let mut found = Vec::new();
        for proxy in [&unknown, &known] {
            let by = Accessor {
                stamp: tma,
                generic: &[&known],
                proxy: Some(&[proxy]),
                slot: NO_SLOT,
                own: 0,
                fenced: 0,
            };
            shadow.read(&mut cells, &by, |fault, _, _| found.push(fault));
        }
        assert_eq!(found, [Fault::Unfenced]);
    }
}
