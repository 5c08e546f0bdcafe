// The tensor of a collective: rows of 16-byte vectors, and the shard of each rank, which is a range of vectors.
#pragma once
#include <mk/rank_context.cuh>

namespace mk::collective {

template <class Config>
concept ShardConfig = TopologyConfig<Config> && requires {
  Config::kVecs;       // vectors of the tensor
  Config::kRowVecs;    // of a row
  Config::kShardVecs;  // of the shard of every rank but perhaps the last ones
};

template <ShardConfig Config>
struct Shards {
  using Ranks = Topology<Config>;

  static constexpr u32 kFirstEmpty = kCeilDiv<Config::kVecs, Config::kShardVecs>;  // this rank has no shard, nor those after it
  static constexpr bool kHasIdleRanks = kFirstEmpty < Ranks::kWorld;

  // The first vector of a rank's shard, and how many it has.
  static MK_DEVICE u32 first(u32 rank) { return rank * Config::kShardVecs; }
  static MK_DEVICE u32 vecs_of(u32 rank) {
    return first(rank) < Config::kVecs ? min(Config::kShardVecs, Config::kVecs - first(rank)) : 0;
  }
};

// Where a tensor, or a shard of it, lies: the address of a vector.
template <ShardConfig Config, class Byte>
struct Rows {
  Byte* base;
  u64 row_bytes;

  MK_DEVICE Byte* at(u32 vec) const { return base + vec / Config::kRowVecs * row_bytes + vec % Config::kRowVecs * 16; }
};

// Args: what this rank gives, and where its result goes.
template <class Args>
concept TensorArgs = requires(const Args& args) {
  args.x;
  args.x_row_bytes;
  args.y;
  args.y_row_bytes;
};

template <ShardConfig Config, TensorArgs Args>
struct Tensors {
  static MK_DEVICE Rows<Config, const u8> input(const Args& args) { return {args.x, args.x_row_bytes}; }
  static MK_DEVICE Rows<Config, u8> output(const Args& args) { return {args.y, args.y_row_bytes}; }
};

template <class Workspace>
concept IdleRanksWorkspace = requires(u32 rank) {
  Workspace::begun(rank);  // calls that a rank of this node has begun
};

// A rank may write to a peer of its node in call e + 2 if it has received data of call e + 1 from it. Where a rank has no
// shard, some pairs exchange no data, so all ranks of the node signal each other that they have begun a call, and wait
// for these signals before they leave it.
template <ShardConfig Config, class Workspace>
struct IdleRanks {
  using Ranks = Topology<Config>;

  // The first threads of one CTA.
  static MK_DEVICE void announce_begin(const RankContext& ctx, u32 thread) {
    static_assert(IdleRanksWorkspace<Workspace>);
    if (thread >= Ranks::kLocalWorld || thread == ctx.local_rank()) return;
    fence_sys();
    add_relaxed_sys(ctx.peer_ptr(thread, Workspace::begun(ctx.local_rank())), 1);  // @idle.announce
  }

  // One thread.
  static MK_DEVICE void wait_for_peers(const RankContext& ctx) {
    for (u32 i = 1; i < Ranks::kLocalWorld; ++i) {
      const u32 peer = (ctx.local_rank() + i) % Ranks::kLocalWorld;
      wait_flag(ctx, ctx.local_ptr(Workspace::begun(peer)),  // @idle.wait
                WaitSite{kCollect, kBegun, ctx.node_first_rank + peer, 0, ctx.epoch});
    }
  }
};

}  // namespace mk::collective
