//! Tests of the launches that the order keeps: after an error, and when an operator is dropped.

use super::*;
use crate::{Communicator, Simulation};
use cudarc::driver::sys::CUstream;

/// Returns the only rank of a job.
fn alone() -> Communicator {
    let simulation = Simulation {
        ranks: 1,
        ..Simulation::default()
    };
    let ranks = Communicator::simulated(&simulation).expect("a simulated GPU");
    ranks.into_iter().next().expect("a rank")
}

/// An operator waits for its ends before its memory is freed, so no end may be forgotten.
#[test]
fn an_error_forgets_no_end() {
    let ranks = alone();
    let context = ranks.context();
    let stream = || UserStream::of(&context.new_stream().expect("a stream"));
    let (earlier, later) = (stream(), stream());
    let order = of(context, Part::WHOLE).expect("an order");
    let mut order = lock(&order);
    let source = LaunchSource::new();
    // SAFETY: the stream is alive.
    unsafe { order.follow(&earlier, source) }.expect("no launch before");
    let unknown = UserStream::raw(0xbad0_u64 as CUstream);
    order.ends.insert(
        0,
        End::Stream {
            stream: unknown,
            source,
        },
    );
    // SAFETY: the simulated driver refuses a handle that it does not know.
    unsafe { order.follow(&later, source) }.expect_err("no stream has this handle");
    assert!(order.is_end(&earlier));
}

/// A stream without an owner may be destroyed once its operator is dropped, but its last launch may still run.
#[test]
fn an_event_takes_the_place_of_a_stream_without_an_owner() {
    let ranks = alone();
    let context = ranks.context();
    let [earlier, later] = [(); 2].map(|()| context.new_stream().expect("a stream"));
    let order = of(context, Part::WHOLE).expect("an order");
    let mut order = lock(&order);
    let [gone, next] = [(); 2].map(|()| LaunchSource::new());
    // SAFETY: both streams are alive.
    unsafe {
        let earlier = UserStream::raw(earlier.cu_stream());
        order.follow(&earlier, gone).expect("no launch before");
        order.forget(context, gone);
    }
    assert!(matches!(order.ends[..], [End::Recorded(_)]));
    drop(earlier);
    let later = UserStream::of(&later);
    // SAFETY: the stream is alive.
    unsafe { order.follow(&later, next) }.expect("a wait for the event");
    assert!(order.is_end(&later) && order.ends.len() == 1);
}
