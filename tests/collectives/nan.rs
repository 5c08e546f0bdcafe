//! Tests of values that look like empty slots of packets, and of numbers at the limits of fp16, on simulated GPUs.

use mkernel::cudarc::driver::DeviceRepr;
use mkernel::half::{bf16, f16};
use mkernel::operands::Element;
use mkernel::spec::{CollectiveConfig, CollectiveOp, CollectiveShape, Dim, Protocol};
use mkernel::testing::prepare_edited;
use mkernel::{Communicator, KernelConfig, Operand};
use mkernel_testing::jobs::{Backend, Machine, apply_edits};
use std::time::Duration;

/// Makes a call with packets on two ranks, each with one value in all its elements. Returns the results of both ranks.
fn call<E: Element + DeviceRepr + Copy + Send + Sync>(
    op: CollectiveOp,
    shots: Option<u32>,
    values: [E; 2],
    edits: &[(String, String)],
) -> Vec<Result<Vec<E>, String>> {
    let shape = CollectiveShape { m: 4, n: 136 };
    let config = CollectiveConfig {
        m: Dim::Static(shape.m),
        n: Dim::Static(shape.n),
        dtype: E::DTYPE,
        protocol: Some(Protocol::Ll),
        shots,
        ..CollectiveConfig::new(op)
    };
    let machine = Machine {
        world: 2,
        sms: 2,
        skew: 0,
    };
    let body = |ranks: &Communicator, _: &[Communicator]| {
        ranks.set_timeout(Duration::from_millis(500));
        let edit = |text: &mut String| apply_edits(ranks, edits, text);
        // SAFETY: the edits change the replacement of a packet, but no address.
        let operator =
            unsafe { prepare_edited(ranks, &KernelConfig::new(2, config), shape, edit) }?;
        let stream = ranks.default_stream();
        let rows = |operand| {
            let spec = operator
                .plan()
                .operands()
                .iter()
                .find(|s| s.operand == operand);
            spec.map_or(0, |spec| (spec.rows.on(ranks.rank()) * spec.cols) as usize)
        };
        let value = values[ranks.rank() as usize];
        // Only the root of a broadcast has rows of X, and no allocation is empty.
        let x = stream.clone_htod(&vec![value; rows(Operand::X).max(1)])?;
        let mut y = stream.clone_htod(&vec![value; rows(Operand::Y)])?;
        let call = operator.call(&stream).read(Operand::X, &x);
        call.write(Operand::Y, &mut y).launch()?;
        ranks.synchronize(&stream)?;
        Ok(stream.clone_dtoh(&y)?)
    };
    let results = machine.run_ranks(Backend::Simulated { seed: 0 }, body);
    results.expect("communicators")
}

/// The operators that add up packets, with their shots.
const OPS: [(CollectiveOp, Option<u32>); 3] = [
    (CollectiveOp::AllReduce, Some(1)),
    (CollectiveOp::AllReduce, Some(2)),
    (CollectiveOp::ReduceScatter, None),
];

#[test]
fn nans_with_all_bits_set_arrive() {
    for (op, shots) in OPS {
        for result in call(op, shots, [bf16::from_bits(0xffff); 2], &[]) {
            let result = result.unwrap_or_else(|error| panic!("{op}: {error}"));
            assert!(result.iter().all(|y| y.is_nan()), "{op}");
        }
        for result in call(op, shots, [f16::from_bits(0xffff); 2], &[]) {
            let result = result.unwrap_or_else(|error| panic!("{op}: {error}"));
            assert!(result.iter().all(|y| y.is_nan()), "{op}");
        }
        for result in call(op, shots, [f32::from_bits(u32::MAX); 2], &[]) {
            let result = result.unwrap_or_else(|error| panic!("{op}: {error}"));
            assert!(result.iter().all(|y| y.is_nan()), "{op}");
        }
    }
}

/// Without the replacement of such values, ranks wait for them until the deadline.
#[test]
fn nans_that_look_like_empty_slots_are_found() {
    for half in [
        "(inverted.x | inverted.y) == 0",
        "(inverted.z | inverted.w) == 0",
    ] {
        let edits = [(half.to_owned(), "false".to_owned())];
        for result in call(
            CollectiveOp::AllReduce,
            Some(1),
            [bf16::from_bits(0xffff); 2],
            &edits,
        ) {
            let error = result.expect_err("nothing has arrived");
            assert!(
                error.contains("deadline") || error.contains("time"),
                "{error}"
            );
        }
    }
}

/// Collectives without sums change no bit.
#[test]
fn gathered_nans_keep_their_bits() {
    let ops = CollectiveOp::ALL.into_iter().filter(|op| !op.reduces());
    let cases = ops.flat_map(|op| [0xffff, 0x7fff, 0x8000, 0].map(|bits| (op, bits)));
    for (op, bits) in cases {
        for result in call(op, None, [bf16::from_bits(bits); 2], &[]) {
            let result = result.expect("a result");
            assert!(result.iter().all(|y| y.to_bits() == bits), "{op}: {bits:x}");
        }
    }
}

/// Sums at the limits of fp16: the bits of the addends of two ranks, and of the sum, which is rounded to nearest even.
#[test]
fn sums_at_the_limits_of_fp16_are_right() {
    let sums = [
        // 2048 + 1 is half-way to 2050, 2048 + 3 half-way from 2050 to 2052, and 1023 + 1024 is exact, but not in bf16.
        (0x6800, 0x3c00, 0x6800),
        (0x6800, 0x4200, 0x6802),
        (0x63fe, 0x6400, 0x67ff),
        // 65504 + 16 is half-way to 65536 and becomes infinite; 65504 + 15.99 is nearer to 65504.
        (0x7bff, 0x4c00, 0x7c00),
        (0x7bff, 0x4bff, 0x7bff),
        (0xfbff, 0xfbff, 0xfc00),
        // The smallest subnormal number twice, and the smallest normal number without the smallest subnormal one.
        (0x0001, 0x0001, 0x0002),
        (0x0400, 0x8001, 0x03ff),
        (0x03ff, 0x0001, 0x0400),
        // Only -0 and -0 are -0.
        (0x8000, 0x8000, 0x8000),
        (0x8000, 0x0000, 0x0000),
        (0x7c00, 0x3c00, 0x7c00),
        // The NaN of conversions.
        (0x7c00, 0xfc00, 0x7fff),
        (0xffff, 0x3c00, 0x7fff),
    ];
    for (op, shots) in OPS {
        for (a, b, sum) in sums {
            for result in call(op, shots, [a, b].map(f16::from_bits), &[]) {
                let result = result.unwrap_or_else(|error| panic!("{op}: {error}"));
                let wrong = result.iter().find(|y| y.to_bits() != sum);
                assert_eq!(
                    wrong, None,
                    "{op} {shots:?}: {a:#x} + {b:#x} is not {sum:#x}"
                );
            }
        }
    }
}
