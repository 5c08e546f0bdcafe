//! When work starts, what it comes after, and what becomes of a standstill.

use super::*;

#[test]
fn work_comes_after_what_the_program_has_seen() {
    let lab = Lab::new(2);
    let slice = lab.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    let (one, two) = (lab.stream(0), lab.stream(1));
    launch(&one, [ADD, address(&slice), 1]).expect("launched");
    one.synchronize().expect("synchronized");
    let added = lab.log().len() - 1;
    launch(&two, [ADD, address(&slice), 1]).expect("launched");
    two.synchronize().expect("synchronized");
    let after = lab.log().pop().expect("a task").1;
    assert!(after.0.contains(&TaskId(added as u64)), "by waiting");

    // By looking at pinned memory, without any call.
    // SAFETY: a word is valid whatever its bytes.
    let mut pinned = unsafe { lab.gpus[0].alloc_pinned_with_flags::<u32>(1, 3) }.expect("pinned");
    let bell = pinned.as_mut_ptr().expect("an address") as u64;
    launch(&one, [RING, bell, 9]).expect("launched");
    let ringing = lab.log().len() as u64;
    let waits = std::thread::spawn(move || one.synchronize());
    // SAFETY: pinned memory is alive; the fake world uses atomics as well.
    while unsafe { (*(bell as *const AtomicU32)).load(Ordering::Acquire) } != 9 {
        std::thread::yield_now();
    }
    launch(&two, [ADD, address(&slice), 1]).expect("launched");
    two.synchronize().expect("synchronized");
    let after = lab.log().pop().expect("a task").1;
    assert!(after.0.contains(&TaskId(ringing)), "by looking");
    waits.join().expect("no panic").expect("synchronized");
}

#[test]
fn ranks_start_together() {
    let lab = Lab::new(2);
    let slice = lab.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    lab.gpus[0].synchronize().expect("synchronized");
    let first = lab.log().len();
    let streams = [lab.stream(0), lab.stream(1)];
    let at = address(&slice);
    let (fast, slow) = (streams[1].clone(), streams[0].clone());
    launch(&fast, [ADD, at, 1]).expect("launched");
    let waits = std::thread::spawn(move || fast.synchronize());
    std::thread::sleep(Duration::from_millis(5));
    launch(&slow, [AWAIT, at, 1]).expect("launched");
    slow.synchronize().expect("synchronized");
    waits.join().expect("no panic").expect("synchronized");
    // Neither came after the other, and the first GPU's came first: together, in the order of GPUs.
    let log = lab.log();
    assert_eq!(log.len(), first + 2);
    assert!(log[first + 1].1.0.iter().all(|task| task.0 < first as u64));
}

#[test]
fn a_rank_that_does_not_come_is_no_deadlock() {
    let lab = Lab::new(2);
    let slice = lab.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    let stream = lab.stream(0);
    launch(&stream, [AWAIT, address(&slice), 1]).expect("launched");
    let started = Instant::now();
    stream
        .synchronize()
        .expect("the kernel gave up, and said so elsewhere");
    assert!(started.elapsed() >= Duration::from_millis(60), "patience");
    assert_eq!(lab.host.findings().len(), 0);
}

#[test]
fn ranks_that_wait_for_each_other_are_a_deadlock() {
    let lab = Lab::new(2);
    let slice = lab.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    let at = address(&slice);
    let threads = [0, 1].map(|device| {
        let stream = lab.stream(device);
        std::thread::spawn(move || {
            launch(&stream, [AWAIT, at, 1]).expect("launched");
            stream.synchronize().expect("synchronized");
        })
    });
    for thread in threads {
        thread.join().expect("no panic");
    }
    let findings = lab.host.take_findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].kind, "deadlock");
    assert_eq!(lab.host.findings().len(), 0);
}

/// A part of the program writes what a kernel waits for, after the world has looked and before it is asked whether it is busy.
#[test]
fn what_a_helper_wrote_last_is_seen_before_time_passes() {
    let lab = Lab::new(1);
    // SAFETY: a word is valid whatever its bytes.
    let mut pinned = unsafe { lab.gpus[0].alloc_pinned_with_flags::<u32>(1, 3) }.expect("pinned");
    let word = pinned.as_mut_ptr().expect("an address") as u64;
    // SAFETY: pinned memory is alive until the end of the test; the fake world uses atomics as well.
    let store =
        move |value| unsafe { &*(word as *const AtomicU32) }.store(value, Ordering::Release);
    store(0);
    let _watch = lab.host.watch(move || {
        store(9);
        false
    });
    let stream = lab.stream(0);
    launch(&stream, [AWAIT_HOST, word, 9]).expect("launched");
    stream.synchronize().expect("synchronized");
    let findings = lab.host.take_findings();
    assert!(findings.is_empty(), "{findings:?}");
}
