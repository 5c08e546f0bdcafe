//! Matrix products, sums over ranks and epilogues in fp32 on the CPU.

use mkernel::spec::Topology;
use mkernel::{
    KernelPlan,
    spec::{Activation, Dtype, Epilogue},
};
use std::borrow::Cow;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};
use std::iter;
use std::thread;

/// Expected elements, row-major.
pub struct Matrix {
    /// The elements. Elements that a kernel does not write are NaN.
    pub values: Vec<f32>,
    pub cols: usize,
    /// The number of terms of each sum.
    pub terms: usize,
    /// For each element, the largest error that the kernel makes before it rounds the result. Empty if the kernel has no error but
    /// the error of sums.
    pub errors: Vec<f32>,
    /// The type of the result.
    pub dtype: Dtype,
}

/// The operands that an epilogue adds. Those that it does not add are empty.
#[derive(Clone, Copy, Debug)]
pub struct Addends<'a> {
    pub bias: &'a [f32],
    pub residual: &'a [f32],
}

impl Matrix {
    /// The sum of the partial sums of all ranks. Ranks exchange partial sums as elements of `dtype`. If there are several
    /// nodes of several ranks, nodes also exchange their sums as such.
    pub fn sum(parts: Vec<Self>, topology: Topology, dtype: Dtype) -> Option<Self> {
        let cols = parts.first()?.cols;
        let terms = parts.iter().map(|part| part.terms).sum();
        let elements = parts.first()?.values.len();
        let (mut values, mut errors) = (vec![0.0; elements], vec![0.0; elements]);
        let nodes_round = topology.nodes > 1 && topology.local_world > 1;
        for node in parts.chunks(topology.local_world as usize) {
            let mut of_node = vec![0.0; elements];
            for part in node {
                let of_part = part.errors.iter().chain(iter::repeat(&0.0));
                let sums = of_node.iter_mut().zip(&mut errors);
                for (((sum, error), term), of_term) in sums.zip(&part.values).zip(of_part) {
                    *sum += term;
                    *error += rounding_error(*term, dtype) + of_term;
                }
            }
            for ((value, error), sum) in values.iter_mut().zip(&mut errors).zip(&of_node) {
                *value += sum;
                if nodes_round {
                    *error += rounding_error(*sum, dtype);
                }
            }
        }
        Some(Self {
            values,
            cols,
            terms,
            errors,
            dtype,
        })
    }

    /// Applies an epilogue to the sums. The results are elements of `dtype`.
    pub fn finish(mut self, epilogue: Epilogue, addends: Addends, dtype: Dtype) -> Self {
        let Addends { bias, residual } = addends;
        let of = |values: &[f32], index: usize| values.get(index).map_or(0.0, |x| f64::from(*x));
        for (index, value) in self.values.iter_mut().enumerate() {
            let x = f64::from(*value) + of(bias, index % self.cols);
            *value = (activate(epilogue.activation, x) + of(residual, index)) as f32;
        }
        self.dtype = dtype;
        self
    }

    /// `silu(gate) · up` of sums with the columns of a gate, and then those of up, after a bias has been added to both. An empty
    /// bias adds nothing.
    pub fn swiglu(self, bias: &[f32]) -> Self {
        let cols = self.cols / 2;
        let (mut values, mut errors) = (Vec::new(), Vec::new());
        for (row, sums) in self.values.chunks(self.cols).enumerate() {
            let sum = |col: usize| {
                let error = self.errors.get(row * self.cols + col).map_or(0.0, |x| *x);
                let bias = bias.get(col).map_or(0.0, |x| f64::from(*x));
                (f64::from(sums[col]) + bias, error + sum_error(self.terms))
            };
            for col in 0..cols {
                let ((gate, of_gate), (up, of_up)) = (sum(col), sum(cols + col));
                let value = (silu(gate) * up) as f32;
                values.push(value);
                // Both sums have an error, which is multiplied by the other factor.
                let of_factors = of_gate * (1.1 * up.abs()) as f32 + of_up * gate.abs() as f32;
                errors.push(of_factors + 8.0 * f32::EPSILON * value.abs());
            }
        }
        Self {
            values,
            errors,
            cols,
            ..self
        }
    }

    /// Adds a bias and a residual, either of which may be empty, to the sums of a collective.
    pub fn plus(mut self, bias: &[f32], residual: &[f32]) -> Self {
        let of = |values: &[f32], index: usize| values.get(index).map_or(0.0, |x| f64::from(*x));
        for (index, value) in self.values.iter_mut().enumerate() {
            *value = (f64::from(*value) + of(bias, index % self.cols) + of(residual, index)) as f32;
        }
        self.terms += 2;
        self
    }

    /// RMSNorm of each row. The input of the norm has been rounded.
    pub fn rms_norm(&self, weight: &[f32], eps: f32) -> Self {
        let (mut values, mut errors) = (Vec::new(), Vec::new());
        for (row, z) in self.values.chunks(self.cols).enumerate() {
            let squares: f64 = z.iter().map(|z| f64::from(*z).powi(2)).sum();
            let scale = 1.0 / (squares / self.cols as f64 + f64::from(eps)).sqrt();
            for (col, (z, weight)) in z.iter().zip(weight).enumerate() {
                let factor = scale * f64::from(*weight);
                let y = f64::from(*z) * factor;
                values.push(y as f32);
                let of_z = self.errors.get(row * self.cols + col).map_or(0.0, |x| *x);
                let of_z = of_z + rounding_error(*z, self.dtype);
                errors.push(factor.abs() as f32 * of_z);
            }
        }
        Self {
            values,
            cols: self.cols,
            terms: 4 * (self.terms + 8),
            errors,
            dtype: self.dtype,
        }
    }

    /// The elements with the indices in `range`, in row-major order.
    pub fn part(&self, range: std::ops::Range<usize>) -> Self {
        Self {
            values: self.values[range.clone()].to_vec(),
            errors: self.errors[range].to_vec(),
            cols: self.cols,
            terms: self.terms,
            dtype: self.dtype,
        }
    }
}

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Gelu => x * normal(x),
        Activation::GeluTanh => {
            let u = (x + 0.044_715 * x.powi(3)) * FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
            0.5 * x * (1.0 + u.tanh())
        }
        Activation::Silu => silu(x),
    }
}

/// x · sigmoid(x)
fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// The largest expected error of an fp32 sum of `terms` products whose magnitude is at most 1.
pub fn sum_error(terms: usize) -> f32 {
    terms as f32 * f32::EPSILON * 2.3 + 1e-6
}

/// The cumulative normal distribution up to `x`. It is a series, which is replaced by 0 or 1 where these are within
/// 1e-11.
fn normal(x: f64) -> f64 {
    if x.abs() > 7.0 {
        return if x > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while f64::abs(term) > 1e-18 {
        n += 1.0;
        term *= x * x / (2.0 * n + 1.0);
        sum += term;
    }
    0.5 + sum * (-0.5 * x * x).exp() * 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2
}

/// The number of rows of B that stay in a cache while they are multiplied by all rows of A.
const B_ROWS: usize = 32;

/// Computes `A[M,K] · B[K,N]`, or `A[M,K] · B[N,K]ᵀ` if B is transposed. M follows from the length of A.
pub fn multiply(
    a: &[f32],
    b: &[f32],
    b_is_transposed: bool,
    (n, k): (usize, usize),
    threads: usize,
) -> Matrix {
    let b = if b_is_transposed {
        Cow::Borrowed(b)
    } else {
        let indices = (0..n).flat_map(|col| (0..k).map(move |row| row * n + col));
        indices.map(|index| b[index]).collect()
    };
    let rows = a.len() / k;
    let mut values = vec![0.0; rows * n];
    let rows_per_thread = rows.div_ceil(threads.max(1)).max(1);
    thread::scope(|scope| {
        let parts = values.chunks_mut(rows_per_thread * n);
        for (a, c) in a.chunks(rows_per_thread * k).zip(parts) {
            let b: &[f32] = &b;
            scope.spawn(move || multiply_rows(a, b, c, (n, k)));
        }
    });
    Matrix {
        values,
        cols: n,
        terms: k,
        errors: Vec::new(),
        dtype: Dtype::Fp32,
    }
}

impl Matrix {
    /// The same sums, of products of elements of this type. Tensor cores add up products of e4m3 with an error.
    pub fn of_factors(mut self, dtype: Dtype) -> Self {
        if dtype.bytes() == 1 {
            self.errors = vec![narrow_sum_error(self.terms); self.values.len()];
        }
        self
    }
}

/// The largest expected error of a sum of `terms` products of e4m3 whose magnitude is at most 1. Tensor cores keep 13 bits behind
/// the leading bit of the largest product. Cuts of products of both signs add up like a random walk.
fn narrow_sum_error(terms: usize) -> f32 {
    (terms as f32).sqrt() / 1024.0
}

/// The elements times their scales, of a matrix with rows of `cols` elements in which `share` rows and columns share a scale.
pub fn scaled(
    elements: &[f32],
    cols: usize,
    (row_share, col_share): (usize, usize),
    scales: &[f32],
) -> Vec<f32> {
    let of_row = cols.div_ceil(col_share);
    let rows = elements.chunks(cols).enumerate();
    rows.flat_map(|(row, elements)| {
        let scales = &scales[row / row_share * of_row..];
        let elements = elements.iter().enumerate();
        elements.map(move |(col, element)| element * scales[col / col_share])
    })
    .collect()
}

/// The largest error of a number that a kernel rounds, with room for one that has an error before.
pub fn rounding_error(value: f32, dtype: Dtype) -> f32 {
    1.14 * dtype.rounding_error(f64::from(value)) as f32
}

fn multiply_rows(a: &[f32], b: &[f32], c: &mut [f32], (n, k): (usize, usize)) {
    for (block, b) in b.chunks(B_ROWS * k).enumerate() {
        for (a, c) in a.chunks(k).zip(c.chunks_mut(n)) {
            for (b, c) in b.chunks(k).zip(&mut c[block * B_ROWS..]) {
                *c = dot(a, b);
            }
        }
    }
}

/// The dot product by several partial sums, which the compiler vectorises and which have a smaller rounding error than
/// one.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const SUMS: usize = 16;
    let (a_blocks, a_rest) = a.as_chunks::<SUMS>();
    let (b_blocks, b_rest) = b.as_chunks::<SUMS>();
    let mut sums = [0.0; SUMS];
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for i in 0..SUMS {
            sums[i] += a[i] * b[i];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// Bytes of an element of the narrowest type.
pub const NARROWEST_BYTES: u64 = 2;

/// Bytes of two copies of all ranks' results in fp32, and of two copies of their errors.
pub fn matrix_sums_bytes(plan: &KernelPlan) -> u64 {
    let ranks = 0..plan.spec.world();
    let written: u64 = ranks.map(|rank| plan.operand_bytes(rank).1).sum();
    4 * written / NARROWEST_BYTES * Dtype::Fp32.bytes()
}

/// Appends NaN for the elements that a kernel does not write, up to `len` elements.
pub fn padded(mut values: Vec<f32>, len: usize) -> Vec<f32> {
    values.resize(len, f32::NAN);
    values
}

/// Elements for tests.
#[cfg(test)]
pub fn test_matrix(rows: usize, cols: usize) -> Vec<f32> {
    let value = |i: usize| ((i * 37 + 11) % 101) as f32 / 64.0 - 0.75;
    (0..rows * cols).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::test_matrix as matrix;
    use super::*;

    #[test]
    fn products_in_both_layouts_and_any_number_of_threads() {
        let (m, n, k) = (7, 70, 37);
        let (a, b) = (matrix(m, k), matrix(n, k));
        let transposed: Vec<f32> = (0..k * n).map(|i| b[i % n * k + i / n]).collect();
        for threads in [1, 3, 16] {
            let nk = multiply(&a, &b, true, (n, k), threads);
            let kn = multiply(&a, &transposed, false, (n, k), threads);
            assert_eq!(nk.values, kn.values);
            for row in 0..m {
                for col in 0..n {
                    let product = |i: usize| f64::from(a[row * k + i]) * f64::from(b[col * k + i]);
                    let exact: f64 = (0..k).map(product).sum();
                    let found = f64::from(nk.values[row * n + col]);
                    assert!((found - exact).abs() < 1e-5, "{found} instead of {exact}");
                }
            }
        }
    }

    #[test]
    fn epilogues() {
        let sum = multiply(&matrix(3, 64), &matrix(8, 64), true, (8, 64), 1);
        let (bias, residual) = (matrix(1, 8), matrix(3, 8));
        let before = sum.values.clone();
        let epilogue = Epilogue {
            bias: true,
            residual: true,
            activation: Activation::Relu,
            ..Epilogue::default()
        };
        let addends = Addends {
            bias: &bias,
            residual: &residual,
        };
        let after = sum.finish(epilogue, addends, Dtype::Fp32).values;
        for (index, (before, after)) in before.iter().zip(&after).enumerate() {
            let biased = (before + bias[index % 8]).max(0.0);
            let expected = biased + residual[index];
            assert!((after - expected).abs() < 1e-5, "{after}, {expected}");
        }
        // Values of tables.
        for (activation, x, y) in [
            (Activation::Gelu, 1.0, 0.841_344_746),
            (Activation::Gelu, -3.0, -0.004_049_694),
            (Activation::GeluTanh, 1.0, 0.841_191_990),
            (Activation::Silu, 1.0, 0.731_058_579),
            (Activation::Silu, -2.0, -0.238_405_844),
        ] {
            let found = activate(activation, x);
            assert!((found - y).abs() < 1e-8, "{activation}({x}) is {found}");
        }
    }
}
