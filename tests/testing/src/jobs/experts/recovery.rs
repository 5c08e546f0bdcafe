//! Calls whose operands have invalid values. Every rank must get the error, and the next call must be right.

use super::buffers::{Buffers, Weights};
use super::layer::Layer;
use super::reference::same;
use crate::graph::Graph;
use crate::jobs::Backend;
use crate::jobs::emulated;
use crate::lab::Failure;
use mkernel::cudarc::driver::CudaStream;
use mkernel::half::bf16;
use mkernel::{Communicator, Error, Operator};
use std::sync::Arc;
use std::time::Duration;

/// The way in which the first call of a layer is invalid.
#[derive(Clone, Copy, Debug)]
pub struct InvalidCall {
    /// Whether the call is of `combine`, with an entry of rank 0 whose row index is invalid. Otherwise it is of
    /// `dispatch_gemm`, with the routing of the layer's first call.
    pub in_combine: bool,
    /// The number of times that the call is made before the host waits for it.
    pub times: u32,
    /// Whether the call is captured in a graph, which is replayed.
    pub in_graph: bool,
}

impl Layer {
    /// Makes the first call, which is invalid, and then the second call, which is valid. Returns for each rank the
    /// message of the first call's error, or the message of any other failure as an error.
    fn recover(&self, backend: Backend, invalid: InvalidCall) -> Vec<Result<String, String>> {
        let transport = emulated(&self.faults, backend);
        let outcomes = self.machine().run_ranks(backend, |ranks, _| {
            ranks.set_transport(transport.clone());
            self.recover_on(ranks, invalid)
        });
        outcomes.expect("communicators")
    }

    fn recover_on(&self, ranks: &Communicator, invalid: InvalidCall) -> Result<String, Failure> {
        ranks.set_timeout(Duration::from_secs(20));
        // SAFETY: all work is on one stream. Slices that track events cannot be captured.
        unsafe { ranks.context().disable_event_tracking() };
        let (dispatch, combine) = self.prepare(ranks)?;
        let stream = ranks.context().new_stream()?;
        let rank = ranks.rank() as usize;
        let weights = Weights::<bf16>::new(&stream, self, rank)?;
        let mut first = Buffers::<bf16>::new(&stream, self, &self.values(0, rank))?;
        if invalid.in_combine {
            first.dispatch(&stream, &dispatch, &weights)?;
            if rank == 0 {
                first.invalidate_row_index(&stream, 1)?;
            }
        }
        ranks.synchronize(&stream)?;
        let _graph = make_calls(ranks, &stream, invalid, || match invalid.in_combine {
            true => first.combine(&stream, &combine, &weights),
            false => first.dispatch(&stream, &dispatch, &weights),
        })?;
        let fault = match ranks.synchronize(&stream) {
            Err(fault @ Error::Routing { .. }) => fault,
            other => return Err(format!("not a routing fault, but {other:?}").into()),
        };
        ranks.check()?;
        self.check_second_call(ranks, (&dispatch, &combine), &stream)?;
        Ok(fault.to_string())
    }

    /// Makes the first call, in which two tokens of rank 0 have the row of one choice of the first token. Returns the
    /// error of each rank. A rank without an error has other tokens, and its sums are right.
    pub fn repeat_a_row(
        &self,
        backend: Backend,
        tokens: [usize; 2],
        choice: usize,
    ) -> Vec<Option<String>> {
        let entries = tokens.map(|token| token * self.top_k as usize + choice);
        let transport = emulated(&self.faults, backend);
        let outcomes = self.machine().run_ranks(backend, |ranks, _| {
            ranks.set_transport(transport.clone());
            ranks.set_timeout(Duration::from_secs(20));
            let (dispatch, combine) = self.prepare(ranks)?;
            let stream = ranks.context().new_stream()?;
            let rank = ranks.rank() as usize;
            let weights = Weights::<bf16>::new(&stream, self, rank)?;
            let mut call = Buffers::<bf16>::new(&stream, self, &self.values(0, rank))?;
            call.dispatch(&stream, &dispatch, &weights)?;
            ranks.synchronize(&stream)?;
            if rank == 0 {
                call.repeat_row_index(&stream, entries)?;
            }
            call.combine(&stream, &combine, &weights)?;
            let error = ranks.synchronize(&stream).err();
            if error.is_none() {
                let expected = self.expected(0, &self.calls[0], rank);
                let is_right = same(&call.outputs(&stream)?.sums, &expected.sums);
                is_right.then_some(()).ok_or("the sums are wrong")?;
            }
            Ok(error.map(|error| error.to_string()))
        });
        let outcomes = outcomes.expect("communicators").into_iter();
        outcomes.map(|error| error.expect("right sums")).collect()
    }

    /// Makes the second call and checks its results.
    fn check_second_call(
        &self,
        ranks: &Communicator,
        (dispatch, combine): (&Operator, &Operator),
        stream: &Arc<CudaStream>,
    ) -> Result<(), Failure> {
        let rank = ranks.rank() as usize;
        let weights = Weights::<bf16>::new(stream, self, rank)?;
        let mut second = Buffers::<bf16>::new(stream, self, &self.values(1, rank))?;
        second.dispatch(stream, dispatch, &weights)?;
        second.combine(stream, combine, &weights)?;
        ranks.synchronize(stream)?;
        let (got, expected) = (
            second.outputs(stream)?,
            self.expected(1, &self.calls[1], rank),
        );
        let is_right = got.row_indices == expected.row_indices
            && got.expert_offsets == expected.expert_offsets
            && same(&got.rows, &expected.rows)
            && same(&got.sums, &expected.sums);
        is_right.then_some(()).ok_or("the next call is wrong")?;
        // No rank drops its operators before its peers are done.
        Ok(ranks.barrier()?)
    }
}

/// Makes each of the invalid calls, each followed by a valid call.
///
/// # Panics
/// A rank does not get exactly one error, the error's message lacks one of `parts`, or the valid call is not right.
pub fn all_recover(layer: &Layer, backend: Backend, calls: &[InvalidCall], parts: &[&str]) {
    for invalid in calls {
        for (rank, outcome) in layer.recover(backend, *invalid).into_iter().enumerate() {
            let fault =
                outcome.unwrap_or_else(|failure| panic!("rank {rank}, {invalid:?}: {failure}"));
            for part in parts {
                assert!(fault.contains(part), "rank {rank}: {part:?} in {fault:?}");
            }
        }
    }
}

/// Returns invalid calls that are made once and three times, launched and replayed.
pub fn invalid_calls(in_combine: bool) -> [InvalidCall; 4] {
    [(1, false), (3, false), (1, true), (3, true)].map(|(times, in_graph)| InvalidCall {
        in_combine,
        times,
        in_graph,
    })
}

/// Makes a call as often as `invalid` says, by launches or by replays of a graph, which must live until its replays
/// have ended.
fn make_calls(
    ranks: &Communicator,
    stream: &Arc<CudaStream>,
    invalid: InvalidCall,
    mut call: impl FnMut() -> Result<(), Error>,
) -> Result<Option<Graph>, Failure> {
    if !invalid.in_graph {
        (0..invalid.times).try_for_each(|_| call())?;
        return Ok(None);
    }
    let graph = Graph::capture(ranks, stream, || Ok(call()?))?;
    for _ in 0..invalid.times {
        graph.launch(stream)?;
    }
    Ok(Some(graph))
}
