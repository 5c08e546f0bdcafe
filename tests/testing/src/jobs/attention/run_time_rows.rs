//! Calls of one operator with sequences of different lengths.

use super::place::{Place, UNWRITTEN};
use super::reference::{CallData, Sharding};
use super::{AttentionJob, CallPattern};
use crate::graph::Graph;
use crate::jobs::{CALLS_BEFORE, set_call_count};
use crate::lab::Failure;
use mkernel::cudarc::driver::{CudaSlice, CudaStream};
use mkernel::half::bf16;
use mkernel::{Call, Communicator, Operand, Operator, spec::Layout};
use std::sync::Arc;

/// The operands of a call. All of them have room for the most rows.
struct Buffers {
    inputs: Vec<CudaSlice<bf16>>,
    o: CudaSlice<bf16>,
    lse: CudaSlice<f32>,
    rows: CudaSlice<i32>,
}

/// A call of a job on a rank.
struct OneCall<'a> {
    job: &'a AttentionJob,
    data: &'a CallData,
    rank: u32,
    rows: u64,
    /// Whether the host knows the rows. Otherwise the operands have room for the most.
    is_known: bool,
}

impl OneCall<'_> {
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

    /// Uploads the operands. In place of rows that there are not the inputs are NaN.
    fn buffers(&self, stream: &Arc<CudaStream>) -> Result<Buffers, Failure> {
        let (data, sharding) = (self.data, self.sharding());
        let (heads, kv_heads) = (sharding.shape.heads, sharding.shape.kv_heads);
        let inputs = [(&data.q, heads), (&data.k, kv_heads), (&data.v, kv_heads)];
        let input = |(whole, heads): (&Vec<bf16>, u64)| {
            let dense = sharding.shard(whole, heads, self.rank);
            let place = self.place(heads, sharding.layout, sharding.shape.head_dim as usize);
            stream.clone_htod(&place.spread(&dense, bf16::NAN))
        };
        let (o, lse) = self.results();
        let unwritten =
            |place: Place| vec![UNWRITTEN; (place.groups * place.most * place.elems).max(1)];
        let o: Vec<bf16> = unwritten(o).into_iter().map(bf16::from_f32).collect();
        Ok(Buffers {
            inputs: inputs.map(input).into_iter().collect::<Result<_, _>>()?,
            o: stream.clone_htod(&o)?,
            lse: stream.clone_htod(&unwritten(lse))?,
            rows: stream.clone_htod(&[self.rows as i32])?,
        })
    }

    /// Compares the results with the expected ones, and returns their bits. Nothing else may be written.
    fn check(
        &self,
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        buffers: &Buffers,
    ) -> Result<Vec<u32>, Failure> {
        let (of_o, of_lse) = self.results();
        let (o, beyond_o) = of_o.gather(&stream.clone_dtoh(&buffers.o)?, bf16::from_f32(UNWRITTEN));
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
        let o = o.iter().map(|x| x.to_f32().to_bits());
        Ok(o.chain(lse.iter().map(|x| x.to_bits())).collect())
    }
}

fn call<'a>(
    operator: &'a Operator,
    stream: &'a Arc<CudaStream>,
    inputs: &'a [CudaSlice<bf16>],
    (o, lse): (&'a mut CudaSlice<bf16>, &'a mut CudaSlice<f32>),
) -> Call<'a> {
    operator
        .call(stream)
        .read(Operand::Q, &inputs[0])
        .read(Operand::K, &inputs[1])
        .read(Operand::V, &inputs[2])
        .write(Operand::O, o)
        .write(Operand::Lse, lse)
}

impl AttentionJob {
    /// Makes a call for each length on this rank, and checks its results.
    pub(super) fn rank_with_rows(
        &self,
        ranks: &Communicator,
        operator: &Operator,
        calls: &[CallData],
    ) -> Result<Vec<Vec<u32>>, Failure> {
        ranks.set_timeout(crate::jobs::deadline(self.edits.is_empty()));
        let is_graph = self.pattern == CallPattern::Graph;
        let one = |(index, (data, rows)): (usize, (_, &u64))| OneCall {
            job: self,
            data,
            rank: ranks.rank(),
            rows: *rows,
            is_known: !is_graph && index % 2 == 0,
        };
        let calls: Vec<OneCall> = calls.iter().zip(&self.rows).enumerate().map(one).collect();
        match is_graph {
            true => replays(ranks, operator, &calls),
            false => self.launches(ranks, operator, &calls),
        }
    }

    /// Makes the calls one after the other without a pause. Every other call reads its rows from memory.
    fn launches(
        &self,
        ranks: &Communicator,
        operator: &Operator,
        calls: &[OneCall],
    ) -> Result<Vec<Vec<u32>>, Failure> {
        let stream = ranks.context().default_stream();
        let buffers = calls.iter().map(|call| call.buffers(&stream));
        let mut all = buffers.collect::<Result<Vec<_>, _>>()?;
        stream.synchronize()?;
        for (index, (one, buffers)) in (0..).zip(calls.iter().zip(&mut all)) {
            if let Some(calls) = self.call_count.filter(|_| index == CALLS_BEFORE) {
                set_call_count(ranks, &[operator], calls)?;
            }
            let results = (&mut buffers.o, &mut buffers.lse);
            let call = call(operator, &stream, &buffers.inputs, results);
            match one.is_known {
                true => call.rows(one.rows).launch()?,
                false => call.rows_in(&buffers.rows).launch()?,
            }
        }
        ranks.synchronize(&stream)?;
        let checks = calls.iter().zip(&all);
        checks
            .map(|(call, buffers)| call.check(ranks, &stream, buffers))
            .collect()
    }
}

/// Captures one call, which reads its rows from memory, and replays it for each call.
fn replays(
    ranks: &Communicator,
    operator: &Operator,
    calls: &[OneCall],
) -> Result<Vec<Vec<u32>>, Failure> {
    // The default stream cannot be captured.
    let stream = ranks.context().new_stream()?;
    let mut used = calls[0].buffers(&stream)?;
    stream.synchronize()?;
    let graph = captured(operator, &stream, &mut used)?;
    let mut results = Vec::new();
    for call in calls {
        let next = call.buffers(&stream)?;
        for (used, next) in used.inputs.iter_mut().zip(&next.inputs) {
            stream.memcpy_dtod(next, used)?;
        }
        stream.memcpy_dtod(&next.o, &mut used.o)?;
        stream.memcpy_dtod(&next.lse, &mut used.lse)?;
        stream.memcpy_dtod(&next.rows, &mut used.rows)?;
        graph.launch(&stream)?;
        results.push(call.check(ranks, &stream, &used)?);
    }
    ranks.synchronize(&stream)?;
    Ok(results)
}

fn captured(
    operator: &Operator,
    stream: &Arc<CudaStream>,
    buffers: &mut Buffers,
) -> Result<Graph, Failure> {
    Graph::capture(stream, || {
        let results = (&mut buffers.o, &mut buffers.lse);
        let call = call(operator, stream, &buffers.inputs, results);
        // SAFETY: the buffers live until the last replay has ended, and the test uses one stream.
        Ok(unsafe { call.rows_in(&buffers.rows).capture() }?)
    })
}
