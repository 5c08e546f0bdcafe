//! Two calls that the host cannot order: a graph beside a launch, two graphs, of one operator or of two. The kernel that
//! comes second is refused, writes nothing, and keeps no rank waiting.

use crate::jobs::{Machine, Where, apply, deadline};
use mkernel::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use mkernel::cudarc::driver::{CudaGraph, CudaSlice, CudaStream};
use mkernel::half::bf16;
use mkernel::spec::abi::Operand;
use mkernel::{
    BLayout, Communicator, Dim, Error, GemmConfig, GemmOp, GemmShape, KernelConfig, Operator,
};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

const SHAPE: GemmShape = GemmShape {
    m: 256,
    n: 64,
    k: 64,
};

/// How the first call and the second are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Launched,
    Replayed,
}

/// Operators of the two calls, and how they are made.
#[derive(Clone, Copy, Debug)]
pub struct Meeting {
    first: (GemmOp, How),
    second: (GemmOp, How),
}

/// What one call needs.
struct Call {
    operator: Arc<Operator>,
    stream: Arc<CudaStream>,
    a: CudaSlice<bf16>,
    b: CudaSlice<bf16>,
    c: CudaSlice<bf16>,
    graph: Option<CudaGraph>,
}

impl Call {
    fn new(ranks: &Communicator, operator: &Arc<Operator>) -> Result<Self, Failure> {
        let stream = ranks.context().new_stream()?;
        let upload = |index: usize, value| {
            let spec = &operator.plan().operands[index];
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

    /// Captures it, if it is to be replayed.
    fn ready(&mut self, how: How) -> Result<(), Failure> {
        if how == How::Replayed {
            let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            self.stream.begin_capture(mode)?;
            // SAFETY: the graph and the operands go together, after all work of the stream.
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
    op: GemmOp,
    edits: &[(String, String)],
) -> Result<Arc<Operator>, Error> {
    let config = GemmConfig {
        m: Dim::Static(SHAPE.m),
        n: Dim::Static(SHAPE.n),
        k: Dim::Static(SHAPE.k),
        b_layout: BLayout::Nk,
        ..GemmConfig::new(op)
    };
    let config = KernelConfig::new(ranks.world(), config);
    // SAFETY: planted mistakes are for simulated GPUs, which check every access of a kernel.
    let operator = unsafe { ranks.prepare_edited(&config, SHAPE, |text| apply(edits, text))? };
    Ok(Arc::new(operator))
}

/// Two ranks, of which the second does not come before the first has looked: so the first call is under way when the
/// second begins. What each rank says.
pub fn meet(place: Where, meeting: Meeting, edits: &[(&str, &str)]) -> Result<(), String> {
    let owned = |(from, to): &(&str, &str)| ((*from).to_owned(), (*to).to_owned());
    let edits: Vec<_> = edits.iter().map(owned).collect();
    let (has_looked, machine) = (
        Barrier::new(2),
        Machine {
            world: 2,
            sms: 4,
            skew: 60,
        },
    );
    let said = machine.each(place, |ranks, _| {
        ranks.set_timeout(deadline(edits.is_empty()));
        // SAFETY: what a call needs is used on its stream alone. Slices that track events cannot be captured.
        unsafe { ranks.context().disable_event_tracking() };
        let (first, second) = (meeting.first, meeting.second);
        let one = prepare(ranks, first.0, &edits)?;
        let is_same = first.0 == second.0;
        let other = match is_same {
            true => one.clone(),
            false => prepare(ranks, second.0, &edits)?,
        };
        let mut calls = [Call::new(ranks, &one)?, Call::new(ranks, &other)?];
        for (call, how) in calls.iter_mut().zip([first.1, second.1]) {
            call.ready(how)?;
        }
        ranks.barrier()?;
        let said = match ranks.rank() {
            0 => overlap(ranks, &mut calls, is_same),
            _ => Ok(()),
        };
        has_looked.wait();
        match ranks.rank() {
            0 => said,
            _ => late(ranks, &mut calls),
        }
    });
    said.map_err(|error| error.to_string())?
        .into_iter()
        .collect::<Result<Vec<()>, String>>()
        .map(|_| ())
}

/// The rank on which they meet.
fn overlap(ranks: &Communicator, calls: &mut [Call; 2], is_same: bool) -> Result<(), Failure> {
    calls[0].make()?;
    // It enters, and waits for the other rank. Simulated GPUs work while somebody waits for them.
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
            other_operator: 1,
            other_call: 1,
        }) if (operator, call) == second => {}
        said => return Err(format!("not the overlap, but {said:?}").into()),
    }
    if !calls[1].is_untouched()? {
        return Err("the second call has written its result".into());
    }
    // The first one ends, too.
    Ok(waiting.join().map_err(|_| "a panic")??)
}

/// The other one: its calls end at once, since they are no calls. The first may have got all it needs.
fn late(ranks: &Communicator, calls: &mut [Call; 2]) -> Result<(), Failure> {
    let started = Instant::now();
    let mut said = Ok(());
    for call in calls {
        said = said.and_then(|()| call.make());
        said = said.and_then(|()| Ok(ranks.synchronize(&call.stream)?));
    }
    let Err(failure) = said.map_err(|failure: Failure| failure.to_string()) else {
        return Err("nothing was wrong".into());
    };
    let is_told =
        failure.contains("Rank 0 timed out first") || failure.contains("cannot be used any more");
    let is_at_once = started.elapsed() < deadline(true) / 2;
    match is_told && is_at_once {
        true => Ok(()),
        false => Err(failure.into()),
    }
}

/// The first calls are of kernels that count their CTAs at the very end. Others may count them as soon as a CTA waits for no
/// other one to start, which depends on the lane that is elected; a call that begins after that is not refused.
pub const MEETINGS: [Meeting; 4] = [
    Meeting {
        first: (GemmOp::GemmRs, How::Launched),
        second: (GemmOp::GemmRs, How::Replayed),
    },
    Meeting {
        first: (GemmOp::GemmAr, How::Replayed),
        second: (GemmOp::GemmAr, How::Launched),
    },
    Meeting {
        first: (GemmOp::GemmRs, How::Launched),
        second: (GemmOp::AgGemm, How::Replayed),
    },
    Meeting {
        first: (GemmOp::GemmAr, How::Replayed),
        second: (GemmOp::GemmRs, How::Replayed),
    },
];
