//! Two calls that the host cannot order, such as a graph beside a launch, or two graphs.
//!
//! The kernel that comes second must be refused, without writing anything and without keeping a rank waiting.

use crate::jobs::{Backend, Machine, apply_edits, deadline};
use crate::lab::Failure;
use mkernel::Operand;
use mkernel::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use mkernel::cudarc::driver::{CudaGraph, CudaSlice, CudaStream};
use mkernel::half::bf16;
use mkernel::testing::prepare_edited;
use mkernel::{
    Communicator, Error, KernelConfig, Operator,
    spec::{BLayout, Dim, GemmConfig, GemmOp, GemmShape, Tuning},
};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// The SMs of a call. Two calls fit on a GPU at the same time.
const MAX_SMS: u32 = 4;

const SHAPE: GemmShape = GemmShape {
    m: 256,
    n: 64,
    k: 128,
};

/// The way in which a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaunchMode {
    /// The call is launched.
    Launched,
    /// The call is captured in a graph, which is replayed.
    Replayed,
}

/// Two calls that overlap: the operator of each call, and the way in which it is made.
#[derive(Clone, Copy, Debug)]
pub struct Overlap {
    first: (GemmOp, LaunchMode),
    second: (GemmOp, LaunchMode),
    /// Whether the tiles of the second operator are shared by clusters, if it is `ag_gemm`.
    has_clusters: bool,
}

/// A call with its operator, its stream and its operands.
struct PreparedCall {
    operator: Arc<Operator>,
    stream: Arc<CudaStream>,
    a: CudaSlice<bf16>,
    b: CudaSlice<bf16>,
    c: CudaSlice<bf16>,
    graph: Option<CudaGraph>,
}

impl PreparedCall {
    fn new(ranks: &Communicator, operator: &Arc<Operator>) -> Result<Self, Failure> {
        let stream = ranks.context().new_stream()?;
        let upload = |index: usize, value| {
            let spec = operator.plan().operands()[index];
            let elems = spec.rows.on(ranks.rank()) * spec.cols;
            stream.clone_htod(&vec![bf16::from_f32(value); elems as usize])
        };
        let (a, b, c) = (upload(0, 1.0)?, upload(1, 1.0)?, upload(2, 77.0)?);
        stream.synchronize()?;
        Ok(Self {
            operator: operator.clone(),
            stream,
            a,
            b,
            c,
            graph: None,
        })
    }

    fn call(&mut self) -> mkernel::Call<'_> {
        let call = self.operator.call(&self.stream);
        let call = call.read(Operand::A, &self.a).read(Operand::B, &self.b);
        call.write(Operand::C, &mut self.c)
    }

    /// Captures the call in a graph if it will be replayed.
    fn capture_if_replayed(&mut self, mode: LaunchMode) -> Result<(), Failure> {
        if mode == LaunchMode::Replayed {
            let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            self.stream.begin_capture(mode)?;
            // SAFETY: the graph and the operands are dropped together, after all work of the stream.
            unsafe { self.call().capture()? };
            self.graph = self.stream.end_capture(CUgraphInstantiate_flags(0))?;
        }
        Ok(())
    }

    fn make(&mut self) -> Result<(), Failure> {
        match &self.graph {
            Some(graph) => Ok(graph.launch()?),
            None => Ok(self.call().launch()?),
        }
    }

    fn is_untouched(&self) -> Result<bool, Failure> {
        let c = self.stream.clone_dtoh(&self.c)?;
        Ok(c.iter().all(|c| *c == bf16::from_f32(77.0)))
    }
}

fn prepare(
    ranks: &Communicator,
    (op, has_clusters): (GemmOp, bool),
    edits: &[(String, String)],
) -> Result<Arc<Operator>, Error> {
    let config = GemmConfig {
        m: Dim::Static(SHAPE.m),
        n: Dim::Static(SHAPE.n),
        k: Dim::Static(SHAPE.k),
        b_layout: BLayout::Nk,
        tuning: Tuning {
            split_k: has_clusters.then_some(2),
            cluster: has_clusters.then_some(true),
            ..Tuning::default()
        },
        ..GemmConfig::new(op)
    };
    let config = KernelConfig {
        max_sms: Some(MAX_SMS),
        ..KernelConfig::new(ranks.world(), config)
    };
    // SAFETY: mutated kernels run on simulated GPUs only, which check every access.
    let operator = unsafe {
        prepare_edited(ranks, &config, SHAPE, |text| {
            apply_edits(ranks, edits, text)
        })?
    };
    Ok(Arc::new(operator))
}

/// Makes two overlapping calls on two ranks, with edited kernels. Rank 1 makes its calls only after rank 0 has seen the
/// error. On rank 0, the first call is therefore still running when the second call begins.
///
/// # Errors
/// The second call is not refused, the second call writes its result, or rank 1 waits for long.
pub fn run_overlap(
    backend: Backend,
    overlap: Overlap,
    edits: &[(&str, &str)],
) -> Result<(), String> {
    let owned = |(from, to): &(&str, &str)| ((*from).to_owned(), (*to).to_owned());
    let edits: Vec<_> = edits.iter().map(owned).collect();
    let machine = Machine {
        world: 2,
        sms: 2 * MAX_SMS,
        skew: 60,
    };
    let first_is_done = Barrier::new(2);
    let outcomes = machine.run_ranks(backend, |ranks, _| {
        ranks.set_timeout(deadline(edits.is_empty()));
        // SAFETY: the operands of a call are used on its stream only. Slices that track events cannot be captured.
        unsafe { ranks.context().disable_event_tracking() };
        let (first, second) = (overlap.first, overlap.second);
        let one = prepare(ranks, (first.0, false), &edits)?;
        let is_same = first.0 == second.0;
        let other = match is_same {
            true => one.clone(),
            false => prepare(ranks, (second.0, overlap.has_clusters), &edits)?,
        };
        let mut calls = [
            PreparedCall::new(ranks, &one)?,
            PreparedCall::new(ranks, &other)?,
        ];
        for (call, mode) in calls.iter_mut().zip([first.1, second.1]) {
            call.capture_if_replayed(mode)?;
        }
        ranks.barrier()?;
        let outcome = match ranks.rank() {
            0 => make_both(ranks, &mut calls, is_same),
            _ => Ok(()),
        };
        first_is_done.wait();
        match ranks.rank() {
            0 => outcome,
            _ => make_late(ranks, &mut calls),
        }
    });
    outcomes
        .map_err(|error| error.to_string())?
        .into_iter()
        .collect::<Result<Vec<()>, String>>()
        .map(|_| ())
}

/// Makes both calls on rank 0, where they overlap, and checks that the second call is refused.
fn make_both(
    ranks: &Communicator,
    calls: &mut [PreparedCall; 2],
    is_same: bool,
) -> Result<(), Failure> {
    calls[0].make()?;
    // The first call begins and waits for the other rank. A simulated GPU works only while a thread waits for it.
    let stream = calls[0].stream.clone();
    let waiting = std::thread::spawn(move || stream.synchronize());
    std::thread::sleep(Duration::from_secs(1));
    calls[1].make()?;
    let error = ranks.synchronize(&calls[1].stream);
    let second = if is_same { (1, 2) } else { (2, 1) };
    match error {
        Err(Error::Overlap {
            rank: 0,
            operator,
            call,
            other_operator,
            other_call: 1,
        }) if (operator.number(), call) == second && other_operator.number() == 1 => {}
        other => return Err(format!("not the overlap, but {other:?}").into()),
    }
    if !calls[1].is_untouched()? {
        return Err("the second call has written its result".into());
    }
    // The first call also ends.
    Ok(waiting.join().map_err(|_| "a panic")??)
}

/// Makes both calls on rank 1. The calls end with an error at once, since rank 0 has aborted. Only the first call may
/// succeed, if rank 0 had sent all data of this call before.
fn make_late(ranks: &Communicator, calls: &mut [PreparedCall; 2]) -> Result<(), Failure> {
    let started = Instant::now();
    let mut outcome = Ok(());
    for call in calls {
        outcome = outcome.and_then(|()| call.make());
        outcome = outcome.and_then(|()| Ok(ranks.synchronize(&call.stream)?));
    }
    let Err(failure) = outcome.map_err(|failure: Failure| failure.to_string()) else {
        return Err("all calls succeeded".into());
    };
    let names_the_cause =
        failure.contains("Rank 0 failed first") || failure.contains("cannot be used any more");
    let is_at_once = started.elapsed() < deadline(true) / 2;
    match names_the_cause && is_at_once {
        true => Ok(()),
        false => Err(failure.into()),
    }
}

/// The overlaps that tests make.
///
/// The first call is always of a kernel that counts its CTAs at the very end. Other kernels may count a CTA as soon as
/// it waits for no other CTA to start, and a call that begins after that is not refused. The moment depends on the lane
/// that is elected.
pub const OVERLAPS: [Overlap; 5] = [
    Overlap {
        first: (GemmOp::GemmRs, LaunchMode::Launched),
        second: (GemmOp::GemmRs, LaunchMode::Replayed),
        has_clusters: false,
    },
    Overlap {
        first: (GemmOp::GemmAr, LaunchMode::Replayed),
        second: (GemmOp::GemmAr, LaunchMode::Launched),
        has_clusters: false,
    },
    Overlap {
        first: (GemmOp::GemmRs, LaunchMode::Launched),
        second: (GemmOp::AgGemm, LaunchMode::Replayed),
        has_clusters: false,
    },
    Overlap {
        first: (GemmOp::GemmAr, LaunchMode::Replayed),
        second: (GemmOp::GemmRs, LaunchMode::Replayed),
        has_clusters: false,
    },
    Overlap {
        first: (GemmOp::GemmAr, LaunchMode::Launched),
        second: (GemmOp::AgGemm, LaunchMode::Replayed),
        has_clusters: true,
    },
];
