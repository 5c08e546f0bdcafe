// Collectives of many vectors, on one node or several. They send plain data and a flag for each chunk (NCCL's Simple
// protocol).
//
// Every CTA has warps for each step. All steps run at the same time for different chunks, so the links are busy while
// sums and results move in this GPU's memory.
#pragma once
#include <mk/call.cuh>
#include <mk/collective/gather.cuh>
#include <mk/collective/reduce.cuh>
#include <mk/roles.cuh>

namespace mk::collective {

enum class Collective { kAllReduce, kAllGather, kReduceScatter };

// Config: kPushWarps, kReduceWarps, kCollectWarps and kRelayWarps, the numbers of warps of each role in every CTA.
template <Collective kOp, ChunkConfig Config, TensorArgs Args, class Workspace, class Smem>
struct Simple {
  using Ranks = Topology<Config>;
  using Shards = collective::Shards<Config>;
  using Chunks = collective::Chunks<Config>;
  using Tensors = collective::Tensors<Config, Args>;
  using Reduction = collective::Reduce<Config, Workspace>;
  using Gathering = collective::Gather<Config, Workspace>;
  using Begin = comm::Begin<Config, Workspace>;

  static constexpr bool kReduces = kOp != Collective::kAllGather;
  static constexpr bool kGathers = kOp != Collective::kReduceScatter && Ranks::kWorld > 1;

  // The channel of shards. If there are sums, they have channel 0.
  static constexpr u32 kShardChannel = kReduces ? 1 : 0;

  // A warp: sends chunks to the peers of this node that add them up.
  struct Push {
    static constexpr Agent kAgent = Agent::kWarp;
    using Workers = collective::Workers<Config::kPushWarps>;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32 warp) {
      Reduction::send(ctx, Tensors::input(args), Workers::index(warp), Workers::count());
    }
  };

  // A warp: adds up chunks of the own shard. Stores the sums to the result, and in an all-reduce also sends them to all
  // ranks.
  struct Reduce {
    static constexpr Agent kAgent = Agent::kWarp;
    using Workers = collective::Workers<Config::kReduceWarps>;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32 warp) {
      const auto result = Tensors::output(args);
      const u32 first = kOp == Collective::kReduceScatter ? 0 : Shards::first(ctx, ctx.rank);
      Reduction::reduce(
          ctx, Tensors::input(args), Workers::index(warp), Workers::count(),
          [&](u32 chunk, u32 vec, const Vec16& sum) {
            store_vec16(result.at(first + Chunks::first_in_shard(chunk) + vec), sum);
            if constexpr (kGathers) Gathering::send_vec(ctx, chunk, vec, sum);
          },
          [&](u32 chunk) {
            if constexpr (kGathers) Gathering::raise(ctx, ctx.rank, chunk, Gathering::kKeepsOwn);
          });
    }
  };

  // A warp: sends chunks of the own shard to all ranks of this node, and copies them to the result.
  struct PushShard {
    static constexpr Agent kAgent = Agent::kWarp;
    using Workers = collective::Workers<Config::kPushWarps>;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32 warp) {
      const auto shard = Tensors::input(args);
      const auto result = Tensors::output(args);
      for (u32 chunk = Workers::index(warp); chunk < Chunks::per_shard(ctx); chunk += Workers::count()) {
        const u32 vecs = Chunks::vecs_of(ctx, ctx.rank, chunk);
        if (vecs == 0) continue;
        for_each_vec<Config::kUnroll>(
            vecs, [&](u32 vec) { return load_vec16(shard.at(Chunks::first_in_shard(chunk) + vec)); },
            [&](u32 vec, const Vec16& data) {
              store_vec16(result.at(Chunks::first(ctx, ctx.rank, chunk) + vec), data);
              if constexpr (kGathers) Gathering::send_vec(ctx, chunk, vec, data);
            });
        if constexpr (kGathers) Gathering::raise(ctx, ctx.rank, chunk, Gathering::kKeepsOwn);
      }
    }
  };

  // A warp: copies the other ranks' chunks to the result.
  struct Collect {
    static constexpr Agent kAgent = Agent::kWarp;
    using Workers = collective::Workers<Config::kCollectWarps>;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32 warp) {
      Gathering::collect(ctx, Tensors::output(args), Workers::index(warp), Workers::count());
    }
  };

  // A warp, across nodes: forwards chunks that other nodes have put here to the peers of this node.
  struct Relay {
    static constexpr Agent kAgent = Agent::kWarp;
    using Workers = collective::Workers<Config::kRelayWarps>;

    static MK_DEVICE void run(const Args&, const RankContext& ctx, const Smem&, u32 warp) {
      Gathering::template relay<kShardChannel>(ctx, Workers::index(warp), Workers::count());
    }
  };

  // A warp, across nodes: watches the arrivals of puts.
  struct Puts {
    static MK_DEVICE u32 of_call(const RankContext& ctx) { return ceil_div(Chunks::per_shard(ctx), Config::kPutChunks); }
  };
  using WatchArrivals = comm::WatchArrivals<Config, Workspace, Puts>;

  // A warp, across nodes: puts sums of this node to the ranks that own them.
  struct PutSums {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32) {
      Reduction::put_sums(args, ctx);
    }
  };

  // A warp, across nodes: puts chunks of the own shard to the ranks of the same local rank on other nodes.
  struct PutShard {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32) {
      Gathering::template put_all<kShardChannel>(args, ctx);
    }
  };

  // Runs before the roles. Returns false if the CTA must end at once.
  static MK_DEVICE bool begin(const Args&, const RankContext& ctx, const Smem&) {
    if (!enter(ctx)) return false;  // @collective.enter
    Begin::announce(ctx);
    return true;
  }

  // Runs after the roles.
  static MK_DEVICE void end(const Args&, const RankContext& ctx) {
    if (threadIdx.x == 0) advance_epoch(ctx);
    if (blockIdx.x == 0 && threadIdx.x == 0) Begin::wait_for_peers(ctx);
  }
};

template <class... Policies>
using AllReduce = Simple<Collective::kAllReduce, Policies...>;
template <class... Policies>
using AllGather = Simple<Collective::kAllGather, Policies...>;
template <class... Policies>
using ReduceScatter = Simple<Collective::kReduceScatter, Policies...>;

}  // namespace mk::collective
