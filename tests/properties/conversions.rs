//! Conversions of the simulator's headers, which compute the results of GPU instructions, compared with the crate `half`.

use crate::host_program;
use half::{bf16, f16};

/// Reads lines with the bits of an fp32, and writes its bits as fp16 and bf16, and the bits of the fp32 that both become.
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

// Numbers near every fp16 and every bf16, and half-way to the next one.
int main() {
  for (mk::u32 half = 0; half < 0x8000; ++half) {
    const mk::u32 next = mk::as_bits(mk::Fp16::low(half + 1)), bits = mk::as_bits(mk::Fp16::low(half));
    const mk::u32 middle = mk::as_bits((mk::as_float(bits) + mk::as_float(next)) / 2);
    for (mk::u32 at : {bits, middle, half << 16, half << 16 | 0x8000}) both(at), both(at + 1), both(at - 1);
  }
}
"#;

#[test]
fn conversions_are_those_of_half() {
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

/// The bits of the nearest element, and what they are in fp32. GPUs make one NaN only.
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
