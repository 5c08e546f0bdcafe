// Waits that end, on the simulator: the GPU's own, each announced, so that reports say who waits for what.
#pragma once
#include <mk/barrier.cuh>
#include <mk/memory.cuh>

#define wait_flag wait_flag_on_gpu
#define wait_mark wait_mark_on_gpu
#define wait_barrier wait_barrier_on_gpu
#define wait_barrier_watched wait_barrier_watched_on_gpu
#define Patience PatienceOnGpu
#include <mk/gpu/watch.cuh>
#undef wait_flag
#undef wait_mark
#undef wait_barrier
#undef wait_barrier_watched
#undef Patience

namespace mk {

// The wait that was announced has ended.
__forceinline__ void wait_ended() { mk_calls->waiting(0, 1, 0, 0, 0, 0, sim::place()); }

__forceinline__ u32 wait_flag(const Watch& watch, const u32* flag, const Awaited& what) {
  mk_calls->waiting(what.role, what.wait, what.peer, what.index, what.wanted, sim::Calls::kNextPolled, sim::place());
  const u32 seen = wait_flag_on_gpu(watch, flag, what);
  wait_ended();
  return seen;
}

__forceinline__ void wait_mark(const Watch& watch, const u32* flag, const Awaited& what) {
  mk_calls->waiting(what.role, what.wait, what.peer, what.index, what.wanted, sim::Calls::kNextPolled, sim::place());
  wait_mark_on_gpu(watch, flag, what);
  wait_ended();
}

__forceinline__ void wait_barrier(const Watch& watch, u32 barrier, u32 parity, Role role, Wait wait, u32 index) {
  mk_calls->waiting(role, wait, watch.rank, index, parity, sim::Calls::kNextPolled, sim::place());
  wait_barrier_on_gpu(watch, barrier, parity, role, wait, index);
  wait_ended();
}

__forceinline__ void wait_barrier_watched(const Watch& watch, u32 barrier, u32 parity, Role role, Wait wait,
                                          u32 index) {
  mk_calls->waiting(role, wait, watch.rank, index, parity, sim::Calls::kNextPolled, sim::place());
  wait_barrier_watched_on_gpu(watch, barrier, parity, role, wait, index);
  wait_ended();
}

// A poll in vain lets others run until one of the words changes that were polled.
struct Patience {
  PatienceOnGpu on_gpu;

  __forceinline__ bool ends(const Watch& watch, const Awaited& what, u32 seen) {
    mk_calls->waiting(what.role, what.wait, what.peer, what.index, what.wanted, seen, sim::place());
    const bool ends = on_gpu.ends(watch, what, seen);
    if (!ends) mk_calls->sleep(kPollPauseNs, sim::place());
    mk_calls->waiting(0, ends, 0, 0, 0, 0, sim::place());
    return ends;
  }
};

}  // namespace mk
