//! The sums of tensor-core products: d[64 x n] += a[64 x depth] b[depth x n].

#[cfg(test)]
mod tests;

use super::state::mma::{Element, ROWS};
use std::array::from_fn;

/// Adds the product of `a` and `b` to `d`. `a` and `b` hold the values of operands whose elements are of type `element`;
/// the only type of one byte is e4m3.
pub fn add_product(element: Element, a: &[f32], b: &[f32], d: &mut [f32], n: usize) {
    if element.bytes() == 1 {
        add_truncated(a, b, d, n);
    } else {
        add_rounded(a, b, d, n);
    }
}

/// Adds a product of elements of two bytes. The product of two elements is exact in fp32. Sums are rounded to nearest
/// after each k.
fn add_rounded(a: &[f32], b: &[f32], d: &mut [f32], n: usize) {
    for (a, d) in a.chunks_exact(a.len() / ROWS).zip(d.chunks_exact_mut(n)) {
        for (factor, b) in a.iter().zip(b.chunks_exact(n)) {
            for (sum, value) in d.iter_mut().zip(b) {
                *sum += factor * value;
            }
        }
    }
}

/// The number of columns whose sums are computed together.
const LANES: usize = 8;
/// The number of bits of a sum behind its leading bit.
const FRACTION_BITS: i16 = 13;
/// The exponent of subnormal e4m3.
const LEAST_EXPONENT: i16 = -6;
/// The exponent of zero. A product with a zero has an exponent that is less than the exponent of all other products.
const ZERO: i16 = -1000;
/// The exponent of an infinite fp32.
const INFINITE: i16 = 128;
/// The exponent of NaN. A product with NaN has an exponent that is greater than `INFINITE`.
const NAN: i16 = 4000;

/// Adds a product of e4m3, with the bits that an H100 computes. An element of d becomes the sum of its old value and the
/// products of two elements, which are exact:
/// - The exponent of a product is the sum of the exponents of its factors, also if the product of their significands is 2
///   or more. m is the greatest exponent of the products and of the old value, except for zeros.
/// - The products and the old value are truncated to multiples of 2^(m - 13). Their sum is exact.
/// - The sum is truncated to 13 bits behind its leading bit.
///
/// Not measured: NaN and infinities, which are treated as in IEEE 754 with a single NaN; negative zeros, which count as
/// positive; and old values that are subnormal.
fn add_truncated(a: &[f32], b: &[f32], d: &mut [f32], n: usize) {
    let depth = a.len() / ROWS;
    let ((a, a_exponents), (b, b_exponents)) = (split(a), split(b));
    let (b, b_exponents) = (b.as_chunks().0, b_exponents.as_chunks().0);
    for (row, d) in d.chunks_exact_mut(n).enumerate() {
        let row = row * depth..(row + 1) * depth;
        let a = (&a[row.clone()], &a_exponents[row]);
        for (block, d) in d.as_chunks_mut().0.iter_mut().enumerate() {
            add_lanes(a, (&b[block..], &b_exponents[block..]), n / LANES, d);
        }
    }
}

/// Returns the values, with zeros in place of NaN, and the exponents.
fn split(values: &[f32]) -> (Vec<f32>, Vec<i16>) {
    let parts = values.iter().map(|value| match exponent(*value) {
        NAN => (0.0, NAN),
        ZERO => (0.0, ZERO),
        exponent => (*value, exponent.max(LEAST_EXPONENT)),
    });
    parts.unzip()
}

/// Adds the products of a row and some columns. `step` leads from a k of `b` to the next k.
///
/// No integer overflows here. Arithmetic wraps because checks would keep the compiler from vectorising these loops.
fn add_lanes(
    (a, a_exponents): (&[f32], &[i16]),
    (b, b_exponents): (&[[f32; LANES]], &[[i16; LANES]]),
    step: usize,
    d: &mut [f32; LANES],
) {
    let old = d.map(exponent);
    let mut greatest = old;
    for (a, b) in a_exponents.iter().zip(b_exponents.iter().step_by(step)) {
        greatest = from_fn(|lane| a.wrapping_add(b[lane]).max(greatest[lane]));
    }
    // If m is less than the exponent of every product other than zero, all products are zero.
    let units = greatest.map(|m| m.clamp(2 * LEAST_EXPONENT, INFINITE - 1) - FRACTION_BITS);
    let scales = units.map(|unit| power_of_two(-unit));
    let truncate = |value: f32, scale: f32| -> i32 {
        // SAFETY: the value is finite, and less than 2^(m + 2). So the scaled value is less than 2^15.
        unsafe { (value * scale).to_int_unchecked() }
    };
    let mut sums: [i32; LANES] = from_fn(|lane| {
        let is_finite = old[lane] < INFINITE;
        truncate(if is_finite { d[lane] } else { 0.0 }, scales[lane])
    });
    for (a, b) in a.iter().zip(b.iter().step_by(step)) {
        sums = from_fn(|lane| sums[lane].wrapping_add(truncate(a * b[lane], scales[lane])));
    }
    *d = from_fn(|lane| match greatest[lane] {
        m if m > INFINITE => f32::from_bits(0x7fff_ffff),
        INFINITE => d[lane],
        m if m < 2 * LEAST_EXPONENT => truncate_fraction(d[lane]) + 0.0,
        _ => truncate_fraction(sums[lane] as f32) * power_of_two(units[lane]),
    });
}

/// Returns the exponent of an fp32.
fn exponent(value: f32) -> i16 {
    if value == 0.0 {
        ZERO
    } else if value.is_nan() {
        NAN
    } else {
        (value.to_bits() >> 23 & 0xff) as i16 - 127
    }
}

/// Returns 2^`exponent`, which must be a normal number.
fn power_of_two(exponent: i16) -> f32 {
    f32::from_bits(u32::from((127 + exponent) as u16) << 23)
}

/// Truncates a number to `FRACTION_BITS` bits behind its leading bit.
fn truncate_fraction(value: f32) -> f32 {
    f32::from_bits(value.to_bits() & u32::MAX << (23 - FRACTION_BITS))
}
