// The few facts about a thread that every role needs.
#pragma once
#include <mk/types.cuh>

// NVRTC has no offsetof.
#define MK_OFFSET(type, field) __INTADDR__(&((static_cast<type*>(nullptr))->field))

namespace mk {

// Polls of a flag between two looks at the clock and at the abort word in device memory: about 50 µs.
constexpr u32 kPollsPerLook = 128;
// Polls of a barrier in shared memory between two looks at the clock. try_wait suspends the thread, so polls are rare.
constexpr u32 kBarrierPollsPerLook = 4096;

// Informs the simulator that waits end early from now on.
__device__ __forceinline__ void note_abort() {}

// The simulator reports an index that its dimension does not have.
__device__ __forceinline__ void check_index(u32, u32) {}

// Returns the address in the shared window, in the form that PTX instructions take.
__device__ __forceinline__ u32 shared_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}

// The warp's index, which the compiler can prove to be equal in all threads of the warp. Without the shuffle, ptxas
// moves every wgmma descriptor to a uniform register anew (4 R2UR per wgmma).
__device__ __forceinline__ u32 warp_index() { return __shfl_sync(0xffffffffu, threadIdx.x / kWarp, 0); }

// The value that lane `lane` has. All threads of the warp call this, and each may ask for another lane.
__device__ __forceinline__ u32 broadcast(u32 value, u32 lane) { return __shfl_sync(0xffffffffu, value, lane); }

// The value of the lane whose number differs from this lane's number in the bits of `mask`.
__device__ __forceinline__ float exchange(float value, u32 mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

__device__ __forceinline__ u32 lane_index() { return threadIdx.x % kWarp; }

// True in one thread of a converged warp.
__device__ __forceinline__ bool elect_one() {
  u32 elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

// Returns the greatest value among the lanes of this warp.
__device__ __forceinline__ u32 max_of_warp(u32 value) {
  u32 greatest;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(greatest) : "r"(value));
  return greatest;
}

// Returns the sum of the values of the lanes of this warp.
__device__ __forceinline__ u32 sum_of_warp(u32 value) {
  u32 sum;
  asm volatile("redux.sync.add.u32 %0, %1, 0xffffffff;" : "=r"(sum) : "r"(value));
  return sum;
}

// Nanoseconds of a clock that all SMs share. Its steps are coarse.
__device__ __forceinline__ u64 global_time_ns() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Ticks of 16 cycles of this SM's clock.
__device__ __forceinline__ u64 sm_ticks() {
  u64 cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles));
  return cycles >> 4;
}

// The number of this SM.
__device__ __forceinline__ u32 sm_index() {
  u32 sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm;
}

// Whether this thread is the first of the active threads of its warp, or of the active threads with one value. The simulator
// runs threads one by one, so each thread is the first.
__device__ __forceinline__ bool is_first_active() {
  u32 active;
  asm volatile("activemask.b32 %0;" : "=r"(active));
  return (active & ((1u << lane_index()) - 1)) == 0;
}
__device__ __forceinline__ bool is_first_active(u32 value) {
  u32 active, equal;
  asm volatile("activemask.b32 %0;" : "=r"(active));
  asm volatile("match.any.sync.b32 %0, %1, %2;" : "=r"(equal) : "r"(value), "r"(active));
  return (equal & ((1u << lane_index()) - 1)) == 0;
}

// 2^x, log2(x), 1/x and 1/sqrt(x), to within 2 units in the last place. A subnormal argument counts as 0. Near x = 1,
// log2 has an absolute error of at most 2^-22 instead.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_sqrt_approx(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ u32 min(u32 a, u32 b) { return a < b ? a : b; }

__device__ __forceinline__ u32 ceil_div(u32 count, u32 size) { return (count + size - 1) / size; }

// The number that has these bits.
__device__ __forceinline__ float as_float(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ u32 as_bits(float value) { return __float_as_uint(value); }

// x y + z, rounded once.
__device__ __forceinline__ float multiply_add(float x, float y, float z) { return __fmaf_rn(x, y, z); }

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000); }

// Returns the address unchanged. The compiler does not have it in registers before this call.
template <class T>
__device__ __forceinline__ T* loaded_here(T* address) {
  u64 bits = reinterpret_cast<u64>(address);
  asm volatile("" : "+l"(bits));
  return reinterpret_cast<T*>(bits);
}

// The greater number, or of a number and a NaN the number.
__device__ __forceinline__ float max(float a, float b) {
  float y;
  asm("max.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

}  // namespace mk
