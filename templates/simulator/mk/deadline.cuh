// Waits that end, on the simulator: the waits of the GPU's header, each announced, so that reports name the role and
// the awaited event.
#pragma once
#include <mk/barrier.cuh>
#include <mk/rank_context.cuh>

#define wait_flag wait_flag_on_gpu
#define wait_mark wait_mark_on_gpu
#define wait_barrier wait_barrier_on_gpu
#define wait_barrier_watched wait_barrier_watched_on_gpu
#define Deadline DeadlineOnGpu
#include <mk/gpu/deadline.cuh>
#undef wait_flag
#undef wait_mark
#undef wait_barrier
#undef wait_barrier_watched
#undef Deadline

namespace mk {

// Announces that the wait has ended.
__forceinline__ void wait_ended() { mk_calls->waiting(0, 1, 0, 0, 0, 0, sim::place()); }

__forceinline__ u32 wait_flag(const RankContext& ctx, const u32* flag, const WaitSite& site) {
  mk_calls->waiting(site.role, site.wait, site.peer, site.index, site.wanted, sim::Calls::kNextPolled, sim::place());
  const u32 seen = wait_flag_on_gpu(ctx, flag, site);
  wait_ended();
  return seen;
}

__forceinline__ void wait_mark(const RankContext& ctx, const u32* flag, const WaitSite& site) {
  mk_calls->waiting(site.role, site.wait, site.peer, site.index, site.wanted, sim::Calls::kNextPolled, sim::place());
  wait_mark_on_gpu(ctx, flag, site);
  wait_ended();
}

template <bool (*kTryWait)(u32, u32) = barrier_try_wait>
__forceinline__ void wait_barrier(const RankContext& ctx, u32 barrier, u32 parity, Role role, Wait wait, u32 index) {
  mk_calls->waiting(role, wait, ctx.rank, index, parity, sim::Calls::kNextPolled, sim::place());
  wait_barrier_on_gpu<kTryWait>(ctx, barrier, parity, role, wait, index);
  wait_ended();
}

__forceinline__ void wait_barrier_watched(const RankContext& ctx, u32 barrier, u32 parity, Role role, Wait wait,
                                          u32 index) {
  mk_calls->waiting(role, wait, ctx.rank, index, parity, sim::Calls::kNextPolled, sim::place());
  wait_barrier_watched_on_gpu(ctx, barrier, parity, role, wait, index);
  wait_ended();
}

// A poll that finds no new value lets other threads run until one of the polled words changes.
struct Deadline {
  DeadlineOnGpu on_gpu;

  __forceinline__ Deadline(const RankContext& ctx) : on_gpu(ctx) {}

  __forceinline__ bool expired(const RankContext& ctx, const WaitSite& site, u32 seen) {
    mk_calls->waiting(site.role, site.wait, site.peer, site.index, site.wanted, seen, sim::place());
    const bool has_expired = on_gpu.expired(ctx, site, seen);
    if (!has_expired) mk_calls->sleep(kPollPauseNs, sim::place());
    mk_calls->waiting(0, has_expired, 0, 0, 0, 0, sim::place());
    return has_expired;
  }
};

}  // namespace mk
