// The SM's copy engine (TMA), which copies tiles between global and shared memory.
#pragma once
#include <mk/base.cuh>

namespace mk {

// Prefetches a tensor map, so that the first copy does not wait for the map (0.4 µs).
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// One thread, which is idle while its CTA enters: prefetches tensor maps. The prefetches overlap, so two maps take as
// long as one.
template <class... Maps>
__device__ __forceinline__ void prefetch_tensor_maps(const Maps&... maps) {
  if (threadIdx.x == 2 * kWarp) (prefetch_tensor_map(maps), ...);
}

// Loads the box at (x, y) of a 2-D tensor to shared memory. The bytes of the box count on `barrier`. Elements out of
// bounds read as 0.
__device__ __forceinline__ void tma_load_2d(u32 dst, const CUtensorMap& map, u32 barrier, u32 x, u32 y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          dst),
      "l"(&map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}

__device__ __forceinline__ void tma_load_3d(u32 dst, const CUtensorMap& map, u32 barrier, u32 x, u32 y, u32 z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(dst),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

__device__ __forceinline__ void tma_load_4d(u32 dst, const CUtensorMap& map, u32 barrier, u32 x, u32 y, u32 z, u32 w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

__device__ __forceinline__ void tma_load_5d(u32 dst, const CUtensorMap& map, u32 barrier, u32 x, u32 y, u32 z, u32 w,
                                            u32 v) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(dst),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
      : "memory");
}

// Stores a box from shared memory to (x, y). Elements out of bounds are not written.
__device__ __forceinline__ void tma_store_2d(const CUtensorMap& map, u32 src, u32 x, u32 y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map), "r"(src),
               "r"(x), "r"(y)
               : "memory");
}

// Loads `bytes` bytes, a multiple of 16, from global to shared memory. The bytes count on `barrier`.
__device__ __forceinline__ void tma_load_bytes(u32 dst, const u8* src, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
               "l"(src), "r"(bytes), "r"(barrier)
               : "memory");
}

// Stores `bytes` bytes, a multiple of 16, from shared memory to global memory of this GPU or a peer.
__device__ __forceinline__ void tma_store_bytes(u8* dst, u32 src, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most kPending groups still read shared memory.
template <u32 kPending>
__device__ __forceinline__ void tma_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Waits until at most kPending groups are unfinished. The other groups have written global memory.
template <u32 kPending>
__device__ __forceinline__ void tma_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace mk
