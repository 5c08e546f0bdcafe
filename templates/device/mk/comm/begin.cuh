// The start of a call, which ranks announce to each other.
#pragma once
#include <mk/deadline.cuh>

namespace mk::comm {

// The order of this rank's earlier calls before the announcement of a call.
enum class EarlierCalls {
  kOrderedHere,   // by a fence before the announcement
  kOrderedEarly,  // by order_early()
  // no order: all data between ranks are packets, and calls end after their accesses of packets, as in calls without
  // announcements
  kOfPackets,
};

// A rank may write to a peer of its node in call e + 2 if it has received data of call e + 1 from that peer. Where a
// rank may have no shard, some pairs of ranks exchange no data. All ranks of the node then announce the start of each
// call to each other, and wait for these announcements before they leave the call. If each call gives the rows, an
// announcement also has the number of rows, or a hash of the offsets of packed sequences, which must be equal on all
// ranks.
//
// If ranks store directly to each other's results, a rank's result is in use until the rank begins the call, by earlier
// work on the rank's stream. An announcement then also has the place of the rank's result in symmetric memory, and a
// rank compares that place with the place of its own result before it stores there. If ranks only announce the call,
// they compare the places at the end, so that every call finds a wrong place, not only calls with many rows.
//
// Workspace has begun(parity, rank) if ranks announce the start of calls, and result_place(parity, rank) if they also announce
// where their results lie.
template <TopologyConfig Config, class Workspace>
struct Begin {
  using Ranks = Topology<Config>;

  static constexpr bool kIsAnnounced = requires { Workspace::begun(0u, 0u); };
  static constexpr bool kHasPlaces = requires { Workspace::result_place(0u, 0u); };
  // The number of puts with announcements, which come before the other puts of each channel.
  static constexpr u32 kPuts = TakesRows<Config> && Ranks::kNodes > 1 ? 1 : 0;

  // All threads of the CTA, before enter(): the threads that will announce the call order earlier calls of this rank before
  // the announcement. In announce(), the same fence would wait 1.2 µs for the packets that the SM has sent by then.
  static MK_DEVICE void order_early(const RankContext& ctx) {
    if constexpr (kIsAnnounced && !kHasPlaces) {
      if (announces<0>(ctx)) fence_sys();
    }
  }

  // All threads of the CTA: announce the start of the call to the other ranks of this node.
  template <EarlierCalls kEarlier = EarlierCalls::kOrderedHere>
  static MK_DEVICE void announce(const RankContext& ctx) {
    if constexpr (kIsAnnounced) {
      // A place is stored right before the announcement, which then needs a fence in any case.
      constexpr bool kNeedsFence = kHasPlaces || kEarlier == EarlierCalls::kOrderedHere;
      // With a fence, the second warp does this, so that the first loads of the first warp need not wait.
      constexpr u32 kFirstThread = kNeedsFence ? kWarp : 0;
      if (!announces<kFirstThread>(ctx)) return;
      const u32 peer = threadIdx.x - kFirstThread;
      if constexpr (kHasPlaces) {
        store_relaxed_sys(ctx.peer_ptr(peer, Workspace::result_place(ctx.call_parity(), ctx.rank)), ctx.result_place);
      }
      if constexpr (kNeedsFence) fence_sys();
      store_relaxed_sys(ctx.peer_ptr(peer, Workspace::begun(ctx.call_parity(), ctx.rank)), begin_word(ctx));
      trace_flag(ctx.trace, kBegun, ctx.node_first_rank + peer, 0);
    }
  }

  // One thread of the grid, at the end of a call and before it waits for other ranks: reports a number of rows that is
  // too large. At the beginning of the call, this check would make the compiler treat all warps as diverged, as in
  // Gemm::for_each_sum.
  static MK_DEVICE void report_refused_rows(const RankContext& ctx) {
    if constexpr (TakesRows<Config> && !IsPacked<Config>) {
      if (ctx.refused_rows == 0) return;
      report_fault(ctx, WaitSite{kLoad, kCallRows, ctx.rank, 0, ctx.max_rows}, ctx.refused_rows, ctx.rank);
    }
  }

  // One thread, before the other puts of a channel: announces the start of the call to the peers on other nodes. Puts
  // of several channels are not ordered, so only the first channel carries the word, and only its thread stores it.
  template <class Network, class Args>
  static MK_DEVICE void put(const Args& args, const RankContext& ctx, u32 channel) {
    if constexpr (kPuts > 0) {
      const Symmetric<u64> word = Workspace::begun(ctx.call_parity(), ctx.rank);
      if (channel == 0) store_relaxed_sys(ctx.local_ptr(word), begin_word(ctx));
      Network::put_to_all(args, ctx, channel, word, channel == 0 ? sizeof(u64) : 0);
    }
  }

  // One thread: waits until all other ranks of this node have begun the call. `kComparesPlaces`: whether to compare the
  // places of results here. `kComparesPlaces` is false if ranks have compared the places before they stored to results.
  template <bool kComparesPlaces>
  static MK_DEVICE void wait_for_peers(const RankContext& ctx) {
    if constexpr (kIsAnnounced) {
      for (u32 i = 1; i < Ranks::kLocalWorld; ++i) {
        const u32 rank = ctx.node_first_rank + (ctx.local_rank() + i) % Ranks::kLocalWorld;
        if constexpr (kHasPlaces && kComparesPlaces) wait_at_same_place(ctx, rank, kCollect);
        else wait(ctx, rank);
      }
    }
  }

  // All threads: one warp waits until all other ranks of this node have begun the call. Each lane waits for one rank,
  // all lanes at the same time.
  template <bool kComparesPlaces>
  static MK_DEVICE void wait_in_warp(const RankContext& ctx) {
    if constexpr (kIsAnnounced) {
      const u32 distance = threadIdx.x - kWarp + 1;
      if (blockIdx.x != 0 || threadIdx.x < kWarp || distance >= Ranks::kLocalWorld) return;
      const u32 rank = ctx.node_first_rank + (ctx.local_rank() + distance) % Ranks::kLocalWorld;
      if constexpr (kHasPlaces && kComparesPlaces) wait_at_same_place(ctx, rank, kCollect);
      else wait(ctx, rank);
    }
  }

  // A warp, before it stores to the results of the other ranks of this node: waits until all these ranks have begun the
  // call, and compares the places of their results with this rank's. If the function returns false, the warp must not
  // store there.
  static MK_DEVICE bool wait_for_results(const RankContext& ctx, Role role) {
    if (lane_index() < Ranks::kLocalWorld && lane_index() != ctx.local_rank()) wait_for_result(ctx, lane_index(), role);
    __syncwarp();
    // A wait that has failed has also raised the abort word of this rank.
    return broadcast(gives_up(ctx, role), 0) == 0;
  }

  // One thread: waits until the rank with local rank `peer` has begun the call, and compares the place of its result
  // with this rank's.
  static MK_DEVICE void wait_for_result(const RankContext& ctx, u32 peer, Role role) {
    wait_at_same_place(ctx, ctx.node_first_rank + peer, role);
  }

  // One thread: waits until another rank of this node has begun the call, and ends the call if that rank's result lies
  // at another place than this rank's result. Every rank finds the difference by itself, even if another rank has
  // already ended the call.
  static MK_DEVICE void wait_at_same_place(const RankContext& ctx, u32 rank, Role role) {
    if (!wait(ctx, rank, role)) return;
    const u64 place = load_relaxed_sys(ctx.local_ptr(Workspace::result_place(ctx.call_parity(), rank)));
    if (place == ctx.result_place) return;
    const u32 low = static_cast<u32>(place), high = static_cast<u32>(place >> 32);
    report(ctx, WaitSite{role, kSamePlace, rank, ctx.operator_number, high}, low, 0, 0);
    raise_abort(ctx, 1 + ctx.rank);
  }

  // One thread: waits until another rank of this node has begun the call. Returns whether that rank has begun the call
  // with this rank's number of rows.
  static MK_DEVICE bool wait(const RankContext& ctx, u32 peer, Role role = kCollect) {
    const u64* word = ctx.local_ptr(Workspace::begun(ctx.call_parity(), peer));
    Deadline deadline(ctx);
    for (;;) {
      const u32 seen = static_cast<u32>(load_acquire_sys(word));
      if (seen == ctx.call_mark()) break;
      if (deadline.expired(ctx, WaitSite{role, kBegun, peer, 0, ctx.call_mark()}, seen)) return false;
    }
    if constexpr (TakesRows<Config>) return !refuse_other_rows(ctx, role, peer);
    else return true;
  }

 private:
  // Whether this thread announces the call, and to the rank with local rank threadIdx.x - kFirstThread.
  template <u32 kFirstThread>
  static MK_DEVICE bool announces(const RankContext& ctx) {
    const u32 peer = threadIdx.x - kFirstThread;
    return blockIdx.x == 0 && peer < Ranks::kLocalWorld && peer != ctx.local_rank();
  }
};

}  // namespace mk::comm
