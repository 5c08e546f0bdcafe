// Collectives of a few vectors on one node by the low-latency protocol (see comm/ll.cuh). Vectors travel as packets,
// which need no flag and no fence, but halve the bandwidth.
//
// A thread handles the same vectors in each phase, unless rows are normalised. It sends all of its vectors before it
// waits, so ranks do not wait for each other in a circle.
#pragma once
#include <mk/call.cuh>
#include <mk/collective/ll_norm.cuh>
#include <mk/collective/shards.cuh>
#include <mk/comm/ll.cuh>
#include <mk/roles.cuh>
#include <mk/vec_sum.cuh>

namespace mk::collective {

enum class LlScheme {
  kAllGather,
  kReduceScatter,
  kAllReduceOneShot,   // every rank adds up all vectors
  kAllReduceTwoShots,  // the rank with a vector in its shard adds it up and sends the sum
};

template <class Workspace>
concept LlPartsWorkspace = requires(u32 parity, u32 source, u32 half, u32 vec) {
  Workspace::parts(parity, source, half, vec);  // the vector of a source that this rank adds up
};
template <class Workspace>
concept LlShardsWorkspace = requires(u32 parity, u32 source, u32 half, u32 vec) {
  Workspace::shards(parity, source, half, vec);  // vectors of the shard of a source
};

template <LlScheme kScheme, ShardConfig Config, TensorArgs Args, class Workspace, class Smem>
struct Ll {
  using Ranks = Topology<Config>;
  using Shards = collective::Shards<Config>;
  using Tensors = collective::Tensors<Config, Args>;
  using Begin = comm::Begin<Config, Workspace>;
  using Packet = comm::LlPacket;
  using Norm = RowNorm<Config, Args>;
  using LlNorm = collective::LlNorm<Config, Args, Workspace>;

  static constexpr u32 kWorld = Ranks::kWorld;
  static constexpr bool kReduces = kScheme != LlScheme::kAllGather;
  static constexpr bool kReducesAll = kScheme == LlScheme::kAllReduceOneShot;
  static constexpr bool kNormalises = NormalisesRows<Config>;
  static constexpr bool kGathers = kScheme == LlScheme::kAllGather || kScheme == LlScheme::kAllReduceTwoShots;

  static_assert(Ranks::kNodes == 1, "packets travel over NVLink");

  // A warp: exchanges its vectors of the call.
  struct Exchange {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32) {
      if constexpr (kReduces) {
        send_parts(args, ctx);
        if constexpr (!kNormalises || kGathers) reduce(args, ctx);
      } else {
        send_shard(args, ctx);
      }
      if constexpr (kNormalises) {
        normalise(args, ctx);
      } else if constexpr (kGathers) {
        collect(args, ctx);
      }
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
    if (threadIdx.x == 0) advance_epoch(ctx);  // @ll.advance
    if (blockIdx.x == 0 && threadIdx.x == 0) Begin::wait_for_peers(ctx);
  }

 private:
  // Warps are numbered over the CTAs, so that a few vectors are spread over all SMs of the grid.
  static MK_DEVICE u32 thread() { return (warp_index() * gridDim.x + blockIdx.x) * kWarp + lane_index(); }
  static MK_DEVICE u32 threads() { return gridDim.x * Config::kThreads; }

  // The number of vectors that this rank adds up, and the first of them.
  static MK_DEVICE u32 reduced_vecs(const RankContext& ctx) {
    return kReducesAll ? Shards::vecs(ctx) : Shards::vecs_of(ctx, ctx.rank);
  }
  static MK_DEVICE u32 first_reduced(const RankContext& ctx) { return kReducesAll ? 0 : Shards::first(ctx, ctx.rank); }

  // Sends this rank's vectors to the ranks that add them up.
  static MK_DEVICE void send_parts(const Args& args, const RankContext& ctx) {
    for (u32 vec = thread(); vec < Shards::vecs(ctx); vec += threads()) {
      if constexpr (kReducesAll) {
        const Vec16 part = load_vec16(Tensors::input(args).at(vec));
        for (u32 i = 1; i < kWorld; ++i) send<Parts>(ctx, (ctx.rank + i) % kWorld, vec, part);
      } else {
        const u32 owner = vec / Shards::shard_vecs(ctx);
        if (owner == ctx.rank) continue;
        send<Parts>(ctx, owner, vec - Shards::first(ctx, owner), load_vec16(Tensors::input(args).at(vec)));  // @ll.part
      }
    }
  }

  static MK_DEVICE void reduce(const Args& args, const RankContext& ctx) {
    const u32 first = first_reduced(ctx);
    for (u32 i = thread(); i < reduced_vecs(ctx); i += threads()) {
      bool have_arrived = true;
      auto sum = sum_of_parts(args, ctx, first, i, have_arrived);
      const u32 row_vec = kScheme == LlScheme::kReduceScatter ? i : first + i;
      if constexpr (kNormalises) {
        Norm::add_to(args, row_vec, sum);
        store_vec16(Norm::residual_out(args).at(row_vec), sum.result());
      } else {
        store_vec16(Tensors::output(args).at(row_vec), sum.result());
      }
      if constexpr (kGathers) {
        if (have_arrived) send_to_all(ctx, i, sum.result());  // @ll.have-arrived
      }
    }
  }

  // Returns the sum of number `i` of the vectors that this rank adds up, of which `first` is the first one. It adds in the
  // order of ranks. Vectors travel unrounded, so every rank computes the same bits in every call. `have_arrived` becomes false
  // if some vectors have not, which happens only after an abort.
  static MK_DEVICE auto sum_of_parts(const Args& args, const RankContext& ctx, u32 first, u32 i, bool& have_arrived) {
    const Vec16 own = load_vec16(Tensors::input(args).at(first + i));
    Vec16 parts[kWorld];
    have_arrived = wait_parts(ctx, i, parts);
    VecSum<Config::kFp32> sum;
#pragma unroll
    for (u32 source = 0; source < kWorld; ++source) sum.add(source == ctx.rank ? own : parts[source]);  // @ll.order
    return sum;
  }

  // Rows of all ranks' sums, once all that this thread sends is sent.
  static MK_DEVICE void normalise(const Args& args, const RankContext& ctx) {
    LlNorm::for_each_row(args, ctx, [&](u32 vec) {
      if constexpr (kReducesAll) {
        bool have_arrived = true;
        auto sum = sum_of_parts(args, ctx, 0, vec, have_arrived);
        Norm::add_to(args, vec, sum);
        store_vec16(Norm::residual_out(args).at(vec), sum.result());
        return sum.result();
      } else {
        const u32 owner = vec / Shards::shard_vecs(ctx);
        const Vec16 z = wait_shard_vec(ctx, owner, vec - Shards::first(ctx, owner));
        // The thread that added it up has stored it, after it had read what may be at the same place.
        if (owner != ctx.rank) store_vec16(Norm::residual_out(args).at(vec), z);
        return z;
      }
    });
  }

  // Sends the own shard to all ranks, and copies it to the result.
  static MK_DEVICE void send_shard(const Args& args, const RankContext& ctx) {
    for (u32 i = thread(); i < Shards::vecs_of(ctx, ctx.rank); i += threads()) {
      const Vec16 vec = load_vec16(Tensors::input(args).at(i));
      send_to_all(ctx, i, vec);
      store_vec16(Tensors::output(args).at(Shards::first(ctx, ctx.rank) + i), vec);
    }
  }

  // Copies the other ranks' shards to the result.
  static MK_DEVICE void collect(const Args& args, const RankContext& ctx) {
    for (u32 vec = thread(); vec < Shards::vecs(ctx); vec += threads()) {
      const u32 owner = vec / Shards::shard_vecs(ctx);
      if (owner == ctx.rank) continue;
      store_vec16(Tensors::output(args).at(vec), wait_shard_vec(ctx, owner, vec - Shards::first(ctx, owner)));
    }
  }

  // The regions of packets.
  struct Parts {
    static_assert(!kReduces || LlPartsWorkspace<Workspace>);
    static MK_DEVICE Symmetric<u8> at(const RankContext& ctx, u32 source, u32 half, u32 vec) {
      return Workspace::parts(ctx.parity(), source, half, vec);  // @ll.parts-slot
    }
  };
  struct ShardVecs {
    static_assert(!kGathers || LlShardsWorkspace<Workspace>);
    static MK_DEVICE Symmetric<u8> at(const RankContext& ctx, u32 source, u32 half, u32 vec) {
      return Workspace::shards(ctx.parity(), source, half, vec);  // @ll.shards-slot
    }
  };

  template <class Slots>
  static MK_DEVICE void send(const RankContext& ctx, u32 to, u32 vec, const Vec16& data) {
    comm::store_ll(ctx.peer_ptr(to, Slots::at(ctx, ctx.rank, 0, vec)), data.x, data.y, ctx.mark());
    comm::store_ll(ctx.peer_ptr(to, Slots::at(ctx, ctx.rank, 1, vec)), data.z, data.w, ctx.mark());
  }
  // A vector that is normalised goes to this rank too, where another thread may have it.
  static MK_DEVICE void send_to_all(const RankContext& ctx, u32 vec, const Vec16& data) {
    constexpr u32 kFirst = kNormalises ? 0 : 1;  // @norm.to-all
    for (u32 i = kFirst; i < kWorld; ++i) send<ShardVecs>(ctx, (ctx.rank + i) % kWorld, vec, data);
  }

  // Loads both packets of a vector of a source. Returns whether they have arrived.
  template <class Slots>
  static MK_DEVICE bool receive(const RankContext& ctx, u32 source, u32 vec, Vec16& data) {
    const Packet low = comm::load_ll(ctx.local_ptr(Slots::at(ctx, source, 0, vec)));
    const Packet high = comm::load_ll(ctx.local_ptr(Slots::at(ctx, source, 1, vec)));
    data = {low.first(), low.second(), high.first(), high.second()};
    return low.has_arrived(ctx.mark()) && high.has_arrived(ctx.mark());  // @ll.vec-arrived
  }

  // Loads a vector of all other ranks, and repeats this until none of them is missing.
  static MK_DEVICE bool wait_parts(const RankContext& ctx, u32 vec, Vec16 (&parts)[kWorld]) {
    Deadline deadline;
    for (;;) {
      u32 missing = kWorld;
#pragma unroll
      for (u32 source = 0; source < kWorld; ++source) {
        if (source == ctx.rank) continue;
        if (!receive<Parts>(ctx, source, vec, parts[source])) missing = source;
      }
      if (missing == kWorld) return true;
      if (deadline.expired(ctx, WaitSite{kReduce, kPeerPartial, missing, vec, ctx.epoch}, ctx.epoch - 1)) return false;
    }
  }

  static MK_DEVICE Vec16 wait_shard_vec(const RankContext& ctx, u32 source, u32 vec) {
    Deadline deadline;
    for (;;) {
      Vec16 data;
      if (receive<ShardVecs>(ctx, source, vec, data)) return data;
      const WaitSite site{kCollect, kReduces ? kResult : kChunk, source, vec, ctx.epoch};
      if (deadline.expired(ctx, site, ctx.epoch - 1)) return data;
    }
  }
};

template <class... Policies>
using LlAllGather = Ll<LlScheme::kAllGather, Policies...>;
template <class... Policies>
using LlReduceScatter = Ll<LlScheme::kReduceScatter, Policies...>;
template <class... Policies>
using LlAllReduceOneShot = Ll<LlScheme::kAllReduceOneShot, Policies...>;
template <class... Policies>
using LlAllReduceTwoShots = Ll<LlScheme::kAllReduceTwoShots, Policies...>;

}  // namespace mk::collective
