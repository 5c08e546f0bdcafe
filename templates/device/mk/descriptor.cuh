// Matrix descriptors of wgmma's operands. Plain C++: GPUs and the simulator share it.
#pragma once
#include <mk/base.cuh>

namespace mk {

// Matrix descriptor of an operand in shared memory (PTX ISA, "Matrix Descriptor Format"): address, leading and stride
// offsets in units of 16 bytes; 128-byte swizzle. Groups of 8 rows are 1024 bytes apart.
//  - K-major ([rows][64 k]): the leading offset is not used.
//  - MN-major ([k][64 columns] sub-tiles, of 64 k unless said otherwise): the leading offset, kLeadingBytes, leads to the
//    next 64 columns.
template <bool kMnMajor, u32 kLeadingBytes = 8192>
__device__ __forceinline__ u64 mma_descriptor(u32 address) {
  constexpr u64 kSwizzle128 = 1ull << 62;
  constexpr u64 kStride = u64{1024 >> 4} << 32;
  constexpr u64 kLeading = u64{kMnMajor ? kLeadingBytes >> 4 : 1} << 16;
  return kSwizzle128 | kStride | kLeading | ((address & 0x3ffff) >> 4);
}

// What a descriptor grows by from one k16 slice to the next: 32 bytes along a row, or 16 rows of 128 bytes.
template <bool kMnMajor>
constexpr u32 kDescriptorStep = kMnMajor ? 2048 >> 4 : 32 >> 4;

}  // namespace mk
