// Collectives of many vectors: plain data and a flag behind each chunk (NCCL's Simple protocol), on one node or several.
//
// Every CTA has warps for each step, so that all steps of different chunks go on at the same time: the links are busy
// while sums and results move in this GPU's memory.
#pragma once
#include <mk/call.cuh>
#include <mk/collective/gather.cuh>
#include <mk/collective/peer_results.cuh>
#include <mk/collective/reduce.cuh>
#include <mk/roles.cuh>

namespace mk::collective {

enum class Collective { kAllReduce, kAllGather, kReduceScatter };

// Config: kPushWarps, kReduceWarps, kCollectWarps and kRelayWarps of every CTA.
template <Collective kOp, ChunkConfig Config, TensorArgs Args, class Workspace, class Smem>
struct Simple {
  using Ranks = Topology<Config>;
  using Shards = collective::Shards<Config>;
  using Chunks = collective::Chunks<Config>;
  using Tensors = collective::Tensors<Config, Args>;
  using Reduction = collective::Reduce<Config, Workspace>;
  using Gathering = collective::Gather<Config, Workspace>;
  using PeerResults = collective::PeerResults<Config, Args, Workspace>;
  using Begin = comm::Begin<Config, Workspace>;

  static constexpr bool kReduces = kOp != Collective::kAllGather;
  static constexpr bool kGathers = kOp != Collective::kReduceScatter && Ranks::kWorld > 1;

  // Of the sums, if there are any, then of shards.
  static constexpr u32 kShardChannel = kReduces ? 1 : 0;

  // A warp: chunks of the peers of this node, to be added up there.
  struct Push {
    static constexpr Agent kAgent = Agent::kWarp;
    using Workers = collective::Workers<Config::kPushWarps>;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32 warp) {
      Reduction::send(ctx, Tensors::input(args), Workers::index(warp), Workers::count());
    }
  };

  // A warp: the sums of chunks of the own shard to the result, and to all ranks if they want them.
  struct Reduce {
    static constexpr Agent kAgent = Agent::kWarp;
    using Workers = collective::Workers<Config::kReduceWarps>;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32 warp) {
      const auto result = Tensors::output(args);
      const u32 first = kOp == Collective::kReduceScatter ? 0 : Shards::first(ctx, ctx.rank);
      if (!PeerResults::begin(ctx, kReduce)) return;
      Reduction::template reduce<PeerResults::kExist>(
          ctx, Tensors::input(args), Workers::index(warp), Workers::count(),
          [&](u32 chunk, u32 vec, const Vec16& sum) {
            const u32 to = first + Chunks::first_in_shard(chunk) + vec;
            store_vec16(result.at(to), sum);
            if constexpr (PeerResults::kExist) PeerResults::send_vec(args, ctx, to, sum);
            else if constexpr (kGathers) Gathering::send_vec(ctx, chunk, vec, sum);
          },
          [&](u32 chunk) {
            if constexpr (kGathers) Gathering::raise(ctx, ctx.rank, chunk, Gathering::kKeepsOwn);
          });
    }
  };

  // A warp: chunks of the own shard to all ranks of this node, and to the result.
  struct PushShard {
    static constexpr Agent kAgent = Agent::kWarp;
    using Workers = collective::Workers<Config::kPushWarps>;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32 warp) {
      const auto shard = Tensors::input(args);
      const auto result = Tensors::output(args);
      if (!PeerResults::begin(ctx, kPush)) return;
      for (u32 chunk = Workers::index(warp); chunk < Chunks::per_shard(ctx); chunk += Workers::count()) {
        const u32 vecs = Chunks::vecs_of(ctx, ctx.rank, chunk);
        if (vecs == 0) continue;
        for_each_vec<Config::kUnroll>(
            vecs, [&](u32 vec) { return load_vec16(shard.at(Chunks::first_in_shard(chunk) + vec)); },
            [&](u32 vec, const Vec16& data) {
              store_vec16(result.at(Chunks::first(ctx, ctx.rank, chunk) + vec), data);
              if constexpr (PeerResults::kExist) PeerResults::send_vec(args, ctx, Chunks::first(ctx, ctx.rank, chunk) + vec, data);
              else if constexpr (kGathers) Gathering::send_vec(ctx, chunk, vec, data);
            });
        if constexpr (kGathers) Gathering::raise(ctx, ctx.rank, chunk, Gathering::kKeepsOwn);
      }
    }
  };

  // A warp: other ranks' chunks to the result, or until they are there if these ranks store them.
  struct Collect {
    static constexpr Agent kAgent = Agent::kWarp;
    using Workers = collective::Workers<Config::kCollectWarps>;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32 warp) {
      if constexpr (PeerResults::kExist) PeerResults::collect(ctx, Workers::index(warp), Workers::count());
      else Gathering::collect(ctx, Tensors::output(args), Workers::index(warp), Workers::count());
    }
  };

  // A warp, across nodes: chunks that other nodes have put here, to the peers of this node.
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

  // A warp, across nodes: sums of this node's ranks to the ranks that own them.
  struct PutSums {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32) {
      Reduction::put_sums(args, ctx);
    }
  };

  // A warp, across nodes: chunks of the own shard to the ranks of the same local rank.
  struct PutShard {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32) {
      Gathering::template put_all<kShardChannel>(args, ctx);
    }
  };

  // Before the roles; false if the CTA must end at once.
  static MK_DEVICE bool begin(const Args&, const RankContext& ctx, const Smem&) {
    if (!enter(ctx)) return false;  // @collective.enter
    Begin::announce(ctx);
    return true;
  }

  // After them.
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
