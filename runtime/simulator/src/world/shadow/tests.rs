//! Tests of shadow memory: which pairs of accesses are mistakes.

use super::*;
use crate::world::clock::Clock;

/// Adds a stamp of a thread that publishes by itself. The solo component of the thread is `slot`, and the component of
/// its warp is 10 + `slot`.
fn stamp_of(shadow: &mut Shadow, slot: u32, step: u32, kind: AccessKind) -> u32 {
    shadow.solos.resize(4, None);
    shadow.solos[slot as usize] = Some(slot);
    let origin = Origin {
        thread: slot,
        ..Origin::default()
    };
    shadow.stamp(Stamp {
        kind,
        component: 10 + slot,
        step,
        slot,
        solo_step: step,
        origin,
    })
}

fn faults(
    shadow: &mut Shadow,
    cells: &mut [ShadowCell],
    stamp: u32,
    clock: &Clock,
    write: bool,
) -> Vec<AccessFault> {
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
fn unordered_accesses_race() {
    let mut shadow = Shadow::default();
    let mut cells = [ShadowCell::default(); 3];
    let none = Clock::default();
    let (a, b) = (
        stamp_of(&mut shadow, 0, 1, AccessKind::Weak),
        stamp_of(&mut shadow, 1, 1, AccessKind::Weak),
    );
    assert_eq!(
        faults(&mut shadow, &mut cells, a, &none, false),
        [AccessFault::Uninitialised],
        "once for the range"
    );
    assert_eq!(faults(&mut shadow, &mut cells, a, &none, true), []);
    let race = AccessFault::Race {
        earlier_writes: true,
        later_writes: false,
    };
    assert_eq!(faults(&mut shadow, &mut cells, b, &none, false), [race]);
    let mut after_a = Clock::default();
    after_a.raise(0, 1);
    assert_eq!(faults(&mut shadow, &mut cells, b, &after_a, false), []);
    let race = AccessFault::Race {
        earlier_writes: false,
        later_writes: true,
    };
    let third = stamp_of(&mut shadow, 2, 1, AccessKind::Weak);
    assert_eq!(
        faults(&mut shadow, &mut cells, third, &after_a, true),
        [race],
        "the read of b is not ordered"
    );
}

#[test]
fn atomics_need_no_order_within_their_scope() {
    let mut shadow = Shadow::default();
    let mut cells = [ShadowCell::default()];
    let none = Clock::default();
    let (a, b) = (
        stamp_of(&mut shadow, 0, 1, AccessKind::AtomicSys),
        stamp_of(&mut shadow, 1, 1, AccessKind::AtomicSys),
    );
    assert_eq!(faults(&mut shadow, &mut cells, a, &none, true), []);
    assert_eq!(faults(&mut shadow, &mut cells, b, &none, true), []);
    let gpu = stamp_of(&mut shadow, 2, 1, AccessKind::AtomicGpu);
    shadow.stamps[gpu as usize].origin.device = 1;
    let race = AccessFault::Race {
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
    let [own, other, weak] = [AccessKind::Early, AccessKind::Early, AccessKind::Weak].map(|kind| {
        let mut cells = [ShadowCell::default()];
        let first = stamp_of(&mut shadow, 0, 1, AccessKind::Early);
        faults(&mut shadow, &mut cells, first, &none, true);
        let read = stamp_of(&mut shadow, 1, 1, kind);
        (cells, read)
    });
    for (_, read) in [&other, &weak] {
        shadow.stamps[*read as usize].origin.launch = 1;
    }
    let race = AccessFault::Race {
        earlier_writes: true,
        later_writes: false,
    };
    for ((mut cells, read), expected) in [(own, vec![race]), (other, vec![]), (weak, vec![race])] {
        assert_eq!(
            faults(&mut shadow, &mut cells, read, &none, false),
            expected
        );
    }
}

#[test]
fn the_async_proxy_needs_a_fence_after_ordinary_writes() {
    let mut shadow = Shadow::default();
    let mut cells = [ShadowCell::default()];
    let (write, tma) = (
        stamp_of(&mut shadow, 0, 1, AccessKind::Weak),
        stamp_of(&mut shadow, 1, 1, AccessKind::Async),
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
    assert_eq!(found, [AccessFault::Unfenced]);
}

/// Accesses to which a word refers are kept for comparison with later accesses. All other accesses are forgotten.
#[test]
fn only_accesses_that_words_refer_to_are_kept() {
    let mut shadow = Shadow::default();
    let mut cells = [ShadowCell::default(); 3];
    let none = Clock::default();
    let accesses: Vec<u32> = (1..=100)
        .map(|step| stamp_of(&mut shadow, 0, step, AccessKind::Weak))
        .collect();
    for stamp in &accesses {
        faults(&mut shadow, &mut cells[..2], *stamp, &none, true);
    }
    let reads = [1, 2].map(|slot| stamp_of(&mut shadow, slot, 1, AccessKind::Weak));
    for stamp in reads {
        faults(&mut shadow, &mut cells[1..2], stamp, &none, false);
    }
    shadow.forget_all_but(&mut [&mut cells]);
    // Stamps: the empty stamp, the last write and two reads. Sets of reads: the empty set, one read, and both reads.
    assert_eq!((shadow.stamps.len(), shadow.reads.len()), (4, 3));
    assert_eq!(shadow.stamps[cells[0].write as usize].step, 100);
    let later = stamp_of(&mut shadow, 3, 1, AccessKind::Weak);
    let race = |earlier_writes| AccessFault::Race {
        earlier_writes,
        later_writes: true,
    };
    let mut by_cell = cells.map(|cell| faults(&mut shadow, &mut [cell], later, &none, true));
    by_cell[1].sort_by_key(|fault| *fault == race(false));
    assert_eq!(by_cell[0], [race(true)]);
    assert_eq!(by_cell[1], [race(true), race(false)]);
    assert_eq!(by_cell[2], []);
}
