//! Operators on simulated GPUs: calls, graphs, and ranks that fail, with the same kernels as on GPUs.

#![cfg(feature = "simulator")]

use mkernel::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use mkernel::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use mkernel::half::bf16;
use mkernel::spec::abi::Operand;
use mkernel::{
    Addends, BLayout, Communicator, Dim, Dtype, Epilogue, Error, GemmConfig, GemmOp, GemmShape,
    KernelConfig, OperandFault, Operator, RawOperand, Simulation, Transfer, Tuning,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SHAPE: GemmShape = GemmShape {
    m: 512,
    n: 64,
    k: 64,
};
const DEADLINE: Duration = Duration::from_millis(500);

/// Runs `body` on each rank of a simulated job, for each way of transfer.
fn on_ranks(ranks: u32, body: impl Fn(&Rank) + Sync) {
    for (seed, transfer) in [(1, Transfer::SmPush), (2, Transfer::CopyEngine)] {
        let simulation = Simulation {
            ranks,
            seed,
            ..Simulation::default()
        };
        let communicators = Communicator::simulated(&simulation).expect("simulated GPUs");
        std::thread::scope(|scope| {
            for ranks in communicators {
                let body = &body;
                scope.spawn(move || {
                    let rank = Rank::new(ranks, Some(transfer));
                    body(&rank);
                    rank.ranks.barrier().expect("all came to the end");
                });
            }
        });
    }
}

fn config(transfer: Option<Transfer>) -> GemmConfig {
    GemmConfig {
        m: Dim::Static(SHAPE.m),
        n: Dim::Static(SHAPE.n),
        k: Dim::Static(SHAPE.k),
        b_layout: BLayout::Nk,
        tuning: Tuning {
            transfer,
            ..Tuning::default()
        },
        ..GemmConfig::new(GemmOp::AgGemm)
    }
}

struct Rank {
    operator: Operator,
    stream: Arc<CudaStream>,
    a: CudaSlice<bf16>,
    b: CudaSlice<bf16>,
    ranks: Communicator,
}

impl Rank {
    fn new(ranks: Communicator, transfer: Option<Transfer>) -> Self {
        let config = KernelConfig::new(ranks.world(), config(transfer));
        // SAFETY: this test uses one stream for each rank.
        unsafe { ranks.context().disable_event_tracking() };
        let operator = ranks.prepare(&config, SHAPE).expect("prepared");
        let stream = ranks.context().new_stream().expect("a stream");
        let rows = SHAPE.m / u64::from(ranks.world());
        let upload = |elems: u64, value| {
            let values = vec![bf16::from_f32(value); elems as usize];
            stream.clone_htod(&values).expect("uploaded")
        };
        Self {
            a: upload(rows * SHAPE.k, 1.0 + ranks.rank() as f32),
            b: upload(SHAPE.n * SHAPE.k, 0.5),
            operator,
            stream,
            ranks,
        }
    }

    fn poisoned(&self) -> CudaSlice<bf16> {
        let poison = vec![bf16::NAN; (SHAPE.m * SHAPE.n) as usize];
        self.stream.clone_htod(&poison).expect("uploaded")
    }

    fn launch(&self, c: &mut CudaSlice<bf16>) -> Result<(), Error> {
        self.operator.launch(&self.stream, &self.a, &self.b, c)
    }

    /// Every row of C is the same number, which says whose shard it was computed from.
    fn check(&self, c: &CudaSlice<bf16>) {
        self.ranks.synchronize(&self.stream).expect("well");
        let c = self.stream.clone_dtoh(c).expect("downloaded");
        let rows = SHAPE.m / u64::from(self.ranks.world());
        for (i, value) in (0..).zip(&c) {
            let source = i / SHAPE.n / rows;
            let expected = (1 + source) as f32 * 0.5 * SHAPE.k as f32;
            assert_eq!(value.to_f32(), expected, "element {i}");
        }
    }
}

#[test]
fn calls_one_after_the_other() {
    on_ranks(2, |rank| {
        let mut c = [rank.poisoned(), rank.poisoned(), rank.poisoned()];
        for c in &mut c {
            rank.launch(c).expect("launched");
        }
        c.iter().for_each(|c| rank.check(c));
        assert_eq!(rank.ranks.findings(), []);
    });
}

/// What `launch` says is wrong with its operands.
fn faults(launched: Result<(), Error>) -> Vec<(Operand, OperandFault)> {
    match launched {
        Err(Error::Operands(faults)) => faults,
        other => panic!("{other:?}"),
    }
}

/// The one rank of a job.
fn alone() -> Rank {
    let simulation = Simulation {
        ranks: 1,
        ..Simulation::default()
    };
    let ranks = Communicator::simulated(&simulation).expect("a simulated GPU");
    Rank::new(ranks.into_iter().next().expect("a rank"), None)
}

#[test]
fn operands_go_by_name() {
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
        matches!(elsewhere, Err(Error::WrongDevice { .. })),
        "{elsewhere:?}"
    );

    // In any order; what was refused has left nothing behind.
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

#[test]
fn addends_are_wanted_where_they_are_declared() {
    let rank = alone();
    let Rank {
        stream,
        a,
        b,
        ranks,
        ..
    } = &rank;
    let config = GemmConfig {
        epilogue: Epilogue {
            bias: true,
            residual: true,
            output: Dtype::Fp32,
            ..Epilogue::default()
        },
        ..config(None)
    };
    let config = KernelConfig::new(1, config);
    let operator = ranks.prepare(&config, SHAPE).expect("prepared");
    let elems = (SHAPE.m * SHAPE.n) as usize;
    let upload = |elems| stream.clone_htod(&vec![bf16::from_f32(2.0); elems]);
    let bias = upload(SHAPE.n as usize).expect("uploaded");
    let residual = upload(elems).expect("uploaded");
    let mut fp32 = stream.clone_htod(&vec![f32::NAN; elems]).expect("uploaded");
    let mut c = rank.poisoned();

    let missing = faults(operator.launch(stream, a, b, &mut c));
    let expected = [
        (
            Operand::C,
            OperandFault::Dtype {
                operand: Operand::C,
                given: Dtype::Bf16,
                expected: Dtype::Fp32,
            },
        ),
        (
            Operand::Bias,
            OperandFault::Missing {
                operand: Operand::Bias,
            },
        ),
        (
            Operand::Residual,
            OperandFault::Missing {
                operand: Operand::Residual,
            },
        ),
    ];
    assert_eq!(missing, expected, "all at once");

    let short = Addends {
        bias: Some(&residual),
        residual: Some(&bias),
    };
    let wrong = faults(operator.launch_with(stream, a, b, &mut fp32, short));
    assert_eq!(wrong.len(), 2, "{wrong:?}");

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
    ranks.synchronize(stream).expect("well");
    let c = stream.clone_dtoh(&fp32).expect("downloaded");
    assert!(c.iter().all(|value| *value == 0.5 * SHAPE.k as f32 + 4.0));
}

#[test]
fn calls_are_replayed() {
    on_ranks(2, |rank| {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let mut c = rank.poisoned();
        rank.stream.synchronize().expect("uploaded");
        rank.stream.begin_capture(mode).expect("capturing");
        rank.launch(&mut c).expect("captured");
        let graph = rank.stream.end_capture(CUgraphInstantiate_flags(0));
        let graph = graph.expect("captured").expect("a graph");
        for _ in 0..3 {
            let poison = vec![bf16::NAN; (SHAPE.m * SHAPE.n) as usize];
            rank.stream.memcpy_htod(&poison, &mut c).expect("poisoned");
            graph.launch().expect("replayed");
            rank.check(&c);
        }
        let mut eager = rank.poisoned();
        rank.launch(&mut eager).expect("launched");
        rank.check(&eager);
    });
}

#[test]
fn an_absent_rank_is_named() {
    on_ranks(4, |rank| {
        let mut c = rank.poisoned();
        rank.launch(&mut c).expect("launched");
        rank.check(&c);
        rank.ranks.barrier().expect("all came");
        if rank.ranks.rank() == 1 {
            return;
        }
        rank.ranks.set_timeout(DEADLINE);
        let started = Instant::now();
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
        assert!(started.elapsed() < Duration::from_secs(10));
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
        rank.ranks.barrier().expect("all came");
        if rank.ranks.rank() == 1 {
            return;
        }
        rank.launch(&mut c).expect("launched");
        let started = Instant::now();
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
            Error::Timeout { aborted_by, .. } => *aborted_by == Some(0) && rank.ranks.rank() != 0,
            _ => false,
        };
        assert!(right, "{error}");
        assert!(
            started.elapsed() < Duration::from_secs(5),
            "{:?}",
            started.elapsed()
        );
    });
}

/// After an abort kernels run to their end over whatever is in their buffers: what they do wrong then is no finding.
#[test]
fn nothing_is_found_after_an_abort() {
    on_ranks(4, |rank| {
        // The rows of the last rank, which never launches, are written after the abort only; one of them is missing.
        let elems = (SHAPE.m - 1) * SHAPE.n;
        let short = rank.stream.alloc_zeros::<bf16>(elems as usize);
        let short = short.expect("allocated");
        rank.ranks.barrier().expect("all came");
        if rank.ranks.rank() == 3 {
            return;
        }
        let operand = |slice: &CudaSlice<bf16>, row_stride_elems| RawOperand {
            ptr: slice.device_ptr(&rank.stream).0,
            row_stride_elems,
        };
        let operands = [
            operand(&rank.a, SHAPE.k),
            operand(&rank.b, SHAPE.k),
            operand(&short, SHAPE.n),
        ];
        // SAFETY: C is too short, which simulated GPUs notice.
        let launched = unsafe { rank.operator.launch_raw(rank.stream.cu_stream(), &operands) };
        launched.expect("launched");
        let error = std::thread::scope(|scope| {
            if rank.ranks.rank() == 0 {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(100));
                    rank.ranks.abort();
                });
            }
            rank.ranks.synchronize(&rank.stream).expect_err("aborted")
        });
        assert!(!matches!(error, Error::Simulation { .. }), "{error}");
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
        // SAFETY: C is too short, which simulated GPUs notice.
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
