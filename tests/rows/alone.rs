//! Tests of `gemm`, whose ranks do not wait for each other, on simulated GPUs.

use mkernel::network::{Faults, NicModel, Transport};
use mkernel::spec::{BLayout, Dim, GemmConfig, GemmOp, GemmShape};
use mkernel::testing::in_threads;
use mkernel::{Communicator, Error, KernelConfig, Simulation};
use mkernel_testing::jobs::prepared::Prepared;
use std::thread;
use std::time::Duration;

const SHAPE: GemmShape = GemmShape {
    m: 300,
    n: 136,
    k: 72,
};
/// The time within which a rank would notice that another rank has left without a call.
const COMPARED: Duration = Duration::from_millis(500);

/// Rank r makes 2·r calls with different rows and one more after rank 0 has left, and leaves.
#[test]
fn ranks_make_calls_without_each_other() {
    for (seed, (nodes, local_world)) in (0..).zip([(1, 2), (1, 4), (2, 2)]) {
        let simulation = Simulation {
            ranks: nodes * local_world,
            seed,
            sms: 4,
            ..Simulation::default()
        };
        let communicators = Communicator::simulated(&simulation).expect("simulated GPUs");
        let outcomes = in_threads(communicators, |ranks| calls_alone(&ranks, nodes));
        for (rank, outcome) in outcomes.into_iter().enumerate() {
            assert!(
                outcome.is_ok(),
                "{nodes}x{local_world}, {rank}: {outcome:?}"
            );
        }
    }
}

fn calls_alone(ranks: &Communicator, nodes: u32) -> Result<(), Error> {
    let (nic, faults) = (NicModel::default(), Faults::default());
    ranks.set_transport(Transport::Emulated { nic, faults });
    let config = GemmConfig {
        m: Dim::Dynamic,
        b_layout: BLayout::Nk,
        ..GemmConfig::new(GemmOp::Gemm)
    };
    let config = KernelConfig {
        nodes,
        ..KernelConfig::new(ranks.world(), config)
    };
    let prepared = Prepared {
        ranks,
        operator: ranks.prepare(&config, SHAPE)?,
        stream: ranks.default_stream(),
    };
    let rank = ranks.rank() as i32;
    for call in 0..2 * rank {
        prepared.call_with_rows(37 * call + rank)?;
    }
    if rank > 0 {
        thread::sleep(COMPARED);
        prepared.call_with_rows(SHAPE.m as i32)?;
    }
    assert_eq!(ranks.findings(), []);
    ranks.check()
}
