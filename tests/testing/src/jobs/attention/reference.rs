//! The operands of calls of `ring_attention`, and the expected results in fp64.

use super::cache::{Cache, Cached};
use crate::jobs::random::Random;
use crate::jobs::simulated::rounded;
use mkernel::spec::{AttentionConfig, AttentionShape, Dtype, Layout, Placement};
use std::num::NonZero;

/// The kind of numbers in Q, K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputKind {
    /// Random numbers between -1 and 1.
    Random,
    /// Numbers that give scores of both signs, up to some ten thousands.
    Extreme,
    /// Some keys are -inf, some rows of queries have only scores of -inf, and some queries are NaN. Of packed sequences,
    /// every other sequence has [`NanValues`](Self::NanValues).
    NotFinite,
    /// All values are NaN.
    NanValues,
    /// One row of K and V of each sequence is not finite. Of packed sequences, every other sequence has
    /// [`NanValues`](Self::NanValues).
    NotFiniteRow(u64),
}

/// The distribution of the sequence over the ranks, which is computed here independently of the plan.
#[derive(Clone, Copy)]
pub struct Sharding {
    pub shape: AttentionShape,
    pub layout: Layout,
    pub placement: Placement,
    pub world: u32,
}

/// The operands of one call for the whole sequence, in the order `[B, H, S, D]`, and the expected results.
#[derive(Debug)]
pub struct CallData {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    /// The cached rows of K and V of the ranks.
    pub(super) cache: Option<Cache>,
    /// The type of the elements.
    dtype: Dtype,
    o: Vec<ExpectedElement>,
    lse: Vec<f64>,
}

/// An expected element of O.
#[derive(Clone, Copy, Debug, Default)]
struct ExpectedElement {
    value: f64,
    /// The sum of |weight · V|. The tolerance grows with this sum, since kernels round weights before the product.
    magnitude: f64,
}

impl CallData {
    /// Computes the operands and results of call `number` of a job.
    pub fn new(config: &AttentionConfig, sharding: Sharding, kind: InputKind, number: u32) -> Self {
        let shape = sharding.shape;
        let mut random = Random(u64::from(number) + 1);
        let element = |value: f32| rounded(value.into(), config.dtype);
        let mut fill = |heads: u64, size: f32| -> Vec<f32> {
            let elems = shape.batch * heads * shape.seq * shape.head_dim;
            (0..elems).map(|_| element(random.next() * size)).collect()
        };
        let size = if kind == InputKind::Extreme {
            100.0
        } else {
            1.0
        };
        let mut q = fill(shape.heads, size);
        let mut k = fill(shape.kv_heads, size);
        let mut v = fill(shape.kv_heads, 1.0);
        if kind == InputKind::NanValues {
            v.fill(f32::NAN);
        }
        if let InputKind::NotFiniteRow(row) = kind {
            plant(&mut k, &mut v, shape, row);
        }
        if kind == InputKind::NotFinite {
            let dim = shape.head_dim as usize;
            // All queries are positive, so that keys of -inf give scores of -inf and not NaN. Every third key is -inf,
            // and so are all keys of the first head.
            q.iter_mut().for_each(|x| *x = element(x.abs() + 0.5));
            for (row, key) in k.chunks_mut(dim).enumerate() {
                if row % 3 == 1 || row < shape.seq as usize {
                    key.fill(f32::NEG_INFINITY);
                }
            }
            for query in q.chunks_mut(dim).skip(5).step_by(11) {
                query[0] = f32::NAN;
            }
        }
        let mut call = Self {
            q,
            k,
            v,
            cache: config
                .cached
                .map(|most| Cache::new(most, (sharding.world, shape), config.dtype, number)),
            dtype: config.dtype,
            o: Vec::new(),
            lse: Vec::new(),
        };
        call.attend(config, shape);
        call
    }

    /// The cached rows of all ranks, for each batch and head of K and V.
    fn cached_heads(&self, shape: AttentionShape) -> Vec<[Vec<f64>; 2]> {
        let Some(cache) = &self.cache else {
            return vec![Default::default(); (shape.batch * shape.kv_heads) as usize];
        };
        let world = (cache.counts.len() as u64 / shape.batch) as u32;
        let of_head = |head: u64| {
            [Cached::K, Cached::V].map(|of| {
                let place = (head / shape.kv_heads, head % shape.kv_heads);
                let rows = (0..world).flat_map(|rank| cache.rows(of, rank, place));
                rows.copied().map(f64::from).collect()
            })
        };
        (0..shape.batch * shape.kv_heads).map(of_head).collect()
    }

    /// Computes the expected results, on all cores.
    fn attend(&mut self, config: &AttentionConfig, shape: AttentionShape) {
        let dim = shape.head_dim as usize;
        let wide = |all: &[f32]| -> Vec<f64> { all.iter().copied().map(f64::from).collect() };
        let heads = Heads {
            q: &wide(&self.q),
            k: &wide(&self.k),
            v: &wide(&self.v),
            cached: &self.cached_heads(shape),
            shape,
            scale: config.scale.of(shape.head_dim),
            causal: config.causal,
        };
        let rows = (shape.batch * shape.heads * shape.seq) as usize;
        self.o = vec![ExpectedElement::default(); rows * dim];
        self.lse = vec![f64::NEG_INFINITY; rows];
        // Each core gets several parts, since with a mask later rows have more keys.
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let part = rows.div_ceil(4 * cores).max(1);
        let parts = self.o.chunks_mut(part * dim).zip(self.lse.chunks_mut(part));
        std::thread::scope(|scope| {
            for (index, (o, lse)) in parts.enumerate() {
                let heads = &heads;
                scope.spawn(move || {
                    for (row, (o, lse)) in o.chunks_mut(dim).zip(lse).enumerate() {
                        *lse = heads.attend(index * part + row, o);
                    }
                });
            }
        });
    }
}

/// Makes a row of every head not finite. Three of four values of V in the row are not finite, in all heads. Of three
/// heads, the second head also has NaN in K, and the third head has infinity in K, which makes the scores of the row
/// infinite. Sequences that end before the row are unchanged.
fn plant(k: &mut [f32], v: &mut [f32], shape: AttentionShape, row: u64) {
    let dim = shape.head_dim as usize;
    let heads = if row < shape.seq {
        shape.batch * shape.kv_heads
    } else {
        0
    };
    for head in 0..heads {
        let at = (head * shape.seq + row) as usize * dim;
        for (column, v) in v[at..at + dim].iter_mut().enumerate() {
            *v = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, *v][column % 4];
        }
        k[at] = [k[at], f32::NAN, f32::INFINITY][head as usize % 3];
    }
}

/// The operands of a call in fp64, in the order `[B, H, S, D]`.
struct Heads<'a> {
    q: &'a [f64],
    k: &'a [f64],
    v: &'a [f64],
    /// Cached rows of K and of V, for each head of K and V.
    cached: &'a [[Vec<f64>; 2]],
    shape: AttentionShape,
    scale: f64,
    causal: bool,
}

impl Heads<'_> {
    /// Computes a row of O, whose elements are 0 before, and returns its log-sum-exp. Rows are counted over all batches
    /// and heads.
    fn attend(&self, row: usize, o: &mut [ExpectedElement]) -> f64 {
        let (seq, dim) = (self.shape.seq as usize, self.shape.head_dim as usize);
        let kv_head = row / seq / (self.shape.heads / self.shape.kv_heads) as usize;
        let keys = if self.causal { row % seq + 1 } else { seq };
        let of_head = kv_head * seq * dim..(kv_head * seq + keys) * dim;
        let q = &self.q[row * dim..][..dim];
        let [cached_k, cached_v] = &self.cached[kv_head];
        let keys = cached_k
            .chunks(dim)
            .chain(self.k[of_head.clone()].chunks(dim));
        let scores: Vec<f64> = keys.map(|k| dot(q, k) * self.scale).collect();
        let row_max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| weight(*score, row_max)).collect();
        let sum: f64 = weights.iter().sum();
        if sum == 0.0 {
            return f64::NEG_INFINITY;
        }
        let values = cached_v.chunks(dim).chain(self.v[of_head].chunks(dim));
        for (weight, v) in weights.iter().zip(values) {
            let weight = weight / sum;
            for (o, v) in o.iter_mut().zip(v) {
                o.value += weight * v;
                o.magnitude += weight * v.abs();
            }
        }
        row_max + sum.ln()
    }
}

/// Returns the weight of a score before normalisation. The weight of -inf is 0, so a row that has only such scores
/// attends to no key, as in PyTorch.
fn weight(score: f64, row_max: f64) -> f64 {
    match score == f64::NEG_INFINITY {
        true => 0.0,
        false => (score - row_max).exp(),
    }
}

/// Returns the dot product, computed by eight independent sums. A single sum, whose additions depend on each other,
/// would take most of the time of a large test.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}

impl Sharding {
    /// Returns the distribution of a sequence of this length.
    pub const fn with_rows(mut self, rows: u64) -> Self {
        self.shape.seq = rows;
        self
    }

    /// Returns the positions in the sequence of a rank's rows.
    pub fn rows(self, rank: u32) -> Vec<usize> {
        let chunks: Vec<u32> = match self.placement {
            Placement::Contiguous => vec![rank],
            Placement::Zigzag => vec![rank, 2 * self.world - 1 - rank],
        };
        let rows = self
            .shape
            .seq
            .div_ceil(u64::from(self.world) * chunks.len() as u64);
        let chunk = |chunk: u32| {
            let first = u64::from(chunk) * rows;
            first..(first + rows).min(self.shape.seq)
        };
        let rows = chunks.into_iter().flat_map(chunk);
        rows.map(|row| row as usize).collect()
    }

    /// Returns a rank's shard of a tensor `[B, H, S, D]`, in the rank's layout.
    pub fn shard<T: Copy>(self, whole: &[T], heads: u64, rank: u32) -> Vec<T> {
        let (seq, heads) = (self.shape.seq as usize, heads as usize);
        // Without rows, there are no elements to find.
        let dim = whole.len() / (self.shape.batch as usize * heads * seq).max(1);
        let rows = self.rows(rank);
        let row_of = |batch: usize, head: usize, row: usize| {
            let at = ((batch * heads + head) * seq + row) * dim;
            whole[at..at + dim].iter().copied()
        };
        let mut shard = Vec::new();
        for batch in 0..self.shape.batch as usize {
            match self.layout {
                Layout::Bshd => {
                    for row in &rows {
                        (0..heads).for_each(|head| shard.extend(row_of(batch, head, *row)));
                    }
                }
                Layout::Bhsd => {
                    for head in 0..heads {
                        rows.iter()
                            .for_each(|row| shard.extend(row_of(batch, head, *row)));
                    }
                }
            }
        }
        shard
    }

    /// Compares O and LSE of a rank with the expected results.
    ///
    /// # Errors
    /// Elements are wrong. The error gives their number.
    pub fn check(
        self,
        call: &CallData,
        rank: u32,
        (o, lse): (&[f32], &[f32]),
        kind: InputKind,
    ) -> Result<(), String> {
        // The rounding error of a large score in fp32 changes the weight.
        let slack = if kind == InputKind::Extreme { 4.0 } else { 1.0 };
        let expected = self.shard(&call.o, self.shape.heads, rank);
        let info = call.dtype.info();
        // Each weight has an error of its own if it is subnormal.
        let cached = call
            .cache
            .as_ref()
            .map_or(0, |cache| cache.counts.iter().sum());
        let of_weights = info.least * (self.shape.seq + cached) as f64 + 1e-30;
        let is_right = |got: &f32, want: &ExpectedElement| {
            let got = f64::from(*got);
            let rounding = (want.value.abs() + want.magnitude) * info.roundoff;
            let tolerance = slack * rounding + of_weights;
            match want.value.is_finite() {
                true => (got - want.value).abs() <= tolerance,
                false => got == want.value || (got.is_nan() && want.value.is_nan()),
            }
        };
        let wrong_o = wrong(o, &expected, is_right);
        // LSE is [B, H, S] in every layout.
        let by_head = Self {
            layout: Layout::Bhsd,
            ..self
        };
        let expected = by_head.shard(&call.lse, self.shape.heads, rank);
        let is_right = |got: &f32, want: &f64| {
            let got = f64::from(*got);
            got == *want
                || (got - want).abs() <= 1e-5 + slack * want.abs() * 1e-6
                || (got.is_nan() && want.is_nan())
        };
        let wrong_lse = wrong(lse, &expected, is_right);
        match (wrong_o, wrong_lse) {
            (0, 0) => Ok(()),
            _ => Err(format!(
                "rank {rank}: {wrong_o} of {} elements of O and {wrong_lse} of {} of LSE are wrong",
                o.len(),
                lse.len()
            )),
        }
    }
}

/// Returns the number of wrong elements.
fn wrong<A, B>(got: &[A], expected: &[B], is_right: impl Fn(&A, &B) -> bool) -> usize {
    assert_eq!(got.len(), expected.len());
    got.iter()
        .zip(expected)
        .filter(|(got, want)| !is_right(got, want))
        .count()
}
