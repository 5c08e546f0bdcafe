//! Sums over ranks, with and without products, and the epilogue of these sums.

use super::{Element, Job, adding, rounding};
use mkernel::Operand;
use mkernel::spec::{
    Activation, BLayout, CollectiveConfig, CollectiveOp, Dtype, GemmConfig, GemmOp, Norm, Scales,
};

/// A number that is known up to an error.
#[derive(Clone, Copy)]
struct Near {
    value: f64,
    error: f64,
}

impl Near {
    /// The number as an element of this type.
    fn rounded(self, dtype: Dtype) -> Self {
        let error = self.error + rounding(self.value, dtype);
        Self { error, ..self }
    }

    fn element(self) -> Element {
        Some((self.value, self.error))
    }
}

/// C of a GEMM operator, and with a norm the new residual.
pub fn gemm(job: &Job, config: &GemmConfig, rank: usize) -> Vec<Vec<Element>> {
    let (n, k, epilogue) = (size(config.n), size(config.k), config.epilogue);
    let dtype = match config.dtype {
        Dtype::E4m3 => Dtype::Bf16,
        other => other,
    };
    let (a, product) = (job.floats_of_ranks(Operand::A), product_of(job, config));
    let all_rows: usize = match config.op {
        GemmOp::AgGemm => a.iter().map(|a| a.len() / k).sum(),
        _ => a[rank].len() / k,
    };
    let rows = match config.op {
        GemmOp::GemmRs => job.shard(all_rows, rank),
        _ => 0..all_rows,
    };
    let first = rows.start;
    let addends = [Operand::Bias, Operand::Residual];
    let [bias, residual] = addends.map(|operand| job.floats(operand, rank));
    let mut c = Vec::new();
    for row in rows {
        for col in 0..n {
            let sum = |col: usize| match config.op {
                GemmOp::AgGemm => {
                    let owner = |rank: &usize| job.shard(all_rows, *rank).contains(&row);
                    let owner = (0..job.world).find(owner).expect("a rank has the row");
                    let row = row - job.shard(all_rows, owner).start;
                    product((owner, row), (rank, col))
                }
                GemmOp::Gemm => product((rank, row), (rank, col)),
                _ => sum_of_ranks(job, |rank| product((rank, row), (rank, col)), dtype, true),
            };
            let at = (row - first) * n + col;
            let biased = |col: usize| {
                let Near { value, error } = sum(col);
                (value + bias.get(col).unwrap_or(&0.0), 1.2 * error)
            };
            let (x, error) = biased(col);
            let (value, error) = match epilogue.swiglu {
                true => gated((x, error), biased(n + col)),
                false => (activated(epilogue.activation, x), error),
            };
            c.push(Near {
                value: value + residual.get(at).unwrap_or(&0.0),
                error: error + 1e-6,
            });
        }
    }
    let sums = match epilogue.quantises_sums() {
        true => Dtype::Fp32,
        false => dtype,
    };
    let results = finished(
        c,
        (n, epilogue.output.unwrap_or(sums)),
        epilogue.norm,
        f64::from(epilogue.eps.value()),
        &job.floats(Operand::Weight, rank),
    );
    with_scales(results, n, epilogue.result_scales)
}

/// `silu(gate) · up` with its error, of numbers with these errors.
fn gated((gate, error_of_gate): (f64, f64), (up, error_of_up): (f64, f64)) -> (f64, f64) {
    let silu = activated(Activation::Silu, gate);
    let value = silu * up;
    let error = error_of_gate * up.abs() + error_of_up * silu.abs();
    (value, error + 1e-6 * value.abs())
}

/// The function of a row of a rank's A and a column of a rank's B that gives their product.
fn product_of(job: &Job, config: &GemmConfig) -> impl Fn((usize, usize), (usize, usize)) -> Near {
    let (n, k, layout) = (size(config.n), size(config.k), config.b_layout);
    let cols_of_b = if config.epilogue.swiglu { 2 * n } else { n };
    let a = job.floats_of_ranks(Operand::A);
    let b = job.floats_of_ranks(Operand::B);
    let scale = scale_of(job, config);
    let is_narrow = config.dtype == Dtype::E4m3;
    move |(of_a, row), (of_b, col)| {
        let b = |depth: usize| match layout {
            BLayout::Kn => b[of_b][depth * cols_of_b + col],
            BLayout::Nk => b[of_b][col * k + depth],
        };
        let (mut value, mut magnitudes) = (0.0, 0.0);
        for depth in 0..k {
            let term = a[of_a][row * k + depth] * b(depth) * scale((of_a, row), (of_b, col), depth);
            value += term;
            magnitudes += f64::abs(term);
        }
        // Sums of e4m3 keep 13 bits behind the leading bit of the largest product.
        let narrow = if is_narrow { magnitudes / 1024.0 } else { 0.0 };
        let error = adding(magnitudes) + narrow;
        Near { value, error }
    }
}

/// The function of a row of a rank's A, a column of a rank's B, and k that gives the product of both scales.
fn scale_of(
    job: &Job,
    config: &GemmConfig,
) -> impl Fn((usize, usize), (usize, usize), usize) -> f64 {
    let (scales, blocks) = (config.scales, size(config.k).div_ceil(128));
    let (n, swiglu) = (size(config.n), config.epilogue.swiglu);
    // The first block of up comes behind the last block of the gate.
    let block_of = move |col: usize| match swiglu && col >= n {
        true => n.div_ceil(128) + (col - n) / 128,
        false => col / 128,
    };
    let a = job.floats_of_ranks(Operand::AScales);
    let b = job.floats_of_ranks(Operand::BScales);
    move |(of_a, row), (of_b, col), depth| match scales {
        Scales::None => 1.0,
        Scales::Tensor => a[of_a][0] * b[of_b][0],
        Scales::Row => a[of_a][row] * b[of_b][col],
        Scales::Block => {
            let block = depth / 128;
            a[of_a][row * blocks + block] * b[of_b][block_of(col) * blocks + block]
        }
    }
}

/// Y of a collective, with a norm the new residual, and with scales the scales of Y.
pub fn collective(job: &Job, config: &CollectiveConfig, rank: usize) -> Vec<Vec<Element>> {
    let n = size(config.n);
    let scales = match config.scales {
        Scales::None | Scales::Tensor => 0,
        Scales::Row => 1,
        Scales::Block => n.div_ceil(128),
    };
    if !config.op.reduces() {
        let of = [(Operand::X, n), (Operand::XScales, scales)].into_iter();
        let of = of.filter(|(_, cols)| *cols > 0);
        return of
            .map(|(operand, cols)| moved(job, config.op, (operand, cols), rank))
            .collect();
    }
    let x = job.floats_of_ranks(Operand::X);
    let all_rows = x[0].len() / n;
    let rows = match config.op {
        CollectiveOp::ReduceScatter => job.shard(all_rows, rank),
        _ => 0..all_rows,
    };
    let (bias, residual) = (
        job.floats(Operand::Bias, rank),
        job.floats(Operand::Residual, rank),
    );
    let sum = |index: usize| {
        let of_rank = |rank: usize| Near {
            value: x[rank][index],
            error: adding(x[rank][index].abs()),
        };
        let sum = sum_of_ranks(job, of_rank, config.dtype, false);
        let addend = bias.get(index % n).unwrap_or(&0.0) + residual.get(index).unwrap_or(&0.0);
        let value = sum.value + addend;
        Near {
            value,
            error: sum.error + adding(addend.abs()),
        }
    };
    let sums = (rows.start * n..rows.end * n).map(sum).collect();
    let results = finished(
        sums,
        (n, config.dtype),
        config.epilogue.norm,
        f64::from(config.epilogue.eps.value()),
        &job.floats(Operand::Weight, rank),
    );
    with_scales(results, n, config.epilogue.result_scales)
}

/// Quantises the first of `results`, rows of `n` normalised elements, and appends their scales, if there are scales.
pub fn with_scales(mut results: Vec<Vec<Element>>, n: usize, scales: Scales) -> Vec<Vec<Element>> {
    let share = match scales {
        Scales::None | Scales::Tensor => return results,
        Scales::Row => n,
        Scales::Block => 128,
    };
    let rows = results[0].chunks(n).flat_map(|row| row.chunks(share));
    let (elements, scales): (Vec<_>, Vec<_>) = rows.map(quantised).unzip();
    results[0] = elements.concat();
    results.push(scales);
    results
}

/// The rows that `rank` gets of an operand with `n` columns, unchanged.
fn moved(job: &Job, op: CollectiveOp, (operand, n): (Operand, usize), rank: usize) -> Vec<Element> {
    let x = job.floats_of_ranks(operand);
    let all = match op {
        CollectiveOp::AllToAll => {
            let rows = job.shard(x[0].len() / n, rank);
            let parts = x.iter().map(|x| &x[rows.start * n..rows.end * n]);
            parts.collect::<Vec<_>>().concat()
        }
        _ => x.concat(),
    };
    all.into_iter().map(|x| Some((x, 0.0))).collect()
}

/// Quantises elements that share a scale to e4m3, the greatest one to 448. Returns the elements and the scale.
fn quantised(row: &[Element]) -> (Vec<Element>, Element) {
    let known = row.iter().flatten();
    let (greatest, error) = known.fold((0.0, 0.0), |(greatest, error): (f64, f64), (x, of_x)| {
        (greatest.max(x.abs()), error.max(*of_x))
    });
    let scale = greatest.max(2f64.powi(-64)) / 448.0;
    let element = |(x, of_x): (f64, f64)| {
        let value = x / scale;
        let before = of_x / scale + value.abs() * error / (448.0 * scale);
        (value, before * 1.1 + rounding(value, Dtype::E4m3))
    };
    let elements = row.iter().map(|x| x.map(element)).collect();
    let of_scale = error / 448.0 + rounding(scale, Dtype::Fp32);
    (elements, Some((scale, of_scale)))
}

/// The sum of what ranks have. Each part is rounded to `dtype` if `rounds`, and so is the sum of each of several nodes.
fn sum_of_ranks(job: &Job, part: impl Fn(usize) -> Near, dtype: Dtype, rounds: bool) -> Near {
    let mut sum = Near {
        value: 0.0,
        error: 0.0,
    };
    for node in 0..job.nodes {
        let mut of_node = 0.0;
        for rank in job.ranks_of_node(node) {
            let part = part(rank);
            of_node += part.value;
            sum.error += part.error;
            sum.error += if rounds {
                rounding(part.value, dtype)
            } else {
                0.0
            };
        }
        sum.value += of_node;
        sum.error += if job.nodes > 1 {
            rounding(of_node, dtype)
        } else {
            0.0
        };
    }
    sum
}

/// The results for rows of `n` sums before the last rounding.
fn finished(
    sums: Vec<Near>,
    (n, dtype): (usize, Dtype),
    norm: Norm,
    eps: f64,
    weight: &[f64],
) -> Vec<Vec<Element>> {
    let z: Vec<Near> = sums.into_iter().map(|sum| sum.rounded(dtype)).collect();
    let of_z = z.iter().copied().map(Near::element).collect();
    if norm == Norm::None {
        return vec![of_z];
    }
    let mut y = Vec::new();
    for row in z.chunks(n) {
        let squares: f64 = row.iter().map(|z| z.value * z.value).sum::<f64>() + n as f64 * eps;
        let error_of_squares: f64 = row
            .iter()
            .map(|z| (2.0 * z.value.abs() + z.error) * z.error)
            .sum();
        let scale = 1.0 / (squares / n as f64).sqrt();
        for (z, weight) in row.iter().zip(weight) {
            let value = z.value * weight * scale;
            let error = (scale * weight).abs() * z.error
                + value.abs() * (error_of_squares / squares)
                + 1e-6;
            y.push(Near { value, error }.rounded(dtype).element());
        }
    }
    vec![y, of_z]
}

fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu if x < 0.0 => 0.0,
        Activation::Relu => x,
        Activation::Gelu => x * 0.5 * (1.0 + erf(x / 2.0_f64.sqrt())),
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            x / (1.0 + (-2.0 * u).exp())
        }
        Activation::Silu => x / (1.0 + (-x).exp()),
    }
}

/// The error function, as an integral by Simpson's rule.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    const STEPS: usize = 600;
    let step = x / STEPS as f64;
    let sum: f64 = (0..=STEPS)
        .map(|i| {
            let at = i as f64 * step;
            let weight = match i {
                0 | STEPS => 1.0,
                _ if i % 2 == 1 => 4.0,
                _ => 2.0,
            };
            weight * (-at * at).exp()
        })
        .sum();
    sum * step / 3.0 * 2.0 / std::f64::consts::PI.sqrt()
}

/// A size that does not change from call to call.
pub fn size(dim: mkernel::spec::Dim) -> usize {
    dim.fixed().expect("a size that is known") as usize
}
