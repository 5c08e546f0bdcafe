//! Tests of calls that the host cannot order, on simulated GPUs. [`mkernel_testing::jobs::overlap`] and
//! [`mkernel_testing::jobs::overtaken`] describe the calls.

use mkernel_testing::jobs::overlap::{OVERLAPS, run_overlap};
use mkernel_testing::jobs::overtaken::{OVERTAKEN, run_overtaken};
use mkernel_testing::jobs::{Backend, none_fails};

#[test]
fn calls_that_overlap_are_refused_and_named() {
    for (seed, overlap) in (0..).zip(OVERLAPS) {
        assert_eq!(
            run_overlap(Backend::Simulated { seed }, overlap, &[]),
            Ok(()),
            "{overlap:?}"
        );
    }
}

/// Without the call of `enter`, a kernel does not refuse the second call.
#[test]
fn a_missing_guard_is_found() {
    let guard = [(
        "    const bool entered = enter(ctx);\n",
        "    __syncthreads();\n    const bool entered = true;\n",
    )];
    let place = Backend::Simulated { seed: 0 };
    let failure = run_overlap(place, OVERLAPS[0], &guard).expect_err("no guard");
    assert!(failure.contains("not the overlap"), "{failure}");
}

#[test]
fn an_overtaken_call_is_reported() {
    none_fails(&OVERTAKEN, |overtaken| {
        (0..5).try_for_each(|seed| {
            run_overtaken(Backend::Simulated { seed }, *overtaken, &[])
                .map_err(|failure| format!("{overtaken:?}, seed {seed}: {failure}"))
        })
    });
}

/// Without the check that the CTAs of the previous call have left, that call has wrong results or waits until its deadline.
#[test]
fn a_missing_check_of_the_previous_call_is_found() {
    let place = Backend::Simulated { seed: 0 };
    let blind = [("is_refused |= !has_reached(left, due);", "")];
    none_fails(&OVERTAKEN, |overtaken| {
        match run_overtaken(place, *overtaken, &blind) {
            Ok(()) => Err(format!("{overtaken:?}: not found")),
            Err(failure) if failure.contains("panicked") => Err(failure),
            Err(failure) => {
                println!("{overtaken:?}: {failure}");
                Ok(())
            }
        }
    });
}
