//! Tests of invalid commands in a command ring: the error names the command and the field, and no memory is accessed.

use crate::pair::{Options, connected_pair, put};
use mkernel_fabric::FabricError;
use mkernel_spec::fabric::Command;
use std::time::Instant;

#[test]
fn each_invalid_field_is_named_with_its_command() {
    let good = || put(1, 64, 0, 0);
    let end = super::pair::REGION_BYTES as u64;
    let wrong: Vec<(&str, Command)> = vec![
        ("kind", Command { kind: 3, ..good() }),
        ("peer", Command { peer: 1, ..good() }),
        (
            "channel",
            Command {
                channel: 4,
                ..good()
            },
        ),
        ("bytes", put(1, u32::MAX >> 1, 0, 0)),
        (
            "source_region",
            Command {
                source_region: 2,
                ..good()
            },
        ),
        (
            "target_region",
            Command {
                target_region: 255,
                ..good()
            },
        ),
        ("source_offset", put(1, 64, end - 63, 0)),
        ("source_offset", put(1, 64, u64::MAX >> 1, 0)),
        ("target_offset", put(1, 64, 0, end - 63)),
        ("target_offset", put(1, 1, 0, (u64::MAX >> 1) - 1)),
    ];
    for (field, command) in wrong {
        let [mut endpoint, _peer] = connected_pair([Options::default(), Options::default()]);
        for command in [good(), put(0, 64, end - 64, end - 64), command] {
            let index = endpoint.producer.claim();
            endpoint.producer.publish(index, &command);
        }
        let error = endpoint.endpoint.step(Instant::now()).expect_err(field);
        assert!(error.to_string().contains(field), "{error}");
        let FabricError::Command {
            index: 2,
            field: found,
            ..
        } = error
        else {
            panic!("{error:?}")
        };
        assert_eq!(found, field);
    }
}

/// The producer writes a slot of the next lap without a claim.
#[test]
fn a_slot_of_another_lap_is_an_error() {
    let [mut endpoint, _peer] = connected_pair([Options::default(), Options::default()]);
    endpoint.producer.publish(64, &put(0, 0, 0, 0));
    let error = endpoint
        .endpoint
        .step(Instant::now())
        .expect_err("a slot of lap 1 before lap 0");
    assert!(
        matches!(
            error,
            FabricError::Command {
                index: 0,
                field: "tag",
                ..
            }
        ),
        "{error:?}"
    );
}
