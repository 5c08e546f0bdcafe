// Conversions of fp32 to narrower numbers, on the simulator.
#pragma once
#include <mk/base.cuh>

namespace mk {

// Round to nearest even; every NaN becomes the one that GPUs make.
__forceinline__ u32 bf16_bits(float value) {
  const u32 bits = as_bits(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

__forceinline__ u32 pack_bf16(float low, float high) { return bf16_bits(high) << 16 | bf16_bits(low); }

}  // namespace mk
