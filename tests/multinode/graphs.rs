//! Tests of graphs of calls on several nodes, replayed several times, also with launches between the replays.

use crate::rank::on_ranks;
use mkernel::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use mkernel::spec::GemmOp;
use mkernel_testing::jobs::bad_network;

#[test]
fn graphs_are_replayed_beside_calls() {
    for (seed, op) in (0..).zip(GemmOp::ALL) {
        on_ranks(op, seed, bad_network(), |rank| {
            let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            let mut c = rank.poisoned();
            rank.stream.synchronize().expect("uploaded");
            rank.stream.begin_capture(mode).expect("capturing");
            rank.capture(&mut c).expect("captured");
            let graph = rank.stream.end_capture(CUgraphInstantiate_flags(0));
            let graph = graph.expect("captured").expect("a graph");
            for _ in 0..3 {
                let poison = rank.poison();
                rank.stream.memcpy_htod(&poison, &mut c).expect("poisoned");
                graph.launch().expect("replayed");
                rank.check(&c);
            }
            let mut eager = rank.poisoned();
            rank.launch(&mut eager).expect("launched");
            rank.check(&eager);
            assert_eq!(rank.ranks.findings(), []);
            rank.ranks.barrier().expect("all ranks reach the end");
        });
    }
}
