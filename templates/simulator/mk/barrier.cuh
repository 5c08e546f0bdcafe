// Barriers in shared memory that count arrivals and bytes, and the hardware barriers of a CTA, on the simulator.
#pragma once
#include <mk/base.cuh>

namespace mk {

__forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
  mk_calls->barrier_init(barrier, arrivals, sim::place());
}

__forceinline__ void fence_barrier_init() { mk_calls->fence(sim::kFenceBarrierInit, sim::kGpu, sim::place()); }

__forceinline__ void barrier_arrive(u32 barrier) { mk_calls->barrier_arrive(barrier, 0, sim::kCta, sim::place()); }

__forceinline__ void barrier_expect_bytes(u32 barrier, u32 bytes) {
  mk_calls->barrier_expect_bytes(barrier, bytes, sim::place());
}

__forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
  mk_calls->barrier_arrive(barrier, bytes, sim::kCta, sim::place());
}

__forceinline__ bool barrier_try_wait(u32 barrier, u32 parity) {
  return mk_calls->barrier_try_wait(barrier, parity, sim::kCta, sim::place()) != 0;
}

// The simulator has no test of a barrier that does not suspend the thread, so each wait for a barrier begins with a try.
__forceinline__ bool barrier_is_complete(u32, u32) { return false; }

__forceinline__ void sync_named(u32 id, u32 threads) { mk_calls->sync_threads(id, threads, sim::place()); }

__forceinline__ void arrive_named(u32 id, u32 threads) { mk_calls->arrive_threads(id, threads, sim::place()); }

}  // namespace mk
