//! Compiling with NVRTC. These tests need libnvrtc, which `mkernel-gen fetch-nvrtc` installs, and fail without it.

mod common;

use common::{Killed, child, count, counted, meeting, wait_until};
use mkernel_compile::{CudaSource, GenError, KernelTemplate, Nvrtc, PINNED_VERSION, Store, build};
use mkernel_spec::{
    Arch, BLayout, Backend, Device, Dim, GemmConfig, GemmOp, KernelConfig, KernelPlan, SizedSpec,
};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::tempdir;

fn nvrtc() -> &'static Nvrtc {
    Nvrtc::load().unwrap_or_else(|error| panic!("this test needs libnvrtc: {error}"))
}

fn source(id: &str, text: &str) -> CudaSource {
    CudaSource {
        id: id.into(),
        arch: Arch::Sm90a,
        backend: Backend::Nvrtc,
        text: text.into(),
    }
}

/// A kernel that copies through shared memory, and includes a device header.
fn copy_kernel(id: &str) -> CudaSource {
    let text = "#include <mk/base.cuh>
extern \"C\" __global__ void __launch_bounds__(128) NAME(mk::u32* to, const mk::u32* from) {
  __shared__ mk::u32 part[128];
  part[threadIdx.x] = from[threadIdx.x];
  __syncthreads();
  to[threadIdx.x] = part[127 - threadIdx.x];
}
";
    source(id, &text.replace("NAME", id))
}

fn plan() -> KernelPlan {
    let config = GemmConfig {
        m: Dim::Static(8192),
        n: Dim::Static(1024),
        k: Dim::Static(8192),
        b_layout: BLayout::Nk,
        ..GemmConfig::new(GemmOp::AgGemm)
    };
    let spec = SizedSpec::validate(KernelConfig::new(8, config));
    KernelPlan::new(&spec.expect("valid"), &Device::h200()).expect("a plan")
}

#[test]
fn compiles_to_an_elf_image() {
    assert_eq!(nvrtc().version(), PINNED_VERSION);
    let cubin = nvrtc().compile(&copy_kernel("copy")).expect("compiles");
    assert!(cubin.bytes.starts_with(b"\x7fELF"));
    assert_eq!(cubin.id, "copy");
    let used = cubin.resources.expect("of an SM");
    assert_eq!(used.smem_static_bytes, 512);
    assert!((1..64).contains(&used.registers), "{used:?}");
    assert_eq!((used.spill_store_bytes, used.stack_bytes), (0, 0));
    assert!(
        cubin
            .log
            .contains("Compiling entry function 'copy' for 'sm_90a'"),
        "{}",
        cubin.log
    );
}

#[test]
fn threads_compile_at_once_and_alike() {
    let nvrtc = nvrtc();
    let cubins: Vec<_> = std::thread::scope(|scope| {
        let compiles: Vec<_> = (0..6)
            .map(|_| scope.spawn(|| nvrtc.compile(&copy_kernel("copy"))))
            .collect();
        compiles
            .into_iter()
            .map(|thread| thread.join().expect("no panic").expect("compiles"))
            .collect()
    });
    assert!(
        cubins.iter().all(|cubin| *cubin == cubins[0]),
        "the same source gives the same bytes and log"
    );
}

/// Each kernel uses primitives that operators may not use yet. The simulator's tests run these kernels.
#[test]
fn the_simulators_small_kernels_compile_for_gpus_too() {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../runtime/simulator/tests/kernels/cu");
    let read = |path: &Path| std::fs::read_to_string(path).expect("a kernel");
    let prelude = read(&folder.join("prelude.cu"));
    let mut compiled = 0;
    for entry in std::fs::read_dir(&folder).expect("the folder") {
        let path = entry.expect("an entry").path();
        if path.ends_with("prelude.cu") {
            continue;
        }
        let kernel = source("kernel", &format!("{prelude}{}", read(&path)));
        if let Err(error) = nvrtc().compile(&kernel) {
            panic!("{}: {error}", path.display());
        }
        compiled += 1;
    }
    assert!(compiled > 10, "{compiled}");
}

#[test]
fn mistakes_in_cuda_and_in_ptx_do_not_compile() {
    for (text, expected) in [
        (
            "__global__ void bad() { undeclared(); }",
            "bad.cu(1): error: identifier \"undeclared\" is undefined",
        ),
        ("#include <cuda.h>", "could not open source file \"cuda.h\""),
        (
            "extern \"C\" __global__ void bad() { asm volatile(\"this.is.not.ptx;\"); }",
            "Not a name of any known instruction",
        ),
        ("extern \"C\" __global__ void bad() {}\0", "NUL"),
    ] {
        let result = nvrtc().compile(&source("bad", text));
        let Err(GenError::Compile {
            id,
            log,
            saved: None,
        }) = result
        else {
            panic!("{result:?}")
        };
        assert_eq!(id, "bad");
        assert!(log.contains(expected), "{log}");
    }
}

#[test]
fn spills_lost_optimisations_and_warnings_are_rejected() {
    let spill = "extern \"C\" __global__ void __launch_bounds__(1024, 1) bad(float* x) {
  float v[120];
  for (int i = 0; i < 120; i++) v[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
  for (int j = 0; j < 120; j++) {
    float sum = 0;
    for (int i = 0; i < 120; i++) sum += v[i] * v[(i + j) % 120];
    x[j] = sum;
  }
}";
    // Without launch bounds, ptxas cannot honour `setmaxnreg`.
    let setmaxnreg = "extern \"C\" __global__ void bad() { asm volatile(\"setmaxnreg.dec.sync.aligned.u32 40;\"); }";
    let unused = "extern \"C\" __global__ void bad() { int unused; }";
    for (text, expected) in [
        (spill, "bytes spill stores"),
        (setmaxnreg, "C7508"),
        (unused, "unused"),
    ] {
        let result = nvrtc().compile(&source("bad", text));
        let Err(GenError::Rejected { faults, .. }) = result else {
            panic!("{result:?}")
        };
        assert!(
            faults.iter().any(|line| line.contains(expected)),
            "{faults:?}"
        );
    }
}

#[test]
fn a_rejected_kernel_is_saved_with_its_log() {
    let dir = tempdir().expect("temporary folder");
    let unused = source(
        "bad",
        "extern \"C\" __global__ void bad() { int unused; }\n",
    );
    let error = Store::open(dir.path())
        .get_or_build(&unused)
        .expect_err("a warning");
    let message = error.to_string();
    let GenError::Rejected {
        saved: Some(folder),
        ..
    } = error
    else {
        panic!("{message}")
    };
    assert!(
        message.contains(&format!("{}/bad.cu(1): warning", folder.display())),
        "{message}"
    );
    assert_eq!(
        std::fs::read_to_string(folder.join("bad.cu")).expect("source"),
        unused.text
    );
    assert!(folder.join("log.txt").is_file());
}

#[test]
fn builds_a_planned_kernel_cold_then_warm() {
    nvrtc();
    let (dir, plan) = (tempdir().expect("temporary folder"), plan());
    let timed = || {
        let started = Instant::now();
        let cubin = build(&plan, &Store::open(dir.path())).expect("builds");
        (cubin, started.elapsed())
    };
    let (cold, cold_time) = timed();
    let (warm, warm_time) = timed();
    println!(
        "{}, {} bytes: cold {cold_time:?}, warm {warm_time:?}",
        plan.id,
        cold.bytes.len()
    );
    assert_eq!(cold, warm);
    assert_eq!(cold.id, plan.id);
    let used = cold.resources.expect("of an SM");
    assert_eq!(used.registers, plan.launch().registers.entry);
    // The limits are generous, since other tests run at the same time.
    assert!(cold_time < Duration::from_secs(10) && warm_time < Duration::from_millis(100));
}

#[test]
fn eight_processes_compile_once() {
    if let Some(dir) = meeting() {
        count(&dir.join("ready"));
        wait_until("all eight", || counted(&dir.join("ready")) == 8);
        let built =
            Store::open(dir.join("cache")).get_or_build_with(&copy_kernel("shared"), |source| {
                count(&dir.join("compiled"));
                nvrtc().compile(source)
            });
        assert!(built.expect("compiles").bytes.starts_with(b"\x7fELF"));
        return;
    }
    nvrtc();
    let dir = tempdir().expect("temporary folder");
    let mut children: Vec<_> = (0..8)
        .map(|_| Killed::spawn(child("eight_processes_compile_once", dir.path())))
        .collect();
    for child in &mut children {
        assert!(child.wait(Duration::from_secs(60)).success());
    }
    assert_eq!(counted(&dir.path().join("compiled")), 1);
}

/// Runs the test `name` in a child process with `MKERNEL_NVRTC` set.
fn with_nvrtc_at(name: &str, path: &Path) {
    let output = child(name, path)
        .env("MKERNEL_NVRTC", path)
        .output()
        .expect("own binary");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[test]
fn an_absent_library_is_an_error_with_the_way_out() {
    if let Some(dir) = meeting() {
        let error = Nvrtc::load().expect_err("not there");
        let message = error.to_string();
        let GenError::NvrtcMissing {
            looked,
            commands: [short, long],
            ..
        } = error
        else {
            panic!("{message}")
        };
        assert_eq!(
            looked.len(),
            1,
            "a path given by hand is the only one: {message}"
        );
        assert_eq!(looked[0].path, dir.to_string_lossy());
        assert_eq!(short, "mkernel-gen fetch-nvrtc && unset MKERNEL_NVRTC");
        assert!(
            long.contains(
                "| python3 -I -m pip install --no-deps --only-binary=:all: --require-hashes "
            ),
            "{message}"
        );
        assert!(
            message.contains(&short) && message.contains(&long) && message.contains("13.0"),
            "{message}"
        );
        return;
    }
    let name = "an_absent_library_is_an_error_with_the_way_out";
    let dir = tempdir().expect("temporary folder");
    with_nvrtc_at(name, &dir.path().join("absent"));
    with_nvrtc_at(name, dir.path());
    // This file is not a library.
    std::fs::write(dir.path().join("libnvrtc.so.13"), "text").expect("file");
    with_nvrtc_at(name, dir.path());
}

#[test]
fn the_fabric_test_compiles_without_a_spill() {
    let template = KernelTemplate::fabric_test(Arch::Sm90a, Backend::Nvrtc);
    let source = template.render().expect("a template of this crate");
    let cubin = nvrtc()
        .compile(&source)
        .unwrap_or_else(|error| panic!("{error}"));
    let found = cubin.resources.expect("of an SM");
    assert_eq!((found.spill_store_bytes, found.spill_load_bytes), (0, 0));
}
