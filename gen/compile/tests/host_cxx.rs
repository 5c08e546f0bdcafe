//! The host's compiler: kernels for simulated GPUs. These tests need a C++ compiler; cargo's linker is usually one.

mod common;

use common::{Killed, child, meeting, no_compile};
use mkernel_compile::{CudaSource, GenError, HostCxx, Key, Store, headers};
use mkernel_spec::{Arch, Backend};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::tempdir;

fn cxx() -> &'static HostCxx {
    HostCxx::load().unwrap_or_else(|error| panic!("this test needs a C++ compiler: {error}"))
}

fn source(id: &str, text: &str) -> CudaSource {
    CudaSource {
        id: id.into(),
        arch: Arch::Sm90a,
        backend: Backend::HostCxx,
        text: text.into(),
    }
}

/// A kernel that doubles a number through an inlined function.
fn kernel(id: &str) -> CudaSource {
    let text = "#include <mk/base.cuh>
__device__ __forceinline__ void twice(volatile mk::u32* x) {
  *x = *x + *x;
}
struct Args {
  mk::u32* x;
};
extern \"C\" __global__ void __launch_bounds__(128) NAME(const __grid_constant__ Args args) {
  twice(args.x);
}
";
    source(id, &text.replace("NAME", id))
}

#[test]
fn compiles_to_a_shared_object() {
    let cubin = cxx().compile(&kernel("twice_kernel")).expect("compiles");
    assert!(cubin.bytes.starts_with(b"\x7fELF"));
    assert_eq!(
        (&*cubin.id, cubin.backend),
        ("twice_kernel", Backend::HostCxx)
    );
    assert_eq!((cubin.resources, &*cubin.log), (None, ""));
}

#[test]
fn equal_sources_make_equal_bytes_without_paths_of_the_compile() {
    let compile = || cxx().compile(&kernel("k")).expect("compiles").bytes;
    let bytes = compile();
    assert_eq!(bytes, compile());
    let temporary = std::env::temp_dir().join("mkernel-");
    let temporary = temporary.to_str().expect("UTF-8").as_bytes();
    let mut windows = bytes.windows(temporary.len());
    assert!(!windows.any(|window| window == temporary));
}

/// Findings of the simulator name lines of the kernel's text.
#[test]
fn debug_information_names_lines_through_inlined_functions() {
    let dir = tempdir().expect("temporary folder");
    let object = dir.path().join("k.so");
    let cubin = cxx().compile(&kernel("k")).expect("compiles");
    fs::write(&object, cubin.bytes).expect("file");
    // One address of the kernel must belong to the inlined function.
    let start = symbol(&object, "k");
    let addresses: Vec<_> = (0..32).map(|i| format!("{:#x}", start + i)).collect();
    let mut addr2line = Command::new("addr2line");
    let output = addr2line.args(["-i", "-e"]).arg(&object).args(addresses);
    let output = output
        .output()
        .expect("addr2line, of the compiler's binutils");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("k.cu:3\nk.cu:9\n"), "{text}");
}

/// The address of a symbol, by `nm`.
fn symbol(object: &Path, name: &str) -> u64 {
    let output = Command::new("nm")
        .arg(object)
        .output()
        .expect("nm, of the compiler's binutils");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines();
    let line = lines
        .find(|line| line.ends_with(&format!(" {name}")))
        .expect("the symbol");
    let address = line.split(' ').next().expect("an address");
    u64::from_str_radix(address, 16).expect("an address")
}

#[test]
fn errors_have_the_log_and_the_saved_source() {
    let dir = tempdir().expect("temporary folder");
    let store = Store::open(dir.path());
    let broken = source(
        "broken",
        "#include <mk/base.cuh>\n__global__ void broken() { nonsense; }\n",
    );
    let error = store.get_or_build(&broken).expect_err("does not compile");
    let GenError::Compile {
        log,
        saved: Some(folder),
        ..
    } = &error
    else {
        panic!("{error}")
    };
    assert!(log.contains("nonsense"), "{log}");
    let file = folder.join("broken.cu");
    assert!(log.contains(&format!("{}:2:", file.display())), "{log}");
    assert_eq!(fs::read_to_string(file).expect("source"), broken.text);
    let wrapper = folder.join("kernel.cpp");
    assert!(log.contains(&*wrapper.to_string_lossy()), "{log}");
    // The files that are needed to compile the kernel by hand.
    assert!(folder.join("kernel.cpp").is_file());
    for (name, text) in headers(Backend::HostCxx) {
        assert_eq!(
            fs::read_to_string(folder.join(name)).expect("header"),
            *text
        );
    }
}

#[test]
fn a_name_that_is_no_function_is_a_compile_error() {
    for id in ["../escape", "8k", "", "a b"] {
        let error = cxx().compile(&source(id, "")).expect_err("no name");
        assert!(matches!(error, GenError::Compile { .. }), "{error}");
    }
}

#[test]
fn is_compiled_once_and_found_later() {
    let dir = tempdir().expect("temporary folder");
    let source = kernel("k");
    let cubin = Store::open(dir.path())
        .get_or_build(&source)
        .expect("compiles");
    let store = Store::open(dir.path());
    let found = store.get_or_build_with(&source, no_compile).expect("found");
    assert_eq!(found, cubin);
    let entries = store.entries();
    assert_eq!(entries.len(), 1);
    assert_eq!(
        (entries[0].backend, entries[0].resources),
        (Backend::HostCxx, None)
    );
    assert_eq!(entries[0].compiler, cxx().name());
}

#[test]
fn the_same_text_for_another_target_is_another_kernel() {
    let simulated = kernel("k");
    let real = CudaSource {
        arch: Arch::Sm90a,
        backend: Backend::Nvrtc,
        ..simulated.clone()
    };
    assert_ne!(Key::of(&simulated), Key::of(&real));
}

#[test]
fn without_a_compiler_there_is_a_way_out() {
    if meeting().is_some() {
        let error = Store::without_cache()
            .get_or_build(&kernel("k"))
            .expect_err("no compiler");
        let text = error.to_string();
        assert!(matches!(error, GenError::CxxMissing { .. }), "{text}");
        assert!(text.contains("/nowhere/c++: "), "{text}");
        return;
    }
    let dir = tempdir().expect("temporary folder");
    let mut command = child("without_a_compiler_there_is_a_way_out", dir.path());
    command.env("MKERNEL_CXX", "/nowhere/c++");
    assert!(
        Killed::spawn(command)
            .wait(Duration::from_secs(20))
            .success()
    );
}
