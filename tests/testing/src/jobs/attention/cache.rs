//! The cached rows of K and V of all ranks in a call.

use crate::jobs::simulated::rounded;
use crate::lab::Random;
use mkernel::spec::{AttentionShape, Dtype, Layout};

/// Cached rows of K and V: rows that ranks have from earlier calls.
#[derive(Debug)]
pub(super) struct Cache {
    /// The number of rows of each batch on each rank, `[world, B]`.
    pub counts: Vec<u64>,
    /// The most rows of a batch on a rank.
    most: u64,
    batch: u64,
    heads: u64,
    dim: usize,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// One of the two tensors of a cache.
#[derive(Clone, Copy)]
pub(super) enum Cached {
    K,
    V,
}

impl Cache {
    /// Draws the numbers of rows, which are 0, 1, `most`, or any number up to `most`, and the rows.
    pub fn new(
        most: u32,
        (world, shape): (u32, AttentionShape),
        dtype: Dtype,
        number: u32,
    ) -> Self {
        let mut random = Random(u64::from(number) + 11);
        let most = u64::from(most);
        let sizes = u64::from(world) * shape.batch;
        let mut count = |_| match random.below(6) {
            0 => 0,
            1 => 1,
            2 => most,
            _ => random.below(most + 1),
        };
        let counts: Vec<u64> = (0..sizes).map(&mut count).collect();
        let elems = sizes * shape.kv_heads * most * shape.head_dim;
        let mut element = |_| {
            let number = random.below(1 << 16) as f64;
            rounded(number / f64::from(1 << 15) - 1.0, dtype)
        };
        let mut fill = || -> Vec<f32> { (0..elems).map(&mut element).collect() };
        Self {
            counts,
            most,
            batch: shape.batch,
            heads: shape.kv_heads,
            dim: shape.head_dim as usize,
            k: fill(),
            v: fill(),
        }
    }

    /// The cached rows of a head of K or V on a rank, one after the other.
    pub fn rows(&self, of: Cached, rank: u32, (batch, head): (u64, u64)) -> &[f32] {
        let group = u64::from(rank) * self.batch + batch;
        let first = (group * self.heads + head) * self.most;
        let elements = match of {
            Cached::K => &self.k,
            Cached::V => &self.v,
        };
        &elements[first as usize * self.dim..][..self.counts[group as usize] as usize * self.dim]
    }

    /// A rank's K or V: in each head the cached rows, then the rank's rows of the call, which are `rows` of `whole`, and then
    /// NaN. The operand has room for `room` rows of each head of a call.
    pub fn operand(
        &self,
        (of, layout, rank): (Cached, Layout, u32),
        whole: &[f32],
        rows: &[usize],
        room: u64,
    ) -> Vec<f32> {
        let (dim, heads) = (self.dim, self.heads as usize);
        let room = (self.most + room) as usize;
        let groups = self.batch as usize * heads;
        let seq = whole.len() / (groups * dim);
        let mut operand = vec![f32::NAN; groups * room * dim];
        for group in 0..groups {
            let (batch, head) = (group / heads, group % heads);
            let cached = self.rows(of, rank, (batch as u64, head as u64));
            let of_call = rows.iter();
            let of_call = of_call.map(|row| &whole[(group * seq + row) * dim..][..dim]);
            for (row, elements) in cached.chunks(dim).chain(of_call).enumerate() {
                let at = match layout {
                    Layout::Bshd => (batch * room + row) * heads + head,
                    Layout::Bhsd => group * room + row,
                };
                operand[at * dim..][..dim].copy_from_slice(elements);
            }
        }
        operand
    }
}
