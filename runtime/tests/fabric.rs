//! Tests of puts from kernels to GPUs of other nodes, on simulated GPUs and emulated NICs.

use mkernel::spec::fabric_test::MAX_NODES;
use mkernel::testing::in_threads;
use mkernel::{
    Communicator, Error, Simulation,
    error::FabricError,
    network::{FabricTestLoad, FabricTestOptions, FabricTestResult, Faults, NicModel, Transport},
};
use std::time::Duration;

fn ranks(ranks: u32, seed: u64) -> Vec<Communicator> {
    let simulation = Simulation {
        ranks,
        seed,
        sms: 2,
        skew: 60,
        timeline: false,
    };
    Communicator::simulated(&simulation).expect("simulated GPUs")
}

fn options(nodes: u32) -> FabricTestOptions {
    FabricTestOptions {
        nodes,
        message_bytes: 512,
        window: 4,
        transport: emulated(NicModel::default(), Faults::default()),
    }
}

fn emulated(nic: NicModel, faults: Faults) -> Transport {
    Transport::Emulated { nic, faults }
}

const LOAD: FabricTestLoad = FabricTestLoad {
    message_bytes: 512,
    messages: 12,
    untimed: 2,
    window: 4,
    batch: 2,
    check: Some(7),
    probe: false,
};

/// Runs `loads` on every rank.
fn run(
    ranks: Vec<Communicator>,
    options: &FabricTestOptions,
    loads: &[FabricTestLoad],
) -> Vec<Result<Vec<FabricTestResult>, Error>> {
    in_threads(ranks, |ranks| {
        ranks.set_timeout(Duration::from_secs(20));
        let test = ranks.fabric_test(options)?;
        loads.iter().map(|load| test.run(load)).collect()
    })
}

#[test]
fn every_message_arrives_as_it_was_sent_whatever_the_network_does() {
    let faults = |seed| Faults {
        seed,
        jitter: Duration::from_micros(200),
        loss: 0.1,
        retransmission: Duration::from_micros(100),
        duplicates: 0.2,
        failure: None,
    };
    // Slots are reused by windows of other sizes, and single words are sent too.
    let single = FabricTestLoad {
        probe: true,
        message_bytes: 4,
        window: 1,
        batch: 1,
        ..LOAD
    };
    for (world, nodes) in [(2, 2), (4, 2), (4, 4)] {
        for seed in 0..4 {
            let options = FabricTestOptions {
                transport: emulated(NicModel::default(), faults(seed)),
                ..options(nodes)
            };
            for measured in run(ranks(world, seed), &options, &[LOAD, single, LOAD]) {
                let measured = measured.expect("all arrives");
                assert!(
                    measured
                        .iter()
                        .all(|load| load.wrong_words.is_empty() && load.messages == 10),
                    "{measured:?}"
                );
            }
        }
    }
}

#[test]
fn a_nic_that_fails_is_an_error_and_no_hang() {
    let failure = mkernel::network::Failure::Nic { after_writes: 5 };
    let options = FabricTestOptions {
        transport: emulated(
            NicModel::default(),
            Faults {
                failure: Some(failure),
                ..Faults::default()
            },
        ),
        ..options(2)
    };
    for result in run(ranks(2, 0), &options, &[LOAD]) {
        let error = result.expect_err("the NICs fail");
        let is_named = matches!(
            error,
            Error::Fabric(FabricError::Nic { .. } | FabricError::Lost { .. })
                | Error::RankLost { .. } // The other rank's NIC failed first.
        );
        assert!(is_named, "{error}");
    }
}

#[test]
fn all_mistakes_in_options_and_loads_are_reported_at_once() {
    let odd = FabricTestOptions {
        message_bytes: u32::MAX,
        window: 0,
        // The limit of the NIC does not raise the limit of the test.
        transport: emulated(
            NicModel {
                write_bytes: u32::MAX,
                ..NicModel::default()
            },
            Faults::default(),
        ),
        ..options(MAX_NODES + 1)
    };
    for result in run(ranks(2, 0), &odd, &[]) {
        let text = result.expect_err("impossible").to_string();
        for part in ["65 nodes", "messages of 4294967295 bytes", "a window of 0"] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
    }
    let load = FabricTestLoad {
        message_bytes: 6,
        messages: 7,
        untimed: 9,
        window: 5,
        batch: 0,
        check: None,
        probe: false,
    };
    for result in run(ranks(2, 0), &options(2), &[load]) {
        let text = result.expect_err("impossible").to_string();
        for part in ["6 bytes", "window of 5", "acknowledgements of 0", "9 of 7"] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
    }
    for result in run(ranks(4, 0), &options(3), &[]) {
        let error = result.expect_err("4 ranks are no 3 nodes");
        let is_named = error
            .to_string()
            .contains("4 ranks cannot be divided into 3 nodes");
        assert!(is_named, "{error}");
    }
}
