//! Calls of one operator with sequences of different lengths.

use super::buffers::floats;
use super::cache::Cached;
use super::one_call::{Buffers, OneCall, replays};
use super::place::{Place, UNWRITTEN};
use super::reference::{CallData, Sharding};
use super::{AttentionJob, CallPattern};
use crate::jobs::simulated::ResultElement;
use crate::lab::Failure;
use mkernel::cudarc::driver::CudaStream;
use mkernel::{Call, Communicator, Operator, spec::Layout};
use std::sync::Arc;

/// A call of a job on a rank.
struct CallOfRows<'a> {
    job: &'a AttentionJob,
    data: &'a CallData,
    rank: u32,
    rows: u64,
    /// Whether the host knows the rows. Otherwise the operands have room for the most rows.
    is_known: bool,
}

impl CallOfRows<'_> {
    fn sharding(&self) -> Sharding {
        self.job.sharding().with_rows(self.rows)
    }

    fn place(&self, heads: u64, layout: Layout, dim: usize) -> Place {
        let sharding = self.job.sharding();
        let (batch, heads) = (sharding.shape.batch as usize, heads as usize);
        let segments = u64::from(sharding.placement.segments());
        let chunks = u64::from(sharding.world) * segments;
        let most = (sharding.shape.seq.div_ceil(chunks) * segments) as usize;
        let rows = self.sharding().rows(self.rank).len();
        let (groups, elems) = match layout {
            Layout::Bshd => (batch, heads * dim),
            Layout::Bhsd => (batch * heads, dim),
        };
        Place {
            groups,
            rows,
            room: if self.is_known { rows } else { most },
            elems,
            most,
        }
    }

    /// The places of rows of O and LSE.
    fn results(&self) -> (Place, Place) {
        let sharding = self.job.sharding();
        let (heads, dim) = (sharding.shape.heads, sharding.shape.head_dim as usize);
        let o = self.place(heads, sharding.layout, dim);
        (o, self.place(heads, Layout::Bhsd, 1))
    }
}

impl<E: ResultElement> OneCall<E> for CallOfRows<'_> {
    fn buffers(&self, stream: &Arc<CudaStream>) -> Result<Buffers<E>, Failure> {
        let (data, sharding) = (self.data, self.sharding());
        let (heads, kv_heads) = (sharding.shape.heads, sharding.shape.kv_heads);
        let inputs = [(&data.q, heads), (&data.k, kv_heads), (&data.v, kv_heads)];
        let input = |(whole, heads): (&Vec<f32>, u64)| {
            let dense = sharding.shard(whole, heads, self.rank);
            let place = self.place(heads, sharding.layout, sharding.shape.head_dim as usize);
            place.spread(&dense, f32::NAN)
        };
        let mut inputs = inputs.map(input);
        let mut counts = Vec::new();
        if let Some(cache) = &data.cache {
            let rows = sharding.rows(self.rank);
            let room = self.place(kv_heads, sharding.layout, 1).most as u64;
            let of = |of| (of, sharding.layout, self.rank);
            inputs[1] = cache.operand(of(Cached::K), &data.k, &rows, room);
            inputs[2] = cache.operand(of(Cached::V), &data.v, &rows, room);
            counts.extend(cache.counts.iter().map(|count| *count as i32));
        }
        Buffers::new(
            stream,
            inputs,
            self.results(),
            (&[self.rows as i32], &counts),
        )
    }

    fn call<'a>(
        &self,
        operator: &'a Operator,
        stream: &'a Arc<CudaStream>,
        buffers: &'a mut Buffers<E>,
    ) -> Call<'a> {
        let (call, rows) = buffers.call(operator, stream, self.data.cache.is_some());
        match self.is_known {
            true => call.rows(self.rows),
            false => call.rows_in(rows),
        }
    }

    fn check(
        &self,
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        buffers: &Buffers<E>,
    ) -> Result<Vec<u32>, Failure> {
        let (of_o, of_lse) = self.results();
        let (o, beyond_o) = of_o.gather(&floats(stream, &buffers.o)?, UNWRITTEN);
        let (lse, beyond_lse) = of_lse.gather(&stream.clone_dtoh(&buffers.lse)?, UNWRITTEN);
        ranks.check()?;
        if beyond_o + beyond_lse > 0 {
            let (rank, rows) = (self.rank, self.rows);
            return Err(format!(
                "rank {rank}, {rows} rows: {beyond_o} elements beyond O and {beyond_lse} beyond LSE were written"
            )
            .into());
        }
        self.sharding()
            .check(self.data, self.rank, (&o, &lse), self.job.inputs)?;
        let o = o.iter().map(|x| x.to_bits());
        Ok(o.chain(lse.iter().map(|x| x.to_bits())).collect())
    }
}

impl AttentionJob {
    /// Makes a call for each length on this rank, and checks its results. Every other call reads its rows from memory.
    pub(super) fn rank_with_rows<E: ResultElement>(
        &self,
        ranks: &Communicator,
        operator: &Operator,
        calls: &[CallData],
    ) -> Result<Vec<Vec<u32>>, Failure> {
        ranks.set_timeout(crate::jobs::deadline(self.edits.is_empty()));
        let is_graph = self.pattern == CallPattern::Graph;
        let one = |(index, (data, rows)): (usize, (_, &u64))| CallOfRows {
            job: self,
            data,
            rank: ranks.rank(),
            rows: *rows,
            is_known: !is_graph && index % 2 == 0,
        };
        let calls: Vec<CallOfRows> = calls.iter().zip(&self.rows).enumerate().map(one).collect();
        match is_graph {
            true => replays::<E, _>(ranks, operator, &calls),
            false => self.launches::<E, _>(ranks, operator, &calls),
        }
    }
}
