//! Tests of operators on simulated GPUs: calls, and ranks that fail. The kernels are the kernels of real GPUs.

#![cfg(feature = "simulator")]

mod rank;

use mkernel::Operand;
use mkernel::cudarc::driver::{CudaSlice, DevicePtr};
use mkernel::half::bf16;
use mkernel::{
    Communicator, Error, KernelConfig, Operator, Simulation,
    error::{CallError, OperandFault},
    operands::{Addends, RawOperand},
    spec::{Dtype, Epilogue, GemmConfig},
};
use rank::{Rank, SHAPE, alone, config, on_ranks, with_ranks};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_millis(500);

#[test]
fn consecutive_calls_are_right() {
    on_ranks(2, |rank| {
        let mut c = [rank.poisoned(), rank.poisoned(), rank.poisoned()];
        for c in &mut c {
            rank.launch(c).expect("launched");
        }
        c.iter().for_each(|c| rank.check(c));
        assert_eq!(rank.ranks.findings(), []);
    });
}

/// Returns the mistakes of the operands that `launch` reports.
fn faults(launched: Result<(), Error>) -> Vec<(Operand, OperandFault)> {
    match launched {
        Err(Error::Operands(faults)) => faults,
        other => panic!("{other:?}"),
    }
}

#[test]
fn operands_are_passed_by_name() {
    let (rank, other) = (alone(), alone());
    let (operator, stream) = (&rank.operator, &rank.stream);
    let mut c = rank.poisoned();

    let wrong = operator
        .call(stream)
        .read(Operand::A, &other.a)
        .read(Operand::B, &rank.b)
        .read(Operand::B, &rank.b)
        .read(Operand::C, &c)
        .launch();
    let (given, expected) = (other.ranks.context(), rank.ranks.context());
    let expected = [
        (
            Operand::A,
            OperandFault::WrongDevice {
                given: given.ordinal(),
                expected: expected.ordinal(),
            },
        ),
        (Operand::B, OperandFault::Twice),
        (Operand::C, OperandFault::Access { written: true }),
    ];
    assert_eq!(faults(wrong), expected, "all at once");

    let elsewhere = operator
        .call(&other.stream)
        .read(Operand::A, &rank.a)
        .read(Operand::B, &rank.b)
        .write(Operand::C, &mut c)
        .launch();
    assert!(
        matches!(elsewhere, Err(Error::Call(CallError::WrongDevice { .. }))),
        "{elsewhere:?}"
    );

    // Operands can be passed in any order. A refused call has no effect on later calls.
    operator
        .call(stream)
        .write(Operand::C, &mut c)
        .read(Operand::B, &rank.b)
        .read(Operand::A, &rank.a)
        .launch()
        .expect("launched");
    rank.check(&c);
    assert_eq!(rank.ranks.findings(), []);
}

/// Prepares an operator that adds a bias and a residual and writes fp32.
fn with_addends(ranks: &Communicator) -> Operator {
    let config = GemmConfig {
        epilogue: Epilogue {
            bias: true,
            residual: true,
            output: Some(Dtype::Fp32),
            ..Epilogue::default()
        },
        ..config(None)
    };
    let config = KernelConfig::new(1, config);
    ranks.prepare(&config, SHAPE).expect("prepared")
}

/// Returns the mistakes of a call without addends whose C is of bf16.
fn missing_addends() -> [(Operand, OperandFault); 3] {
    let missing = |operand| (operand, OperandFault::Missing { operand });
    let dtype = OperandFault::Dtype {
        operand: Operand::C,
        given: Dtype::Bf16,
        expected: Dtype::Fp32,
    };
    [
        (Operand::C, dtype),
        missing(Operand::Bias),
        missing(Operand::Residual),
    ]
}

#[test]
fn addends_are_required_exactly_where_they_are_declared() {
    let rank = alone();
    let Rank {
        stream,
        a,
        b,
        ranks,
        ..
    } = &rank;
    let operator = with_addends(ranks);
    let elems = (SHAPE.m * SHAPE.n) as usize;
    let upload = |elems| stream.clone_htod(&vec![bf16::from_f32(2.0); elems]);
    let bias = upload(SHAPE.n as usize).expect("uploaded");
    let residual = upload(elems).expect("uploaded");
    let mut fp32 = stream.clone_htod(&vec![f32::NAN; elems]).expect("uploaded");
    let mut c = rank.poisoned();

    let missing = faults(operator.launch(stream, a, b, &mut c));
    assert_eq!(missing, missing_addends(), "all at once");

    let short = Addends {
        bias: Some(&residual),
        residual: Some(&bias),
    };
    let wrong = faults(operator.launch_with(stream, a, b, &mut fp32, short));
    let operands: Vec<_> = wrong.iter().map(|(operand, _)| *operand).collect();
    assert_eq!(operands, [Operand::Residual], "a longer bias is no mistake");

    let both = Addends {
        bias: Some(&bias),
        residual: Some(&residual),
    };
    let unexpected = faults(rank.operator.launch_with(stream, a, b, &mut c, both));
    let operands: Vec<_> = unexpected.iter().map(|(operand, _)| *operand).collect();
    assert_eq!(operands, [Operand::Bias, Operand::Residual]);

    operator
        .launch_with(stream, a, b, &mut fp32, both)
        .expect("launched");
    ranks.synchronize(stream).expect("the calls succeed");
    let c = stream.clone_dtoh(&fp32).expect("downloaded");
    assert!(c.iter().all(|value| *value == 0.5 * SHAPE.k as f32 + 4.0));
}

#[test]
fn an_absent_rank_is_named() {
    on_ranks(4, |rank| {
        let mut c = rank.poisoned();
        rank.launch(&mut c).expect("launched");
        rank.check(&c);
        rank.ranks.barrier().expect("all ranks take part");
        if rank.ranks.rank() == 1 {
            return;
        }
        rank.ranks.set_timeout(DEADLINE);
        rank.launch(&mut c).expect("launched");
        let error = rank
            .ranks
            .synchronize(&rank.stream)
            .expect_err("a rank is away");
        let Error::Timeout {
            peer: 1,
            epoch: 2,
            waited,
            ..
        } = error
        else {
            panic!("{error}");
        };
        assert!(waited < 2 * DEADLINE, "{waited:?}");
        assert_eq!(rank.ranks.findings(), []);
        assert!(matches!(rank.launch(&mut c), Err(Error::Aborted { .. })));
    });
}

#[test]
fn an_abort_ends_the_waits_of_all_ranks() {
    on_ranks(4, |rank| {
        let mut c = rank.poisoned();
        rank.launch(&mut c).expect("launched");
        rank.check(&c);
        rank.ranks.barrier().expect("all ranks take part");
        if rank.ranks.rank() == 1 {
            return;
        }
        rank.launch(&mut c).expect("launched");
        let error = std::thread::scope(|scope| {
            if rank.ranks.rank() == 0 {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(100));
                    rank.ranks.abort();
                });
            }
            rank.ranks.synchronize(&rank.stream).expect_err("aborted")
        });
        let right = match &error {
            Error::Aborted { .. } => rank.ranks.rank() == 0,
            Error::Timeout {
                aborted_by, waited, ..
            } => {
                // The times are simulated, so a busy machine does not make the test fail.
                let early = *waited < rank.ranks.timeout();
                *aborted_by == Some(0) && rank.ranks.rank() != 0 && early
            }
            _ => false,
        };
        assert!(right, "{error}");
    });
}

/// The abort comes from another thread, and ends the call on this rank and on the rank that waits for this rank.
#[test]
fn an_abort_ends_a_prepare_that_waits() {
    let simulation = Simulation {
        ranks: 4,
        ..Simulation::default()
    };
    let ranks = Communicator::simulated(&simulation).expect("simulated GPUs");
    let config = KernelConfig::new(4, config(None));
    let prepare = |rank: usize| ranks[rank].prepare(&config, SHAPE).expect_err("aborted");
    let (started, is_over) = (Instant::now(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| prepare(1));
        scope.spawn(|| {
            // The abort is repeated, since the first abort may come before the call waits.
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
                ranks[0].abort();
            }
        });
        let error = prepare(0);
        is_over.store(true, Ordering::Relaxed);
        assert!(matches!(error, Error::Aborted { cause: None }), "{error}");
        let error = other.join().expect("no panic");
        let Error::RanksFailed { failures, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(failures[0].0, 0, "{error}");
    });
    assert!(started.elapsed() < Duration::from_secs(20));
}

/// A rank waits for its kernel for longer than the host timeout of the other rank. The rank then enters a barrier that the
/// other rank has entered earlier.
#[test]
fn a_rank_that_waits_for_its_simulated_gpu_is_not_missing() {
    on_ranks(2, |rank| {
        rank.ranks.barrier().expect("all ranks take part");
        rank.ranks.set_timeout(Duration::from_secs(6));
        rank.ranks.set_host_timeout(Duration::from_secs(4));
        if rank.ranks.rank() == 1 {
            let mut c = rank.poisoned();
            rank.launch(&mut c).expect("launched");
            let error = rank.ranks.synchronize(&rank.stream);
            let error = error.expect_err("the other rank launches nothing");
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
        }
        rank.ranks.barrier().expect("the slow rank takes part");
        rank.ranks.set_host_timeout(Duration::from_secs(20));
    });
}

#[test]
fn operands_may_be_freed_when_an_aborted_kernel_has_ended() {
    for delay_us in [0, 2_000, 10_000] {
        with_ranks(4, |rank| {
            let mut c = rank.poisoned();
            rank.launch(&mut c).expect("launched");
            rank.check(&c);
            rank.ranks.barrier().expect("all ranks take part");
            if rank.ranks.rank() == 1 {
                // Without this call, the other ranks wait but are not deadlocked.
                rank.ranks.barrier().expect("all ranks reach the end");
                return;
            }
            let _ = rank.launch(&mut c);
            if rank.ranks.rank() == 0 {
                std::thread::sleep(Duration::from_micros(delay_us));
                rank.ranks.abort();
            }
            let Rank {
                a,
                b,
                stream,
                ranks,
                operator,
                ..
            } = rank;
            stream.synchronize().expect("the kernel has ended");
            drop((a, b, c));
            stream.synchronize().expect("freed");
            drop(operator);
            assert_eq!(ranks.findings(), []);
            ranks.barrier().expect("all ranks reach the end");
        });
    }
}

/// After an abort, kernels run to their end without waiting for the contents of their buffers. Missing order after an
/// abort is therefore not reported as a finding. The last rank sends its rows after the other ranks have read them
/// without waiting.
#[test]
fn races_after_an_abort_are_not_reported() {
    let others_are_done = std::sync::Barrier::new(4);
    with_ranks(4, |rank| {
        let mut c = rank.poisoned();
        rank.ranks.barrier().expect("all ranks take part");
        if rank.ranks.rank() == 3 {
            others_are_done.wait();
            rank.launch(&mut c).expect("launched");
            let _ = rank.ranks.synchronize(&rank.stream);
        } else {
            rank.launch(&mut c).expect("launched");
            if rank.ranks.rank() == 0 {
                std::thread::sleep(Duration::from_millis(100));
                rank.ranks.abort();
            }
            let error = rank.ranks.synchronize(&rank.stream).expect_err("aborted");
            assert!(!matches!(error, Error::Simulation { .. }), "{error}");
            others_are_done.wait();
        }
        rank.ranks.barrier().expect("all ranks reach the end");
        assert_eq!(rank.ranks.findings(), []);
    });
}

#[test]
fn an_access_out_of_bounds_is_found() {
    on_ranks(2, |rank| {
        let short = rank.stream.alloc_zeros::<bf16>(64).expect("allocated");
        let operand = |slice: &CudaSlice<bf16>, row_stride_elems| RawOperand {
            ptr: slice.device_ptr(&rank.stream).0,
            row_stride_elems,
        };
        let operands = [
            operand(&rank.a, SHAPE.k),
            operand(&rank.b, SHAPE.k),
            operand(&short, SHAPE.n),
        ];
        // SAFETY: C is too short, which simulated GPUs detect.
        let launched = unsafe { rank.operator.launch_raw(rank.stream.cu_stream(), &operands) };
        launched.expect("launched");
        let error = rank.ranks.synchronize(&rank.stream);
        let error = error.expect_err("C is too short");
        let Error::Simulation { findings } = &error else {
            panic!("{error}");
        };
        assert!(
            findings
                .iter()
                .any(|finding| finding.text.contains("out of bounds")),
            "{error}"
        );
        assert!(rank.ranks.check().is_err());
    });
}
