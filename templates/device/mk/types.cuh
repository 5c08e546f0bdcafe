// Types and constants that every header needs. GPUs and the simulator share this header.
#pragma once

// Every device function is inlined: a role is one loop nest, and its state has to stay in registers. Tests that compile
// many kernels for simulated GPUs define the macro otherwise.
#ifndef MK_DEVICE
#define MK_DEVICE __device__ __forceinline__
#endif

// A function that does little in the absence of failures. The host's compiler would spend most of its time on the
// copies of such functions, so the simulator does not inline them. Findings in them name no callers.
#ifndef MK_RARE
#define MK_RARE MK_DEVICE
#endif

namespace mk {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr u32 kMaxRanks = 8;
constexpr u32 kWarp = 32;
constexpr u32 kWarpgroup = 128;
constexpr u32 kWarpgroupWarps = kWarpgroup / kWarp;

template <u32 kCount, u32 kSize>
constexpr u32 kCeilDiv = (kCount + kSize - 1) / kSize;
template <u32 kLeft, u32 kRight>
constexpr u32 kMin = kLeft < kRight ? kLeft : kRight;

}  // namespace mk

// The driver's tensor map. The tag agrees with CUDA's own headers.
struct CUtensorMap_st {
  alignas(128) unsigned long long opaque[16];
};
typedef struct CUtensorMap_st CUtensorMap;
