// The few facts about a thread that every role needs, on the simulator. Also the definitions that CUDA itself provides
// for kernels.
#pragma once
#include <mk/calls.cuh>
#include <cstddef>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__

#undef MK_RARE
#define MK_RARE inline __attribute__((noinline))

#define MK_OFFSET(type, field) offsetof(type, field)

// The exported entry points of a kernel, and its text, so that findings can quote it. The simulator looks for them.
#define MK_SIMULATED_KERNEL(id)                                                                                  \
  asm(".pushsection .rodata\n"                                                                                   \
      ".global mk_simulated_source\n"                                                                            \
      "mk_simulated_source:\n"                                                                                   \
      ".incbin \"" #id ".cu\"\n"                                                                                 \
      ".byte 0\n"                                                                                                \
      ".popsection");                                                                                            \
  extern "C" {                                                                                                   \
  const mk::sim::Calls* mk_calls;                                                                                \
  extern const char __ehdr_start[] __attribute__((visibility("hidden")));                                        \
  __attribute__((visibility("default"))) mk::u64 mk_simulated_bind(const mk::sim::Calls* calls) {                \
    mk_calls = calls;                                                                                            \
    return mk::sim::Calls::kVersion;                                                                             \
  }                                                                                                              \
  __attribute__((visibility("default"))) mk::u64 mk_simulated_args_bytes() { return sizeof(Args); }              \
  __attribute__((visibility("default"))) const char* mk_simulated_start() { return __ehdr_start; }               \
  __attribute__((visibility("default"))) void mk_simulated_run(const void* args) {                               \
    id(*static_cast<const Args*>(args));                                                                         \
  }                                                                                                              \
  }

struct MkDim3 {
  unsigned int x, y, z;
};
#define threadIdx (MkDim3{mk_calls->thread()->thread, 0, 0})
#define blockIdx (MkDim3{mk_calls->thread()->cta, 0, 0})
#define blockDim (MkDim3{mk_calls->thread()->threads, 1, 1})
#define gridDim (MkDim3{mk_calls->thread()->ctas, 1, 1})

struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};

// Dynamic shared memory. Only the address of this array in the shared window counts; nothing is ever stored in the
// array.
extern "C" {
inline mk::u8 dynamic_smem[1];
}

__forceinline__ void __syncthreads() { mk_calls->sync_threads(0, mk_calls->thread()->threads, mk::sim::place()); }
__forceinline__ int __syncthreads_or(int value) {
  return static_cast<int>(mk_calls->sync_threads_or(value != 0, mk_calls->thread()->threads, mk::sim::place()));
}
__forceinline__ void __syncwarp() { mk_calls->sync_warp(mk::sim::place()); }
__forceinline__ void __nanosleep(mk::u32 ns) { mk_calls->sleep(ns, mk::sim::place()); }
[[noreturn]] __forceinline__ void __trap() {
  mk_calls->trap(mk::sim::place());
  __builtin_unreachable();
}

namespace mk {

// A poll that finds no new value waits until a polled word changes, so each poll also looks at the clock and at the
// abort word.
constexpr u32 kPollsPerLook = 1;
constexpr u32 kBarrierPollsPerLook = 1;

__forceinline__ void note_abort() { mk_calls->aborted(sim::place()); }

__forceinline__ void check_index(u32 index, u32 extent) {
  if (index >= extent) mk_calls->wrong_index(index, extent, sim::place());
}

// The start of dynamic shared memory in the window. The start is aligned to only 16 bytes, as CUDA promises.
constexpr u32 kSharedStart = 1040;

__forceinline__ u32 shared_address(const void*) { return kSharedStart; }

__forceinline__ u32 warp_index() { return mk_calls->shuffle(threadIdx.x / kWarp, 0, sim::place()); }

__forceinline__ u32 broadcast(u32 value, u32 lane) { return mk_calls->shuffle(value, lane, sim::place()); }

__forceinline__ u32 max_of_warp(u32 value) {
  for (u32 mask = 1; mask < kWarp; mask *= 2) {
    const u32 other = mk_calls->shuffle_xor(value, mask, sim::place());
    value = other > value ? other : value;
  }
  return value;
}

__forceinline__ u32 sum_of_warp(u32 value) {
  u32 sum = 0;
  for (u32 lane = 0; lane < kWarp; ++lane) sum += broadcast(value, lane);
  return sum;
}

__forceinline__ float exchange(float value, u32 mask) {
  return __builtin_bit_cast(float, mk_calls->shuffle_xor(__builtin_bit_cast(u32, value), mask, sim::place()));
}

__forceinline__ u32 lane_index() { return threadIdx.x % kWarp; }

__forceinline__ bool elect_one() { return mk_calls->elect(sim::place()) != 0; }

__forceinline__ u64 global_time_ns() { return mk_calls->time_ns(); }

// The ticks of all SMs are the ns of the simulated time.
__forceinline__ u64 sm_ticks() { return mk_calls->time_ns(); }
__forceinline__ u32 sm_index() { return blockIdx.x; }
__forceinline__ bool is_first_active() { return true; }
__forceinline__ bool is_first_active(u32) { return true; }

__forceinline__ float exp2_approx(float x) { return __builtin_exp2f(x); }
__forceinline__ float log2_approx(float x) { return __builtin_log2f(x); }
__forceinline__ float reciprocal_approx(float x) { return 1.0f / x; }
__forceinline__ float reciprocal_sqrt_approx(float x) { return 1.0f / __builtin_sqrtf(x); }

__forceinline__ u32 min(u32 a, u32 b) { return a < b ? a : b; }
__forceinline__ u32 ceil_div(u32 count, u32 size) { return (count + size - 1) / size; }

__forceinline__ float as_float(u32 bits) { return __builtin_bit_cast(float, bits); }
__forceinline__ u32 as_bits(float value) { return __builtin_bit_cast(u32, value); }

template <class T>
__forceinline__ T* loaded_here(T* address) {
  return address;
}

__forceinline__ float multiply_add(float x, float y, float z) { return __builtin_fmaf(x, y, z); }

__forceinline__ float infinity() { return __builtin_inff(); }

__forceinline__ float max(float a, float b) { return __builtin_fmaxf(a, b); }

}  // namespace mk
