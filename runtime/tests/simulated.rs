//! Tests of the choice between simulated and real GPUs, which a process makes only once.

#![cfg(feature = "simulator")]

use mkernel::testing::in_threads;
use mkernel::{
    Communicator, Error, KernelConfig, Simulation,
    error::{DeviceError, SimulatorError},
    spec::{BLayout, Dim, GemmConfig, GemmOp, GemmShape},
};
use std::process::Command;

/// Runs a test of this file in a process of its own. Returns whether it passed, and its output.
fn in_a_process(test: &str, variables: &[(&str, &str)]) -> (bool, String) {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env_remove("MKERNEL_DEVICE")
        .envs(variables.iter().copied())
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), text)
}

#[test]
fn the_choice_is_made_once() {
    let (passed, text) = in_a_process("simulated_then_real", &[]);
    assert!(passed, "{text}");
}

#[test]
#[ignore = "in a process of its own"]
fn simulated_then_real() {
    let Ok(ranks) = Communicator::simulated(&Simulation::default()) else {
        panic!("simulated GPUs are everywhere");
    };
    let error = Communicator::local(&[0]).expect_err("GPUs in the same process");
    assert!(
        matches!(error, Error::Device(DeviceError::BackendConflict { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("MKERNEL_DEVICE"), "{error}");
    assert!(ranks[0].is_simulated());
}

#[test]
fn a_process_for_each_rank_is_refused() {
    let rank = [
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_PORT", "4000"),
        ("MKERNEL_DEVICE", "sim"),
    ];
    let (passed, text) = in_a_process("one_of_two_processes", &rank);
    assert!(passed, "{text}");
}

#[test]
#[ignore = "in a process of its own"]
fn one_of_two_processes() {
    let error = Communicator::from_env().expect_err("two processes");
    assert!(
        matches!(
            error,
            Error::Simulator(SimulatorError::Processes { world: 2 })
        ),
        "{error}"
    );
}

#[test]
fn the_variable_makes_local_ranks_simulated() {
    let (passed, text) = in_a_process(
        "local_ranks",
        &[("MKERNEL_DEVICE", "sim"), ("MKERNEL_SIM_SMS", "3")],
    );
    assert!(passed, "{text}");
    let (passed, text) = in_a_process(
        "local_ranks",
        &[("MKERNEL_DEVICE", "auto"), ("MKERNEL_SIM_SMS", "3")],
    );
    // On a host with GPUs, the program uses these GPUs.
    assert!(passed || mkernel::device_count().is_ok(), "{text}");
}

/// The calls of a program before it prepares operators: contexts, slices, streams, waits.
#[test]
#[ignore = "in a process of its own"]
fn local_ranks() {
    assert_eq!(mkernel::device_count().expect("simulated GPUs"), 8);
    let error = Communicator::local(&[8]).expect_err("no such GPU");
    assert!(
        matches!(
            error,
            Error::Device(DeviceError::NoDevice {
                ordinal: 8,
                count: 8
            })
        ),
        "{error}"
    );
    let ranks = Communicator::local(&[0, 1, 2, 7]).expect("ranks");
    in_threads(ranks, |ranks| {
        assert!(ranks.is_simulated() && ranks.world() == 4);
        assert_eq!(ranks.device(), &mkernel::spec::Device::simulated(3));
        let stream = ranks.context().new_stream().expect("a stream");
        let slice = stream.clone_htod(&[ranks.rank(); 100]).expect("uploaded");
        ranks.synchronize(&stream).expect("done");
        ranks.barrier().expect("all ranks take part");
        assert_eq!(
            stream.clone_dtoh(&slice).expect("downloaded"),
            [ranks.rank(); 100]
        );
        assert!(ranks.findings().is_empty() && ranks.timeline().is_none());
    });
}

#[test]
fn all_variables_of_the_store_that_are_not_valid_are_named() {
    let variables = [
        ("MKERNEL_JIT", "maybe"),
        ("MKERNEL_CACHE", "2"),
        ("MKERNEL_NVRTC_ANY", "-"),
    ];
    let (passed, text) = in_a_process("prepares_with_invalid_variables", &variables);
    assert!(passed, "{text}");
}

#[test]
#[ignore = "in a process of its own"]
fn prepares_with_invalid_variables() {
    let (m, n, k) = (128, 64, 64);
    let config = GemmConfig {
        m: Dim::Static(m),
        n: Dim::Static(n),
        k: Dim::Static(k),
        b_layout: BLayout::Nk,
        ..GemmConfig::new(GemmOp::AgGemm)
    };
    let config = &KernelConfig::new(2, config);
    let ranks = Communicator::simulated(&Simulation {
        ranks: 2,
        ..Simulation::default()
    });
    let ranks = ranks.expect("simulated GPUs");
    in_threads(ranks, |ranks| {
        let shape = GemmShape { m, n, k };
        let error = ranks.prepare(config, shape).expect_err("invalid");
        assert!(matches!(error, Error::Environment(_)), "{error}");
        let text = error.to_string();
        for variable in [
            "MKERNEL_JIT is \"maybe\"; it should be 0 or 1",
            "MKERNEL_CACHE is \"2\"; it should be 0 or 1",
            "MKERNEL_NVRTC_ANY is \"-\"; it should be 0 or 1",
        ] {
            assert!(text.contains(variable), "{text}");
        }
        ranks.barrier().expect("the communicator can be used");
    });
}
