// Conversions between fp32 and narrower numbers, on the simulator.
#pragma once
#include <mk/base.cuh>

namespace mk {

// Rounds to nearest even. Every NaN becomes the NaN that GPUs make.
__forceinline__ u32 bf16_bits(float value) {
  const u32 bits = as_bits(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

__forceinline__ u32 pack_bf16(float low, float high) { return bf16_bits(high) << 16 | bf16_bits(low); }

// Rounds to nearest even. Every NaN becomes the NaN that GPUs make.
__forceinline__ u32 fp16_bits(float value) {
  const u32 bits = as_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // from 65520 on, the nearest number is infinity
  // Below 2^-14 the last place is 2^-24, as in an fp32 between 0.5 and 1. The sum is rounded there.
  if (magnitude < 0x38800000) return sign | (as_bits(as_float(magnitude) + 0.5f) - 0x3f000000);
  return sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
}

__forceinline__ u32 pack_fp16(float low, float high) { return fp16_bits(high) << 16 | fp16_bits(low); }

// Converts the fp16 in the lower half of a word. The result is exact.
__forceinline__ float unpack_fp16(u32 bits) {
  const u32 sign = (bits & 0x8000) << 16, magnitude = bits & 0x7fff;
  if (magnitude >= 0x7c00) return as_float(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  // The exponent of an fp16 is 112 less than the exponent of the fp32, also for subnormal numbers.
  return as_float(sign | as_bits(as_float(magnitude << 13) * 0x1p112f));
}

// Rounds to nearest even. A value beyond 448 becomes 448 with its sign. Every NaN becomes the NaN that GPUs make.
__forceinline__ u32 e4m3_bits(float value) {
  const u32 bits = as_bits(value), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7f;
  if (magnitude >= 0x43e00000) return sign | 0x7e;
  // Below 2^-6 the last place is 2^-9, as in an fp32 between 2^14 and 2^15. The sum is rounded there.
  if (magnitude < 0x3c800000) return sign | (as_bits(as_float(magnitude) + 0x1p14f) - 0x46800000);
  return sign | (magnitude - 0x3c000000 + 0x7ffff + (magnitude >> 20 & 1)) >> 20;
}

__forceinline__ u32 pack_e4m3(float first, float second, float third, float fourth) {
  return e4m3_bits(fourth) << 24 | e4m3_bits(third) << 16 | e4m3_bits(second) << 8 | e4m3_bits(first);
}

// Converts the e4m3 in the lowest byte of a word. The result is exact.
__forceinline__ float unpack_e4m3(u32 bits) {
  const u32 sign = (bits & 0x80) << 24, magnitude = bits & 0x7f;
  if (magnitude == 0x7f) return as_float(0x7fffffff);
  // The exponent of an e4m3 is 120 less than the exponent of the fp32, also for subnormal numbers.
  return as_float(sign | as_bits(as_float(magnitude << 20) * 0x1p120f));
}

}  // namespace mk
