//! Kernels are found by their templates, without Tera. These tests run with and without the feature `jit`.

mod common;

use common::{fake_compile, source};
use mkernel_compile::{Bundle, GenError, KernelTemplate, Key, Store};
use mkernel_spec::{Device, Dim, GemmConfig, GemmOp, KernelConfig, KernelPlan, SizedSpec};

fn template(n: u64) -> KernelTemplate {
    let config = GemmConfig {
        m: Dim::Static(4096),
        n: Dim::Static(n),
        k: Dim::Static(4096),
        ..GemmConfig::new(GemmOp::AgGemm)
    };
    let spec = SizedSpec::validate(KernelConfig::new(4, config)).expect("a valid configuration");
    KernelTemplate::of(&KernelPlan::new(&spec, &Device::h200()).expect("a plan"))
}

#[test]
fn a_bundled_kernel_is_found_without_its_text() {
    let (bundled, other) = (template(1024), template(2048));
    let text = source("in_a_bundle");
    let cubin = fake_compile(&text).expect("a fake");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("bundle");
    let kernels = [(text, Key::of_template(&bundled), cubin.clone())];
    Bundle::write(&path, kernels).expect("a bundle");

    let store = Store::without_cache().with_bundle(path).without_jit();
    assert_eq!(store.get_or_render(&bundled).expect("bundled"), cubin);
    let error = store.get_or_render(&other).expect_err("not bundled");
    assert!(matches!(&error, GenError::JitDisabled { id, .. } if *id == other.id));
    let (reason, way_out) = match cfg!(feature = "jit") {
        true => ("disabled by MKERNEL_JIT=0", "unset MKERNEL_JIT"),
        false => (
            "built without mkernel's feature jit",
            "build it with this feature",
        ),
    };
    let error = error.to_string();
    for part in [reason, way_out, "is in no bundle", "mkernel-gen build"] {
        assert!(error.contains(part), "{part:?} in {error:?}");
    }
}

#[test]
fn a_text_of_the_same_kernel_has_another_key() {
    let template = template(1024);
    let text = mkernel_compile::CudaSource {
        id: template.id.clone(),
        ..source("text")
    };
    assert_ne!(Key::of(&text), Key::of_template(&template));
}
