//! The operands of a job of a GEMM operator, and the expected results.

use super::random::Random;
use super::simulated::rounded;
use mkernel::Operand;
use mkernel::spec::{Activation, BLayout, Epilogue, GemmConfig, GemmOp, GemmShape, Scales};
use std::ops::Range;

/// The operands of all ranks for one call, and the expected result of each rank before it is rounded.
///
/// The operands are small whole numbers. Every sum is therefore exact in fp32, in any order of addition.
#[derive(Debug)]
pub struct CallData {
    pub a: Vec<Vec<f32>>,
    pub b: Vec<Vec<f32>>,
    /// The scales of each rank's A; empty if the kernel takes no scales.
    pub a_scales: Vec<Vec<f32>>,
    /// The scales of each rank's B.
    pub b_scales: Vec<Vec<f32>>,
    /// The bias of each rank; empty if the kernel adds no bias.
    pub bias: Vec<Vec<f32>>,
    /// The residual of each rank; empty if the kernel adds no residual.
    pub residual: Vec<Vec<f32>>,
    pub expected: Vec<Vec<f64>>,
}

/// The operands A and B of each rank, and the sums to which each rank applies its epilogue.
struct Products {
    a: Vec<Factor>,
    b: Vec<Factor>,
    sums: Vec<Vec<f32>>,
}

/// A factor of a product: its elements, its scales, and the elements times their scales. Most scales are 1, and some are 2,
/// so that partial sums stay exact.
#[derive(Clone)]
struct Factor {
    elements: Vec<f32>,
    scales: Vec<f32>,
    scaled: Vec<f32>,
}

impl Factor {
    /// A factor with rows of `cols` elements. `shares` is the number of rows and of columns that share a scale.
    fn new(elements: Vec<f32>, cols: u64, shares: Option<(u64, u64)>, random: &mut Random) -> Self {
        let rows = elements.len() as u64 / cols;
        let Some((row_share, col_share)) = shares else {
            return Self {
                scaled: elements.clone(),
                scales: Vec::new(),
                elements,
            };
        };
        let (row_share, col_share) = (row_share.min(rows.max(1)), col_share.min(cols));
        let scale_cols = cols.div_ceil(col_share);
        let count = rows.div_ceil(row_share).max(1) * scale_cols;
        let scales = random.fill(count, 3, 1.0).into_iter();
        let scales: Vec<_> = scales
            .map(|x| if x.abs() == 3.0 { 2.0 } else { 1.0 })
            .collect();
        let scale_of = |index: u64| {
            let (row, col) = (index / cols / row_share, index % cols / col_share);
            scales[(row * scale_cols + col) as usize]
        };
        Self {
            scaled: (0..).zip(&elements).map(|(i, x)| x * scale_of(i)).collect(),
            scales,
            elements,
        }
    }

    /// A factor with these rows, followed by the rows of another factor.
    fn before(mut self, other: Self) -> Self {
        self.elements.extend(other.elements);
        self.scales.extend(other.scales);
        self.scaled.extend(other.scaled);
        self
    }

    /// The rows of a shard of a factor with rows of `cols` elements. `shares` is as in [`Factor::new`].
    fn shard(&self, rows: &Range<u64>, cols: u64, shares: Option<(u64, u64)>) -> Self {
        let of = |all: &[f32], cols: u64| {
            all[(rows.start * cols) as usize..(rows.end * cols) as usize].to_vec()
        };
        Self {
            elements: of(&self.elements, cols),
            scales: match shares {
                Some((1, share)) => of(&self.scales, cols.div_ceil(share)),
                _ => self.scales.clone(),
            },
            scaled: of(&self.scaled, cols),
        }
    }
}

/// The number of rows and of columns of A, and of B, that share a scale.
fn shares(scales: Scales) -> [Option<(u64, u64)>; 2] {
    match scales {
        Scales::None => [None; 2],
        Scales::Tensor => [Some((u64::MAX, u64::MAX)); 2],
        Scales::Row => [Some((1, u64::MAX)); 2],
        Scales::Block => [Some((1, 128)), Some((128, 128))],
    }
}

impl Random {
    /// Returns `count` whole numbers between -`largest` and `largest`, times `scale`.
    fn fill(&mut self, count: u64, largest: u64, scale: f32) -> Vec<f32> {
        let element = |_| {
            let whole = (self.bits() % (2 * largest + 1)) as f32 - largest as f32;
            whole * scale
        };
        (0..count).map(element).collect()
    }
}

impl CallData {
    /// Computes the operands and results of call `number` of a job.
    pub fn new(config: &GemmConfig, world: u32, shape: GemmShape, number: u32) -> Self {
        let (op, epilogue) = (config.op, config.epilogue);
        let mut random = Random(u64::from(number) + 1);
        let Products { a, b, sums } = match op {
            GemmOp::AgGemm => gathered(config, world, shape, &mut random),
            GemmOp::Gemm => alone(config, world, shape, &mut random),
            GemmOp::GemmRs | GemmOp::GemmAr => summed(config, world, shape, &mut random),
        };
        let weight_cols = u64::from(epilogue.weight_cols());
        let elems = |rank: usize| sums[rank].len() as u64 / weight_cols;
        let scale = scale(epilogue);
        // All ranks have one bias if the operator reduces, and one residual in gemm_ar.
        let mut addend = |is_there: bool, is_common: bool, elems: &dyn Fn(usize) -> u64| {
            let mut all: Vec<Vec<f32>> = Vec::new();
            for rank in 0..world as usize {
                all.push(match (is_there, all.first()) {
                    (false, _) => Vec::new(),
                    (true, Some(first)) if is_common => first.clone(),
                    (true, _) => random.fill(elems(rank), 7, scale),
                });
            }
            all
        };
        let bias = addend(epilogue.bias, op.reduces(), &|_| weight_cols * shape.n);
        let residual = addend(epilogue.residual, op == GemmOp::GemmAr, &elems);
        let expected = sums
            .iter()
            .enumerate()
            .map(|(rank, sums)| finish(sums, shape.n, &bias[rank], &residual[rank], epilogue))
            .collect();
        let split = |all: Vec<Factor>| -> (Vec<_>, Vec<_>) {
            let parts = all.into_iter();
            parts.map(|factor| (factor.elements, factor.scales)).unzip()
        };
        let ((a, a_scales), (b, b_scales)) = (split(a), split(b));
        Self {
            a,
            b,
            a_scales,
            b_scales,
            bias,
            residual,
            expected,
        }
    }
}

impl CallData {
    /// The operands that the kernel reads on a rank.
    pub fn inputs(&self, config: &GemmConfig, rank: usize) -> Vec<(Operand, &[f32])> {
        let (has_scales, epilogue) = (config.scales != Scales::None, config.epilogue);
        let all = [
            (Operand::A, &self.a, true),
            (Operand::B, &self.b, true),
            (Operand::AScales, &self.a_scales, has_scales),
            (Operand::BScales, &self.b_scales, has_scales),
            (Operand::Bias, &self.bias, epilogue.bias),
            (Operand::Residual, &self.residual, epilogue.residual),
        ];
        let read = all.into_iter().filter(|(_, _, is_read)| *is_read);
        read.map(|(operand, of, _)| (operand, of[rank].as_slice()))
            .collect()
    }
}

/// Returns the scale of the operands. Smooth activations get small operands, near 0, where they are not almost linear.
fn scale(epilogue: Epilogue) -> f32 {
    if is_exact(epilogue) { 1.0 } else { 0.125 }
}

/// Returns the rows of a rank's shard.
fn rows_of(world: u32, m: u64, rank: u64) -> Range<u64> {
    let shard_rows = m.div_ceil(u64::from(world));
    (rank * shard_rows).min(m)..((rank + 1) * shard_rows).min(m)
}

/// Returns the operands and sums of `ag_gemm`: each rank multiplies the whole A by its own B.
fn gathered(config: &GemmConfig, world: u32, shape: GemmShape, random: &mut Random) -> Products {
    let GemmShape { m, n, k } = shape;
    let (epilogue, ranks) = (config.epilogue, 0..u64::from(world));
    let weight_cols = u64::from(epilogue.weight_cols());
    let n = n * weight_cols;
    let largest = if is_exact(epilogue) { 8 } else { 1 };
    let [of_a, of_b] = shares(config.scales);
    let a = Factor::new(random.fill(m * k, largest, 1.0), k, of_a, random);
    let b: Vec<_> = ranks
        .clone()
        .map(|_| random.fill(n * k, largest, scale(epilogue)))
        .collect();
    // The blocks of up begin at the first column of up.
    let parts = match config.scales {
        Scales::Block => weight_cols,
        _ => 1,
    };
    let mut factor_of_b = |b: Vec<f32>| {
        let parts = b.chunks((n / parts * k) as usize);
        let parts = parts.map(|part| Factor::new(part.to_vec(), k, of_b, random));
        parts.reduce(Factor::before).expect("a part")
    };
    let b: Vec<_> = b.into_iter().map(&mut factor_of_b).collect();
    let sizes = (n as usize, k as usize);
    let sums = b
        .iter()
        .map(|b| product(&a.scaled, &b.scaled, config.b_layout, sizes))
        .collect();
    let shard = |rank| match world {
        1 => a.clone(),
        _ => a.shard(&rows_of(world, m, rank), k, of_a),
    };
    Products {
        a: ranks.map(shard).collect(),
        b,
        sums,
    }
}

/// Returns the operands and sums of `gemm`: each rank multiplies its own A by its own B.
fn alone(config: &GemmConfig, world: u32, shape: GemmShape, random: &mut Random) -> Products {
    let of_rank = |_| gathered(config, 1, shape, random);
    let (mut a, mut b, mut sums) = (Vec::new(), Vec::new(), Vec::new());
    for of_rank in (0..world).map(of_rank) {
        a.extend(of_rank.a);
        b.extend(of_rank.b);
        sums.extend(of_rank.sums);
    }
    Products { a, b, sums }
}

/// Returns the operands and sums of operators that reduce: the products of all ranks are added.
fn summed(config: &GemmConfig, world: u32, shape: GemmShape, random: &mut Random) -> Products {
    let GemmShape { m, n, k } = shape;
    let (scale, ranks) = (scale(config.epilogue), 0..u64::from(world));
    // Partial sums are exchanged as elements, which are exact for whole numbers up to this limit. The limit of fp16
    // exceeds the limit of bf16.
    let exact_up_to = 1.0 / config.types().partial.info().roundoff as f32;
    let largest = (exact_up_to as u64 / 512).max(1);
    let mut fill = |elems, scale| -> Vec<_> {
        let of_rank = |_| random.fill(elems, largest, scale);
        ranks.clone().map(of_rank).collect()
    };
    let [of_a, of_b] = shares(config.scales);
    let (a, b) = (fill(m * k, 1.0), fill(n * k, scale));
    let mut factors = |all: Vec<Vec<f32>>, shares| -> Vec<_> {
        let all = all.into_iter();
        all.map(|elements| Factor::new(elements, k, shares, random))
            .collect()
    };
    let (a, b) = (factors(a, of_a), factors(b, of_b));
    let mut total = vec![0.0; (m * n) as usize];
    let sizes = (n as usize, k as usize);
    for (a, b) in a.iter().zip(&b) {
        let parts = product(&a.scaled, &b.scaled, config.b_layout, sizes);
        for (sum, part) in total.iter_mut().zip(parts) {
            let is_exact = part.abs() <= exact_up_to * scale;
            assert!(is_exact, "a partial sum that is not exact");
            *sum += part;
        }
    }
    let own = |rank| {
        let rows = match config.op {
            GemmOp::GemmRs => rows_of(world, m, rank),
            _ => 0..m,
        };
        total[(rows.start * n) as usize..(rows.end * n) as usize].to_vec()
    };
    Products {
        a,
        b,
        sums: ranks.map(own).collect(),
    }
}

/// Returns whether the results are whole numbers if the operands are.
fn is_exact(epilogue: Epilogue) -> bool {
    !epilogue.swiglu && matches!(epilogue.activation, Activation::None | Activation::Relu)
}

/// Returns whether a result is right: bit for bit, or within the error of a smooth activation.
pub fn is_right(got: f32, want: f64, config: &GemmConfig) -> bool {
    let dtype = config.types().c;
    if is_exact(config.epilogue) {
        return got.to_bits() == rounded(want, dtype).to_bits();
    }
    (f64::from(got) - want).abs() <= dtype.rounding_error(want) + 1e-6 * (want.abs() + 1.0)
}

/// Returns activation(sum + bias) + residual in fp64, for rows of C of `n` elements. With SwiGLU, a row has the sums of the
/// gate, and then the sums of up.
fn finish(sums: &[f32], n: u64, bias: &[f32], residual: &[f32], epilogue: Epilogue) -> Vec<f64> {
    let of = |values: &[f32], index: usize| values.get(index).map_or(0.0, |x| f64::from(*x));
    let (n, mut finished) = (n as usize, Vec::new());
    for (row, sums) in sums.chunks(n * epilogue.weight_cols() as usize).enumerate() {
        let biased = |col: usize| f64::from(sums[col]) + of(bias, col);
        finished.extend((0..n).map(|col| {
            let y = match epilogue.swiglu {
                true => activated(Activation::Silu, biased(col)) * biased(n + col),
                false => activated(epilogue.activation, biased(col)),
            };
            y + of(residual, row * n + col)
        }));
    }
    finished
}

fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Gelu => x * normal(x),
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            x / 2.0 * (1.0 + u.tanh())
        }
        Activation::Silu => x / (1.0 + (-x).exp()),
    }
}

/// Returns the distribution function of the normal distribution at `x`: 1/2 plus the density times
/// x + x³/3 + x⁵/(3·5) + …
fn normal(x: f64) -> f64 {
    if x.abs() > 7.0 {
        return f64::from(u8::from(x > 0.0));
    }
    let (mut term, mut sum, mut odd) = (x, x, 1.0);
    while f64::abs(term) > 1e-18 {
        odd += 2.0;
        term *= x * x / odd;
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
}

/// Returns A · B. A has rows of `k` elements, and B has the layout `layout`.
fn product(a: &[f32], b: &[f32], layout: BLayout, (n, k): (usize, usize)) -> Vec<f32> {
    let at = |depth: usize, column: usize| match layout {
        BLayout::Kn => depth * n + column,
        BLayout::Nk => column * k + depth,
    };
    let b: Vec<f32> = (0..n * k)
        .map(|index| b[at(index / n, index % n)])
        .collect();
    let mut result = vec![0.0f32; a.len() / k * n];
    for (row, sums) in a.chunks_exact(k).zip(result.chunks_exact_mut(n)) {
        for (factor, b) in row.iter().zip(b.chunks_exact(n)) {
            // In a build with little optimisation, an iterator takes three times as long as this loop.
            let mut column = 0;
            while column < n {
                sums[column] += *factor * b[column];
                column += 1;
            }
        }
    }
    result
}
