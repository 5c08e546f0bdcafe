// Sums of 16-byte vectors, element by element in fp32.
#pragma once
#include <mk/mma.cuh>

namespace mk {

// Vectors are added one after the other, so the result depends only on their order. The sum of no vectors is -0, the one
// number that changes no addend: +0 would turn a sum of -0 into +0.
template <bool kFp32>
struct VecSum {
  static constexpr u32 kElements = kFp32 ? 4 : 8;

  float values[kElements];

  MK_DEVICE VecSum() {
#pragma unroll
    for (u32 i = 0; i < kElements; ++i) values[i] = -0.0f;
  }

  MK_DEVICE void add(const Vec16& vec) {
    const u32 words[4] = {vec.x, vec.y, vec.z, vec.w};
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      if constexpr (kFp32) {
        values[i] += as_float(words[i]);
      } else {
        values[2 * i] += low_bf16(words[i]);
        values[2 * i + 1] += high_bf16(words[i]);
      }
    }
  }

  // Adds a vector of bf16 times `weight`.
  MK_DEVICE void add(const Vec16& vec, float weight) {
    static_assert(!kFp32);
    const u32 words[4] = {vec.x, vec.y, vec.z, vec.w};
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      values[2 * i] += low_bf16(words[i]) * weight;
      values[2 * i + 1] += high_bf16(words[i]) * weight;
    }
  }

  // Returns the sums, rounded to the type of the elements.
  MK_DEVICE Vec16 result() const {
    u32 words[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      if constexpr (kFp32) {
        words[i] = as_bits(values[i]);
      } else {
        words[i] = pack_bf16(values[2 * i], values[2 * i + 1]);
      }
    }
    return {words[0], words[1], words[2], words[3]};
  }
};

}  // namespace mk
