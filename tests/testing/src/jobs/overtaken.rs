//! Three calls. Rank 0 makes the second call on another stream, so that this call begins while the first call still
//! runs there.
//!
//! The second call is not refused, since the first call has counted its CTAs. Rank 1 orders its calls, and begins the
//! third call as soon as the second call has ended. The data of the third call then goes to the buffers that the first
//! call reads on rank 0. Edits of the kernel's text make sure of this order on simulated GPUs and on GPUs.

use super::{Backend, Machine, apply_edits, deadline};
use crate::graph::Graph;
use crate::lab::Failure;
use mkernel::cudarc::driver::{CudaSlice, CudaStream};
use mkernel::half::bf16;
use mkernel::testing::prepare_edited;
use mkernel::{
    Communicator, Error, KernelConfig, Operand, Operator,
    spec::{CollectiveConfig, CollectiveOp, CollectiveShape, Dim, Protocol},
};
use std::sync::Arc;

const WORLD: u32 = 2;
const CALLS: u32 = 3;
const SHAPE: CollectiveShape = CollectiveShape { m: 64, n: 64 };

/// A collective whose grid is small, so that two calls fit on a GPU at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Overtaken {
    /// The collective.
    pub op: CollectiveOp,
    /// The number of shots of an all-reduce.
    pub shots: Option<u32>,
    /// The protocol.
    pub protocol: Protocol,
}

/// The collectives whose calls are tested.
pub const OVERTAKEN: [Overtaken; 5] = [
    Overtaken::packets(CollectiveOp::AllReduce, Some(1)),
    Overtaken::packets(CollectiveOp::AllReduce, Some(2)),
    Overtaken::packets(CollectiveOp::AllGather, None),
    Overtaken::packets(CollectiveOp::AllToAll, None),
    Overtaken {
        op: CollectiveOp::ReduceScatter,
        shots: None,
        protocol: Protocol::Simple,
    },
];

impl Overtaken {
    /// The place in the kernel's text behind which a warp waits for data of its peers.
    const fn wait(self) -> &'static str {
        match (self.op, self.shots) {
            (CollectiveOp::ReduceScatter, _) => "      wait_partials(ctx, unit);\n",
            (CollectiveOp::AllReduce, Some(1)) => "    have_arrived = wait_parts(ctx, i, parts);\n",
            _ => "    for (;;) {\n      Vec16 data;\n",
        }
    }

    const fn packets(op: CollectiveOp, shots: Option<u32>) -> Self {
        Self {
            op,
            shots,
            protocol: Protocol::Ll,
        }
    }

    fn config(self) -> KernelConfig {
        let collective = CollectiveConfig {
            m: Dim::Static(SHAPE.m),
            n: Dim::Static(SHAPE.n),
            protocol: Some(self.protocol),
            shots: self.shots,
            ..CollectiveConfig::new(self.op)
        };
        KernelConfig {
            max_sms: Some(4),
            ..KernelConfig::new(WORLD, collective)
        }
    }

    /// Returns the elements of the result of a call if all elements of rank r are `value_of(call, r)`.
    fn result(self, call: u32) -> Vec<f32> {
        let of = |rank| value_of(call, rank);
        let whole = (SHAPE.m * SHAPE.n) as usize;
        let half = whole / WORLD as usize;
        match self.op {
            CollectiveOp::AllReduce => vec![of(0) + of(1); whole],
            CollectiveOp::ReduceScatter => vec![of(0) + of(1); half],
            CollectiveOp::Broadcast => vec![of(0); whole],
            CollectiveOp::AllGather | CollectiveOp::AllToAll => {
                [0, 1].into_iter().flat_map(|r| vec![of(r); half]).collect()
            }
        }
    }
}

/// A value for each call and each rank, so that data of another call gives another result.
fn value_of(call: u32, rank: u32) -> f32 {
    (1u32 << (2 * call + rank)) as f32
}

/// On rank 0, later calls start when the first call has counted its CTAs.
const START: (&str, &str) = (
    "wait_for_grids_before();",
    "wait_for_grids_before(); \
     if (args.rank == 0 && (load_word(args.x) & 0xffff) != 0x3f80) \
     for (u32 i = 0; i < 100000 && load_relaxed_sys(&args.gate->due) == 0; ++i) __nanosleep(1000);",
);

/// On rank 0, warps of the first call that do not count the call wait until the second call has begun, and then for 2
/// ms.
const HOLD: &str = "if (ctx.rank == 0 && ctx.epoch == 1 && threadIdx.x >= 64) {
      for (u32 i = 0; i < 100000 && load_relaxed_sys(&ctx.gate->entered[0]) == gridDim.x; ++i) __nanosleep(1000);
      for (u32 i = 0; i < 2000; ++i) __nanosleep(1000);
    }
";

struct PreparedCall {
    x: CudaSlice<bf16>,
    y: CudaSlice<bf16>,
}

/// Makes the calls with kernels that are edited further.
///
/// # Errors
/// Rank 0 does not report the overlap.
pub fn run_overtaken(
    backend: Backend,
    overtaken: Overtaken,
    edits: &[(&str, &str)],
) -> Result<(), String> {
    let owned = |(from, to): &(&str, &str)| ((*from).to_owned(), (*to).to_owned());
    let wait = overtaken.wait();
    let mut all = vec![owned(&START), (wait.to_owned(), format!("{HOLD}{wait}"))];
    all.extend(edits.iter().map(owned));
    let machine = Machine {
        world: WORLD,
        sms: 8,
        skew: 90,
    };
    let outcomes = machine.run_ranks(backend, |ranks, _| {
        ranks.set_timeout(deadline(edits.is_empty()));
        // SAFETY: the operands of a call are used on its stream only. Slices that track events cannot be captured.
        unsafe { ranks.context().disable_event_tracking() };
        // SAFETY: the edits of this file only delay warps. Kernels that are edited further run on simulated GPUs only,
        // which check every access.
        let operator = unsafe {
            prepare_edited(ranks, &overtaken.config(), SHAPE, |text| {
                apply_edits(ranks, &all, text)
            })?
        };
        make_calls(ranks, &operator, overtaken)
    })?;
    // The calls of rank 1 may succeed, or fail because of rank 0.
    outcomes.into_iter().next().ok_or("no ranks")?
}

fn make_calls(
    ranks: &Communicator,
    operator: &Operator,
    overtaken: Overtaken,
) -> Result<(), Failure> {
    let rank = ranks.rank();
    let streams = [ranks.context().new_stream()?, ranks.context().new_stream()?];
    // Rank 1 makes all calls on one stream.
    let stream_of = |call: u32| &streams[usize::from(rank == 0 && call > 0)];
    let mut calls = Vec::new();
    for call in 0..CALLS {
        let specs = operator.plan().operands();
        let elems = specs
            .iter()
            .map(|spec| (spec.rows.on(rank) * spec.cols) as usize);
        let elems: Vec<usize> = elems.collect();
        let x = vec![bf16::from_f32(value_of(call, rank)); elems[0]];
        let x = stream_of(call).clone_htod(&x)?;
        let y = stream_of(call).clone_htod(&vec![bf16::NAN; elems[1]])?;
        calls.push(PreparedCall { x, y });
    }
    let graphs = (0..).zip(&mut calls).map(|(index, call)| {
        let stream = stream_of(index);
        Graph::capture(ranks, stream, || {
            let launch = operator.call(stream).read(Operand::X, &call.x);
            // SAFETY: the operands are dropped after all work of the streams.
            Ok(unsafe { launch.write(Operand::Y, &mut call.y).capture() }?)
        })
    });
    let graphs = graphs.collect::<Result<Vec<_>, _>>()?;
    ranks.context().synchronize()?;
    ranks.barrier()?;
    for (call, graph) in (0..).zip(&graphs) {
        graph.launch(stream_of(call))?;
    }
    let ended = streams
        .iter()
        .try_for_each(|stream: &Arc<CudaStream>| ranks.synchronize(stream));
    match ended {
        Err(Error::Overlap {
            rank: 0,
            operator,
            call: 2,
            other_operator,
            other_call: 1,
        }) if (operator.number(), other_operator.number()) == (1, 1) => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(()) => {}
    }
    for (index, call) in (0..).zip(&calls) {
        let got = stream_of(index).clone_dtoh(&call.y)?;
        let got: Vec<f32> = got.into_iter().map(bf16::to_f32).collect();
        if got != overtaken.result(index) {
            return Err(format!("call {} is wrong", index + 1).into());
        }
    }
    Err("all calls are right, so that none was overtaken".into())
}
