// A GEMM whose K is spread over ranks, for few rows and in one shot. Its time is mostly latency, so partial sums leave
// registers as Lamport packets, which need no flag and no fence.
//
// A tile holds rows of several ranks. Every thread sends its elements to the ranks that reduce them, and then reduces
// the elements of this rank. The thread adds the partial sums in the order of ranks, and rounds its own sum like the
// other sums. Results are therefore bitwise repeatable.
#pragma once
#include <mk/comm/idle_ranks.cuh>
#include <mk/comm/lamport.cuh>
#include <mk/gemm/gemm.cuh>
#include <mk/gemm/lane_elements.cuh>

namespace mk::gemm {

// The ranks that reduce a row of C, and the ranks that then have the row.
enum class OneShotExchange {
  kReduceScatter,  // the owner of the row reduces and keeps the row
  kAllReduce,      // every rank reduces every row
  kRelay,          // the owner of the row reduces the row, and sends it to all other ranks
};

template <class Config>
concept OneShotConfig = RasterConfig<Config> && requires {
  Config::kN;
  Config::kPacketsInFlight;  // packets of each source that a thread loads at once, as registers allow
};

template <class Workspace>
concept OneShotWorkspace = requires(u32 parity, u32 source, u32 tile, u32 group, u32 sub, u32 warp, u32 half) {
  // The packets of a warp for eight rows of a sub-tile, which is one half of the warp's sixteen rows. Each lane has
  // four packets. The source is a rank. With kRelay, the index behind the last rank stands for the sum.
  Workspace::packets(parity, source, tile, group, sub, warp, half);
};

// Config also has kShardRows, the number of rows of C that a rank reduces, unless every rank reduces all rows.
template <OneShotExchange kExchange, class Config, class Args, class Workspace, GemmSmem Smem, TileOrder Order, class Epilogue>
  requires OneShotConfig<Config> && OneShotWorkspace<Workspace>
struct OneShot {
  using Ranks = Topology<Config>;
  using Gemm = gemm::Gemm<Config, Args, Workspace, Smem, Order, Epilogue>;
  using Shape = typename Gemm::Shape;
  using Scheduler = typename Gemm::Scheduler;
  using Mainloop = typename Gemm::Mainloop;
  using IdleRanks = comm::IdleRanks<Config, Workspace>;
  using Packet = comm::LamportPacket;
  using Rows = CallRows<Config>;
  using Load = typename Gemm::Load;
  using Elements = LaneElements<Config, Args, Workspace, Order, Epilogue>;
  using Norm = typename Elements::Norm;

  using ElementC = typename Config::ElementC;
  using Partial = typename Config::ElementPartial;  // of the sums that packets carry

  static constexpr bool kReducesAll = kExchange == OneShotExchange::kAllReduce;
  static constexpr bool kRelays = kExchange == OneShotExchange::kRelay;
  static constexpr bool kNormalises = NormalisesRows<Config>;

  static constexpr u32 kWorld = Ranks::kWorld;
  static constexpr u32 kPackets = Elements::kQuads;  // packets of a lane for eight rows of a sub-tile, of a quad each
  static constexpr u32 kInFlight = Config::kPacketsInFlight;

  static_assert(Ranks::kNodes == 1, "packets travel over NVLink");
  static_assert(!kRelays || HalfWordElement<ElementC>, "a packet has two words of two elements");

  // A warpgroup: computes its part of each work tile and exchanges it.
  struct Multiply {
    static constexpr Agent kAgent = Agent::kWarpgroup;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
      typename Mainloop::Stages stages{ctx, Mainloop::barriers(smem)};
      Gemm::for_each_sum(
          args, ctx, smem, stages, group, [](const WorkTile&) {},
          [&](const WorkTile& work, typename Shape::Accumulator& sum) {
            const Exchange exchange{{args, ctx, work, group}};
            exchange.send(sum);
            exchange.reduce();
            if constexpr (kRelays) exchange.collect();
            // Lanes without rows of C have skipped the exchange, while other lanes waited. The next product needs all
            // lanes together.
            __syncwarp();
          });
      if constexpr (kNormalises) Elements::normalise_all(args, ctx, group);
    }
  };

  static MK_DEVICE void prefetch(const Args& args, const RankContext& ctx, const Smem& smem) {
    Gemm::prefetch_with(args, ctx, smem, args.a, args.b);
  }

  // Runs before the roles. Returns false if the CTA must end at once.
  static MK_DEVICE bool begin(const Args& args, const RankContext& ctx, const Smem& smem) {
    if (!Gemm::begin(args, ctx, smem)) return false;
    if constexpr (kHasIdleRanks) {
      if (blockIdx.x == 0) IdleRanks::announce_begin(ctx, threadIdx.x);
    }
    return true;
  }

  // Runs after the roles. Here the epoch advances at the very end, since an atomic while packets are on their way makes
  // them arrive 1.7 µs later.
  static MK_DEVICE void end(const Args&, const RankContext& ctx) {
    __syncwarp();
    Gemm::template end_rows<true>(ctx);  // warps without a role get here early
    __syncthreads();
    if (threadIdx.x == 0) advance_epoch(ctx);
    if constexpr (kHasIdleRanks) {
      if (blockIdx.x == 0 && threadIdx.x == 0) IdleRanks::wait_for_owners(ctx);
    }
  }

 private:
  // In an all-reduce every rank gets packets from all other ranks, so no rank is idle.
  static constexpr bool kHasIdleRanks =
      !TakesRows<Config> && kExchange == OneShotExchange::kReduceScatter && IdleRanks::kExist;

  // A warpgroup's exchange of a tile.
  struct Exchange : Elements {
    using Elements::args, Elements::ctx, Elements::work, Elements::group;
    using Elements::first_col, Elements::first_row, Elements::sub_tile;

    MK_DEVICE void send(typename Shape::Accumulator& sum) const {
#pragma unroll
      for (u32 sub = 0; sub < Shape::kSubTiles; ++sub) {
        if (!Scheduler::completes(work, sub)) continue;
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
          const u32 row = first_row() + half * Fragment::kHalfRows;
          if (row >= Rows::all(ctx)) continue;
          const Symmetric<u64> slot = packets_of(ctx.rank, sub, half);
          if constexpr (kReducesAll) {
            for (u32 i = 1; i <= kWorld; ++i) send_packets(ctx.peer_ptr((ctx.rank + i) % kWorld, slot), sum.template part<kSubTile>(sub), half);
          } else {
            send_packets(ctx.peer_ptr(owner_of(row), slot), sum.template part<kSubTile>(sub), half);
          }
        }
      }
    }

    MK_DEVICE void reduce() const {
#pragma unroll 1
      for (u32 sub = 0; sub < Shape::kSubTiles; ++sub) {
        if (!Scheduler::completes(work, sub)) continue;
#pragma unroll 1
        for (u32 half = 0; half < 2; ++half) {
          const u32 row = first_row() + half * Fragment::kHalfRows;
          const bool has_row = row < Rows::all(ctx) && is_reducer(row);
          typename Elements::Sums sums;
          if (has_row) {
#pragma unroll 1
            for (u32 first = 0; first < kPackets; first += kInFlight) reduce_packets(row, sub, half, first, sums);
          }
          if constexpr (kNormalises) Norm::keep(ctx, has_row, row, sub_tile(sub), sums);
        }
      }
    }

    // Copies the sums of the other ranks to C.
    MK_DEVICE void collect() const {
#pragma unroll 1
      for (u32 sub = 0; sub < Shape::kSubTiles; ++sub) {
        if (!Scheduler::completes(work, sub)) continue;
#pragma unroll 1
        for (u32 half = 0; half < 2; ++half) {
          const u32 row = first_row() + half * Fragment::kHalfRows;
          const bool has_row = row < Rows::all(ctx) && !is_reducer(row);
          typename Elements::Sums sums;
          if (has_row) {
            const u32 first = first_col() + sub * kSubTile;
            u32 weights[kPackets][2];
            if constexpr (QuantisesRows<Config>) Elements::load_weights(first, weights);
            Packet packets[kPackets];
            wait_sums(row, sub, half, packets);
            u8* line = args.c_rows + row * args.c_row_bytes;
#pragma unroll
            for (u32 p = 0; p < kPackets; ++p) {
              if constexpr (kNormalises) sums.template add<ElementC>(packets[p].first(), packets[p].second(), weights[p]);
              const u32 col = first + p * Elements::kQuadCols;
              if (col < Config::kN) store_word(line + ElementC::bytes(col), packets[p].first());
              if (col + Fragment::kBlockCols < Config::kN) {
                store_word(line + ElementC::bytes(col) + ElementC::bytes(Fragment::kBlockCols), packets[p].second());
              }
            }
          }
          if constexpr (kNormalises) Norm::keep(ctx, has_row, row, sub_tile(sub), sums);
        }
      }
    }

   private:
    // This lane's packets of a source, in the workspace of the rank that adds them up.
    MK_DEVICE Symmetric<u64> packets_of(u32 source, u32 sub, u32 half) const {
      const u32 tile = work.row * Config::kColTiles + work.col;
      const Symmetric<u64> slot = Workspace::packets(ctx.parity(), source, tile, group, sub, Fragment::warp(), half);
      return {slot.offset + lane_index() * sizeof(u64)};
    }

    // The rank that reduces a row, unless all ranks do, and whether this rank reduces the row.
    MK_DEVICE u32 owner_of(u32 row) const { return row / Rows::of_shard(ctx); }
    MK_DEVICE bool is_reducer(u32 row) const {
      if constexpr (kReducesAll) return true;
      else return owner_of(row) == ctx.rank;
    }

    // The row in this rank's C.
    MK_DEVICE u32 row_in_c(u32 row) const {
      if constexpr (kExchange == OneShotExchange::kReduceScatter) return row - ctx.rank * Rows::of_shard(ctx);
      else return row;
    }

    MK_DEVICE void send_packets(u64* slot, SubTile sums, u32 half) const {
#pragma unroll
      for (u32 p = 0; p < kPackets; ++p) {
        const u32 col = p * Elements::kQuadCols;
        const float *left = sums.pair(half, col), *right = sums.pair(half, col + Fragment::kBlockCols);
        comm::store_lamport<Partial>(slot + p * kWarp, Partial::pack(left[0], left[1]), Partial::pack(right[0], right[1]));
      }
    }

    // Adds up kInFlight packets of all ranks, writes the sums to C, and perhaps sends the sums on. If rows are normalised, adds
    // the elements to `sums`.
    MK_DEVICE void reduce_packets(u32 row, u32 sub, u32 half, u32 first, typename Elements::Sums& sums) const {
      const u32 col = first_col() + sub * kSubTile + first * Elements::kQuadCols;
      u8* line = args.c_rows + row_in_c(row) * args.c_row_bytes;
      // Bias and residual are loaded before the wait for the packets.
      const auto addends = Elements::template load_addends<kInFlight>(row_in_c(row), col);
      Packet packets[kWorld][kInFlight];
      const bool have_arrived = wait_packets(sub, half, first, packets);
#pragma unroll
      for (u32 p = 0; p < kInFlight; ++p) {
        float d[4] = {-0.0f, -0.0f, -0.0f, -0.0f};  // see VecSum
#pragma unroll
        for (u32 source = 0; source < kWorld; ++source) {
          const Packet packet = packets[source][p];
          d[0] += Partial::low(packet.first()), d[1] += Partial::high(packet.first());
          d[2] += Partial::low(packet.second()), d[3] += Partial::high(packet.second());
        }
        Elements::store_quad(line, col, d, addends, p, sums);
        if constexpr (kRelays) {
          if (have_arrived) send_sum(sub, half, first + p, ElementC::pack(d[0], d[1]), ElementC::pack(d[2], d[3]));
        }
      }
    }

    MK_DEVICE void send_sum(u32 sub, u32 half, u32 packet, u32 first, u32 second) const {
      const Symmetric<u64> slot = packets_of(kWorld, sub, half);
      for (u32 i = 1; i < kWorld; ++i) {
        u64* there = ctx.peer_ptr((ctx.rank + i) % kWorld, slot);
        comm::store_lamport<ElementC>(there + packet * kWarp, first, second);
      }
    }

    // Loads the packets of all ranks at once, and repeats this until no packet is missing. Returns false if packets are
    // missing, which happens only after an abort.
    MK_DEVICE bool wait_packets(u32 sub, u32 half, u32 first, Packet (&packets)[kWorld][kInFlight]) const {
      Deadline deadline(ctx);
      for (;;) {
#pragma unroll
        for (u32 source = 0; source < kWorld; ++source) {
          const u64* slot = ctx.local_ptr(packets_of(source, sub, half));
#pragma unroll
          for (u32 p = 0; p < kInFlight; ++p) packets[source][p] = comm::load_lamport(slot + (first + p) * kWarp);
        }
        u32 missing = kWorld;
#pragma unroll
        for (u32 source = 0; source < kWorld; ++source) {
#pragma unroll
          for (u32 p = 0; p < kInFlight; ++p) {
            if (!packets[source][p].has_arrived()) missing = source;
          }
        }
        if (missing == kWorld) break;
        const WaitSite site{kMultiply, kPeerPartial, missing, work.col, ctx.epoch};
        if (deadline.expired(ctx, site, ctx.epoch - 1)) return false;
      }
#pragma unroll 1
      for (u32 source = 0; source < kWorld; ++source) {
        u64* slot = ctx.local_ptr(packets_of(source, sub, half));
#pragma unroll
        for (u32 p = 0; p < kInFlight; ++p) comm::clear_lamport(slot + (first + p) * kWarp);
      }
      return true;
    }

    // Waits like wait_packets for the packets of a row's sum.
    MK_DEVICE void wait_sums(u32 row, u32 sub, u32 half, Packet (&sums)[kPackets]) const {
      u64* slot = ctx.local_ptr(packets_of(kWorld, sub, half));
      Deadline deadline(ctx);
      for (;;) {
        bool is_missing = false;
#pragma unroll
        for (u32 p = 0; p < kPackets; ++p) sums[p] = comm::load_lamport(slot + p * kWarp);
#pragma unroll
        for (u32 p = 0; p < kPackets; ++p) is_missing |= !sums[p].has_arrived();
        if (!is_missing) break;
        const WaitSite site{kMultiply, kResult, owner_of(row), work.col, ctx.epoch};
        if (deadline.expired(ctx, site, ctx.epoch - 1)) return;
      }
#pragma unroll
      for (u32 p = 0; p < kPackets; ++p) comm::clear_lamport(slot + p * kWarp);
    }
  };
};

template <class... Policies>
using ReduceScatterOneShot = OneShot<OneShotExchange::kReduceScatter, Policies...>;
template <class... Policies>
using AllReduceOneShot = OneShot<OneShotExchange::kAllReduce, Policies...>;
template <class... Policies>
using AllReduceRelay = OneShot<OneShotExchange::kRelay, Policies...>;

}  // namespace mk::gemm
