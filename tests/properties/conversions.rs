//! Conversions of the simulator's headers, which compute the results of GPU instructions. fp16 and bf16 are compared with the crate
//! `half`, and e4m3 with the nearest of all its numbers.

use crate::host_program;
use half::{bf16, f16};

/// Writes lines with the bits of an fp32 value as fp16 and as bf16, the bits of both converted back to fp32, and the value.
const PROGRAM: &str = r#"
#include <mk/element.cuh>
#include <cstdio>
#include <initializer_list>
const mk::sim::Calls* mk_calls = nullptr;  // This program does not call the simulator.

template <class E>
static void print(float value) {
  const mk::u32 word = E::pack(value, -value);
  std::printf("%08x %08x %08x ", word, mk::as_bits(E::low(word)), mk::as_bits(E::high(word)));
}

static void both(mk::u32 bits) {
  print<mk::Fp16>(mk::as_float(bits)), print<mk::Bf16>(mk::as_float(bits));
  std::printf("%08x\n", bits);
}

// Numbers near every fp16 and every bf16, and half-way to the next number.
int main() {
  for (mk::u32 half = 0; half < 0x8000; ++half) {
    const mk::u32 next = mk::as_bits(mk::Fp16::low(half + 1)), bits = mk::as_bits(mk::Fp16::low(half));
    const mk::u32 middle = mk::as_bits((mk::as_float(bits) + mk::as_float(next)) / 2);
    for (mk::u32 at : {bits, middle, half << 16, half << 16 | 0x8000}) both(at), both(at + 1), both(at - 1);
  }
}
"#;

#[test]
fn conversions_agree_with_half() {
    let output = host_program::output(&[("conversions.cpp", PROGRAM)]);
    let text = String::from_utf8(output.stdout).expect("ASCII");
    let number = |word| u32::from_str_radix(word, 16).expect("a number");
    let mut checked = 0;
    for line in text.lines() {
        let words: Vec<u32> = line.split_whitespace().map(number).collect();
        let value = f32::from_bits(words[6]);
        for (found, [low, high]) in [
            (&words[..3], [value, -value].map(fp16)),
            (&words[3..6], [value, -value].map(brain)),
        ] {
            let word = u32::from(high.0) << 16 | u32::from(low.0);
            assert_eq!(found[0], word, "{value:e} ({:x})", words[6]);
            for (found, (_, want)) in found[1..].iter().zip([low, high]) {
                let found = f32::from_bits(*found);
                let is_same =
                    found.to_bits() == want.to_bits() || (found.is_nan() && want.is_nan());
                assert!(is_same, "{found:e} is not {want:e} ({:x})", words[6]);
            }
        }
        checked += 1;
    }
    assert_eq!(checked, 12 << 15);
}

/// The bits of the nearest element, and its value in fp32. GPUs make one NaN only.
fn fp16(value: f32) -> (u16, f32) {
    let element = f16::from_f32(value);
    let bits = if value.is_nan() {
        0x7fff
    } else {
        element.to_bits()
    };
    (bits, element.to_f32())
}

fn brain(value: f32) -> (u16, f32) {
    let element = bf16::from_f32(value);
    let bits = if value.is_nan() {
        0x7fff
    } else {
        element.to_bits()
    };
    (bits, element.to_f32())
}

/// Writes lines with the bits of four fp32 values, and the word that packs the values. Then writes lines of unpacked words in this
/// format.
const E4M3_PROGRAM: &str = r#"
#include <mk/element.cuh>
#include <cstdio>
const mk::sim::Calls* mk_calls = nullptr;  // This program does not call the simulator.

static void pack(mk::u32 bits) {
  const float values[4] = {mk::as_float(bits), mk::as_float(bits + 1), mk::as_float(bits - 1), mk::as_float(bits ^ 1u << 31)};
  for (float value : values) std::printf("%08x ", mk::as_bits(value));
  std::printf("%08x\n", mk::E4m3::pack(values));
}

// Numbers over the range of fp32, and numbers near every e4m3 and half-way to the next e4m3, even if the next one is NaN.
int main() {
  for (mk::u32 high = 0; high < 0x10000; ++high) pack(high << 16);
  for (mk::u32 code = 0; code < 0x7f; ++code) {
    const float at = mk::E4m3::at(code, 0), next = code == 0x7e ? 480 : mk::E4m3::at(code + 1, 0);
    pack(mk::as_bits(at)), pack(mk::as_bits((at + next) / 2)), pack(mk::as_bits(next));
  }
  for (mk::u32 code = 0; code < 0x100; ++code) {
    const mk::u32 word = code | (code ^ 0x55) << 8 | (code ^ 0xaa) << 16 | (code ^ 0xff) << 24;
    for (mk::u32 i = 0; i < 4; ++i) std::printf("%08x ", mk::as_bits(mk::E4m3::at(word, i)));
    std::printf("%08x\n", word);
  }
}
"#;

#[test]
fn e4m3_rounds_to_nearest_even() {
    let output = host_program::output(&[("e4m3.cpp", E4M3_PROGRAM)]);
    let text = String::from_utf8(output.stdout).expect("ASCII");
    let number = |word| u32::from_str_radix(word, 16).expect("a number");
    let lines: Vec<Vec<u32>> = text
        .lines()
        .map(|line| line.split_whitespace().map(number).collect())
        .collect();
    let (packed, unpacked) = lines.split_at(0x10000 + 3 * 0x7f);
    assert_eq!(unpacked.len(), 0x100);
    for line in packed {
        for (bits, code) in line.iter().zip(line[4].to_le_bytes()) {
            let value = f32::from_bits(*bits);
            assert_eq!(code, nearest_e4m3(value), "{value:e} ({bits:x})");
        }
    }
    for line in unpacked {
        for (bits, code) in line.iter().zip(line[4].to_le_bytes()) {
            let want = match e4m3(code & 0x7f) {
                value if value.is_nan() => 0x7fff_ffff,
                value => (value as f32).to_bits() | u32::from(code >> 7) << 31,
            };
            assert_eq!(*bits, want, "{code:x}");
        }
    }
}

/// The number of a code with a positive sign.
fn e4m3(code: u8) -> f64 {
    let (exponent, fraction) = (i32::from(code >> 3), f64::from(code & 7) / 8.0);
    match (exponent, code) {
        (_, 0x7f) => f64::NAN,
        (0, _) => fraction * 2f64.powi(-6),
        _ => (1.0 + fraction) * 2f64.powi(exponent - 7),
    }
}

/// The code of the nearest number. In a tie, the even code.
fn nearest_e4m3(value: f32) -> u8 {
    if value.is_nan() {
        return 0x7f;
    }
    let magnitude = f64::from(value).abs().min(448.0);
    let distance = |code: &u8| (magnitude - e4m3(*code)).abs();
    let nearest = (0..0x7f).min_by(|a, b| {
        let by_distance = distance(a).total_cmp(&distance(b));
        by_distance.then((a % 2).cmp(&(b % 2)))
    });
    nearest.expect("a code") | u8::from(value.is_sign_negative()) << 7
}
