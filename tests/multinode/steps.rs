//! Tests of the benchmark's unfused baseline for several nodes, which must put as many bytes as the operator's plan.

use crate::rank::on_nodes;
use mkernel::{
    network::{Faults, Transport},
    spec::GemmOp,
};
use mkernel_testing::unfused::{Nics, Steps};
use std::time::Duration;

#[test]
fn steps_put_as_many_bytes_as_plans() {
    let cases = [
        ((2, 2), GemmOp::AgGemm),
        ((3, 1), GemmOp::GemmRs),
        ((2, 2), GemmOp::GemmAr),
    ];
    for (nodes, op) in cases {
        let took = on_nodes(nodes, op, 8, Faults::default(), |rank| {
            let plan = rank.operator.plan();
            let steps = Steps::of(plan, nodes.0).expect("several nodes");
            let messages = u64::from(steps.load.messages) * u64::from(steps.count);
            let puts = u64::from(nodes.0 - 1) * messages;
            // Messages are rounded up to whole words.
            let more = puts * u64::from(steps.load.message_bytes) - plan.body().traffic.nic_bytes;
            assert!(more < 4 * puts, "{op} on {nodes:?}: {more} bytes too many");
            let transport = Transport::default();
            let nics = Nics::new(&rank.ranks, nodes.0, transport, steps).expect("connected");
            let took = nics.time().expect("the calls succeed");
            rank.ranks.barrier().expect("all ranks are done");
            (took, steps.count)
        });
        for (own, count) in &took {
            assert_eq!(*own, took[0].0, "all ranks get the time of the slowest");
            assert!(*own > Duration::ZERO && own.as_nanos() % u128::from(*count) == 0);
        }
    }
}
