//! Tests of peers that violate the protocol of emulated NICs: invalid frames, damaged connection info, and random
//! bytes. Every error must name the peer.

use crate::pair::{MARGIN, Options, error_of, put, unconnected};
use mkernel_fabric::emulated::frame::{WriteHead, put_acks, put_write};
use mkernel_fabric::emulated::{Pipe, Wire, pipe};
use mkernel_fabric::immediate::Immediate;
use mkernel_fabric::{Endpoint, FabricError};
use proptest::prelude::*;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// Creates an endpoint and the peer's end of its wire.
fn victim() -> (Endpoint, Pipe) {
    let (ours, theirs) = pipe();
    let mut endpoint = unconnected(Box::new(theirs), Options::default());
    let info = endpoint.connect_info();
    (endpoint.connect(info).expect("connects").endpoint, ours)
}

/// Returns the error of an endpoint that receives these bytes.
fn error_after(bytes: &[u8]) -> Option<FabricError> {
    let (mut endpoint, mut wire) = victim();
    assert_eq!(wire.send(bytes), Ok(bytes.len()));
    (0..3).find_map(|_| endpoint.step(Instant::now()).err())
}

/// Returns the bytes of a write with this head and payload.
fn frame(head: WriteHead, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_write(&mut bytes, head, |out| {
        out.extend(payload);
        Ok::<_, ()>(())
    })
    .expect("encodes");
    bytes
}

/// The head of a valid write of four bytes.
const HEAD: WriteHead = WriteHead {
    ticket: 1 << 32,
    due_ns: 0,
    region: 1,
    offset: 8,
    bytes: 4,
    immediate: 0,
};

/// Returns a write without a payload that carries this immediate value.
fn write_with_immediate(immediate: u32) -> Vec<u8> {
    let head = WriteHead {
        immediate,
        bytes: 0,
        ..HEAD
    };
    frame(head, b"")
}

/// Returns frames whose head, length or payload is invalid, each with a part of the expected error.
fn invalid_frames() -> Vec<(&'static str, Vec<u8>)> {
    let mut unknown_ack = Vec::new();
    put_acks(&mut unknown_ack, &[1 << 32]);
    let empty = WriteHead { bytes: 0, ..HEAD };
    let beyond = WriteHead {
        offset: u64::MAX - 2,
        ..HEAD
    };
    vec![
        ("version", vec![0; 8]),
        ("kind 9", vec![4, 0, 0, 0, 2, 9, 0, 0]),
        ("4294967295 bytes", vec![255, 255, 255, 255, 2, 1, 0, 0]),
        ("region 2", frame(WriteHead { region: 2, ..HEAD }, b"data")),
        ("wrote 4 bytes at", frame(beyond, b"data")),
        ("4 bytes has a payload of 3", frame(HEAD, b"dat")),
        ("0 bytes with a payload", frame(empty, b"data")),
        ("acknowledged", unknown_ack),
    ]
}

/// Returns valid frames whose immediate value is invalid, each with a part of the expected error.
fn invalid_immediates() -> Vec<(&'static str, Vec<u8>)> {
    let put = |channel, sequence| Immediate::Put { channel, sequence }.encode();
    let close = Immediate::Close { lost_rank: None }.encode();
    let credit = Immediate::Credit { delivered: 1 }.encode();
    vec![
        ("channel 4", write_with_immediate(put(4, 0))),
        ("1000 ahead", write_with_immediate(put(0, 1000))),
        (
            "0xc0100000, which has no meaning",
            write_with_immediate(close + (1 << 20)),
        ),
        ("returned credits for 1 puts", write_with_immediate(credit)),
    ]
}

#[test]
fn protocol_violations_end_the_fabric_and_name_the_peer() {
    assert_eq!(error_after(&frame(HEAD, b"data")), None, "a valid write");
    for (expected, bytes) in invalid_frames().into_iter().chain(invalid_immediates()) {
        let error = error_after(&bytes).unwrap_or_else(|| panic!("{expected}: no error"));
        let text = error.to_string();
        assert!(
            text.contains(expected) && text.contains("rank 1 on node b"),
            "{text}"
        );
    }
}

#[test]
fn damaged_connect_info_is_refused_and_names_the_peer() {
    for at in 0..6 {
        let (_, wire) = pipe();
        let mut endpoint = unconnected(Box::new(wire), Options::default());
        let mut info = endpoint.connect_info();
        info[at] ^= 0x40;
        let Err(error) = endpoint.connect(info) else {
            panic!("byte {at} was not checked")
        };
        assert!(error.to_string().contains("rank 1 on node b"), "{error}");
    }
}

proptest! {
    /// Random bytes cause no panic, and every error names the peer.
    #[test]
    fn errors_of_random_bytes_name_the_peer(bytes: Vec<u8>) {
        if let Some(error) = error_after(&bytes) {
            prop_assert!(error.to_string().contains("rank 1 on node b"), "{}", error);
        }
    }

    /// One byte of several valid frames is overwritten.
    #[test]
    fn errors_of_damaged_frames_name_the_peer(at: prop::sample::Index, to: u8, frames in 1usize..4) {
        let mut bytes = Vec::new();
        for number in 0..frames {
            let put = Immediate::Put { channel: 0, sequence: number as u32 };
            bytes.extend(frame(WriteHead { immediate: put.encode(), ..HEAD }, b"data"));
        }
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Some(error) = error_after(&bytes) {
            prop_assert!(error.to_string().contains("rank 1 on node b"), "{}", error);
        }
    }
}

#[test]
fn garbage_on_a_socket_stops_the_proxy() {
    let (ours, mut theirs) = UnixStream::pair().expect("sockets");
    let mut endpoint = unconnected(Box::new(ours), Options::default());
    let info = endpoint.connect_info();
    let end = endpoint.connect(info).expect("connects").start();
    let index = end.producer.claim();
    end.producer.publish(index, &put(0, 64, 0, 0));
    theirs.write_all(&[0x5a; 4096]).expect("writes");
    let error = error_of(&end, MARGIN);
    assert!(matches!(error, FabricError::Lost { .. }), "{error:?}");
    assert!(error.to_string().contains("version 90"), "{error}");
}
