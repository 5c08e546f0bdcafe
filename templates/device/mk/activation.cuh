// Functions of each element of a sum, in fp32. Plain C++: GPUs and the simulator share it.
//
// A function has at most two operations of the special function unit and no branch: a tile has 128 x 256 elements.
#pragma once
#include <mk/base.cuh>

namespace mk {

constexpr float kLog2E = 1.44269504f;

// The result for a NaN is a NaN.
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

__device__ __forceinline__ float sigmoid(float x) { return reciprocal_approx(1.0f + exp2_approx(-kLog2E * x)); }

__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }

// x (1 + tanh(u)) / 2 = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3): without tanh nothing cancels.
__device__ __forceinline__ float gelu_tanh(float x) {
  constexpr float kTwoRoot = 1.59576912f;  // 2 sqrt(2 / pi)
  const float u = x * (kTwoRoot + kTwoRoot * 0.044715f * x * x);
  return x * reciprocal_approx(1.0f + exp2_approx(-kLog2E * u));
}

// x times the normal distribution at x, by erfc(z) = t P(t) exp(-z^2), t = 1 / (1 + p z), z = |x| / sqrt(2): Abramowitz
// and Stegun, Handbook of Mathematical Functions, 7.1.26. Off by 2.2e-7 at most, and for x > -5 by less than bf16 rounds.
__device__ __forceinline__ float gelu(float x) {
  const float z = 0.70710678f * (x < 0.0f ? -x : x);
  const float t = reciprocal_approx(1.0f + 0.3275911f * z);
  const float p = (((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f;
  const float tail = 0.5f * p * t * exp2_approx(-kLog2E * z * z);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

}  // namespace mk
