//! Random matrices of e4m3, and the sums that `wgmma` makes of their products: a second implementation, in fixed point, of
//! the rule in src/world/mma_sum.rs.

use mkernel_sim::world::Random;

/// The rows of A.
const ROWS: usize = 64;
/// The elements of a row of A, and of a column of B.
const DEPTH: usize = 128;
/// The depth of one `wgmma`.
const STEP: usize = 32;
/// The bits behind the point of numbers in fixed point.
const POINT: i32 = 60;
const NAN: u32 = 0x7fff_ffff;

/// Operands: A [64][128], B [columns][128], and sums [64][columns].
pub struct Product {
    a: Vec<u8>,
    b: Vec<u8>,
    old: Vec<f32>,
}

impl Product {
    /// Returns random operands. Row 63 of A and the last column of B have a NaN.
    pub fn random(columns: usize) -> Self {
        let mut random = Random(columns as u64);
        let mut codes = |lines: usize| -> Vec<u8> {
            (0..lines * DEPTH)
                .map(|i| code(&mut random, i / DEPTH))
                .collect()
        };
        let (mut a, mut b) = (codes(ROWS), codes(columns));
        a[63 * DEPTH + 40] = 0xff;
        b[(columns - 1) * DEPTH + 127] = 0x7f;
        let old = (0..ROWS * columns).map(|_| old_sum(&mut random)).collect();
        Self { a, b, old }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let old = self.old.iter().flat_map(|old| old.to_le_bytes());
        let codes = self.a.iter().chain(&self.b).copied();
        codes.chain(old).collect()
    }

    /// Returns the sums after the product, which is added to the old sums if `accumulate` is set.
    pub fn sums(&self, accumulate: bool) -> Vec<u8> {
        let columns = self.b.len() / DEPTH;
        let sum = |i: usize| -> u32 {
            let a = &self.a[i / columns * DEPTH..][..DEPTH];
            let b = &self.b[i % columns * DEPTH..][..DEPTH];
            let old = if accumulate { fixed(self.old[i]) } else { 0 };
            let mut steps = a.chunks(STEP).zip(b.chunks(STEP));
            let sum = steps.try_fold(old, |sum, (a, b)| add(a, b, sum));
            sum.map_or(NAN, |sum| {
                ((sum as f64 / 2f64.powi(POINT)) as f32).to_bits()
            })
        };
        let count = self.old.len();
        (0..count).flat_map(|i| sum(i).to_le_bytes()).collect()
    }
}

/// Adds the products of a step. Returns `None` if one of the codes is NaN.
fn add(a: &[u8], b: &[u8], old: i128) -> Option<i128> {
    // The parts of the sum, and their exponents.
    let mut parts = vec![(old, exponent(old))];
    for (a, b) in a.iter().zip(b) {
        let ((a, a_exponent), (b, b_exponent)) = (decode(*a)?, decode(*b)?);
        let exponent = a_exponent + b_exponent;
        parts.push(((a * b) << (POINT + exponent - 6), exponent));
    }
    parts.retain(|(value, _)| *value != 0);
    let Some(greatest) = parts.iter().map(|(_, exponent)| *exponent).max() else {
        return Some(0);
    };
    let sum = parts
        .iter()
        .map(|(value, _)| truncate(*value, greatest))
        .sum();
    Some(truncate(sum, exponent(sum)))
}

/// Returns the significand of a code, in eighths, and the exponent.
fn decode(code: u8) -> Option<(i128, i32)> {
    let (field, fraction) = (i32::from(code >> 3 & 15), i128::from(code & 7));
    let (significand, exponent) = match field {
        0 => (fraction, -6),
        _ => (8 + fraction, field - 7),
    };
    let sign = if code < 128 { 1 } else { -1 };
    (code & 127 != 127).then_some((sign * significand, exponent))
}

/// Truncates to a multiple of 2^(exponent - 13).
fn truncate(value: i128, exponent: i32) -> i128 {
    let unit = 1i128 << (POINT + exponent - 13).max(0);
    value - value % unit
}

/// Returns the exponent of the leading bit.
fn exponent(value: i128) -> i32 {
    value.unsigned_abs().checked_ilog2().unwrap_or(0) as i32 - POINT
}

fn fixed(value: f32) -> i128 {
    (f64::from(value) * 2f64.powi(POINT)) as i128
}

/// Returns the code of a finite number. Lines have all numbers, small numbers, many zeros, or a few magnitudes.
fn code(random: &mut Random, line: usize) -> u8 {
    let sign = random.below(2) as u8 * 128;
    let magnitude = match line % 4 {
        0 => random.below(127),
        1 => random.below(20),
        2 if random.below(8) > 0 => 0,
        2 => random.below(127),
        _ => [1, 7, 8, 15, 56, 63, 119, 126][random.below(8)],
    };
    sign | magnitude as u8
}

/// Returns a sum with all bits of fp32, or zero.
fn old_sum(random: &mut Random) -> f32 {
    if random.below(8) == 0 {
        return 0.0;
    }
    let sign = random.below(2) << 31;
    let exponent = 127 - 24 + random.below(48);
    f32::from_bits((sign | exponent << 23 | random.below(1 << 23)) as u32)
}
