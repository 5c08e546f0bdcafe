//! Properties of kernels with buckets: ranges of rows, and memory that the buckets do not share.

use crate::cases;
use crate::configs::{config, gemm, gemm_config, sizes};
use mkernel_spec::abi::{ArgKind, MAX_BUCKETS, Source};
use mkernel_spec::plan::Region;
use mkernel_spec::{
    BLayout, CollectiveConfig, CollectiveOp, Device, Dim, Dtype, GemmOp, KernelConfig, KernelPlan,
    Norm, Protocol, Scales, SizedSpec,
};
use proptest::prelude::*;
use proptest::test_runner::Config;

/// Generates plans of kernels that take rows at run time. Some plans have buckets.
fn plans() -> impl Strategy<Value = Option<KernelPlan>> {
    prop_oneof![gemms(), collectives()]
}

fn plan(config: KernelConfig, sms: u32) -> Option<KernelPlan> {
    let device = Device {
        sm_count: sms,
        ..Device::h200()
    };
    let spec = SizedSpec::validate(config).ok()?;
    KernelPlan::new(&spec, &device).ok()
}

fn gemms() -> impl Strategy<Value = Option<KernelPlan>> {
    (sizes(), prop::option::of(1..=4_u32), 2..=132_u32).prop_map(|(mut config, buckets, sms)| {
        let gemm = gemm_config(&mut config);
        gemm.m = Dim::UpTo(gemm.m.fixed().expect("a size"));
        gemm.tuning.buckets = buckets;
        plan(config, sms)
    })
}

/// Generates plans of collectives of both protocols, with and without a norm, rows of e4m3 and symmetric results, on one node and on several
/// nodes.
fn collectives() -> impl Strategy<Value = Option<KernelPlan>> {
    let ranks = (prop::sample::select(vec![1, 2, 4, 8]), 1..=2_u32);
    let size = (1..=9000_u64, 1..=2000_u64);
    let op = prop::sample::select(CollectiveOp::ALL.to_vec());
    let protocol = prop::option::of(prop::sample::select(Protocol::ALL.to_vec()));
    let scales = prop::sample::select(Scales::OF_ROWS.to_vec());
    let options = (
        any::<bool>(),
        any::<bool>(),
        prop::option::of(1..=4_u32),
        scales,
    );
    let all = (ranks, size, op, protocol, options, 1..=132_u32);
    all.prop_map(
        |((local, nodes), (m, n), op, protocol, (norm, symmetric, buckets, scales), sms)| {
            let normalises = norm && op == CollectiveOp::AllReduce;
            let mut config = CollectiveConfig {
                m: Dim::UpTo(m),
                n: Dim::Static(16 * n),
                protocol,
                buckets,
                symmetric_result: symmetric && op.may_store_to_results() && !normalises,
                ..CollectiveConfig::new(op)
            };
            if normalises {
                config.epilogue.norm = Norm::Rms;
                config.epilogue.result_scales = scales;
            } else if norm && !op.reduces() {
                (config.dtype, config.scales) = (Dtype::E4m3, scales);
                config.symmetric_result &= scales == Scales::None;
            }
            let config = KernelConfig {
                nodes,
                ..KernelConfig::new(nodes * local, config)
            };
            plan(config, sms)
        },
    )
}

/// Returns a smaller number of cases, since a kernel with buckets takes many plans.
fn few_cases() -> Config {
    let config = cases();
    Config {
        cases: config.cases / 8,
        ..config
    }
}

fn end(region: &Region) -> u64 {
    region.offset_bytes + region.bytes
}

#[test]
fn a_lone_computing_cta_shares_no_tile() {
    let mut config = config(GemmOp::AgGemm, 2, (31, 8, 4096), BLayout::Kn);
    let gemm_config = gemm_config(&mut config);
    (gemm_config.m, gemm_config.tuning.split_k) = (Dim::UpTo(31), Some(2));
    let splits_of = |sms| {
        let plan = plan(config.clone(), sms).expect("a plan");
        let computing = plan.launch().grid_ctas - gemm(&plan).comm_ctas;
        (computing, gemm(&plan).order.tail_splits)
    };
    assert_eq!(splits_of(5), (1, 1));
    assert_eq!(splits_of(6), (2, 2));
}

proptest! {
    #![proptest_config(few_cases())]

    #[test]
    fn buckets_agree_on_launches_and_networks(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        prop_assert!((1..=MAX_BUCKETS).contains(&plan.bodies.len()));
        prop_assert!(plan.bodies.is_sorted_by(|a, b| a.max_rows() < b.max_rows()));
        for bucket in &plan.bodies {
            prop_assert_eq!(bucket.launch, plan.launch());
            prop_assert_eq!(bucket.network.is_some(), plan.body().network.is_some());
            prop_assert!(bucket.smem_bytes <= plan.smem_bytes());
            for role in &bucket.roles {
                prop_assert!(role.ctas.1 <= plan.launch().grid_ctas && role.warps.1 <= plan.launch().threads / 32);
            }
        }
    }

    #[test]
    fn regions_of_buckets_do_not_overlap(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let mut regions: Vec<_> = plan.workspace_regions().map(|(_, region)| region).collect();
        prop_assert!(regions.iter().all(|region| region.bytes > 0), "{:?}", regions);
        regions.sort_by_key(|region| region.offset_bytes);
        prop_assert!(regions.is_sorted_by(|a, b| end(a) <= b.offset_bytes), "{:?}", regions);
        prop_assert!(regions.last().is_some_and(|last| end(last) <= plan.workspace_bytes()));
        // A shared region has one offset in all buckets.
        let common = plan.workspace_regions().filter(|(rows, _)| rows.is_none() && plan.has_buckets());
        for (_, common) in common {
            for bucket in &plan.bodies {
                let own = bucket.workspace.region(common.id());
                prop_assert!(own.is_none_or(|own| own == common), "{own:?} {common:?}");
            }
        }
    }

    #[test]
    fn arguments_of_buckets_are_aligned_and_few(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let (offsets, size_bytes) = plan.parameter();
        let mut free = 0;
        for (bucket, at) in plan.bodies.iter().zip(offsets) {
            // Only tensor maps need more alignment than an address.
            let align = if plan.gemm().is_some() { 128 } else { 8 };
            prop_assert!(at >= free && at.is_multiple_of(align));
            free = at + bucket.args.size_bytes;
            // Tensor maps over the workspace begin with a region of the bucket.
            for arg in &bucket.args.args {
                let ArgKind::TensorMap(map) = &arg.kind else { continue };
                let Source::Workspace { offset_bytes } = map.source else { continue };
                let mut regions = bucket.workspace.regions.iter();
                prop_assert!(regions.any(|region| region.offset_bytes == offset_bytes));
            }
        }
        prop_assert!(free == size_bytes && size_bytes <= 4096);
    }
}
