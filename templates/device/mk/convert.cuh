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

// Converts four fp32 to four e4m3, the first number in the lowest byte, rounded to nearest even. A value beyond 448
// becomes 448 with its sign. Every NaN becomes 0x7f.
__device__ __forceinline__ u32 pack_e4m3(float first, float second, float third, float fourth) {
  u32 packed;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n"
      "}"
      : "=r"(packed)
      : "f"(first), "f"(second), "f"(third), "f"(fourth));
  return packed;
}

// Converts the e4m3 in the lowest byte of a word. The result is exact.
__device__ __forceinline__ float unpack_e4m3(u32 bits) {
  u32 halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<u16>(bits)));
  return unpack_fp16(halves);
}

}  // namespace mk
