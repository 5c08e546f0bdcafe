//! Compilation of kernels into the cache, on all cores of the host. Ranks would compile one kernel after another.

use crate::ranks::on_ranks;
use mkernel::{
    KernelPlan,
    spec::{Device, SizedSpec},
};
use mkernel_compile::{Store, build};
use mkernel_testing::lab::Failure;
use mkernel_testing::ranks::devices_of_tests;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Checks that the kernel has a plan on each device on which the tests may run. `name` names the kernel in a panic. Needs no
/// GPU.
pub fn expect_plans(spec: &SizedSpec, name: &dyn Debug) {
    for device in devices_of_tests(spec.world()) {
        let plan = KernelPlan::new(spec, &device);
        plan.unwrap_or_else(|error| panic!("{name:?} on {}: {error}", device.name));
    }
}

/// Returns the device of ranks on the GPUs of this host. Keeps the contexts of the GPUs until the process ends.
pub fn device(world: u32) -> Device {
    on_ranks(world, |ranks| Ok::<Device, Failure>(ranks.device().clone())).remove(0)
}

/// Compiles the kernels of `specs` for the GPUs of this host.
pub fn compile(specs: &[SizedSpec]) {
    let world = specs.iter().map(|spec| spec.world()).max().unwrap_or(1);
    let device = device(world);
    let store = Store::from_env().expect("a valid environment");
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get().min(32));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(spec) = specs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let plan = KernelPlan::new(spec, &device).expect("a plan");
                    build(&plan, &store).expect("a kernel");
                }
            });
        }
    });
}
