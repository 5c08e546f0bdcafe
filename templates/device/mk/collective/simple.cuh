// Collectives of many vectors, on one node or several. They send plain data and a flag for each chunk (NCCL's Simple
// protocol).
//
// Every CTA has warps for each step. All steps run at the same time for different chunks, so the links are busy while
// sums and results move in this GPU's memory.
#pragma once
#include <mk/call.cuh>
#include <mk/collective/exchange.cuh>
#include <mk/collective/gather.cuh>
#include <mk/collective/norm.cuh>
#include <mk/collective/peer_results.cuh>
#include <mk/collective/reduce.cuh>
#include <mk/collective/scatter.cuh>
#include <mk/quantised_norm.cuh>
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
  using PeerResults = collective::PeerResults<Config, Args, Workspace>;
  using Begin = comm::Begin<Config, Workspace>;
  using Norm = RowNorm<Config, Args>;

  static constexpr bool kReduces = kOp != Collective::kAllGather;
  static constexpr bool kNormalises = NormalisesRows<Config>;
  // Rows that are normalised pass through `gathered` also in a world of one rank: their chunks come from several warps.
  static constexpr bool kGathers = kOp != Collective::kReduceScatter && (Ranks::kWorld > 1 || kNormalises);

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
      if (!PeerResults::begin(ctx, kReduce)) return;
      const auto place = [&](u32 chunk, u32 vec) { return first + Chunks::first_in_shard(chunk) + vec; };
      const auto load = [&](u32 chunk, u32 vec) {
        if constexpr (kNormalises) return Norm::addends(args, place(chunk, vec));
        else return NoOperands{};
      };
      Reduction::template reduce<PeerResults::kExist>(
          ctx, Tensors::input(args), Workers::index(warp), Workers::count(), load,
          [&](u32 chunk, u32 vec, Reduction::Sum& sum, const decltype(load(0u, 0u))& addends) {
            const u32 to = place(chunk, vec);
            if constexpr (kNormalises) {
              addends.add_to(sum);
              store_vec16(Norm::residual_out(args).at(to), sum.result());
            } else {
              store_vec16(result.at(to), sum.result());
            }
            if constexpr (PeerResults::kExist) PeerResults::send_vec(args, ctx, to, sum.result());
            else if constexpr (kGathers) Gathering::send_vec(ctx, chunk, vec, sum.result());
          },
          [&](u32 chunk) {
            if constexpr (kGathers) Gathering::raise(ctx, ctx.rank, chunk, Gathering::kKeepsOwn);
          });
    }
  };

  // A warp: sends chunks of the own shard to all ranks of this node, and copies these chunks to the result. In a broadcast,
  // the shards come from the root. In an all-to-all, the chunks belong to the shards of their owners.
  struct PushShard {
    static constexpr Agent kAgent = Agent::kWarp;
    using Workers = collective::Workers<Config::kPushWarps>;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32 warp) {
      if constexpr (HasRoot<Config>) {
        Scatter<Config, Args, Workspace>::push(args, ctx, Workers::index(warp), Workers::count());
        return;
      }
      if constexpr (SendsToOwners<Config>) {
        if (PeerResults::begin(ctx, kPush)) Exchange<Config, Args, Workspace>::push(args, ctx, Workers::index(warp), Workers::count());
        return;
      }
      const auto shard = Tensors::input(args);
      const auto result = Tensors::output(args);
      if (!PeerResults::begin(ctx, kPush)) return;
      for (u32 chunk = Workers::index(warp); chunk < Chunks::per_shard(ctx); chunk += Workers::count()) {
        const u32 vecs = Chunks::vecs_of(ctx, ctx.rank, chunk);
        if (vecs == 0) continue;
        const TraceStep traced(ctx.trace, kSendData, kPush, chunk);
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

  // A warp: copies the other ranks' chunks to the result, waits for these chunks if the other ranks store them, or
  // normalises rows of all ranks' chunks.
  struct Collect {
    static constexpr Agent kAgent = Agent::kWarp;
    using Workers = collective::Workers<Config::kCollectWarps>;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32 warp) {
      if constexpr (kNormalises) {
        for (u32 row = Workers::index(warp); row < Shards::rows(ctx); row += Workers::count()) normalise(args, ctx, row);
      } else if constexpr (HasRoot<Config>) {
        if (ctx.rank != Config::kRoot) Gathering::collect(ctx, Tensors::output(args), Workers::index(warp), Workers::count());
      } else if constexpr (PeerResults::kExist) {
        PeerResults::collect(ctx, Workers::index(warp), Workers::count());
      } else {
        Gathering::collect(ctx, Tensors::output(args), Workers::index(warp), Workers::count());
      }
    }

   private:
    // A warp: copies a row of `gathered` to residual_out, unless this rank added up the row, and stores its norm to the
    // result. A lane has the same columns of every row, so the bits of a row do not depend on the number of rows.
    static MK_DEVICE void normalise(const Args& args, const RankContext& ctx, u32 row) {
      constexpr u32 kUnroll = (Config::kUnroll + 1) / 2;  // with kUnroll vectors, the addresses spill
      const u32 first_vec = row * Config::kRowVecs;
      const auto kept = Norm::residual_out(args);
      u32 owner = Ranks::kWorld, chunk = 0;  // the chunk for whose flag this lane waited last
      RowSquares<Config> squares;
      float greatest = 0.0f;  // |z * weight| of this lane's part of the row, if the row has one scale
      // Where lanes add up blocks together, they leave the loop together.
      const u32 begin = squares.kInBlocks ? 0 : lane_index(), lane = squares.kInBlocks ? lane_index() : 0;
#pragma unroll 1
      for (u32 turn = begin; turn < Config::kRowVecs; turn += kWarp * kUnroll) {
        const u32 first = turn + lane;
        Vec16 data[kUnroll];
#pragma unroll
        for (u32 u = 0; u < kUnroll; ++u) {
          if (first + u * kWarp >= Config::kRowVecs) continue;
          const auto place = Chunks::place_of(ctx, first_vec + first + u * kWarp);
          if (place.owner != owner || place.chunk != chunk) {
            Gathering::wait_chunk(ctx, kCollect, place.owner, place.chunk);
            owner = place.owner, chunk = place.chunk;
          }
          data[u] = load_written_vec16(ctx.local_ptr(Gathering::slot(ctx, owner, chunk)) + place.vec * 16);
          if (owner != ctx.rank) store_vec16(kept.at(first_vec + first + u * kWarp), data[u]);
        }
#pragma unroll
        for (u32 u = 0; u < kUnroll; ++u) {
          const bool exists = first + u * kWarp < Config::kRowVecs;
          if (exists || squares.kInBlocks) squares.add(turn / kWarp + u, exists ? Norm::squares(data[u]) : 0.0f);
          if constexpr (kSharesScale<Config>) {
            if (exists) greatest = Norm::greater(greatest, data[u], Norm::weight(args, first + u * kWarp));
          }
        }
      }
      const float scale = Norm::scale(squares.of_row());
      const auto result = Tensors::output(args);
      // The lane loads data that it has stored itself, or acquired with a flag.
      const auto load = [&](u32 vec) { return Operands{load_written_vec16(kept.at(first_vec + vec)), Norm::weight(args, vec)}; };
      const auto norm = [&](const Operands& operands) { return Norm::scaled(operands.z, scale, operands.weight); };
      if constexpr (QuantisesRows<Config>) {
        if constexpr (kSharesScale<Config>) greatest = warp_max(greatest);
        using Quantised = QuantisedNorm<typename Config::Element, Config, Args>;
        quantise<kUnroll>(args, row, load, norm, Quantised::magnitude(greatest, scale));
      } else {
        for_each_vec<kUnroll>(Config::kRowVecs, load, [&](u32 vec, const Operands& operands) {
          store_vec16(result.at(first_vec + vec), norm(operands));
        });
      }
    }

    struct Operands {
      Vec16 z, weight;
    };

    // A warp: stores a row as elements of e4m3. `of_row` is the greatest magnitude of the row if all its elements share a scale.
    template <u32 kUnroll, class Load, class Normalise>
    static MK_DEVICE void quantise(const Args& args, u32 row, const Load& load, const Normalise& norm, float of_row) {
      // Lanes that share a scale stay together, also where some have no vector.
#pragma unroll 1
      for (u32 turn = 0; turn < Config::kRowVecs; turn += kWarp * kUnroll) {
        Operands operands[kUnroll];
#pragma unroll
        for (u32 u = 0; u < kUnroll; ++u) {
          const u32 vec = turn + u * kWarp + lane_index();
          if (vec < Config::kRowVecs) operands[u] = load(vec);
        }
        Vec16 y[kUnroll];
#pragma unroll
        for (u32 u = 0; u < kUnroll; ++u) {
          if (turn + u * kWarp + lane_index() < Config::kRowVecs) y[u] = norm(operands[u]);
        }
        QuantisedNorm<typename Config::Element, Config, Args>::store_vecs(args, row, turn + lane_index(), y, of_row);
      }
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
    static MK_DEVICE u32 of_call(const RankContext& ctx) {
      const u32 of_shard = ceil_div(Chunks::per_shard(ctx), Config::kPutChunks);
      return SendsToOwners<Config> ? of_shard * Ranks::kLocalWorld : of_shard;
    }
  };
  using WatchArrivals = comm::WatchArrivals<Config, Workspace, Puts>;

  // A warp, across nodes: puts sums of this node to the ranks that own them.
  struct PutSums {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32) {
      Reduction::put_sums(args, ctx);
    }
  };

  // A warp, across nodes: puts chunks of the own shard, or of the shards of other nodes' ranks, to the ranks with this local
  // rank on other nodes.
  struct PutShard {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32) {
      if constexpr (SendsToOwners<Config>) Exchange<Config, Args, Workspace>::put_all(args, ctx);
      else Gathering::template put_all<kShardChannel>(args, ctx);
    }
  };

  // Runs before the roles. Returns false if the CTA must end at once.
  static MK_DEVICE bool begin(const Args&, const RankContext& ctx, const Smem&) {
    Begin::order_early(ctx);
    if (!enter(ctx)) return false;
    Begin::template announce<comm::EarlierCalls::kOrderedEarly>(ctx);
    // Otherwise the CTA would wait at its end for the count, a round trip to L2.
    if (threadIdx.x == Config::kThreads - 1) advance_epoch<false>(ctx);
    return true;
  }

  // Runs after the roles.
  static MK_DEVICE void end(const Args&, const RankContext& ctx) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      Begin::report_refused_rows(ctx);
      Begin::template wait_for_peers<!PeerResults::kExist>(ctx);
    }
    leave(ctx);
  }
};

template <class... Policies>
using AllReduce = Simple<Collective::kAllReduce, Policies...>;
template <class... Policies>
using AllGather = Simple<Collective::kAllGather, Policies...>;
// Sends each rank its shard of every rank's tensor.
template <class... Policies>
using AllToAll = Simple<Collective::kAllGather, Policies...>;
// Gathers the shards that the root has sent to their owners.
template <class... Policies>
using Broadcast = Simple<Collective::kAllGather, Policies...>;
template <class... Policies>
using ReduceScatter = Simple<Collective::kReduceScatter, Policies...>;

}  // namespace mk::collective
