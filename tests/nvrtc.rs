//! Tests that NVRTC compiles every golden kernel well, and that the host and the device headers agree on the ABI byte
//! by byte.
//!
//! The tests need libnvrtc, but no GPU. Without libnvrtc they fail with a message that says how to get it.

use mkernel_compile::{CudaSource, GenError, Nvrtc, render};
use mkernel_spec::abi::{
    HEARD, HOST_ABORT, LENGTHS_HASH, LOST, MAX_BUCKETS, MAX_RANKS, shared_structs,
};
use mkernel_spec::fabric::{
    COMMAND_PUT, COMMAND_PUT_TO_PEERS, MAX_CALL_PUTS, MAX_MASK_PEERS, PHASE_BIT, PLACE_OFFSET_BITS,
    PUT_CHANNELS, TAG_VALID,
};
use mkernel_spec::{Arch, Backend, KernelConfig, KernelPlan, Op, SizedSpec};
use mkernel_testing::golden::Golden;
use mkernel_testing::jobs::{share, sixth_of_long};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::num::NonZero;
use std::sync::Mutex;

fn nvrtc() -> &'static Nvrtc {
    Nvrtc::load().unwrap_or_else(|error| panic!("this test needs libnvrtc: {error}"))
}

/// No kernel spills registers. A run compiles a sixth of the kernels. [`Nvrtc::compile`] itself refuses warnings in the log,
/// such as unused code, an ignored setmaxnreg or a serialised wgmma.
#[test]
fn every_golden_compiles_without_a_spill_or_a_warning() {
    let goldens = Golden::all();
    let sample = sixth_of_long(&goldens);
    let (left, faults) = (Mutex::new(sample.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                loop {
                    let golden = left.lock().expect("no panic").next();
                    let Some(golden) = golden else { break };
                    if let Err(fault) = compile_without_faults(golden) {
                        faults.lock().expect("no panic").push(fault);
                    }
                }
            });
        }
    });
    let faults = faults.into_inner().expect("no panic");
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// Kernels of all operators that compile without a spill when they are traced.
const TRACED: [&str; 14] = [
    "ag_gemm_paced",
    "all_gather_chunks",
    "all_reduce_two_shots",
    "all_to_all_chunks",
    "attention_gathered",
    "broadcast_chunks",
    "combine_eight_ranks",
    "dispatch_decode",
    "gemm_ar_one_shot",
    "gemm_cluster",
    "gemm_combine",
    "gemm_rs_bias_relu_residual",
    "moe_layer",
    "reduce_scatter_chunks",
];

/// One kernel of each operator has enough registers to be traced. A run compiles a third of these kernels.
#[test]
fn kernels_of_all_operators_are_traced_without_a_spill() {
    let goldens = Golden::all();
    let goldens = goldens
        .iter()
        .filter(|golden| TRACED.contains(&golden.name.as_str()));
    let traced: Vec<_> = goldens.map(traced).collect();
    let ops: BTreeSet<_> = traced
        .iter()
        .map(|golden| golden.plan.spec.op().name())
        .collect();
    assert_eq!(ops.len(), Op::ALL.len(), "each operator has a kernel");
    let faults: Vec<_> = share(traced, "", (0, 3))
        .iter()
        .filter_map(|golden| compile_without_faults(golden).err())
        .collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// The kernel of a golden configuration that is traced.
fn traced(golden: &Golden) -> Golden {
    let config = KernelConfig {
        traced: true,
        ..golden.plan.spec.config().clone()
    };
    let spec = SizedSpec::validate(config).expect("valid");
    let plan = KernelPlan::new(&spec, &golden.plan.device).expect("a plan");
    let source = render(&plan).expect("rendered");
    assert!(source.text.contains("#define MK_TRACE"), "{}", golden.name);
    assert!(!golden.source.text.contains("MK_TRACE"), "{}", golden.name);
    Golden {
        name: format!("{}, traced", golden.name),
        plan,
        source,
    }
}

/// Compiles a kernel and checks its resources.
fn compile_without_faults(golden: &Golden) -> Result<(), String> {
    let compiled = nvrtc().compile(&golden.source);
    let cubin = compiled.map_err(|error| format!("{}: {error}", golden.name))?;
    let found = cubin.resources.expect("figures of an SM");
    // An SM has 65536 registers. A thread gets a multiple of 8, and at most 255.
    let most = (65536 / golden.plan.launch().threads / 8 * 8).min(255);
    let is_sound = golden.plan.launch().registers.fit(found.registers)
        && golden.plan.launch().registers.entry == most
        && (found.spill_store_bytes, found.spill_load_bytes) == (0, 0)
        && found.smem_static_bytes == 0
        && cubin.log.lines().all(|line| line.starts_with("ptxas"));
    if is_sound {
        Ok(())
    } else {
        Err(format!("{}: {found:?}\n{}", golden.name, cubin.log))
    }
}

/// Returns a kernel that asserts the agreement of `mkernel_spec::abi` with the device headers.
fn abi_asserts() -> CudaSource {
    let mut text = String::from("#include <mk/abi.cuh>\n#include <mk/base.cuh>\n");
    let mut claim = |condition: String| {
        writeln!(
            text,
            "static_assert({condition}, \"differs from the host's\");"
        )
        .expect("writes to a String");
    };
    for layout in shared_structs() {
        let name = layout.name;
        claim(format!("sizeof(mk::{name}) == {}", layout.size_bytes));
        for (field, offset) in layout.fields {
            claim(format!("MK_OFFSET(mk::{name}, {field}) == {offset}"));
        }
    }
    claim(format!("mk::kMaxRanks == {MAX_RANKS}"));
    claim(format!("mk::kMaxBuckets == {MAX_BUCKETS}"));
    claim(format!("mk::kHostAbort == {HOST_ABORT}u"));
    claim(format!("mk::kHeard == {HEARD}u"));
    claim(format!("mk::kLost == {LOST}u"));
    claim(format!("mk::kLengthsHash == {LENGTHS_HASH}u"));
    claim(format!("mk::kTagValid == {TAG_VALID}u"));
    claim(format!("mk::kPhaseBit == {PHASE_BIT}ull"));
    claim(format!("mk::kCommandPut == {COMMAND_PUT}"));
    claim(format!("mk::kCommandPutToPeers == {COMMAND_PUT_TO_PEERS}"));
    claim(format!("mk::kMaxMaskPeers == {MAX_MASK_PEERS}"));
    claim(format!("mk::kPlaceOffsetBits == {PLACE_OFFSET_BITS}"));
    claim(format!("mk::kPutChannels == {PUT_CHANNELS}"));
    claim(format!("mk::kMaxPuts == {MAX_CALL_PUTS}"));
    text.push_str("extern \"C\" __global__ void abi() {}\n");
    CudaSource {
        id: "abi".into(),
        arch: Arch::Sm90a,
        backend: Backend::Nvrtc,
        text,
    }
}

#[test]
fn host_and_device_agree_on_the_abi() {
    let source = abi_asserts();
    if let Err(error) = nvrtc().compile(&source) {
        panic!("{error}\n{}", source.text);
    }
}

/// The assertions detect a field whose offset differs.
#[test]
fn a_field_with_another_offset_is_found() {
    let source = abi_asserts();
    let offset = "MK_OFFSET(mk::State, abort) == 8";
    assert!(source.text.contains(offset), "{}", source.text);
    let moved = CudaSource {
        text: source
            .text
            .replace(offset, "MK_OFFSET(mk::State, abort) == 12"),
        ..source
    };
    let error = nvrtc().compile(&moved).expect_err("State::abort is at 8");
    let GenError::Compile { log, .. } = &error else {
        panic!("{error}")
    };
    assert!(log.contains("differs from the host's"), "{log}");
}
