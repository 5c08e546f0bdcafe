//! Tests of values on which the ranks of a communicator must agree.

use super::*;
use crate::testing::in_threads;
use crate::{
    Operator, Simulation,
    spec::{GemmConfig, GemmOp, GemmShape},
};
use mkernel_spec::Dim;

fn prepare(ranks: &Communicator, m: u64) -> Result<Operator, Error> {
    let shape = GemmShape { m, n: 64, k: 64 };
    let config = GemmConfig {
        m: Dim::Static(shape.m),
        n: Dim::Static(shape.n),
        k: Dim::Static(shape.k),
        ..GemmConfig::new(GemmOp::GemmRs)
    };
    ranks.prepare(&KernelConfig::new(4, config), shape)
}

#[test]
fn a_workspace_at_another_offset_on_one_rank_is_an_error() {
    let simulation = Simulation {
        ranks: 4,
        ..Simulation::default()
    };
    let all = Communicator::simulated(&simulation).expect("simulated GPUs");
    in_threads(all, |ranks| {
        // The second extent, but not the first one, has room for a third workspace and for the block.
        let kept = [8192, 64].map(|m| prepare(&ranks, m).expect("prepared"));
        if ranks.rank() == 2 {
            ranks.heap().misplace(128 << 10);
        }
        let third = prepare(&ranks, 32).map(drop);
        let error = third.expect_err("the places differ");
        let Error::Mismatch { ranks: differ, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(differ, &[2]);
        assert!(error.to_string().contains("offset"), "{error}");
        drop(kept);
    });
}
