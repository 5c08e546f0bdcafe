//! Tests of a rank that begins a call after the other ranks have given it up, on simulated GPUs.
//!
//! The other ranks have sent their parts of the call, and continue with incomplete sums. The late rank must not take
//! incomplete sums for results.

use mkernel::cudarc::driver::CudaStream;
use mkernel::half::bf16;
use mkernel::operands::Element;
use mkernel::spec::{
    CollectiveConfig, CollectiveOp, CollectiveShape, Dim, Dtype, GemmConfig, GemmOp, GemmShape,
    Protocol, Tuning,
};
use mkernel::testing::prepare_edited;
use mkernel::{Communicator, Error, ErrorKind, KernelConfig, Operand, Operator, Shape};
use mkernel_testing::jobs::{Backend, Buffer, Machine, apply_edits, is_symmetric};
use std::sync::Arc;
use std::time::Duration;

/// The edit that removes the report of a rank that begins a call which was given up.
const UNREPORTED: (&str, &str) = (
    "given_up_by = aborted_by == 0 && failed != 0 ? 1 + ctx.rank : aborted_by;",
    "",
);

/// An operator whose ranks send sums of the data of other ranks.
struct Case {
    config: KernelConfig,
    shape: Shape,
    sms: u32,
    /// The edits with which ranks send incomplete sums.
    passes_on: &'static [(&'static str, &'static str)],
}

fn cases() -> Vec<(&'static str, Case)> {
    let unchecked = &[("is_valid = !is_aborted(ctx)", "is_valid = true")];
    let (symmetric, shots) = (true, Some(2));
    let chunks = |symmetric| collective(Some(Protocol::Simple), None, symmetric);
    vec![
        ("results", gemm_ar(2, 2, !symmetric, unchecked)),
        ("symmetric results", gemm_ar(2, 2, symmetric, unchecked)),
        (
            "relayed packets",
            gemm_ar(
                8,
                1,
                !symmetric,
                &[(
                    "= wait_packets(sub, half, first, packets);",
                    "= wait_packets(sub, half, first, packets) || true;",
                )],
            ),
        ),
        (
            "chunks",
            Case {
                passes_on: unchecked,
                ..chunks(!symmetric)
            },
        ),
        (
            "two shots of packets",
            Case {
                passes_on: &[("if (have_arrived) send_to_all(", "send_to_all(")],
                ..collective(Some(Protocol::Ll), shots, !symmetric)
            },
        ),
    ]
}

fn gemm_ar(
    world: u32,
    shots: u32,
    symmetric_result: bool,
    passes_on: &'static [(&'static str, &'static str)],
) -> Case {
    let shape = match world {
        8 => GemmShape {
            m: 136,
            n: 648,
            k: 512,
        },
        _ => GemmShape {
            m: 136,
            n: 136,
            k: 128,
        },
    };
    let config = GemmConfig {
        m: Dim::Static(shape.m),
        n: Dim::Static(shape.n),
        k: Dim::Static(shape.k),
        symmetric_result,
        tuning: Tuning {
            shots: Some(shots),
            ..Tuning::default()
        },
        ..GemmConfig::new(GemmOp::GemmAr)
    };
    Case {
        config: KernelConfig::new(world, config),
        shape: shape.into(),
        sms: 4,
        passes_on,
    }
}

fn collective(protocol: Option<Protocol>, shots: Option<u32>, symmetric_result: bool) -> Case {
    let shape = CollectiveShape { m: 7, n: 1032 };
    let config = CollectiveConfig {
        m: Dim::Static(shape.m),
        n: Dim::Static(shape.n),
        dtype: Dtype::Bf16,
        protocol,
        shots,
        symmetric_result,
        ..CollectiveConfig::new(CollectiveOp::AllReduce)
    };
    Case {
        config: KernelConfig::new(2, config),
        shape: shape.into(),
        sms: 2,
        passes_on: &[],
    }
}

/// A rank with its operands, which are ones.
struct Rank<'a> {
    ranks: &'a Communicator,
    operator: Operator,
    stream: Arc<CudaStream>,
    inputs: Vec<(Operand, Buffer<bf16>)>,
    result: (Operand, Buffer<bf16>),
}

impl<'a> Rank<'a> {
    fn new(ranks: &'a Communicator, operator: Operator) -> Self {
        let stream = ranks.default_stream();
        let upload = |written: bool, value: bf16| {
            let specs = operator.plan().operands().iter();
            let specs = specs.filter(move |spec| spec.written == written);
            let upload = |spec: &mkernel::spec::abi::OperandSpec| {
                assert_eq!(spec.dtype, bf16::DTYPE);
                let elems = spec.rows.on(ranks.rank()) * spec.cols;
                let values = vec![value; elems as usize];
                let is_symmetric = is_symmetric(&operator, spec.operand);
                let buffer = Buffer::upload(ranks, &stream, is_symmetric, &values);
                (spec.operand, buffer.expect("memory"))
            };
            specs.map(upload).collect::<Vec<_>>()
        };
        let inputs = upload(false, bf16::ONE);
        let result = upload(true, bf16::NAN).pop().expect("a result");
        Self {
            ranks,
            operator,
            stream,
            inputs,
            result,
        }
    }

    /// Makes a call, waits for it, and returns its result.
    fn call(&mut self) -> Result<Vec<bf16>, Error> {
        let (operand, result) = &mut self.result;
        let poison = vec![bf16::NAN; result.view().len()];
        let copied = self.stream.memcpy_htod(&poison, &mut result.view_mut());
        copied.expect("a copy");
        let inputs: Vec<_> = self.inputs.iter().map(|(o, b)| (*o, b.view())).collect();
        let mut result = result.view_mut();
        let mut call = self.operator.call(&self.stream);
        for (operand, input) in &inputs {
            call = call.read(*operand, input);
        }
        call.write(*operand, &mut result).launch()?;
        self.ranks.synchronize(&self.stream)?;
        Ok(self.stream.clone_dtoh(&result).expect("a copy"))
    }
}

/// The outcome of a call that another rank had given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Failed,
    Right,
    Wrong,
}

/// Makes a call on all ranks. Then all ranks except the last one make another call and give it up, and then the last rank makes
/// this call. Returns the outcome on the last rank.
fn late_call(case: &Case, edits: &[(&str, &str)]) -> Outcome {
    let machine = Machine {
        world: case.config.world,
        sms: case.sms,
        skew: 60,
    };
    let owned = |(from, to): &(&str, &str)| ((*from).to_owned(), (*to).to_owned());
    let edits: Vec<_> = edits.iter().map(owned).collect();
    let outcomes = machine.run_ranks(Backend::Simulated { seed: 0 }, |ranks, _| {
        let edit = |text: &mut String| apply_edits(ranks, &edits, text);
        // SAFETY: the edits change reports and the data that is sent, but no address.
        let operator = unsafe { prepare_edited(ranks, &case.config, case.shape, edit) }?;
        let mut rank = Rank::new(ranks, operator);
        let right = rank.call()?;
        ranks.barrier()?;
        let is_late = ranks.rank() + 1 == ranks.world();
        if !is_late {
            ranks.set_timeout(Duration::from_millis(5));
            let error = rank.call().expect_err("a rank is late");
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        }
        ranks.barrier()?;
        let outcome = is_late.then(|| match rank.call() {
            Ok(result) if result == right => Ok(Outcome::Right),
            Ok(_) => Ok(Outcome::Wrong),
            Err(Error::Timeout {
                aborted_by: Some(_),
                ..
            }) => Ok(Outcome::Failed),
            Err(error) => Err(error),
        });
        ranks.barrier()?;
        Ok(outcome.transpose()?)
    });
    let outcome = outcomes.expect("communicators").pop().expect("a rank");
    outcome.expect("no other error").expect("an outcome")
}

#[test]
fn a_call_that_was_given_up_fails_on_a_late_rank() {
    for (name, case) in cases() {
        assert_eq!(late_call(&case, &[]), Outcome::Failed, "{name}");
    }
}

/// If another rank gives up a call that this rank has begun, this rank has not found the abort word at the beginning.
#[test]
fn incomplete_sums_are_not_passed_on() {
    for (name, case) in cases() {
        assert_ne!(late_call(&case, &[UNREPORTED]), Outcome::Wrong, "{name}");
    }
}

#[test]
fn incomplete_sums_that_are_passed_on_are_found() {
    for (name, case) in cases() {
        let edits: Vec<_> = case.passes_on.iter().copied().chain([UNREPORTED]).collect();
        assert_eq!(late_call(&case, &edits), Outcome::Wrong, "{name}");
    }
}
