// Barriers in shared memory that count arrivals and bytes (mbarrier), and named barriers for some warps of a CTA.
#pragma once
#include <mk/base.cuh>

namespace mk {

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the TMA unit. A __syncthreads after that makes the barriers visible to the
// threads.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Keeps the phase incomplete until `bytes` bytes have arrived by TMA.
__device__ __forceinline__ void barrier_expect_bytes(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Keeps the phase incomplete until `bytes` bytes have arrived by TMA, and arrives.
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Returns whether the phase of `parity` is complete. Otherwise suspends the thread for a while.
__device__ __forceinline__ bool barrier_try_wait(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// Returns whether the phase of `parity` is complete, without suspending the thread.
__device__ __forceinline__ bool barrier_is_complete(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// Synchronises `threads` threads of this CTA, which are whole warps that all name barrier `id` (1 to 15; 0 is
// __syncthreads). Each thread then sees all earlier accesses of the other threads.
__device__ __forceinline__ void sync_named(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrives at a barrier without waiting. Threads that call sync_named on this barrier see all earlier accesses of this
// thread.
__device__ __forceinline__ void arrive_named(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace mk
