//! Measures the steps from a configuration to machine code: `cargo bench --bench pipeline`. Needs no GPU.

use criterion::{Criterion, criterion_group, criterion_main};
use mkernel_compile::{Cubin, CudaSource, Key, Resources, Store, render};
use mkernel_spec::{BLayout, Device, Dim, GemmConfig, GemmOp, KernelConfig, KernelPlan, SizedSpec};
use std::hint::black_box;

fn config() -> KernelConfig {
    let config = GemmConfig {
        m: Dim::Static(8192),
        n: Dim::Static(1024),
        k: Dim::Static(8192),
        b_layout: BLayout::Nk,
        ..GemmConfig::new(GemmOp::AgGemm)
    };
    KernelConfig::new(8, config)
}

/// Returns machine code of a typical size. The store does not examine the bytes.
fn cubin(source: &CudaSource) -> Cubin {
    Cubin {
        id: source.id.clone(),
        bytes: (0..40_000u32).map(|i| (i % 251) as u8).collect(),
        arch: source.arch,
        backend: source.backend,
        resources: Some(Resources::default()),
        log: String::new(),
    }
}

fn pipeline(criterion: &mut Criterion) {
    let device = Device::h200();
    let spec = SizedSpec::validate(config()).expect("a valid configuration");
    let plan = KernelPlan::new(&spec, &device).expect("a plan");
    let source = render(&plan).expect("a source");
    criterion.bench_function("validate", |b| {
        b.iter(|| SizedSpec::validate(black_box(config())))
    });
    criterion.bench_function("plan", |b| {
        b.iter(|| KernelPlan::new(black_box(&spec), &device))
    });
    criterion.bench_function("render", |b| b.iter(|| render(black_box(&plan))));
    criterion.bench_function("key", |b| b.iter(|| Key::of(black_box(&source))));

    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::open(folder.path());
    let key = Key::of(&source);
    store.put(&key, &source, &cubin(&source));
    store.get(&key).expect("the stored machine code");
    criterion.bench_function("store, a hit", |b| b.iter(|| store.get(black_box(&key))));
}

criterion_group!(benches, pipeline);
criterion_main!(benches);
