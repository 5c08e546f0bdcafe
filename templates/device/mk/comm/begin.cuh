// The start of a call, which ranks announce to each other.
#pragma once
#include <mk/deadline.cuh>

namespace mk::comm {

// A rank may write to a peer of its node in call e + 2 if it has received data of call e + 1 from it. Where a rank may have
// no shard, some pairs of ranks exchange no data. All ranks of the node then announce the start of each call to each other,
// and wait for these announcements before they leave the call. If each call gives the rows, an announcement also has the
// number of rows, or a hash of the offsets of packed sequences, which must be the same on all ranks.
//
// Workspace: begun(parity, rank), if ranks announce the start of calls.
template <TopologyConfig Config, class Workspace>
struct Begin {
  using Ranks = Topology<Config>;

  static constexpr bool kIsAnnounced = requires { Workspace::begun(0u, 0u); };
  // Puts of each channel that go before the others, to the ranks of the same local rank on other nodes.
  static constexpr u32 kPuts = TakesRows<Config> && Ranks::kNodes > 1 ? 1 : 0;

  // All threads of the CTA.
  static MK_DEVICE void announce(const RankContext& ctx) {
    if constexpr (TakesRows<Config> && !IsPacked<Config>) {
      if (ctx.refused_rows != 0 && blockIdx.x == 0 && threadIdx.x == 0) {
        report_fault(ctx, WaitSite{kLoad, kCallRows, ctx.rank, 0, Config::kMaxRows}, ctx.refused_rows, ctx.rank);
      }
    }
    if constexpr (kIsAnnounced) {
      // The second warp: the fence would delay the first loads of the first one.
      const u32 peer = threadIdx.x - kWarp;
      if (blockIdx.x != 0 || peer >= Ranks::kLocalWorld || peer == ctx.local_rank()) return;
      fence_sys();
      store_relaxed_sys(ctx.peer_ptr(peer, Workspace::begun(ctx.parity(), ctx.rank)), begin_word(ctx));  // @begin.announce
    }
  }

  // One thread, across nodes, before the other puts of a channel. Puts of several channels are not ordered, so only the
  // first channel carries the word, and only its thread stores it.
  template <class Network, class Args>
  static MK_DEVICE void put(const Args& args, const RankContext& ctx, u32 channel) {
    if constexpr (kPuts > 0) {
      const Symmetric<u64> word = Workspace::begun(ctx.parity(), ctx.rank);
      if (channel == 0) store_relaxed_sys(ctx.local_ptr(word), begin_word(ctx));
      Network::put_to_all(args, ctx, channel, word, channel == 0 ? sizeof(u64) : 0);  // @begin.put
    }
  }

  // One thread.
  static MK_DEVICE void wait_for_peers(const RankContext& ctx) {
    if constexpr (kIsAnnounced) {
      for (u32 i = 1; i < Ranks::kLocalWorld; ++i) {
        wait(ctx, ctx.node_first_rank + (ctx.local_rank() + i) % Ranks::kLocalWorld);  // @begin.wait
      }
    }
  }

  // All threads: the lanes of a warp wait for a peer each, at the same time.
  static MK_DEVICE void wait_in_warp(const RankContext& ctx) {
    if constexpr (kIsAnnounced) {
      const u32 distance = threadIdx.x - kWarp + 1;
      if (blockIdx.x != 0 || threadIdx.x < kWarp || distance >= Ranks::kLocalWorld) return;
      wait(ctx, ctx.node_first_rank + (ctx.local_rank() + distance) % Ranks::kLocalWorld);  // @begin.wait-in-warp
    }
  }

  // One thread: waits until another rank of this node has begun the call.
  static MK_DEVICE void wait(const RankContext& ctx, u32 peer, Role role = kCollect) {
    const u64* word = ctx.local_ptr(Workspace::begun(ctx.parity(), peer));
    Deadline deadline;
    for (;;) {
      const u32 seen = static_cast<u32>(load_acquire_sys(word));
      if (seen == ctx.mark()) break;
      if (deadline.expired(ctx, WaitSite{role, kBegun, peer, 0, ctx.mark()}, seen)) return;
    }
    if constexpr (TakesRows<Config>) refuse_other_rows(ctx, role, peer);
  }
};

}  // namespace mk::comm
