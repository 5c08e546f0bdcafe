//! The command ring and the exit of a proxy under every interleaving and every value that a relaxed load may return.
//!
//! The source files are compiled again here with loom's atomics in place of the standard library's atomics.
#![allow(dead_code)]

#[path = "../src/command_ring.rs"]
mod command_ring;
#[path = "../src/control.rs"]
mod control;
#[path = "../src/error.rs"]
mod error;
#[path = "../src/peer_id.rs"]
mod peer_id;
#[path = "../src/stats.rs"]
mod stats;
#[path = "../src/transport.rs"]
mod transport;

mod sync {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

use command_ring::{CommandConsumer, CommandProducer, HostRing};
use control::{Control, Exit, Step, drive};
use loom::thread;
use mkernel_spec::fabric::Command;
use std::sync::Arc;

fn command(mark: u64) -> Command {
    Command {
        peer: mark as u16,
        channel: mark as u16,
        bytes: mark as u32,
        source_offset: mark,
        target_offset: mark,
        ..Command::default()
    }
}

fn post(producer: &CommandProducer, mark: u64) {
    let index = producer.claim();
    while !producer.has_slot(index) {
        thread::yield_now();
    }
    producer.publish(index, &command(mark));
}

/// Checks that all parts of the next command belong to one command, and returns the mark of the command.
fn take(consumer: &mut CommandConsumer) -> Option<u64> {
    let (_, found) = consumer.take().expect("valid tags")?;
    let mark = found.source_offset;
    let tag = found.tag;
    assert_eq!(
        found,
        Command {
            tag,
            ..command(mark)
        },
        "parts of two commands"
    );
    consumer.publish(1);
    Some(mark)
}

/// Checks a model with a bounded number of preemptions. A larger bound finds hardly any additional errors.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

/// Three commands of two producers pass through two slots, so that slots are reused and indices wrap around.
#[test]
fn each_command_is_taken_once_and_complete() {
    check(|| {
        let ring = HostRing::allocate(1, u32::MAX).expect("valid");
        let producer = CommandProducer::new(Arc::clone(&ring));
        let other = producer.clone();
        let second = thread::spawn(move || post(&other, 2));
        let third = thread::spawn(move || {
            post(&producer, 3);
            post(&producer, 4);
        });
        let mut consumer = CommandConsumer::new(ring);
        let mut marks = Vec::new();
        while marks.len() < 3 {
            match take(&mut consumer) {
                Some(mark) => marks.push(mark),
                None => thread::yield_now(),
            }
        }
        assert!(take(&mut consumer).is_none());
        let places = [3, 4].map(|mark| marks.iter().position(|m| *m == mark));
        assert!(places[0] < places[1], "{marks:?}");
        marks.sort_unstable();
        assert_eq!(marks, [2, 3, 4]);
        second.join().expect("no panic");
        third.join().expect("no panic");
    });
}

/// The source of a completed put may be overwritten, because the consumer has read it by then.
#[test]
fn a_completed_source_is_not_read_again() {
    check(|| {
        let ring = HostRing::allocate(1, 0).expect("valid");
        let producer = CommandProducer::new(Arc::clone(&ring));
        let source = loom::sync::Arc::new(loom::cell::UnsafeCell::new(7));
        let theirs = loom::sync::Arc::clone(&source);
        let nic = thread::spawn(move || {
            let mut consumer = CommandConsumer::new(ring);
            while consumer.take().expect("valid tags").is_none() {
                thread::yield_now();
            }
            // SAFETY: loom checks that no thread writes it concurrently.
            theirs.with(|source| assert_eq!(unsafe { *source }, 8));
            consumer.publish(1);
        });
        // SAFETY: see above.
        source.with_mut(|source| unsafe { *source = 8 });
        let index = producer.claim();
        producer.publish(index, &command(1));
        while !producer.is_sent(index) {
            thread::yield_now();
        }
        // SAFETY: see above.
        source.with_mut(|source| unsafe { *source = 9 });
        nic.join().expect("no panic");
    });
}

/// Commands that were published before the drain are taken before the thread exits.
#[test]
fn a_drain_takes_all_published_commands() {
    check(|| {
        let ring = HostRing::allocate(1, 0).expect("valid");
        let producer = CommandProducer::new(Arc::clone(&ring));
        let control = Arc::new(Control::new());
        let theirs = Arc::clone(&control);
        let proxy = thread::spawn(move || {
            let (mut consumer, mut taken) = (CommandConsumer::new(ring), 0);
            let step = || {
                let has_progressed = take(&mut consumer).is_some();
                taken += u32::from(has_progressed);
                let is_idle = true;
                Ok::<_, ()>(Step {
                    has_progressed,
                    is_idle,
                })
            };
            let end = drive(&theirs, step, |_| thread::yield_now());
            assert_eq!(end, Ok(Exit::Drained));
            taken
        });
        post(&producer, 1);
        post(&producer, 2);
        control.drain(0);
        assert_eq!(proxy.join().expect("no panic"), 2);
    });
}
