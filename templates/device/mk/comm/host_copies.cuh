// Copies that copy engines make for a call. The kernel asks the host for the copies, and does not end before the
// copies.
#pragma once
#include <mk/call.cuh>

namespace mk::comm {

// The time between two loads of the host's answer, which cross PCIe.
constexpr u32 kAnswerPauseNs = 1000;

// The time that the host may take for its answer, beyond twice the deadline. The host's thread may be suspended for
// long.
constexpr u64 kAnswerLimitNs = 60'000'000'000;

// One thread of the call, after enter(): asks the host to copy the rows at `source` to all peers.
MK_DEVICE void request_copies(const RankContext& ctx, const u8* source, u64 source_row_bytes) {
  store_relaxed_sys(&ctx.host->source, reinterpret_cast<u64>(source));
  store_relaxed_sys(&ctx.host->source_row_bytes, source_row_bytes);
  store_release_sys(&ctx.host->doorbell, ctx.epoch);
}

// One thread, after its wait for the end of the copies has failed: waits until no copy reads memory that the caller may
// free after the call.
//
// The kernel withdraws, and then looks whether the host has claimed the copies. The host claims the copies, and then
// looks whether the kernel has withdrawn. Each side has a fence between its two steps, so at least one side sees the
// other's word. Either the host makes no copies, or the kernel waits for its answer. The copies end by themselves. If
// no answer comes, a trap is the only way to end both.
MK_DEVICE void withdraw_copies(const RankContext& ctx) {
  store_relaxed_sys(&ctx.host->withdrawn, 1);
  fence_sc_sys();
  if (load_relaxed_sys(&ctx.host->claimed) != ctx.epoch) return;
  const u64 start_ns = global_time_ns();
  while (load_acquire_sys(&ctx.host->answered) != ctx.epoch) {
    __nanosleep(kAnswerPauseNs);
    const u64 waited_ns = global_time_ns() - start_ns;
    if (waited_ns < 2 * ctx.deadline_ns + kAnswerLimitNs) continue;
    report(ctx, WaitSite{kPush, kSent, ctx.rank, ctx.rank, ctx.epoch}, 0, 0, waited_ns);
    __trap();
  }
}

// One thread, at the end of the call: waits until the copies to all peers have left. After the call, even after an
// abort, the caller may overwrite or free the source of the copies.
template <u32 kWorld>
MK_DEVICE void wait_copies(const RankContext& ctx) {
  bool have_left = true;
  for (u32 peer = 0; peer < kWorld; ++peer) {
    if (peer == ctx.rank) continue;
    const WaitSite site{kPush, kSent, peer, peer, ctx.epoch};
    have_left &= wait_flag(ctx, &ctx.state()->sent[peer], site) == ctx.epoch;
  }
  if (!have_left) withdraw_copies(ctx);
}

}  // namespace mk::comm
