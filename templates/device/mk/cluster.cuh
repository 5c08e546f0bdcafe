// CTAs that run at the same time and access each other's shared memory (thread block clusters). The launch gives their
// number.
//
// No CTA may access the shared memory of another CTA before that CTA has started, or after it has ended. A cluster_sync
// comes before the first such access and after the last, unless barriers order the accesses.
#pragma once
#include <mk/memory.cuh>

namespace mk {

// The number of this CTA in its cluster.
__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all CTAs of the cluster: synchronises the threads. Each thread then sees all earlier accesses of the
// other threads.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// The address in the shared memory of another CTA of the cluster that corresponds to `address` in this CTA's.
__device__ __forceinline__ u32 cluster_address(u32 address, u32 cta) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(cta));
  return there;
}

// An ordinary access to a word at a cluster_address.
__device__ __forceinline__ u32 load_shared_cluster(u32 address) {
  u32 value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void store_shared_cluster(u32 address, u32 value) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared_cluster_vec16(u32 address, Vec16 v) {
  asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// Arrives at a barrier at a cluster_address, after all that this thread has done. A thread that waits for accesses of
// another CTA uses barrier_try_wait_cluster.
__device__ __forceinline__ void barrier_arrive_cluster(u32 barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Like barrier_try_wait, on a barrier of this CTA. Also sees all accesses of other CTAs before their arrivals.
__device__ __forceinline__ bool barrier_try_wait_cluster(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// Loads the box at (x, y) of a 2-D tensor to `dst` of every CTA whose bit is set in `ctas`. In each CTA, the bytes
// count on that CTA's `barrier`. The bytes may arrive in one CTA before they arrive in another CTA.
__device__ __forceinline__ void tma_load_2d_multicast(u32 dst, const CUtensorMap& map, u32 barrier, u32 x, u32 y,
                                                      u16 ctas) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(dst),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "h"(ctas)
      : "memory");
}

}  // namespace mk
