//! Tests of sums of e4m3, with results that were computed by hand.

use super::*;

const DEPTH: usize = 32;

/// Returns c plus the products of these pairs, and checks that the sum depends on no other row or column.
fn sum(products: &[(f32, f32)], c: f32) -> f32 {
    const N: usize = 16;
    const ROW: usize = 5;
    const COLUMN: usize = 11;
    let (mut a, mut b) = (vec![0.0; ROWS * DEPTH], vec![0.0; DEPTH * N]);
    for (k, (left, right)) in products.iter().enumerate() {
        a[ROW * DEPTH + k] = *left;
        b[k * N + COLUMN] = *right;
    }
    let mut d = vec![1.0; ROWS * N];
    d[ROW * N + COLUMN] = c;
    add_truncated(&a, &b, &mut d, N);
    let has_nan = products.iter().any(|(a, b)| a.is_nan() || b.is_nan());
    let mut others = d.iter().enumerate().filter(|(i, _)| *i != ROW * N + COLUMN);
    assert!(has_nan || others.all(|(_, d)| *d == 1.0));
    d[ROW * N + COLUMN]
}

fn check(products: &[(f32, f32)], c: f32, want: f32) {
    let found = sum(products, c);
    let is_same = found.to_bits() == want.to_bits();
    assert!(is_same, "{products:?} and {c:e}: {found:e} is not {want:e}");
    let negative: Vec<(f32, f32)> = products.iter().map(|(a, b)| (-a, *b)).collect();
    let found = sum(&negative, -c);
    // Zeros are positive.
    let is_same = found == -want && (want != 0.0 || found.is_sign_positive());
    assert!(is_same, "{negative:?} and {:e}: {found:e}", -c);
}

/// Returns 2^`exponent`.
fn two(exponent: i32) -> f32 {
    2f32.powi(exponent)
}

#[test]
fn short_sums_are_exact() {
    check(&[(1.0, 1.0); DEPTH], 0.5, 32.5);
    check(&[(448.0, 448.0); DEPTH], 0.0, 6_422_528.0);
    check(&[(two(-9), two(-9)); DEPTH], 0.0, two(-13));
    check(&[(1.0, 1.0), (1.0, -1.0)], 0.0, 0.0);
    check(&[], 0.0, 0.0);
    check(&[(0.0, 448.0), (-0.0, 1.0)], two(-100), two(-100));
}

#[test]
fn what_is_small_beside_the_greatest_is_lost() {
    // The unit is 2 beside c, 2^14. A product of 3 counts as 2, and any number of products of 1.5 counts as 0.
    check(&[(1.5, 1.0)], two(14), 16384.0);
    check(&[(1.5, 1.0); DEPTH], two(14), 16384.0);
    check(&[(3.0, 1.0)], two(14), 16386.0);
    check(&[(-3.0, 1.0)], two(14), 16382.0);
    check(&[(-128.0, 128.0), (1.5, 1.0)], two(14), 0.0);
    check(&[(448.0, 448.0); DEPTH], two(60), two(60));
    // The unit is 2^-13 beside a product of 1.
    check(&[(1.0, 1.0), (two(-7), two(-7))], 0.0, 1.0);
    check(&[(1.0, 1.0), (two(-7), two(-6))], 0.0, 1.0 + two(-13));
    check(&[(1.0, 1.0)], -two(-14), 1.0);
    check(&[(1.0, 1.0)], -two(-13), 1.0 - two(-13));
}

#[test]
fn exponents_of_products_are_those_of_their_factors() {
    // 1.875 * 1.875 is more than 2 and has the exponent 0, so 2^-13 is not lost. The sum has bits down to 2^-12.
    let large = (1.875, 1.875);
    let small = (two(-7), two(-6));
    check(&[large, small], 0.0, 3.515_625);
    check(&[large, small, small], 0.0, 3.515_625 + two(-12));
    // The exponent of the least product is -12, so the unit is 2^-25.
    check(&[(two(-9), two(-9))], two(-26), two(-18));
    check(&[(two(-9), two(-9))], two(-25), two(-18) + two(-25));
}

#[test]
fn sums_have_fourteen_bits() {
    check(&[(448.0, 448.0); DEPTH], 504.0, 6_422_528.0);
    check(&[(448.0, 448.0); DEPTH], 512.0, 6_423_040.0);
    check(&[(0.0, 1.0)], 1.0 + two(-13) + two(-14), 1.0 + two(-13));
    check(&[], f32::MAX, f32::from_bits(0x7f7f_fc00));
    check(&[], f32::MIN_POSITIVE, f32::MIN_POSITIVE);
}

#[test]
fn nan_and_infinities_stay() {
    for nan in [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001)] {
        for products in [[(nan, 1.0)], [(0.0, nan)], [(nan, nan)]] {
            assert_eq!(sum(&products, 1.0).to_bits(), 0x7fff_ffff);
            assert_eq!(sum(&products, f32::INFINITY).to_bits(), 0x7fff_ffff);
        }
        assert_eq!(sum(&[(1.0, 1.0)], nan).to_bits(), 0x7fff_ffff);
    }
    check(&[(-448.0, 448.0)], f32::INFINITY, f32::INFINITY);
}
