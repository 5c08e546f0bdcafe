//! Tests of flushes: arrivals wait for the read that makes their bytes visible.

use mkernel_fabric::emulated::{Faults, NicModel};
use mkernel_fabric::testing::conformance::{CHECKS, run_all};
use mkernel_fabric::testing::{EmulatedSubject, Traffic, TrafficRun};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// NICs whose bytes become visible by a flush only.
fn subject(flushes_arrivals: bool, faults: Vec<Faults>) -> EmulatedSubject {
    let nic = NicModel {
        flushes_arrivals,
        ..NicModel::default()
    };
    let mut subject = EmulatedSubject::new(nic, faults);
    subject.has_posted_writes = true;
    subject
}

#[test]
fn nics_that_flush_pass_the_conformance_tests() {
    let faults = Faults {
        seed: 7,
        jitter: Duration::from_micros(50),
        duplicates: 0.2,
        ..Faults::default()
    };
    for faults in [vec![], vec![faults]] {
        run_all(&mut subject(true, faults));
    }
}

/// Several arrivals share a flush, and every arrival has one.
#[test]
fn flushes_are_counted() {
    let mut subject = subject(true, vec![]);
    let mut run = TrafficRun::new(&mut subject, Traffic::default()).expect("connects");
    run.run();
    for node in &run.nodes {
        let stats = node.endpoint.as_ref().expect("no error").stats();
        let flushes: u64 = stats.rails.iter().map(|rail| rail.flushes).sum();
        assert!(flushes > 0 && flushes < stats.arrivals, "{stats:?}");
    }
}

/// Arrivals that do not wait for a flush come before their bytes, which the conformance tests find.
#[test]
fn arrivals_before_the_flush_are_found() {
    for name in [
        "the bytes of a write are visible when it arrives",
        "large puts",
    ] {
        let (_, check) = CHECKS.iter().find(|(known, _)| *known == name).expect(name);
        let run = || check(&mut subject(false, vec![]));
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "{name}");
    }
}
