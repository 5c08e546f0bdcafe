//! Tests of the engine: the start of work, the order of work, and the end of a standstill.

use super::*;

#[test]
fn work_is_ordered_after_what_the_program_has_seen() {
    let host = TestHost::new(2);
    let slice = host.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    let (one, two) = (host.stream(0), host.stream(1));
    launch(&one, [ADD, address(&slice), 1]).expect("launched");
    one.synchronize().expect("synchronized");
    let added = host.log().len() - 1;
    launch(&two, [ADD, address(&slice), 1]).expect("launched");
    two.synchronize().expect("synchronized");
    let after = host.log().pop().expect("a task").1;
    assert!(
        after.0.contains(&TaskId(added as u64)),
        "the program has waited for the first kernel"
    );

    // Now the program sees the first kernel by reading pinned memory, without a call of the driver.
    // SAFETY: any bytes are a valid word.
    let mut pinned = unsafe { host.gpus[0].alloc_pinned_with_flags::<u32>(1, 3) }.expect("pinned");
    let engine_wakeup = pinned.as_mut_ptr().expect("an address") as u64;
    launch(&one, [RING, engine_wakeup, 9]).expect("launched");
    let ringing = host.log().len() as u64;
    let waits = std::thread::spawn(move || one.synchronize());
    // SAFETY: pinned memory is alive, and the fake world uses atomics as well.
    while unsafe { (*(engine_wakeup as *const AtomicU32)).load(Ordering::Acquire) } != 9 {
        std::thread::yield_now();
    }
    launch(&two, [ADD, address(&slice), 1]).expect("launched");
    two.synchronize().expect("synchronized");
    let after = host.log().pop().expect("a task").1;
    assert!(
        after.0.contains(&TaskId(ringing)),
        "the program has read pinned memory"
    );
    waits.join().expect("no panic").expect("synchronized");
}

#[test]
fn ranks_start_together() {
    let host = TestHost::new(2);
    let slice = host.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    host.gpus[0].synchronize().expect("synchronized");
    let first = host.log().len();
    let streams = [host.stream(0), host.stream(1)];
    let at = address(&slice);
    let (fast, slow) = (streams[1].clone(), streams[0].clone());
    launch(&fast, [ADD, at, 1]).expect("launched");
    let waits = std::thread::spawn(move || fast.synchronize());
    std::thread::sleep(Duration::from_millis(5));
    launch(&slow, [AWAIT, at, 1]).expect("launched");
    slow.synchronize().expect("synchronized");
    waits.join().expect("no panic").expect("synchronized");
    // Neither kernel is ordered after the other, and they started in the order of the GPUs. So they started together.
    let log = host.log();
    assert_eq!(log.len(), first + 2);
    assert!(log[first + 1].1.0.iter().all(|task| task.0 < first as u64));
}

#[test]
fn a_missing_rank_is_not_a_deadlock() {
    let host = TestHost::new(2);
    let slice = host.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    let stream = host.stream(0);
    launch(&stream, [AWAIT, address(&slice), 1]).expect("launched");
    let started = Instant::now();
    stream
        .synchronize()
        .expect("the kernel ended by its deadline");
    assert!(
        started.elapsed() >= Duration::from_millis(60),
        "time passed in pace with real time"
    );
    assert_eq!(host.host.findings().len(), 0);
}

#[test]
fn ranks_that_wait_for_each_other_are_a_deadlock() {
    let host = TestHost::new(2);
    let slice = host.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    let at = address(&slice);
    let threads = [0, 1].map(|device| {
        let stream = host.stream(device);
        std::thread::spawn(move || {
            launch(&stream, [AWAIT, at, 1]).expect("launched");
            stream.synchronize().expect("synchronized");
        })
    });
    for thread in threads {
        thread.join().expect("no panic");
    }
    let findings = host.host.take_findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].kind, "deadlock");
    assert_eq!(host.host.findings().len(), 0);
}

/// A part of the program writes the word for which a kernel waits after the world has read the word, and before the
/// check whether that part is busy.
#[test]
fn the_last_write_of_the_program_is_seen_before_time_passes() {
    let host = TestHost::new(1);
    // SAFETY: any bytes are a valid word.
    let mut pinned = unsafe { host.gpus[0].alloc_pinned_with_flags::<u32>(1, 3) }.expect("pinned");
    let word = pinned.as_mut_ptr().expect("an address") as u64;
    // SAFETY: pinned memory is alive until the end of the test, and the fake world uses atomics as well.
    let store =
        move |value| unsafe { &*(word as *const AtomicU32) }.store(value, Ordering::Release);
    store(0);
    let _guard = host.host.add_busy_check(move || {
        store(9);
        false
    });
    let stream = host.stream(0);
    launch(&stream, [AWAIT_HOST, word, 9]).expect("launched");
    stream.synchronize().expect("synchronized");
    let findings = host.host.take_findings();
    assert!(findings.is_empty(), "{findings:?}");
}
