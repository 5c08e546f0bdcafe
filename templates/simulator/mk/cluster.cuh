// CTAs that run side by side and reach each other's shared memory, on the simulator.
#pragma once
#include <mk/memory.cuh>

namespace mk {

__forceinline__ u32 cluster_rank() { return mk_calls->thread()->cluster_rank; }

__forceinline__ void cluster_sync() { mk_calls->sync_cluster(sim::place()); }

// The bits above the address hold 1 + the rank of the CTA; 0 is the CTA of the calling thread.
__forceinline__ u32 cluster_address(u32 address, u32 cta) { return (cta + 1) << 24 | (address & 0xffffff); }

__forceinline__ u32 load_shared_cluster(u32 address) {
  u32 value;
  mk_calls->load_shared(address, &value, sizeof value, sim::place());
  return value;
}
__forceinline__ void store_shared_cluster(u32 address, u32 value) {
  mk_calls->store_shared(address, &value, sizeof value, sim::place());
}
__forceinline__ void store_shared_cluster_vec16(u32 address, Vec16 v) {
  mk_calls->store_shared(address, &v, sizeof v, sim::place());
}

__forceinline__ void barrier_arrive_cluster(u32 barrier) {
  mk_calls->barrier_arrive(barrier, 0, sim::kGpu, sim::place());
}

__forceinline__ bool barrier_try_wait_cluster(u32 barrier, u32 parity) {
  return mk_calls->barrier_try_wait(barrier, parity, sim::kGpu, sim::place()) != 0;
}

__forceinline__ void tma_load_2d_multicast(u32 dst, const CUtensorMap& map, u32 barrier, u32 x, u32 y, u16 ctas) {
  const u32 at[] = {x, y};
  mk_calls->tensor_load(dst, &map, barrier, at, 2, ctas, sim::place());
}

}  // namespace mk
