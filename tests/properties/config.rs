//! Properties of configurations: they survive being written and read, all mistakes are reported at once, and a plan keeps the
//! options that were set.

use crate::cases;
use crate::configs::{configs, devices, gemm, gemm_config, sizes_of_any_magnitude};
use mkernel_compile::render;
use mkernel_spec::{
    Device, Dim, Field, GemmOp, KernelConfig, KernelPlan, KernelSpec, SizedSpec, Transfer,
};
use mkernel_testing::kinds::ten_kinds;
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};
use std::collections::BTreeSet;

/// A function that makes a mistake in a configuration. Mistakes are independent, and each mistake is in another field.
type Plant = fn(&mut KernelConfig);
const MISTAKES: [(Field, Plant); 14] = [
    (Field::NAME, |c| c.name = Some("not an identifier".into())),
    (Field::WORLD, |c| c.world = 3),
    (Field::MAX_SMS, |c| c.max_sms = Some(0)),
    (Field::M, |c| gemm_config(c).m = Dim::Static(0)),
    (Field::N, |c| gemm_config(c).n = Dim::Static(12)),
    (Field::K, |c| gemm_config(c).k = Dim::Static(20)),
    (Field::TILE_M, |c| gemm_config(c).tuning.tile_m = Some(100)),
    (Field::TILE_N, |c| gemm_config(c).tuning.tile_n = Some(96)),
    (Field::STAGES, |c| gemm_config(c).tuning.stages = Some(1)),
    (Field::COMM_CTAS, |c| {
        gemm_config(c).tuning.comm_ctas = Some(1000)
    }),
    (Field::CHUNK_ROWS, |c| {
        gemm_config(c).tuning.chunk_rows = Some(100)
    }),
    (Field::GROUP_M, |c| gemm_config(c).tuning.group_m = Some(0)),
    (Field::SYMMETRIC_RESULT, |c| {
        gemm_config(c).symmetric_result = true;
    }),
    (Field::ACTIVATION, |c| {
        let epilogue = &mut gemm_config(c).epilogue;
        (epilogue.swiglu, epilogue.activation) = (true, mkernel_spec::Activation::Relu);
    }),
];

/// Returns the configuration with two ranks and without options, so that mistakes are independent.
fn sound(mut config: KernelConfig) -> KernelConfig {
    config.world = 2;
    let gemm = gemm_config(&mut config);
    (gemm.op, gemm.tuning) = (GemmOp::AgGemm, mkernel_spec::Tuning::default());
    (gemm.symmetric_result, gemm.symmetric_a) = (false, false);
    config
}

fn with_dynamic(mut config: KernelConfig, dims: &[Index]) -> KernelConfig {
    for dim in dims {
        *config.problem.dims_mut()[dim.index(3)].1 = Dim::Dynamic;
    }
    config
}

/// Kernels of all kinds obey `max_sms`, and a limit of all SMs changes nothing.
#[test]
fn a_kernel_uses_at_most_max_sms() {
    let device = Device::h200();
    for (world, nodes) in [(1, 1), (8, 1), (8, 2)] {
        for config in ten_kinds(world, nodes) {
            let plan = |max_sms| {
                let config = KernelConfig {
                    max_sms,
                    ..config.clone()
                };
                let spec = SizedSpec::validate(config).expect("valid");
                KernelPlan::new(&spec, &device).expect("a plan")
            };
            for max_sms in [4, 20, 130] {
                let limited = plan(Some(max_sms));
                assert!(limited.launch().grid_ctas <= max_sms, "{}", limited.id);
            }
            let (all, free) = (plan(Some(device.sm_count)), plan(None));
            assert_eq!(
                (all.launch().grid_ctas, all.id),
                (free.launch().grid_ctas, free.id)
            );
        }
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn configurations_survive_toml_and_json(
        config in configs(),
        name in proptest::option::of("[a-z_][a-z0-9_]{0,20}"),
        dims in proptest::collection::vec(any::<Index>(), 0..3),
    ) {
        let config = with_dynamic(KernelConfig { name, ..config }, &dims);
        let toml = toml::to_string(&config).expect("TOML");
        prop_assert_eq!(&toml::from_str::<KernelConfig>(&toml).expect("TOML"), &config, "{}", toml);
        let json = serde_json::to_string(&config).expect("JSON");
        prop_assert_eq!(&serde_json::from_str::<KernelConfig>(&json).expect("JSON"), &config, "{}", json);
    }

    #[test]
    fn all_mistakes_are_reported_at_once(
        config in configs(),
        planted in subsequence(MISTAKES.to_vec(), 1..=MISTAKES.len()),
    ) {
        let mut config = sound(config);
        for (_, plant) in &planted {
            plant(&mut config);
        }
        let diagnostics = SizedSpec::validate(config).expect_err("mistakes");
        prop_assert_eq!(diagnostics.len(), planted.len(), "{}", diagnostics);
        let expected: BTreeSet<_> = planted.iter().map(|(field, _)| *field).collect();
        prop_assert_eq!(diagnostics.iter().map(|v| v.field).collect::<BTreeSet<_>>(), expected);
        for v in &diagnostics {
            prop_assert!(!v.reason.is_empty() && !v.help.is_empty(), "{v}");
        }
    }

    /// Every configuration has a plan that can be rendered, or diagnostics with a reason and a way out.
    #[test]
    fn configurations_without_a_plan_have_diagnostics(config in prop_oneof![configs(), sizes_of_any_magnitude()], device in devices()) {
        let result = SizedSpec::validate(config).and_then(|spec| KernelPlan::new(&spec, &device));
        match result {
            Ok(plan) => {
                let rendered = render(&plan);
                prop_assert!(rendered.is_ok(), "{:?}", rendered);
                prop_assert_eq!(rendered.expect("is ok").id, plan.id);
            }
            Err(diagnostics) => {
                prop_assert!(!diagnostics.is_empty());
                for v in &diagnostics {
                    prop_assert!(!v.reason.is_empty() && !v.help.is_empty(), "{v}");
                }
            }
        }
    }

    /// The plan has the values of all options that were set. On one rank, options of the exchange between ranks have no effect,
    /// and `gemm` has no such options.
    #[test]
    fn a_plan_keeps_the_options_that_were_set(config in configs(), device in devices()) {
        let tuning = config.problem.gemm().expect("a GEMM").tuning;
        let Ok(spec) = SizedSpec::validate(config) else { return Ok(()) };
        let Ok(plan) = KernelPlan::new(&spec, &device) else { return Ok(()) };
        let gemm = gemm(&plan);
        prop_assert!(tuning.tile_m.is_none_or(|m| m == gemm.tile.m));
        prop_assert!(tuning.tile_n.is_none_or(|n| n == gemm.tile.n));
        prop_assert!(tuning.stages.is_none_or(|s| s == gemm.stages));
        prop_assert!(tuning.group_m.is_none_or(|g| g == gemm.order.group_m));
        if plan.spec.world() == 1 || !gemm.config.op.communicates() {
            let exchanges = gemm.reduction.is_some() || gemm.chunks.is_some() || gemm.comm_ctas > 0;
            prop_assert!(gemm.transfer.is_none() && !exchanges);
            return Ok(());
        }
        prop_assert!(tuning.transfer.is_none_or(|t| Some(t) == gemm.transfer));
        prop_assert!(tuning.comm_ctas.is_none_or(|c| c == gemm.comm_ctas));
        if let Some(r) = &gemm.reduction {
            prop_assert!(tuning.shots.is_none_or(|shots| shots == r.shots));
            let rounds = |tiles: u32| r.owners == 1 || tiles.min(r.owner_tiles) == r.round_tiles;
            prop_assert!(tuning.round_tiles.is_none_or(rounds));
        }
        let Some(chunks) = &gemm.chunks else { return Ok(()) };
        prop_assert!(tuning.k_slices.is_none_or(|s| s == chunks.k_slices));
        prop_assert!(tuning.chunk_rows.is_none_or(|r| r == chunks.rows));
        prop_assert!(gemm.transfer != Some(Transfer::CopyEngine) || gemm.comm_ctas == 0);
    }

    #[test]
    fn dynamic_dimensions_are_specialised_or_diagnosed(
        config in configs(),
        dims in proptest::collection::vec(any::<Index>(), 1..3),
    ) {
        let Ok(known) = SizedSpec::validate(config.clone()) else { return Ok(()) };
        let Ok(open) = KernelSpec::validate(with_dynamic(config.clone(), &dims)) else { return Ok(()) };
        prop_assert_eq!(open.shape(), None);
        let distinct: BTreeSet<_> = dims.iter().map(|d| d.index(3)).collect();
        let asked = open.clone().sized().expect_err("sizes are not known");
        prop_assert_eq!(asked.len(), distinct.len());
        // Dynamic rows become the most rows of a call.
        let mut expected = config;
        for (field, dim) in expected.problem.dims_mut() {
            let is_dynamic = open.unknown_dims().any(|open| open == field);
            if let (true, Field::M, Some(most)) = (is_dynamic, field, dim.fixed()) {
                *dim = Dim::UpTo(most);
            }
        }
        let specialised = SizedSpec::for_sizes(open.config().clone(), known.shape()).expect("sizes in bounds");
        prop_assert_eq!(specialised, SizedSpec::validate(expected).expect("valid"));
    }
}
