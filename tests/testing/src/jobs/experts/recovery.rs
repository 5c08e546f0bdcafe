//! A call whose operands have wrong values, and what comes after it.

use super::buffers::Buffers;
use super::layer::Layer;
use super::reference::same;
use crate::jobs::Where;
use crate::jobs::emulated;
use mkernel::cudarc::driver::CudaStream;
use mkernel::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use mkernel::{Communicator, Error, Operator};
use std::sync::Arc;
use std::time::Duration;

type Failure = Box<dyn std::error::Error>;

/// How the first call of a layer is wrong, and how often it is made before the host looks.
#[derive(Clone, Copy, Debug)]
pub struct Wrong {
    /// A choice of rank 0 has no place, else `dispatch_gemm` has wrong operands.
    pub is_place: bool,
    pub times: u32,
    /// As a graph that is replayed.
    pub in_graph: bool,
}

impl Layer {
    /// Makes the first call, which is wrong, then the second, which is right. What each rank says of the first: the only
    /// error there may be.
    pub fn recover(&self, place: Where, wrong: Wrong) -> Vec<Result<String, String>> {
        let transport = emulated(&self.faults, place);
        let said = self.machine().each(place, |ranks, _| {
            ranks.set_transport(transport.clone());
            self.recover_on(ranks, wrong)
        });
        said.expect("GPUs")
    }

    fn recover_on(&self, ranks: &Communicator, wrong: Wrong) -> Result<String, Failure> {
        ranks.set_timeout(Duration::from_secs(20));
        // SAFETY: all is done on one stream. Slices that track events cannot be captured.
        unsafe { ranks.context().disable_event_tracking() };
        let (dispatch, combine) = self.prepare(ranks)?;
        let stream = ranks.context().new_stream()?;
        let rank = ranks.rank() as usize;
        let weights = stream.clone_htod(&self.weights(rank))?;
        let mut first = Buffers::new(&stream, &self.values(0, rank))?;
        if wrong.is_place {
            first.dispatch(&stream, &dispatch, &weights)?;
            if rank == 0 {
                first.spoil_place(&stream, 1)?;
            }
        }
        stream.synchronize()?;
        make(&stream, wrong, || match wrong.is_place {
            true => first.combine(&stream, &combine),
            false => first.dispatch(&stream, &dispatch, &weights),
        })?;
        let fault = match ranks.synchronize(&stream) {
            Err(fault @ Error::Routing { .. }) => fault,
            said => return Err(format!("not a fault, but {said:?}").into()),
        };
        ranks.check()?;
        self.is_right_after(ranks, (&dispatch, &combine), &stream)?;
        Ok(fault.to_string())
    }

    /// The second call.
    fn is_right_after(
        &self,
        ranks: &Communicator,
        (dispatch, combine): (&Operator, &Operator),
        stream: &Arc<CudaStream>,
    ) -> Result<(), Failure> {
        let rank = ranks.rank() as usize;
        let weights = stream.clone_htod(&self.weights(rank))?;
        let mut second = Buffers::new(stream, &self.values(1, rank))?;
        second.dispatch(stream, dispatch, &weights)?;
        second.combine(stream, combine)?;
        ranks.synchronize(stream)?;
        let (got, expected) = (second.got(stream)?, self.expected(1, &self.calls[1], rank));
        let is_right = got.places == expected.places
            && got.offsets == expected.offsets
            && same(&got.rows, &expected.rows)
            && same(&got.sums, &expected.sums);
        is_right.then_some(()).ok_or("the next call is wrong")?;
        // Not before the peers are done.
        Ok(ranks.barrier()?)
    }
}

/// On every rank each of `ways` returns a fault that has all `parts`, once, and the call after it is right.
pub fn recovers(layer: &Layer, place: Where, ways: &[Wrong], parts: &[&str]) {
    for wrong in ways {
        for (rank, said) in layer.recover(place, *wrong).into_iter().enumerate() {
            let fault = said.unwrap_or_else(|failure| panic!("rank {rank}, {wrong:?}: {failure}"));
            for part in parts {
                assert!(fault.contains(part), "rank {rank}: {part:?} in {fault:?}");
            }
        }
    }
}

/// Wrong calls that are made once and several times, launched and replayed.
pub fn ways(is_place: bool) -> [Wrong; 4] {
    [(1, false), (3, false), (1, true), (3, true)].map(|(times, in_graph)| Wrong {
        is_place,
        times,
        in_graph,
    })
}

/// Makes a call as often as wanted.
fn make(
    stream: &Arc<CudaStream>,
    wrong: Wrong,
    mut call: impl FnMut() -> Result<(), Error>,
) -> Result<(), Failure> {
    if !wrong.in_graph {
        return Ok((0..wrong.times).try_for_each(|_| call())?);
    }
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    call()?;
    let graph = stream.end_capture(CUgraphInstantiate_flags(0))?;
    let graph = graph.ok_or("nothing was captured")?;
    for _ in 0..wrong.times {
        graph.launch()?;
    }
    // The graph goes when this ends.
    Ok(stream.synchronize()?)
}
