// The SM's copy engine, on the simulator: its work completes late, and in any order.
#pragma once
#include <mk/base.cuh>

namespace mk {

__forceinline__ void prefetch_tensor_map(const CUtensorMap&) {}

template <class... Maps>
__forceinline__ void prefetch_tensor_maps(const Maps&...) {}

__forceinline__ void tma_load_2d(u32 dst, const CUtensorMap& map, u32 barrier, u32 x, u32 y) {
  const u32 at[] = {x, y};
  mk_calls->tensor_load(dst, &map, barrier, at, 2, 0, sim::place());
}

__forceinline__ void tma_load_3d(u32 dst, const CUtensorMap& map, u32 barrier, u32 x, u32 y, u32 z) {
  const u32 at[] = {x, y, z};
  mk_calls->tensor_load(dst, &map, barrier, at, 3, 0, sim::place());
}

__forceinline__ void tma_load_4d(u32 dst, const CUtensorMap& map, u32 barrier, u32 x, u32 y, u32 z, u32 w) {
  const u32 at[] = {x, y, z, w};
  mk_calls->tensor_load(dst, &map, barrier, at, 4, 0, sim::place());
}

__forceinline__ void tma_load_5d(u32 dst, const CUtensorMap& map, u32 barrier, u32 x, u32 y, u32 z, u32 w, u32 v) {
  const u32 at[] = {x, y, z, w, v};
  mk_calls->tensor_load(dst, &map, barrier, at, 5, 0, sim::place());
}

__forceinline__ void tma_store_2d(const CUtensorMap& map, u32 src, u32 x, u32 y) {
  const u32 at[] = {x, y};
  mk_calls->tensor_store(&map, src, at, 2, sim::place());
}

__forceinline__ void tma_load_bytes(u32 dst, const u8* src, u32 bytes, u32 barrier) {
  mk_calls->bulk_load(dst, src, bytes, barrier, sim::place());
}

__forceinline__ void tma_store_bytes(u8* dst, u32 src, u32 bytes) {
  mk_calls->bulk_store(dst, src, bytes, sim::place());
}

__forceinline__ void tma_commit() { mk_calls->bulk_commit(sim::place()); }

template <u32 kPending>
__forceinline__ void tma_wait_read() {
  mk_calls->bulk_wait(kPending, 1, sim::place());
}

template <u32 kPending>
__forceinline__ void tma_wait() {
  mk_calls->bulk_wait(kPending, 0, sim::place());
}

}  // namespace mk
