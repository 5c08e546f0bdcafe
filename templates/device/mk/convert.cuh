// Conversions of fp32 to narrower numbers.
#pragma once
#include <mk/base.cuh>

namespace mk {

// Converts two fp32 to two bf16, rounded to nearest even. Every NaN becomes 0x7fff.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

}  // namespace mk
