//! Tests of the choice between simulated and real GPUs, which a process makes once.

#![cfg(feature = "simulator")]

use mkernel::{
    Communicator, Error, Simulation,
    error::{DeviceError, SimulatorError},
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
    // On a host with GPUs, these are used.
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
    std::thread::scope(|scope| {
        for ranks in ranks {
            scope.spawn(move || {
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
    });
}
