// Copies that the host's copy engines make for a call: the kernel asks for them, and is not over before they are.
#pragma once
#include <mk/call.cuh>

namespace mk::comm {

// Between two looks at the host's answer, which cross PCIe.
constexpr u32 kAnswerPauseNs = 1000;

// What the host may need for its answer beyond twice the deadline: its thread may stand still for long.
constexpr u64 kAnswerLimitNs = 60'000'000'000;

// One thread of the call, after enter(): asks the host to copy the rows at `source` to all peers.
MK_DEVICE void request_copies(const RankContext& ctx, const u8* source, u64 source_row_bytes) {
  store_relaxed_sys(&ctx.host->source, reinterpret_cast<u64>(source));
  store_relaxed_sys(&ctx.host->source_row_bytes, source_row_bytes);
  store_release_sys(&ctx.host->doorbell, ctx.epoch);
}

// One thread, after a wait for the end of its copies was given up: waits until no copy reads what the caller may now
// free. The kernel withdraws, then looks whether the host has claimed; the host claims, then looks whether the kernel has
// withdrawn. Between the two steps each has a fence, so one of them sees the other's word: either the host makes no
// copies, or the kernel waits for its answer. Copies end by themselves. If the answer stays away all the same, only a
// trap ends both.
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

// One thread, at the end of the call: waits until the copies to all peers have left. The caller may overwrite or free
// what they read after the call, also after an abort.
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
