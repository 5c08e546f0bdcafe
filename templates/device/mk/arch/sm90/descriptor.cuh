// The operands of wgmma: matrix descriptors, and accumulators. GPUs and the simulator share this plain C++.
#pragma once
#include <mk/element.cuh>

namespace mk {

// A thread's sums of 64 rows and kCols columns: see accumulator.cuh.
template <u32 kCols, class Registers = float[kCols / 2]>
struct Accumulator;

// Matrix descriptor of an operand in shared memory (PTX ISA, "Matrix Descriptor Format"): address, leading and stride
// offsets in units of 16 bytes; 128-byte swizzle. Groups of 8 rows are 1024 bytes apart.
//  - K-major (lines of k): the leading offset is not used.
//  - MN-major (for each k, a line of columns): the leading offset, kLeadingBytes, leads to the next line of columns.
template <bool kMnMajor, u32 kLeadingBytes = 0>
__device__ __forceinline__ u64 mma_descriptor(u32 address) {
  static_assert(!kMnMajor || kLeadingBytes != 0);
  constexpr u64 kSwizzle128 = 1ull << 62;
  constexpr u64 kStride = u64{8 * kLineBytes >> 4} << 32;
  constexpr u64 kLeading = u64{kMnMajor ? kLeadingBytes >> 4 : 1} << 16;
  return kSwizzle128 | kStride | kLeading | ((address & 0x3ffff) >> 4);
}

// The matrix descriptor of a K-major operand in the stages of a pipeline, from stage to stage. The low word is kept, since
// ptxas would otherwise compute it again from the stage's number, in a chain of instructions before a stage's first
// product.
struct StageDescriptor {
  u32 first, low;      // of stage 0, and of the current stage
  u32 stage_distance;  // in units of 16 bytes

  // `address` is the address of the operand in stage 0, and `stage_bytes` the distance from one stage to the next.
  MK_DEVICE StageDescriptor(u32 address, u32 stage_bytes) {
    first = low = static_cast<u32>(mma_descriptor<false>(address));
    stage_distance = stage_bytes >> 4;
  }

  MK_DEVICE void move_to(u32 stage) { low = first + stage * stage_distance; }
  // Advances to the next stage, which is stage 0 if `wraps`.
  MK_DEVICE void advance(bool wraps) { low = wraps ? first : low + stage_distance; }

  // The descriptor of another stage, if this is the descriptor of stage 0.
  MK_DEVICE StageDescriptor of_stage(u32 stage) const {
    StageDescriptor other = *this;
    other.low += stage * stage_distance;
    return other;
  }

  // The descriptor of the operand from an offset on, in units of 16 bytes.
  MK_DEVICE u64 at(u32 offset) const {
    constexpr u64 kHigh = 0xffffffffull << 32;
    return (mma_descriptor<false>(0) & kHigh) | (low + offset);
  }
};

// The K of one MMA.
template <ElementType E>
constexpr u32 kMmaK = 32 / E::kBytes;

// The increase of a descriptor from one MMA to the next: along a line, or by a line for each k.
template <ElementType E, bool kMnMajor>
constexpr u32 kDescriptorStep = kMmaK<E> * (kMnMajor ? kLineBytes : E::kBytes) >> 4;

}  // namespace mk
