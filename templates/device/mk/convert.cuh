// Conversions between fp32 and narrower numbers.
#pragma once
#include <mk/base.cuh>

namespace mk {

// Converts two fp32 to two bf16, rounded to nearest even. Every NaN becomes 0x7fff.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Converts two fp32 to two fp16, rounded to nearest even. A value that exceeds 65504 after rounding becomes infinite.
// Every NaN becomes 0x7fff.
__device__ __forceinline__ u32 pack_fp16(float low, float high) {
  u32 packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Converts the fp16 in the lower half of a word. The result is exact.
__device__ __forceinline__ float unpack_fp16(u32 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<u16>(bits)));
  return value;
}

}  // namespace mk
