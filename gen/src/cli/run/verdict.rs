//! [`Verdict`]: the comparison of results with their references.

use super::reference::{Matrix, sum_error};
use mkernel::KernelPlan;
use mkernel::spec::Dtype;

/// The results of a call, by operand.
pub type Results = Vec<(&'static str, Vec<f32>)>;

/// The comparison of a result with its reference. [`Verdict::add`] combines several.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verdict {
    pub elements: u64,
    pub wrong: u64,
    pub first_wrong: Option<Mismatch>,
    /// Σ (found - expected)²
    error_squares: f64,
    /// Σ expected²
    squares: f64,
}

/// A wrong element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mismatch {
    pub call: u32,
    pub rank: u32,
    pub operand: &'static str,
    pub row: usize,
    pub col: usize,
    pub found: f32,
    pub expected: f32,
}

impl Verdict {
    /// Compares every element of a result of `rank` with its reference.
    pub fn of(
        found: &[f32],
        expected: &Matrix,
        (call, rank, operand): (u32, u32, &'static str),
    ) -> Self {
        let mut verdict = Self::default();
        // The tolerance has three parts. The first part is half a unit in the last place for rounding, and another half for a
        // sum that is close to a tie. The second part is the error of fp32 sums of products, which tensor cores truncate. The
        // third part is the activation, which multiplies an error by up to 1.13 and adds its own error.
        let rounding = |value: f32| {
            let of_type = expected.dtype.rounding_error(f64::from(value)) as f32;
            of_type + value.abs() * f32::EPSILON / 2.0
        };
        let sum_error = sum_error(expected.terms);
        for (index, wanted) in expected.values.iter().copied().enumerate() {
            let found = found.get(index).copied().unwrap_or(f32::NAN);
            let error = (found - wanted).abs();
            verdict.elements += 1;
            let before = expected.errors.get(index).copied().unwrap_or(0.0);
            // Elements that the kernel does not write must be unchanged.
            let is_wrong = match wanted.is_nan() {
                true => !found.is_nan(),
                false => error.is_nan() || error > rounding(wanted) + sum_error + before,
            };
            if is_wrong {
                verdict.wrong += 1;
                verdict.first_wrong.get_or_insert(Mismatch {
                    call,
                    rank,
                    operand,
                    row: index / expected.cols,
                    col: index % expected.cols,
                    found,
                    expected: wanted,
                });
            }
            if !wanted.is_nan() {
                verdict.error_squares += f64::from(error).powi(2);
                verdict.squares += f64::from(wanted).powi(2);
            }
        }
        verdict
    }

    /// Adds the comparison of another result. If both results have wrong elements, the first wrong element of the earlier call is
    /// kept.
    pub fn add(&mut self, other: &Self) {
        self.elements += other.elements;
        self.wrong += other.wrong;
        self.error_squares += other.error_squares;
        self.squares += other.squares;
        let both = [self.first_wrong, other.first_wrong].into_iter().flatten();
        self.first_wrong = both.min_by_key(|wrong| (wrong.call, wrong.rank));
    }

    /// ‖found - expected‖ / ‖expected‖. Rounding to bf16 alone gives 1.7e-3, rounding to fp16 an eighth.
    pub fn relative_error(&self) -> f64 {
        if self.squares == 0.0 {
            return self.error_squares.sqrt();
        }
        (self.error_squares / self.squares).sqrt()
    }
}

/// The expected error of random results of two-byte elements that come from rounding alone.
pub fn rounding_alone(plan: &KernelPlan) -> String {
    let mut results = plan.operands().iter().filter(|operand| operand.written);
    match results.next().map(|first| first.dtype) {
        Some(dtype)
            if Dtype::FACTORS.contains(&dtype) && results.all(|other| other.dtype == dtype) =>
        {
            // Mantissas lie anywhere between two powers of two.
            let error = 0.43 * dtype.info().roundoff;
            format!(" (rounding to {dtype} alone {error:.1e})")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::reference::{multiply, test_matrix as matrix};
    use super::*;
    use mkernel::half::bf16;
    use mkernel::spec::Topology;

    /// The sum of a node is rounded once more before it is sent to another node.
    #[test]
    fn sums_of_nodes_may_be_rounded_twice() {
        let part = |value: f32| Matrix {
            values: vec![value],
            cols: 1,
            terms: 1,
            errors: Vec::new(),
            dtype: Dtype::Fp32,
        };
        // Each rounding takes nearly as much as one can: to 1, to 1 + 2/256, and their sum to 2.
        let parts = [1.0 + 0.999 / 256.0, 1.0 + 2.999 / 256.0, 0.0, 0.0];
        let round = |x: f32| bf16::from_f32(x).to_f32();
        let found = round(parts.iter().copied().map(round).sum());
        assert_eq!(found, 2.0);
        let wrong = |nodes, local_world| {
            let topology = Topology { nodes, local_world };
            let sum =
                Matrix::sum(parts.map(part).into(), topology, Dtype::Bf16).expect("four parts");
            let sum = Matrix {
                dtype: Dtype::Fp32,
                ..sum
            };
            Verdict::of(&[found], &sum, (0, 0, "c")).wrong
        };
        assert_eq!(wrong(2, 2), 0);
        assert_eq!((wrong(1, 4), wrong(4, 1)), (1, 1), "one rounding only");
    }

    #[test]
    fn rounding_is_right_and_other_differences_are_wrong() {
        let expected = Matrix {
            dtype: Dtype::Bf16,
            ..multiply(&matrix(4, 64), &matrix(8, 64), true, (8, 64), 1)
        };
        let rounded: Vec<f32> = expected
            .values
            .iter()
            .map(|x| bf16::from_f32(*x).to_f32())
            .collect();
        let verdict = Verdict::of(&rounded, &expected, (0, 1, "c"));
        assert_eq!((verdict.elements, verdict.wrong), (32, 0));
        assert!(verdict.relative_error() < 3e-3);

        let mut poisoned = rounded.clone();
        poisoned[19] = f32::NAN;
        let wrong = Verdict::of(&poisoned, &expected, (2, 1, "c"));
        let first = wrong.first_wrong.expect("one is wrong");
        assert_eq!((wrong.wrong, first.row, first.col), (1, 2, 3));

        let mut both = wrong;
        both.add(&Verdict::of(&rounded[..8], &expected, (1, 0, "c")));
        assert_eq!((both.elements, both.wrong), (64, 1 + 24));
        assert_eq!(both.first_wrong.map(|wrong| wrong.call), Some(1));
    }
}
