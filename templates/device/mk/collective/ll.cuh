// Collectives of a few vectors on one node by the low-latency protocols. Vectors travel as packets, which need no fence
// and no flag behind them. Vectors that are added up travel as Lamport packets (comm/lamport.cuh). Collectives
// that add nothing must not change a bit, not even of a NaN, so they use the packets of comm/ll.cuh, which halve the bandwidth.
//
// A thread handles vectors in rounds, with one assignment of vectors for all phases unless rows are normalised. The
// thread sends its vectors of a round before it waits for the other ranks' vectors of the round, so ranks do not wait
// for each other in a circle.
#pragma once
#include <mk/call.cuh>
#include <mk/collective/ll_norm.cuh>
#include <mk/collective/shards.cuh>
#include <mk/comm/lamport.cuh>
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
concept LlPartsWorkspace = requires(u32 parity, u32 source, u32 vec) {
  Workspace::parts(parity, source, vec);  // the vector of a source that this rank adds up
};
template <class Workspace>
concept LlSumsWorkspace = requires(u32 parity, u32 source, u32 vec) {
  Workspace::sums(parity, source, vec);  // a vector that another rank has added up
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
  using Norm = RowNorm<Config, Args>;
  using LlNorm = collective::LlNorm<Config, Args, Workspace>;

  static constexpr u32 kWorld = Ranks::kWorld;
  static constexpr bool kReduces = kScheme != LlScheme::kAllGather;
  static constexpr bool kReducesAll = kScheme == LlScheme::kAllReduceOneShot;
  static constexpr bool kNormalises = NormalisesRows<Config>;
  static constexpr bool kGathers = kScheme == LlScheme::kAllGather || kScheme == LlScheme::kAllReduceTwoShots;

  // A call with other rows may have another protocol, whose data are not packets.
  static constexpr auto kEarlier = TakesRows<Config> ? comm::EarlierCalls::kOrderedEarly : comm::EarlierCalls::kOfPackets;

  static_assert(Ranks::kNodes == 1, "packets travel over NVLink");

  // A warp: exchanges its vectors of the call.
  struct Exchange {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32) {
      if constexpr (kReduces) {
        exchange_parts(args, ctx);
      } else if constexpr (SendsToOwners<Config>) {
        send_to_owners(args, ctx);
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
    if constexpr (kEarlier == comm::EarlierCalls::kOrderedEarly) Begin::order_early(ctx);
    if (!enter(ctx)) return false;
    Begin::template announce<kEarlier>(ctx);
    // A few vectors leave the last warp idle. At its end, the CTA would wait for the count, a round trip to L2.
    if (threadIdx.x == Config::kThreads - 1) advance_epoch<false>(ctx);
    return true;
  }

  // Runs after the roles.
  static MK_DEVICE void end(const Args&, const RankContext& ctx) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      Begin::report_refused_rows(ctx);
      Begin::template wait_for_peers<true>(ctx);
    }
    leave(ctx);
  }

 private:
  // Warps are numbered over the CTAs, so that a few vectors are spread over all SMs of the grid.
  static MK_DEVICE u32 thread() { return (warp_index() * gridDim.x + blockIdx.x) * kWarp + lane_index(); }
  static MK_DEVICE u32 threads() { return gridDim.x * Config::kThreads; }

  // The number of vectors that this rank adds up, and the first of these vectors.
  static MK_DEVICE u32 reduced_vecs(const RankContext& ctx) {
    return kReducesAll ? Shards::vecs(ctx) : Shards::vecs_of(ctx, ctx.rank);
  }
  static MK_DEVICE u32 first_reduced(const RankContext& ctx) { return kReducesAll ? 0 : Shards::first(ctx, ctx.rank); }

  // Sends this rank's vectors to the ranks that add them up, and adds up the vectors of all ranks. Sends are some
  // rounds ahead, so that the link is busy while vectors that have arrived are added up. If every rank normalises all
  // rows, this rank adds up later, and each thread sends the vectors that it will add up: the thread has then loaded
  // all parts whose places get its results.
  static MK_DEVICE void exchange_parts(const Args& args, const RankContext& ctx) {
    if constexpr (kNormalises && kReducesAll) {
      send_own_parts(args, ctx);
    } else {
      constexpr u32 kRoundsAhead = 2;
      const u32 most = kReducesAll ? Shards::vecs(ctx) : Shards::shard_vecs(ctx), ahead = kRoundsAhead * threads();
      for (u32 i = thread(); i < most + ahead; i += threads()) {
        if (i < most) send_parts(args, ctx, i);
        if (i >= ahead && i - ahead < reduced_vecs(ctx)) reduce(args, ctx, i - ahead);
      }
    }
  }

  // Loads this rank's part of a sum. With two shots, another thread may store the sum to the place of the part. That
  // thread has received the sum, which includes the part.
  static MK_DEVICE Vec16 load_part(const u8* part) {
    if constexpr (kScheme == LlScheme::kAllReduceTwoShots) return load_sent_vec16(part);
    else return load_vec16(part);
  }

  // Sends the vectors that this thread adds up, all of a row at a time.
  static MK_DEVICE void send_own_parts(const Args& args, const RankContext& ctx) {
    LlNorm::for_each_own_vec(
        ctx, [&](u32 vec) { return load_part(Tensors::input(args).at(vec)); },
        [&](u32 vec, const Vec16& part) { send_part(ctx, vec, part); });
  }

  // Sends a vector to all ranks. Each rank adds up the vector.
  static MK_DEVICE void send_part(const RankContext& ctx, u32 i, const Vec16& part) {
    for (u32 k = 1; k < kWorld; ++k) send<Parts>(ctx, (ctx.rank + k) % kWorld, i, part);
  }

  // Sends number `i` of the vectors that each rank adds up.
  static MK_DEVICE void send_parts(const Args& args, const RankContext& ctx, u32 i) {
    if constexpr (kReducesAll) {
      send_part(ctx, i, load_part(Tensors::input(args).at(i)));
    } else {
      Vec16 parts[kWorld];
#pragma unroll
      for (u32 k = 1; k < kWorld; ++k) {
        const u32 owner = (ctx.rank + k) % kWorld;
        if (i < Shards::vecs_of(ctx, owner)) parts[k] = load_part(Tensors::input(args).at(Shards::first(ctx, owner) + i));
      }
#pragma unroll
      for (u32 k = 1; k < kWorld; ++k) {
        const u32 owner = (ctx.rank + k) % kWorld;
        if (i < Shards::vecs_of(ctx, owner)) send<Parts>(ctx, owner, i, parts[k]);
      }
    }
  }

  // Adds up number `i` of the vectors that this rank adds up. Loads come before the wait for the parts of other ranks.
  static MK_DEVICE void reduce(const Args& args, const RankContext& ctx, u32 i) {
    const u32 first = first_reduced(ctx);
    const u32 row_vec = kScheme == LlScheme::kReduceScatter ? i : first + i;
    const Vec16 own = load_part(Tensors::input(args).at(first + i));
    const auto addends = [&] {
      if constexpr (kNormalises) return Norm::addends(args, row_vec);
      else return NoOperands{};
    }();
    bool have_arrived = true;
    auto sum = sum_of_parts(ctx, i, own, have_arrived);
    if constexpr (kNormalises) {
      addends.add_to(sum);
      store_vec16(Norm::residual_out(args).at(row_vec), sum.result());
    } else {
      store_vec16(Tensors::output(args).at(row_vec), sum.result());
    }
    if constexpr (kGathers) {
      if (have_arrived) send_to_all(ctx, i, sum.result());
    }
  }

  // Returns the sum of number `i` of the vectors that this rank adds up, with `own` as this rank's part. Adds in the
  // order of ranks. Vectors travel unrounded, so all ranks compute equal bits in every call. `have_arrived` becomes
  // false if some vectors have not arrived, which happens only after an abort.
  static MK_DEVICE auto sum_of_parts(const RankContext& ctx, u32 i, const Vec16& own, bool& have_arrived) {
    Vec16 parts[kWorld];
    have_arrived = wait_parts(ctx, i, parts);
    VecSum<typename Config::Element> sum;
#pragma unroll
    for (u32 source = 0; source < kWorld; ++source) sum.add(source == ctx.rank ? own : parts[source]);
    return sum;
  }

  // Normalises rows of all ranks' sums, after this thread has sent all of its vectors.
  static MK_DEVICE void normalise(const Args& args, const RankContext& ctx) {
    if constexpr (kReducesAll) {
      struct Own {
        Vec16 part;
        typename Norm::Addends addends;
      };
      LlNorm::for_each_row(
          args, ctx, [&](u32 vec) { return Own{load_part(Tensors::input(args).at(vec)), Norm::addends(args, vec)}; },
          [&](u32 vec, const Own& own) {
            bool have_arrived = true;
            auto sum = sum_of_parts(ctx, vec, own.part, have_arrived);
            own.addends.add_to(sum);
            store_vec16(Norm::residual_out(args).at(vec), sum.result());
            return sum.result();
          });
    } else {
      LlNorm::for_each_row(
          args, ctx, [](u32) { return NoOperands{}; },
          [&](u32 vec, NoOperands) {
            const u32 owner = vec / Shards::shard_vecs(ctx);
            const Vec16 z = wait_shard_vec(ctx, owner, vec - Shards::first(ctx, owner));
            // The thread that added up the vector has stored the sum, after it had read the residual that may be at the
            // same place.
            if (owner != ctx.rank) store_vec16(Norm::residual_out(args).at(vec), z);
            return z;
          });
    }
  }

  // Sends the own shard to all ranks, and copies the shard to the result.
  static MK_DEVICE void send_shard(const Args& args, const RankContext& ctx) {
    for (u32 i = thread(); i < Shards::vecs_of(ctx, ctx.rank); i += threads()) {
      const Vec16 vec = load_vec16(Tensors::input(args).at(i));
      send_to_all(ctx, i, vec);
      store_vec16(Tensors::output(args).at(Shards::first(ctx, ctx.rank) + i), vec);
    }
  }

  // Sends each rank its shard, and copies the own shard to the result. Each rank begins with the next rank's shard, so that not
  // all ranks send to the same rank first.
  static MK_DEVICE void send_to_owners(const Args& args, const RankContext& ctx) {
    const u32 vecs = Shards::vecs(ctx), of_next = Shards::first(ctx, (ctx.rank + 1) % kWorld);
    const u32 first = of_next < vecs ? of_next : 0;
    for (u32 i = thread(); i < vecs; i += threads()) {
      const u32 vec = i < vecs - first ? first + i : i - (vecs - first);
      const u32 to = vec / Shards::shard_vecs(ctx), in_shard = vec - Shards::first(ctx, to);
      const Vec16 data = load_vec16(Tensors::input(args).at(vec));
      if (to != ctx.rank) send_shard_vec(ctx, to, in_shard, data);
      else store_vec16(Tensors::output(args).at(Shards::first_in_result(ctx, to, to) + in_shard), data);
    }
  }

  static MK_DEVICE u32 result_vecs(const RankContext& ctx) {
    return SendsToOwners<Config> ? kWorld * Shards::vecs_of(ctx, ctx.rank) : Shards::vecs(ctx);
  }

  // The rank that sends a vector of the result. The root of a broadcast has the only shard.
  static MK_DEVICE u32 owner_of(const RankContext& ctx, u32 vec) {
    if constexpr (SendsToOwners<Config>) return vec / Shards::vecs_of(ctx, ctx.rank);
    else if constexpr (HasRoot<Config>) return Config::kRoot;
    else return vec / Shards::shard_vecs(ctx);
  }

  // Copies the other ranks' shards to the result.
  static MK_DEVICE void collect(const Args& args, const RankContext& ctx) {
    for (u32 vec = thread(); vec < result_vecs(ctx); vec += threads()) {
      const u32 owner = owner_of(ctx, vec);
      if (owner == ctx.rank) continue;
      const u32 in_shard = vec - Shards::first_in_result(ctx, owner, ctx.rank);
      store_vec16(Tensors::output(args).at(vec), wait_shard_vec(ctx, owner, in_shard));
    }
  }

  // The regions of packets that are added up.
  struct Parts {
    static_assert(!kReduces || LlPartsWorkspace<Workspace>);
    static MK_DEVICE Symmetric<u8> at(const RankContext& ctx, u32 source, u32 vec) {
      return Workspace::parts(ctx.parity(), source, vec);
    }
  };
  struct Sums {
    static_assert(!(kReduces && kGathers) || LlSumsWorkspace<Workspace>);
    static MK_DEVICE Symmetric<u8> at(const RankContext& ctx, u32 source, u32 vec) {
      return Workspace::sums(ctx.parity(), source, vec);
    }
  };
  template <class Slots>
  static MK_DEVICE void send(const RankContext& ctx, u32 to, u32 vec, const Vec16& data) {
    comm::store_lamport_vec<typename Config::Element>(ctx.peer_ptr(to, Slots::at(ctx, ctx.rank, vec)), data);
  }
  // The thread that has received a vector: clears its slot.
  template <class Slots>
  static MK_DEVICE void clear(const RankContext& ctx, u32 source, u32 vec) {
    comm::clear_lamport_vec(ctx.local_ptr(Slots::at(ctx, source, vec)));
  }

  // The packets of the own shard of an all-gather.
  static MK_DEVICE Symmetric<u8> shard_slot(const RankContext& ctx, u32 source, u32 half, u32 vec) {
    static_assert(LlShardsWorkspace<Workspace>);
    return Workspace::shards(ctx.parity(), Shards::number(source), half, vec);
  }
  static MK_DEVICE void send_shard_vec(const RankContext& ctx, u32 to, u32 vec, const Vec16& data) {
    comm::store_ll(ctx.peer_ptr(to, shard_slot(ctx, ctx.rank, 0, vec)), data.x, data.y, ctx.mark());
    comm::store_ll(ctx.peer_ptr(to, shard_slot(ctx, ctx.rank, 1, vec)), data.z, data.w, ctx.mark());
  }

  // Sends a vector to all other ranks. A vector that is normalised also goes to this rank, where another thread may
  // handle the vector.
  static MK_DEVICE void send_to_all(const RankContext& ctx, u32 vec, const Vec16& data) {
    constexpr u32 kFirst = kNormalises ? 0 : 1;
    for (u32 i = kFirst; i < kWorld; ++i) {
      const u32 to = (ctx.rank + i) % kWorld;
      if constexpr (kReduces) send<Sums>(ctx, to, vec, data);
      else send_shard_vec(ctx, to, vec, data);
    }
  }

  // Loads a vector of all other ranks, and repeats the loads until all vectors have arrived.
  static MK_DEVICE bool wait_parts(const RankContext& ctx, u32 vec, Vec16 (&parts)[kWorld]) {
    Deadline deadline(ctx);
    for (;;) {
      u32 missing = kWorld;
#pragma unroll
      for (u32 source = 0; source < kWorld; ++source) {
        if (source == ctx.rank) continue;
        const comm::LamportVec packets = comm::load_lamport_vec(ctx.local_ptr(Parts::at(ctx, source, vec)));
        parts[source] = packets.data();
        if (!packets.have_arrived()) missing = source;
      }
      if (missing == kWorld) break;
      if (deadline.expired(ctx, WaitSite{kReduce, kPeerPartial, missing, vec, ctx.epoch}, ctx.epoch - 1)) return false;
    }
#pragma unroll
    for (u32 source = 0; source < kWorld; ++source) {
      if (source != ctx.rank) clear<Parts>(ctx, source, vec);
    }
    return true;
  }

  // Loads a vector of the shard of a source. Returns whether the vector has arrived.
  static MK_DEVICE bool receive_shard_vec(const RankContext& ctx, u32 source, u32 vec, Vec16& data) {
    if constexpr (kReduces) {
      const comm::LamportVec packets = comm::load_lamport_vec(ctx.local_ptr(Sums::at(ctx, source, vec)));
      data = packets.data();
      if (!packets.have_arrived()) return false;
      clear<Sums>(ctx, source, vec);
      return true;
    } else {
      const comm::LlPacket low = comm::load_ll(ctx.local_ptr(shard_slot(ctx, source, 0, vec)));
      const comm::LlPacket high = comm::load_ll(ctx.local_ptr(shard_slot(ctx, source, 1, vec)));
      data = {low.first(), low.second(), high.first(), high.second()};
      return low.has_arrived(ctx.mark()) && high.has_arrived(ctx.mark());
    }
  }

  static MK_DEVICE Vec16 wait_shard_vec(const RankContext& ctx, u32 source, u32 vec) {
    Deadline deadline(ctx);
    for (;;) {
      Vec16 data;
      if (receive_shard_vec(ctx, source, vec, data)) return data;
      const WaitSite site{kCollect, kReduces ? kResult : kChunk, source, vec, ctx.epoch};
      if (deadline.expired(ctx, site, ctx.epoch - 1)) return data;
    }
  }
};

template <class... Policies>
using LlAllGather = Ll<LlScheme::kAllGather, Policies...>;
// Each rank sends each rank that rank's shard.
template <class... Policies>
using LlAllToAll = Ll<LlScheme::kAllGather, Policies...>;
// The root has the only shard.
template <class... Policies>
using LlBroadcast = Ll<LlScheme::kAllGather, Policies...>;
template <class... Policies>
using LlReduceScatter = Ll<LlScheme::kReduceScatter, Policies...>;
template <class... Policies>
using LlAllReduceOneShot = Ll<LlScheme::kAllReduceOneShot, Policies...>;
template <class... Policies>
using LlAllReduceTwoShots = Ll<LlScheme::kAllReduceTwoShots, Policies...>;

}  // namespace mk::collective
