//! The calls that one rank makes, and the comparison of their results with the expected results.

use super::buffers::{Buffers, Outputs, Weights};
use super::choices::fraction;
use super::layer::{Form, Layer, ResultBits};
use super::reference::{are_empty_sums_zero, same};
use crate::graph::Graph;
use crate::jobs::attention::CallPattern;
use crate::jobs::simulated::{ResultElement, by_element};
use crate::jobs::{CALLS_BEFORE, deadline, set_call_count};
use crate::lab::Failure;
use mkernel::{Communicator, Operator};
use std::time::Duration;

impl Layer {
    /// Makes all calls of one rank, and returns the bits of the sums, or of rows of e4m3 times their scales, if all results are right.
    pub(super) fn rank(&self, ranks: &Communicator) -> Result<ResultBits, Failure> {
        let rank = ranks.rank() as usize;
        ranks.set_timeout(deadline(self.edits.is_empty()));
        let operators = self.prepare(ranks)?;
        // This short deadline is for kernels only, where it passes in simulated time. The proxies were created with the
        // deadline above, since they need that time on a busy host.
        if let CallPattern::AbsentRank { .. } | CallPattern::AbsentFromLastCall { .. } =
            self.pattern
        {
            ranks.set_timeout(Duration::from_millis(300));
        }
        let got = match self.pattern {
            CallPattern::AbsentRank { rank } if rank == ranks.rank() => return Ok(Vec::new()),
            CallPattern::Graph => {
                by_element!(self.dtype, Element => self.replayed::<Element>(ranks, &operators)?)
            }
            _ => by_element!(self.dtype, Element => self.launched::<Element>(ranks, &operators)?),
        };
        for (index, (call, got)) in self.calls.iter().zip(&got).enumerate() {
            let expected = self.expected(index, call, rank);
            let places = [
                ("row indices", got.row_indices == expected.row_indices),
                (
                    "expert offsets",
                    got.expert_offsets == expected.expert_offsets,
                ),
                ("rows", same(&got.rows, &expected.rows)),
            ];
            let sums = [
                ("sums", same(&got.sums, &expected.sums)),
                (
                    "sums of tokens without rows",
                    are_empty_sums_zero(&got.sums, &call[rank], self.sum_cols()),
                ),
            ];
            let weights = same(&got.topk_weights, &expected.topk_weights);
            let choices = [
                ("experts", got.topk_ids == expected.topk_ids),
                ("weights of experts", weights),
            ];
            // A whole layer returns no places, and the caller often passes the choices.
            let places = places.into_iter().filter(|_| self.form != Form::Whole);
            let choices = choices.into_iter().filter(|_| self.router.chooses());
            let sums = sums.into_iter().filter(|_| self.sums());
            for (what, is_right) in places.chain(choices).chain(sums) {
                if !is_right {
                    return Err(format!("rank {rank}, call {index}: wrong {what}").into());
                }
            }
        }
        let results = got.iter().flat_map(|got| match self.sums() {
            true => &got.sums,
            false => &got.rows,
        });
        Ok(results.map(|x| x.to_bits()).collect())
    }

    /// Launches all calls of `dispatch_gemm` and then all calls of the operator behind it. If the pattern is out of step, the rank
    /// pauses for random times between calls.
    fn launched<E: ResultElement>(
        &self,
        ranks: &Communicator,
        (dispatch, combine): &(Operator, Operator),
    ) -> Result<Vec<Outputs>, Failure> {
        let stream = ranks.default_stream();
        let rank = ranks.rank();
        let weights = Weights::<E>::new(&stream, self, rank as usize)?;
        let mut buffers = Vec::new();
        for index in 0..self.calls.len() {
            let values = self.values(index, rank as usize);
            buffers.push(Buffers::<E>::new(&stream, self, &values)?);
        }
        stream.synchronize()?;
        let mut delays = u64::from(rank);
        let mut pause = || {
            if self.pattern == CallPattern::OutOfStep {
                std::thread::sleep(Duration::from_secs_f64(fraction(&mut delays) / 500.0));
            }
        };
        let prepare_call = |index, operator: &Operator| match self.call_count {
            Some(calls) if index == CALLS_BEFORE => set_call_count(ranks, &[operator], calls),
            _ => Ok(()),
        };
        let last = self.calls.len() as u32 - 1;
        for (index, all) in (0..).zip(&mut buffers) {
            if index == last && self.pattern == (CallPattern::AbsentFromLastCall { rank }) {
                return Ok(Vec::new());
            }
            pause();
            prepare_call(index, dispatch)?;
            all.dispatch(&stream, dispatch, &weights)?;
        }
        // The calls of the second operator come after all calls of `dispatch_gemm`. Only the operator itself therefore keeps the
        // ranks together during its calls.
        for (index, all) in (0..).zip(&mut buffers) {
            pause();
            prepare_call(index, combine)?;
            all.combine(&stream, combine, &weights)?;
        }
        ranks.synchronize(&stream)?;
        let got = buffers.iter().map(|all| all.outputs(&stream)).collect();
        ranks.check()?;
        got
    }

    /// Captures one call in a graph, and replays the graph for each call with its own tokens and routing.
    fn replayed<E: ResultElement>(
        &self,
        ranks: &Communicator,
        (dispatch, combine): &(Operator, Operator),
    ) -> Result<Vec<Outputs>, Failure> {
        // SAFETY: all work is on one stream. Slices that track events cannot be captured.
        unsafe { ranks.context().disable_event_tracking() };
        // The default stream cannot be captured either.
        let stream = ranks.context().new_stream()?;
        let rank = ranks.rank() as usize;
        let weights = Weights::<E>::new(&stream, self, rank)?;
        let mut all = Buffers::<E>::new(&stream, self, &self.values(0, rank))?;
        stream.synchronize()?;
        let graph = Graph::capture(ranks, &stream, || {
            all.dispatch(&stream, dispatch, &weights)?;
            Ok(all.combine(&stream, combine, &weights)?)
        })?;
        let mut got = Vec::new();
        for index in 0..self.calls.len() {
            all.fill(&stream, &self.values(index, rank))?;
            graph.launch(&stream)?;
            ranks.synchronize(&stream)?;
            got.push(all.outputs(&stream)?);
        }
        ranks.check()?;
        // The peers still use this rank's memory until their last replay has ended.
        ranks.barrier()?;
        Ok(got)
    }
}
