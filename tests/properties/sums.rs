//! Properties of the reductions of GEMM plans: partial sums fit a stage, and LL packets have slots.

use crate::cases;
use crate::configs::{gemm, plans};
use mkernel_spec::plan::{GemmWorkspace, Split};
use proptest::prelude::*;

proptest! {
    #![proptest_config(cases())]

    /// The partial sums of one load fit into a stage, and divide the sub-tiles to which a CTA applies the epilogue.
    #[test]
    fn partial_sums_fit_a_stage(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        let Some(reduction) = gemm.reduction.as_ref().filter(|r| r.shots == 2) else { return Ok(()) };
        let subs = reduction.partial_subs;
        let part = gemm.tile.m.max(gemm.tile.n) * 128;
        prop_assert!(subs > 0 && 2 * subs * 64 * 64 * 2 <= part);
        let group_cols = match gemm.split {
            Split::Rows => gemm.tile.n,
            Split::Cols => gemm.tile.n / 2,
        };
        let finished = gemm.order.completed_subs(group_cols / 64, 1);
        prop_assert!(finished.is_multiple_of(subs), "{subs} of {finished}");
    }

    /// With one shot, every rank has a slot for each tile of every source, and threads read whole groups of packets.
    #[test]
    fn packets_have_slots(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        let Some(reduction) = gemm.reduction.as_ref().filter(|r| r.shots == 1) else { return Ok(()) };
        prop_assert_eq!(reduction.owner_tiles, gemm.order.tiles());
        prop_assert!(4 % reduction.packets_in_flight == 0);
        let packets = plan.body().region(GemmWorkspace::packets).expect("packets");
        // An element takes 2 bytes, and there are two buffers.
        let sources = u64::from(plan.spec.world() + u32::from(reduction.results));
        let elems = u64::from(gemm.tile.m * gemm.tile.n);
        prop_assert_eq!(packets.bytes, 2 * sources * u64::from(reduction.owner_tiles) * elems * 2);
    }
}
