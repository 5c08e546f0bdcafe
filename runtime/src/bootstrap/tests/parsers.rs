//! Tests with arbitrary bytes. Such bytes must result in a fault, without a panic and without large allocations.

use super::super::failure::StepFailure;
use super::super::rendezvous::handshake::{Challenge, Hello, Transcript};
use super::super::step_frames::{contribution_in, contributions_in};
use super::super::wire::{Frame, FrameKind, Nonce, RANK_BYTES, Reader, UNVERIFIED_BYTES};
use super::strangers::connect;
use super::*;
use proptest::prelude::*;

const KINDS: [FrameKind; 8] = [
    FrameKind::Hello,
    FrameKind::Welcome,
    FrameKind::Refused,
    FrameKind::Contribution,
    FrameKind::Complete,
    FrameKind::Failed,
    FrameKind::Challenge,
    FrameKind::Proof,
];

fn frame() -> impl Strategy<Value = Frame> {
    let payload = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200),
        // Small numbers can be valid lengths.
        proptest::collection::vec(0u8..4, 0..64),
    ];
    (prop::sample::select(&KINDS[..]), any::<Nonce>(), payload).prop_map(
        |(kind, nonce, payload)| Frame {
            kind,
            nonce,
            payload,
        },
    )
}

/// Returns a frame with some changed bytes, which is cut off or followed by other bytes.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let damage = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let more = proptest::collection::vec(any::<u8>(), 0..40);
    (frame(), damage, more, any::<prop::sample::Index>()).prop_map(|(frame, damage, more, end)| {
        let mut bytes = frame.encode();
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        bytes.extend(more);
        bytes.truncate(end.index(bytes.len() + 1));
        bytes
    })
}

/// Parses a payload by all functions that read one.
fn parse_as_everything(frame: &Frame) {
    let job = Job {
        secret: Secret::new(&[1; 16]),
        ..job(1, 3, 1)
    };
    let own = Hello::new(&job).expect("random numbers");
    let _ = Hello::check(frame, &own);
    let _ = Challenge::check(frame, &job);
    for job in [&job, &super::job(1, 3, 1)] {
        let challenge = Challenge::new(job).expect("random numbers");
        let transcript = Transcript::new(&own, &challenge);
        let _ = transcript.check_proof(frame, job);
        let _ = transcript.check_welcome(frame, job);
    }
    let _ = StepFailure::decode(&frame.payload);
    let _ = contribution_in(frame, &frame.nonce, "step");
    let _ = contributions_in(&frame.payload, 3);
    let _ = HostMap::decode(&mut Reader(&frame.payload), u32::MAX);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn frames_come_back(frame in frame()) {
        let bytes = frame.encode();
        prop_assert_eq!(Frame::decode(&bytes, UNVERIFIED_BYTES), Ok(Some((frame, bytes.len()))));
    }

    #[test]
    fn any_bytes_are_a_frame_or_a_fault(bytes in damaged(), limit in 0usize..300) {
        // Further bytes cannot make a frame longer than the limit.
        match Frame::decode(&bytes, limit) {
            Ok(Some((frame, length))) => {
                prop_assert!(frame.payload.len() <= limit && length <= bytes.len());
                parse_as_everything(&frame);
            }
            Ok(None) => prop_assert!(bytes.len() < 28 + limit),
            Err(fault) => drop(fault.to_string()),
        }
    }

    #[test]
    fn noise_is_no_frame(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        if bytes.first().is_some_and(|first| *first != b'M') {
            prop_assert_eq!(Frame::decode(&bytes, RANK_BYTES), Err(ProtocolFault::NotMkernel));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(12) })]

    /// Sends damaged frames through sockets, in pieces and from several connections at once, while the ranks connect.
    #[test]
    fn a_port_survives_any_bytes(noise in proptest::collection::vec((damaged(), damaged()), 1..8)) {
        let (listener, port) = listener();
        std::thread::scope(|scope| {
            let root = scope.spawn(|| accept_ranks(&job(0, 2, port), &listener));
            let streams: Vec<_> = noise
                .iter()
                .map(|(first, second)| {
                    let mut stream = connect(port);
                    // After the connection is refused, nothing reads the rest.
                    let _ = stream.write_all(first).and_then(|()| stream.write_all(second));
                    stream
                })
                .collect();
            let joined = connect_ranks(&job(1, 2, port));
            let root = root.join().expect("no panic");
            drop(streams);
            prop_assert!(joined.is_ok() && root.is_ok());
            Ok(())
        })?;
    }

    /// If a rank sends arbitrary bytes instead of its contribution, the step fails with an error that names the rank.
    #[test]
    fn a_step_survives_any_bytes(bytes in damaged()) {
        let (listener, port) = listener();
        let error = std::thread::scope(|scope| {
            let root = scope.spawn(|| {
                let group = accept_ranks(&job(0, 2, port), &listener).expect("the ranks connect");
                Collective::new(group).barrier("step", TIMEOUT)
            });
            let mut stream = connect(port);
            super::strangers::present(&mut stream, &job(1, 2, port));
            super::strangers::next_frame(&mut stream);
            stream.write_all(&bytes).expect("sent");
            drop(stream);
            root.join().expect("no panic").expect_err("no contribution")
        });
        let names_it = matches!(
            error,
            Error::Protocol { peer: Peer::Rank(1), .. } | Error::RankLeft { rank: 1, .. }
        );
        prop_assert!(names_it, "{}", error);
    }
}
