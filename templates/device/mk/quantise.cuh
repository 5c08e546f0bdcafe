// Numbers as elements of e4m3 that share a scale.
//
// The scale is the greatest magnitude of the numbers divided by 448, the greatest e4m3. An element is a number divided by the scale,
// rounded to nearest even. A number that is NaN becomes NaN and does not change the scale. If a number is infinite, all elements
// become NaN, so that all products with these elements are NaN. A greatest magnitude below kLeast counts as kLeast, so that zeros
// stay zeros.
#pragma once
#include <mk/element.cuh>

namespace mk {

struct Quantise {
  static constexpr float kGreatest = 448.0f;
  static constexpr float kLeast = 0x1p-64f;

  // The greater of `greatest`, which is at least kLeast, and the magnitude of a number.
  static MK_DEVICE float greater(float greatest, float number) { return max(greatest, as_float(as_bits(number) & 0x7fffffff)); }

  // The scale of numbers with this greatest magnitude.
  static MK_DEVICE float scale(float greatest) { return greatest * (1.0f / kGreatest); }

  // 1 / x, rounded to nearest by one step of Newton's method: the approximation of GPUs and the quotient of simulated GPUs may differ in
  // the last bit.
  static MK_DEVICE float reciprocal(float x) {
    const float near = reciprocal_approx(x);
    return multiply_add(near, multiply_add(-x, near, 1.0f), near);
  }
};

}  // namespace mk
