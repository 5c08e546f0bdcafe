//! Calls of one operator with packed sequences of different lengths.

use super::buffers::floats;
use super::one_call::{Buffers, OneCall, replays};
use super::place::{Place, UNWRITTEN};
use super::reference::{CallData, InputKind, Sharding};
use super::{AttentionJob, CallPattern};
use crate::jobs::memo::Memo;
use crate::jobs::simulated::ResultElement;
use crate::lab::Failure;
use mkernel::cudarc::driver::CudaStream;
use mkernel::{Call, Communicator, Operand, Operator, spec::Layout};
use std::sync::Arc;

/// A sequence of a call, with operands and results of its own.
#[derive(Debug)]
pub(super) struct OneSequence {
    data: CallData,
    inputs: InputKind,
}

/// A call of a job on a rank.
struct PackedCall<'a> {
    job: &'a AttentionJob,
    lengths: &'a [u64],
    sequences: &'a [OneSequence],
    rank: u32,
}

impl PackedCall<'_> {
    fn shardings(&self) -> Vec<Sharding> {
        let of_length = |rows: &u64| self.job.sharding_of_sequence(*rows);
        self.lengths.iter().map(of_length).collect()
    }

    /// The numbers of this rank's rows of each sequence.
    fn rows(&self) -> Vec<usize> {
        let shardings = self.shardings().into_iter();
        shardings.map(|of| of.rows(self.rank).len()).collect()
    }

    /// The place of the rows of an operand.
    fn place(&self, heads: u64, layout: Layout, dim: usize) -> Place {
        let config = &self.job.config;
        let room = self
            .job
            .shape()
            .packed_rank_rows(self.job.machine.world, config.placement);
        let (groups, elems) = match layout {
            Layout::Bshd => (1, heads as usize * dim),
            Layout::Bhsd => (heads as usize, dim),
        };
        Place {
            groups,
            rows: self.rows().iter().sum(),
            room: room as usize,
            elems,
            most: room as usize,
        }
    }

    /// The places of rows of O and LSE.
    fn results(&self) -> (Place, Place) {
        let shape = self.job.shape();
        let layout = self.job.config.layout;
        let o = self.place(shape.heads, layout, shape.head_dim as usize);
        (o, self.place(shape.heads, Layout::Bhsd, 1))
    }

    /// Puts the rows of all sequences one after the other, in each group of the place.
    fn pack<T: Copy>(&self, place: Place, of_sequences: &[Vec<T>]) -> Vec<T> {
        let mut packed = Vec::new();
        for group in 0..place.groups {
            for (rows, of_sequence) in self.rows().into_iter().zip(of_sequences) {
                let len = rows * place.elems;
                packed.extend_from_slice(&of_sequence[group * len..][..len]);
            }
        }
        packed
    }

    /// The inverse of [`Self::pack`].
    fn unpack<T: Copy>(&self, place: Place, packed: &[T]) -> Vec<Vec<T>> {
        let mut of_sequences = vec![Vec::new(); self.lengths.len()];
        let mut rest = packed;
        for _ in 0..place.groups {
            for (rows, of_sequence) in self.rows().into_iter().zip(&mut of_sequences) {
                let (part, behind) = rest.split_at(rows * place.elems);
                of_sequence.extend_from_slice(part);
                rest = behind;
            }
        }
        of_sequences
    }

    /// The offsets of the sequences. Sequences beyond the last one are empty.
    fn offsets(&self) -> Vec<i32> {
        let mut offsets = vec![0];
        for sequence in 0..self.job.shape().batch as usize {
            let length = self.lengths.get(sequence).copied().unwrap_or(0);
            offsets.push(offsets[sequence] + length as i32);
        }
        offsets
    }
}

impl<E: ResultElement> OneCall<E> for PackedCall<'_> {
    fn buffers(&self, stream: &Arc<CudaStream>) -> Result<Buffers<E>, Failure> {
        let (shape, layout) = (self.job.shape(), self.job.config.layout);
        type Of = fn(&CallData) -> &Vec<f32>;
        let inputs: [(Of, u64); 3] = [
            (|data| &data.q, shape.heads),
            (|data| &data.k, shape.kv_heads),
            (|data| &data.v, shape.kv_heads),
        ];
        let input = |(of, heads): (Of, u64)| {
            let place = self.place(heads, layout, shape.head_dim as usize);
            let shardings = self.shardings().into_iter().zip(self.sequences);
            let shards: Vec<_> = shardings
                .map(|(sharding, sequence)| sharding.shard(of(&sequence.data), heads, self.rank))
                .collect();
            place.spread(&self.pack(place, &shards), f32::NAN)
        };
        Buffers::new(
            stream,
            inputs.map(input),
            self.results(),
            (&self.offsets(), &[]),
        )
    }

    fn call<'a>(
        &self,
        operator: &'a Operator,
        stream: &'a Arc<CudaStream>,
        buffers: &'a mut Buffers<E>,
    ) -> Call<'a> {
        let (call, offsets) = buffers.call(operator, stream, false);
        call.read(Operand::CuSeqlens, offsets)
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
        let (rank, lengths) = (self.rank, self.lengths);
        if beyond_o + beyond_lse > 0 {
            return Err(format!(
                "rank {rank}, lengths {lengths:?}: {beyond_o} elements beyond O and {beyond_lse} beyond LSE were written"
            )
            .into());
        }
        let results = self
            .unpack(of_o, &o)
            .into_iter()
            .zip(self.unpack(of_lse, &lse));
        let expected = self.shardings().into_iter().zip(self.sequences);
        for (number, ((o, lse), (sharding, sequence))) in results.zip(expected).enumerate() {
            let checked = sharding.check(&sequence.data, rank, (&o, &lse), sequence.inputs);
            checked
                .map_err(|error| format!("sequence {number} of lengths {lengths:?}: {error}"))?;
        }
        let o = o.iter().map(|x| x.to_bits());
        Ok(o.chain(lse.iter().map(|x| x.to_bits())).collect())
    }
}

impl AttentionJob {
    /// Returns the distribution of one of the packed sequences.
    fn sharding_of_sequence(&self, rows: u64) -> Sharding {
        let mut sharding = self.sharding().with_rows(rows);
        sharding.shape.batch = 1;
        sharding
    }

    /// Computes the operands and expected results of the sequences of each call.
    pub(super) fn packed_calls(&self) -> &'static [Vec<OneSequence>] {
        static ALL: Memo<Vec<Vec<OneSequence>>> = Memo::new();
        let (config, world, lengths) = (&self.config, self.machine.world, &self.sequences);
        let key = format!("{config:?} {world} {:?} {lengths:?}", self.inputs);
        ALL.get(key, || {
            let mut number = 0;
            let mut sequence = |(index, rows): (usize, &u64)| {
                let inputs = match (self.inputs, index % 2) {
                    (InputKind::NotFinite | InputKind::NotFiniteRow(_), 1) => InputKind::NanValues,
                    (inputs, _) => inputs,
                };
                number += 1;
                let data = CallData::new(config, self.sharding_of_sequence(*rows), inputs, number);
                OneSequence { data, inputs }
            };
            let mut of_call =
                |lengths: &Vec<u64>| lengths.iter().enumerate().map(&mut sequence).collect();
            lengths.iter().map(&mut of_call).collect()
        })
    }

    /// Makes the calls on this rank, and checks their results.
    pub(super) fn rank_with_sequences<E: ResultElement>(
        &self,
        ranks: &Communicator,
        operator: &Operator,
        calls: &[Vec<OneSequence>],
    ) -> Result<Vec<Vec<u32>>, Failure> {
        ranks.set_timeout(crate::jobs::deadline(self.edits.is_empty()));
        let one = |(sequences, lengths)| PackedCall {
            job: self,
            lengths,
            sequences,
            rank: ranks.rank(),
        };
        let lengths = self.sequences.iter().map(Vec::as_slice);
        let sequences = calls.iter().map(Vec::as_slice);
        let calls: Vec<PackedCall> = sequences.zip(lengths).map(one).collect();
        match self.pattern == CallPattern::Graph {
            true => replays::<E, _>(ranks, operator, &calls),
            false => self.launches::<E, _>(ranks, operator, &calls),
        }
    }
}
