//! Tests of measured choices: the kernels that they hold for, and files.

use super::*;
use crate::config::{GemmConfig, GemmOp, Tuning};
use crate::plan::KernelPlan;

fn gemm(m: Dim, tuning: Tuning) -> KernelConfig {
    let gemm = GemmConfig {
        m,
        n: Dim::Static(4096),
        k: Dim::Static(4096),
        tuning,
        ..GemmConfig::new(GemmOp::GemmRs)
    };
    KernelConfig::new(2, gemm)
}

fn small_tiles() -> Tuning {
    Tuning {
        tile_m: Some(64),
        tile_n: Some(128),
        ..Tuning::default()
    }
}

fn tuned(m: u64, tuning: Tuning) -> Tuned {
    let times = TunedTimes {
        us: 20.0,
        untuned_us: 25.0,
    };
    let mut tuned = Tuned::default();
    let kernel = gemm(Dim::Static(m), tuning);
    tuned.replace(TunedKernel::new(kernel, &Device::h200(), times));
    tuned
}

/// The rows of the plan's tile, and whether measured times justify the plan.
fn tile(config: KernelConfig, device: &Device, tuned: &Tuned) -> (u32, bool) {
    let spec = SizedSpec::validate(config).expect("valid");
    let plan = KernelPlan::with_tuned(&spec, device, tuned).expect("a plan");
    assert_eq!(plan.spec, spec);
    (plan.gemm().expect("a GEMM").tile.m, plan.tuned.is_some())
}

#[test]
fn alike_kernels_have_the_measured_choices() {
    let (device, tuned) = (Device::h200(), tuned(1024, small_tiles()));
    let of = |m| tile(gemm(m, Tuning::default()), &device, &tuned);
    for rows in [1024, 1023, 897] {
        assert_eq!(of(Dim::Static(rows)), (64, true), "{rows}");
    }
    for other in [Dim::Static(896), Dim::Static(1025), Dim::UpTo(1024)] {
        assert_eq!(of(other), (128, false), "{other}");
    }
    let mut named = gemm(Dim::Static(1024), Tuning::default());
    named.name = Some("down".to_owned());
    named.traced = true;
    assert_eq!(tile(named, &device, &tuned), (64, true));
}

#[test]
fn few_rows_are_alike_up_to_a_power_of_two() {
    let classes = [1, 2, 3, 16, 17, 64, 65, 128, 129, 256, 4000].map(class_of_rows);
    let expected = [1, 2, 4, 16, 32, 64, 128, 128, 256, 256, 4096];
    assert_eq!(classes, expected);
}

#[test]
fn choices_of_the_user_and_other_gpus_are_not_tuned() {
    let tuned = tuned(1024, small_tiles());
    let fixed = Tuning {
        tile_m: Some(128),
        ..Tuning::default()
    };
    let plain = || gemm(Dim::Static(1024), Tuning::default());
    let h200 = Device::h200();
    let fixed = gemm(Dim::Static(1024), fixed);
    assert_eq!(tile(fixed, &h200, &tuned), (128, false));
    let (mut other, mut fewer, mut slower) = (h200.clone(), h200.clone(), h200.clone());
    other.name = "NVIDIA H100".to_owned();
    fewer.sm_count = 66;
    slower.link_gb_s /= 2.0;
    for device in [other, fewer, slower] {
        assert!(!tile(plain(), &device, &tuned).1, "{device:?}");
    }
    let limited = KernelConfig {
        max_sms: Some(100),
        ..plain()
    };
    assert!(!tile(limited, &h200, &tuned).1);
}

/// Choices that no longer fit, such as those that an older version measured, are ignored.
#[test]
fn choices_without_a_plan_are_ignored() {
    let impossible = Tuning {
        stages: Some(12),
        tile_m: Some(128),
        tile_n: Some(256),
        ..Tuning::default()
    };
    let plain = gemm(Dim::Static(1024), Tuning::default());
    let (_, is_tuned) = tile(plain, &Device::h200(), &tuned(1024, impossible));
    assert!(!is_tuned);
}

#[test]
fn the_latest_measurement_of_alike_kernels_stays() {
    let mut all = tuned(1024, small_tiles());
    all.replace(tuned(1000, Tuning::default()).kernels[0].clone());
    assert_eq!(all.kernels.len(), 1);
    all.replace(tuned(2000, Tuning::default()).kernels[0].clone());
    assert_eq!(all.kernels.len(), 2);
    let text = all.text().expect("TOML");
    assert_eq!(Tuned::read(&text).expect("a table"), all);
    let (first, _) = text.split_once("\n\n").expect("two tables");
    let expected = "[[tuned]]\ngpu = \"NVIDIA H200\"\n\
        kernel = { k = 4096, m = 1000, n = 4096, op = \"gemm_rs\", world = 2 }\n\
        link_gb_s = 344.0\nsm_count = 132\nuntuned_us = 25.0\nus = 20.0";
    assert_eq!(first, expected);
    let choices = tuned(64, small_tiles()).kernels[0].kernel.fixed_choices();
    assert_eq!(choices, "tile_m = 64, tile_n = 128");
}

#[test]
fn mistakes_in_files_are_found() {
    let of = |m: &str, tile: u32| {
        format!(
            "[[tuned]]\ngpu = \"NVIDIA H200\"\nsm_count = 132\nlink_gb_s = 344.0\nus = 1.0\nuntuned_us = 2.0\n\
             kernel = {{ op = \"gemm\", world = 1, m = {m}, n = 64, k = 64, tuning = {{ tile_m = {tile} }} }}\n"
        )
    };
    assert!(Tuned::read(&of("64", 64)).is_ok());
    let error = |text: &str| Tuned::read(text).expect_err("a mistake").to_string();
    let wrong = error(&(of("64", 64) + &of("64", 65)));
    assert!(wrong.starts_with("[[tuned]] number 2: "), "{wrong}");
    assert!(wrong.contains("tile_m"), "{wrong}");
    let dynamic = error(&of("\"dynamic\"", 64));
    assert!(dynamic.contains("dynamic"), "{dynamic}");
    assert!(error("tune = 1").contains("mkernel-gen tune"));
}

#[test]
fn shipped_choices_have_plans() {
    for of in Tuned::shipped().kernels() {
        let device = Device {
            name: of.gpu.clone(),
            sm_count: of.sm_count,
            link_gb_s: of.link_gb_s,
            ..Device::h200()
        };
        let plain = KernelConfig {
            problem: of.kernel.problem.without_choices(),
            ..of.kernel.clone()
        };
        let spec = SizedSpec::validate(plain).expect("valid");
        let plan = KernelPlan::new(&spec, &device).expect("a plan");
        assert_eq!(plan.tuned, Some(of.times), "{of:?}");
    }
}
