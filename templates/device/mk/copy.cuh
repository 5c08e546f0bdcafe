// Copies to shared memory that a thread issues and later waits for (cp.async), for rows at arbitrary addresses.
#pragma once
#include <mk/base.cuh>

namespace mk {

// Copies 16 bytes of global memory by ordinary accesses of this thread. If `bytes` is 0, writes zeros and does not read
// `src`.
__device__ __forceinline__ void copy_async(u32 dst, const u8* src, u32 bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending groups of this thread's copies are unfinished. The thread then sees the data of the
// other groups.
template <u32 kPending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace mk
