//! What a rank does: its calls, one after the other, and what is to come of them.

use super::buffers::{Buffers, Got};
use super::layer::{Bits, Layer, fraction};
use super::reference::same;
use crate::jobs::attention::Pace;
use crate::jobs::{CALLS_BEFORE, deadline, grow_old};
use mkernel::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use mkernel::{Communicator, Operator};
use std::time::Duration;

impl Layer {
    pub(super) fn rank(&self, ranks: &Communicator) -> Result<Bits, Box<dyn std::error::Error>> {
        let rank = ranks.rank() as usize;
        ranks.set_timeout(deadline(
            self.dispatch_edits.is_empty() && self.combine_edits.is_empty(),
        ));
        let operators = self.prepare(ranks)?;
        // Only for kernels, whose deadlines pass in simulated time: proxies keep the one above, and need it on a busy host.
        if let Pace::Without { .. } | Pace::WithoutLast { .. } = self.pace {
            ranks.set_timeout(Duration::from_millis(300));
        }
        let got = match self.pace {
            Pace::Without { rank } if rank == ranks.rank() => return Ok(Vec::new()),
            Pace::Graph => self.replayed(ranks, &operators)?,
            _ => self.launched(ranks, &operators)?,
        };
        for (index, (call, got)) in self.calls.iter().zip(&got).enumerate() {
            let expected = self.expected(index, call, rank);
            for (what, is_right) in [
                ("places", got.places == expected.places),
                ("offsets", got.offsets == expected.offsets),
                ("rows", same(&got.rows, &expected.rows)),
                ("sums", same(&got.sums, &expected.sums)),
            ] {
                if !is_right {
                    return Err(format!("rank {rank}, call {index}: wrong {what}").into());
                }
            }
        }
        let sums = got.iter().flat_map(|got| &got.sums);
        Ok(sums.map(|sum| sum.to_bits()).collect())
    }

    /// All calls without a pause, or each rank when it likes.
    fn launched(
        &self,
        ranks: &Communicator,
        (dispatch, combine): &(Operator, Operator),
    ) -> Result<Vec<Got>, Box<dyn std::error::Error>> {
        let stream = ranks.context().default_stream();
        let rank = ranks.rank();
        let weights = stream.clone_htod(&self.weights(rank as usize))?;
        let mut buffers = Vec::new();
        for index in 0..self.calls.len() {
            buffers.push(Buffers::new(&stream, &self.values(index, rank as usize))?);
        }
        stream.synchronize()?;
        let mut delays = u64::from(rank);
        let mut pause = || {
            if self.pace == Pace::OutOfStep {
                std::thread::sleep(Duration::from_secs_f64(fraction(&mut delays) / 500.0));
            }
        };
        let grow_old = |index, operator: &Operator| match self.age {
            Some(age) if index == CALLS_BEFORE => grow_old(ranks, &[operator], age),
            _ => Ok(()),
        };
        let last = self.calls.len() as u32 - 1;
        for (index, all) in (0..).zip(&mut buffers) {
            if index == last && self.pace == (Pace::WithoutLast { rank }) {
                return Ok(Vec::new());
            }
            pause();
            grow_old(index, dispatch)?;
            all.dispatch(&stream, dispatch, &weights)?;
        }
        // Only now: an operator's calls follow each other, and no other holds ranks together.
        for (index, all) in (0..).zip(&mut buffers) {
            pause();
            grow_old(index, combine)?;
            all.combine(&stream, combine)?;
        }
        ranks.synchronize(&stream)?;
        let got = buffers.iter().map(|all| all.got(&stream)).collect();
        ranks.check()?;
        got
    }

    /// A graph of one call, replayed for each with other tokens, numbers and experts.
    fn replayed(
        &self,
        ranks: &Communicator,
        (dispatch, combine): &(Operator, Operator),
    ) -> Result<Vec<Got>, Box<dyn std::error::Error>> {
        // SAFETY: all is done on one stream. Slices that track events cannot be captured.
        unsafe { ranks.context().disable_event_tracking() };
        // Nor can the default stream.
        let stream = ranks.context().new_stream()?;
        let rank = ranks.rank() as usize;
        let weights = stream.clone_htod(&self.weights(rank))?;
        let mut all = Buffers::new(&stream, &self.values(0, rank))?;
        stream.synchronize()?;
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        all.dispatch(&stream, dispatch, &weights)?;
        all.combine(&stream, combine)?;
        let graph = stream.end_capture(CUgraphInstantiate_flags(0))?;
        let graph = graph.ok_or("nothing was captured")?;
        let mut got = Vec::new();
        for index in 0..self.calls.len() {
            all.fill(&stream, &self.values(index, rank))?;
            graph.launch()?;
            ranks.synchronize(&stream)?;
            got.push(all.got(&stream)?);
        }
        ranks.check()?;
        // Not before the peers are done: the graph's kernels are theirs too.
        ranks.barrier()?;
        Ok(got)
    }
}
