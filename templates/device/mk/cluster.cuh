// CTAs that run side by side and reach each other's shared memory (thread block clusters). The launch says how many.
//
// A CTA's shared memory must not be reached before the CTA has started, nor after it has ended: a cluster_sync goes
// before the first such access and after the last, unless barriers order them.
#pragma once
#include <mk/base.cuh>

namespace mk {

// Which CTA of its cluster this one is.
__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all CTAs of the cluster: each sees what the others did before.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// Where what this CTA has at `address` of its shared memory lies in that of another CTA of the cluster.
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

// Arrives at a barrier at a cluster_address, after all that this thread has done. Whoever waits there for what another
// CTA did takes barrier_try_wait_cluster.
__device__ __forceinline__ void barrier_arrive_cluster(u32 barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// As barrier_try_wait, on a barrier of this CTA; sees also what other CTAs did before they arrived.
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

// Box at (x, y) of a 2-D tensor to `dst` of every CTA whose bit `ctas` has; in each, its bytes count on the CTA's own
// `barrier`. They come to one CTA before the other.
__device__ __forceinline__ void tma_load_2d_multicast(u32 dst, const CUtensorMap& map, u32 barrier, u32 x, u32 y,
                                                      u16 ctas) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(dst),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "h"(ctas)
      : "memory");
}

}  // namespace mk
