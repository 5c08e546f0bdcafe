// A GEMM whose K is spread over ranks, for a few rows, in one shot: latency is all that counts, so partial sums leave
// registers as packets that need no flag and no fence.
//
// A tile holds rows of several ranks. Every thread sends its elements to the ranks that reduce them, and then reduces
// those of this rank. It adds them in the order of ranks, its own rounded like the others': the same bits each time.
#pragma once
#include <mk/comm/idle_ranks.cuh>
#include <mk/comm/ll.cuh>
#include <mk/gemm/gemm.cuh>
#include <mk/gemm/row_norm.cuh>

namespace mk::gemm {

// Which ranks reduce a row of C, and who has it then.
enum class LlExchange {
  kReduceScatter,  // the rank whose row it is reduces it, and keeps it
  kAllReduce,      // every rank reduces every row
  kRelay,          // the rank whose row it is reduces it, and sends it to all others
};

template <class Config>
concept LlConfig = RasterConfig<Config> && requires {
  Config::kN;
  Config::kPacketsInFlight;  // of each source, that a thread loads at once: registers bound them
};

template <class Workspace>
concept LlWorkspace = requires(u32 parity, u32 source, u32 tile, u32 group, u32 sub, u32 warp, u32 half) {
  // What a warp has of eight rows of a sub-tile: one half of its sixteen, four packets of each lane. The source is a
  // rank; with kRelay, the one behind the last rank stands for the sum.
  Workspace::packets(parity, source, tile, group, sub, warp, half);
};

// Args: C by address.
template <class Args>
concept LlArgs = requires(const Args& args) {
  args.c_rows;
  args.c_row_bytes;
};

// Config also has kShardRows, the rows of C that a rank reduces, unless every rank reduces all.
template <LlExchange kExchange, class Config, class Args, class Workspace, GemmSmem Smem, TileOrder Order, class Epilogue>
  requires LlConfig<Config> && LlArgs<Args> && LlWorkspace<Workspace>
struct ReduceLl {
  using Ranks = Topology<Config>;
  using Gemm = gemm::Gemm<Config, Args, Workspace, Smem, Order, Epilogue>;
  using Shape = typename Gemm::Shape;
  using Scheduler = typename Gemm::Scheduler;
  using Mainloop = typename Gemm::Mainloop;
  using IdleRanks = comm::IdleRanks<Config, Workspace>;
  using Packet = comm::LlPacket;
  using Rows = CallRows<Config>;
  using Load = typename Gemm::Load;
  using Norm = RowNorm<Config, Args, Workspace>;

  static constexpr bool kReducesAll = kExchange == LlExchange::kAllReduce;
  static constexpr bool kRelays = kExchange == LlExchange::kRelay;
  static constexpr bool kNormalises = NormalisesRows<Config>;

  static constexpr u32 kWorld = Ranks::kWorld;
  static constexpr u32 kPackets = 4;  // of a lane, in eight rows of a sub-tile: four bf16 each
  static constexpr u32 kInFlight = Config::kPacketsInFlight;
  static constexpr u32 kLanePackets = kWarp * Packet::kBytes;  // from one packet of a lane to its next

  static_assert(Ranks::kNodes == 1, "packets travel over NVLink");
  static_assert(!kRelays || !Config::kFp32Output, "a packet has two pairs of bf16");

  // A warpgroup: its group's elements of each work tile.
  struct Multiply {
    static constexpr Agent kAgent = Agent::kWarpgroup;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
      typename Mainloop::Stages stages{ctx, Mainloop::barriers(smem)};
      for (u32 i = Scheduler::first(); i < Scheduler::end(ctx); i += Scheduler::kStride) {
        const WorkTile work = Scheduler::work_tile(i, ctx);
        typename Shape::Accumulators sum;
        Gemm::multiply_tile(ctx, smem, stages, work, group, sum);
        const Exchange exchange{args, ctx, work, group};
        exchange.send(sum);
        exchange.reduce();
        if constexpr (kRelays) exchange.collect();
        // Lanes without rows of C skipped the exchange, others waited; the next product, and the count of stored rows, need
        // them together.
        __syncwarp();  // @ll.tile-done
      }
      if constexpr (kNormalises) Norm::run(args, ctx, group * kWarpgroupWarps + threadIdx.x % kWarpgroup / kWarp);
    }
  };

  // Before the roles; false if the CTA must end at once.
  static MK_DEVICE bool begin(const Args& args, const RankContext& ctx, const Smem& smem) {
    if (threadIdx.x == 0) init_barriers<Config>(smem);
    prefetch_tensor_maps(args.a, args.b);
    if (!enter(ctx)) return false;
    Gemm::Begin::announce(ctx);
    if constexpr (kHasIdleRanks) {
      if (blockIdx.x == 0) IdleRanks::announce_begin(ctx, threadIdx.x);
    }
    return true;
  }

  // After them. Here the epoch advances at the very end: an atomic while packets are on their way makes these 1.7 µs
  // later.
  static MK_DEVICE void end(const Args&, const RankContext& ctx) {
    __syncwarp();
    Gemm::end_rows(ctx);  // warps without a role get here early
    __syncthreads();
    if (threadIdx.x == 0) advance_epoch(ctx);
    if constexpr (kHasIdleRanks) {
      if (blockIdx.x == 0 && threadIdx.x == 0) IdleRanks::wait_for_owners(ctx);
    }
  }

 private:
  // Of an all-reduce every rank gets packets from all others.
  static constexpr bool kHasIdleRanks =
      !TakesRows<Config> && kExchange == LlExchange::kReduceScatter && IdleRanks::kExist;

  // A warpgroup's exchange of a tile. Lanes stand for rows, so they diverge.
  struct Exchange {
    const Args& args;
    const RankContext& ctx;
    const WorkTile& work;
    u32 group;

    // In the layout of wgmma a thread has elements of this row and of the one 8 below, and of these columns: 2 of each
    // 8.
    MK_DEVICE u32 first_row() const {
      return Order::row_in_a(work, ctx) + Shape::group_row(group) + warp() * 16 + lane_index() / 4;
    }
    MK_DEVICE u32 first_col() const {
      return work.col * Config::kTileN + Shape::group_col(group) + lane_index() % 4 * 2;
    }

    MK_DEVICE void send(const typename Shape::Accumulators& sum) const {
#pragma unroll
      for (u32 sub = 0; sub < Shape::kSubTiles; ++sub) {
        if (!Scheduler::completes(work, sub)) continue;
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
          const u32 row = first_row() + half * 8;
          if (row >= Rows::all(ctx)) continue;  // @ll.sent-rows
          const float* d = sum + sub * kSubTileRegisters + half * 2;
          const Symmetric<u8> slot = packets_of(ctx.rank, sub, half);
          if constexpr (kReducesAll) {
            for (u32 i = 1; i <= kWorld; ++i) send_packets(ctx.peer_ptr((ctx.rank + i) % kWorld, slot), d);
          } else {
            send_packets(ctx.peer_ptr(owner_of(row), slot), d);  // @ll.sent-slot
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
          const u32 row = first_row() + half * 8;
          if (row >= Rows::all(ctx) || !is_reducer(row)) continue;
          float squares = 0.0f;
#pragma unroll 1
          for (u32 first = 0; first < kPackets; first += kInFlight) reduce_packets(row, sub, half, first, squares);
          if constexpr (kNormalises) Norm::keep_squares(ctx, row, sub_tile(sub), squares);  // @ll.squares
        }
      }
    }

    // The other ranks' sums to C.
    MK_DEVICE void collect() const {
#pragma unroll 1
      for (u32 sub = 0; sub < Shape::kSubTiles; ++sub) {
        if (!Scheduler::completes(work, sub)) continue;
#pragma unroll 1
        for (u32 half = 0; half < 2; ++half) {
          const u32 row = first_row() + half * 8;
          if (row >= Rows::all(ctx) || is_reducer(row)) continue;
          Packet sums[kPackets];
          wait_sums(row, sub, half, sums);
          u8* line = args.c_rows + row * args.c_row_bytes;
          float squares = 0.0f;
#pragma unroll
          for (u32 p = 0; p < kPackets; ++p) {
            if constexpr (kNormalises) squares += Norm::squares(sums[p].first()) + Norm::squares(sums[p].second());
            const u32 col = first_col() + sub * kSubTile + p * 16;
            if (col < Config::kN) store_word(line + col * 2, sums[p].first());
            if (col + 8 < Config::kN) store_word(line + col * 2 + 16, sums[p].second());
          }
          if constexpr (kNormalises) Norm::keep_squares(ctx, row, sub_tile(sub), squares);  // @ll.relayed-squares
        }
      }
    }

   private:
    // Of the packets of this call. If each call gives the rows, not every call writes all packets.
    MK_DEVICE u32 flag() const { return TakesRows<Config> ? ctx.mark() : ctx.epoch; }  // @ll.flag

    static MK_DEVICE u32 warp() { return threadIdx.x % kWarpgroup / kWarp; }

    // This lane's packets of a source, in the workspace of the rank that adds them up.
    MK_DEVICE Symmetric<u8> packets_of(u32 source, u32 sub, u32 half) const {
      const u32 tile = work.row * Config::kColTiles + work.col;
      const Symmetric<u8> slot = Workspace::packets(ctx.parity(), source, tile, group, sub, warp(), half);  // @ll.slot
      return {slot.offset + lane_index() * Packet::kBytes};
    }

    // The rank that reduces a row, unless all do, and whether this one does.
    MK_DEVICE u32 owner_of(u32 row) const { return row / Rows::of_shard(ctx); }
    MK_DEVICE bool is_reducer(u32 row) const {
      if constexpr (kReducesAll) return true;
      else return owner_of(row) == ctx.rank;
    }

    // The row in this rank's C.
    MK_DEVICE u32 row_in_c(u32 row) const {
      if constexpr (kExchange == LlExchange::kReduceScatter) return row - ctx.rank * Rows::of_shard(ctx);  // @ll.row-in-c
      else return row;
    }

    MK_DEVICE void send_packets(u8* slot, const float* d) const {
#pragma unroll
      for (u32 p = 0; p < kPackets; ++p) {
        comm::store_ll(slot + p * kLanePackets, pack_bf16(d[8 * p], d[8 * p + 1]),
                       pack_bf16(d[8 * p + 4], d[8 * p + 5]), flag());
      }
    }

    // The number of a sub-tile in the rows of C.
    MK_DEVICE u32 sub_tile(u32 sub) const {
      return (work.col * Config::kTileN + Shape::group_col(group)) / kSubTile + sub;
    }

    // Adds up kInFlight packets of all ranks, writes them to C, and perhaps sends the sums on. If rows are normalised, adds their
    // squares to `squares`.
    MK_DEVICE void reduce_packets(u32 row, u32 sub, u32 half, u32 first, float& squares) const {
      const Epilogue epilogue{args, ctx};
      const u32 col = first_col() + sub * kSubTile + first * 16;
      u8* line = args.c_rows + row_in_c(row) * args.c_row_bytes;

      // What the epilogue adds is loaded before the wait for the packets.
      u32 bias[kInFlight][2], residual[kInFlight][2];
#pragma unroll
      for (u32 p = 0; p < kInFlight; ++p) {
#pragma unroll
        for (u32 pair = 0; pair < 2; ++pair) {
          bias[p][pair] = epilogue.bias_at(col + p * 16 + pair * 8);
          residual[p][pair] = epilogue.residual_at(row_in_c(row), col + p * 16 + pair * 8);
        }
      }

      Packet packets[kWorld][kInFlight];
      wait_packets(sub, half, first, packets);
#pragma unroll
      for (u32 p = 0; p < kInFlight; ++p) {
        float d[4] = {};
#pragma unroll
        for (u32 source = 0; source < kWorld; ++source) {
          const Packet packet = packets[source][p];
          d[0] += low_bf16(packet.first()), d[1] += high_bf16(packet.first());  // @ll.add
          d[2] += low_bf16(packet.second()), d[3] += high_bf16(packet.second());
        }
        Epilogue::apply(d[0], d[1], bias[p][0], residual[p][0]);
        Epilogue::apply(d[2], d[3], bias[p][1], residual[p][1]);  // @ll.epilogue
        store_pair<Config>(line, col + p * 16, d[0], d[1]);
        store_pair<Config>(line, col + p * 16 + 8, d[2], d[3]);
        if constexpr (kNormalises) {
          squares += Norm::squares(pack_bf16(d[0], d[1])) + Norm::squares(pack_bf16(d[2], d[3]));
        }
        if constexpr (kRelays) send_sum(sub, half, first + p, pack_bf16(d[0], d[1]), pack_bf16(d[2], d[3]));
      }
    }

    MK_DEVICE void send_sum(u32 sub, u32 half, u32 packet, u32 first, u32 second) const {
      const Symmetric<u8> slot = packets_of(kWorld, sub, half);
      for (u32 i = 1; i < kWorld; ++i) {
        u8* there = ctx.peer_ptr((ctx.rank + i) % kWorld, slot);
        comm::store_ll(there + packet * kLanePackets, first, second, flag());
      }
    }

    // Loads the packets of all ranks at once, and again as long as one of them is missing.
    MK_DEVICE void wait_packets(u32 sub, u32 half, u32 first, Packet (&packets)[kWorld][kInFlight]) const {
      Deadline deadline;
      for (;;) {
#pragma unroll
        for (u32 source = 0; source < kWorld; ++source) {
          const u8* slot = ctx.local_ptr(packets_of(source, sub, half));
#pragma unroll
          for (u32 p = 0; p < kInFlight; ++p) packets[source][p] = comm::load_ll(slot + (first + p) * kLanePackets);
        }
        u32 missing = kWorld;
#pragma unroll
        for (u32 source = 0; source < kWorld; ++source) {
#pragma unroll
          for (u32 p = 0; p < kInFlight; ++p) {
            if (!packets[source][p].has_arrived(flag())) missing = source;  // @ll.arrived
          }
        }
        if (missing == kWorld) return;
        const WaitSite site{kMultiply, kPeerPartial, missing, work.col, flag()};
        if (deadline.expired(ctx, site, flag() - 1)) return;
      }
    }

    // The same for the packets of a row's sum.
    MK_DEVICE void wait_sums(u32 row, u32 sub, u32 half, Packet (&sums)[kPackets]) const {
      const u8* slot = ctx.local_ptr(packets_of(kWorld, sub, half));
      Deadline deadline;
      for (;;) {
        bool is_missing = false;
#pragma unroll
        for (u32 p = 0; p < kPackets; ++p) sums[p] = comm::load_ll(slot + p * kLanePackets);
#pragma unroll
        for (u32 p = 0; p < kPackets; ++p) is_missing |= !sums[p].has_arrived(flag());  // @ll.sum-arrived
        const WaitSite site{kMultiply, kResult, owner_of(row), work.col, flag()};
        if (!is_missing || deadline.expired(ctx, site, flag() - 1)) return;
      }
    }
  };
};

template <class... Policies>
using ReduceScatterLl = ReduceLl<LlExchange::kReduceScatter, Policies...>;
template <class... Policies>
using AllReduceLl = ReduceLl<LlExchange::kAllReduce, Policies...>;
template <class... Policies>
using AllReduceRelayLl = ReduceLl<LlExchange::kRelay, Policies...>;

}  // namespace mk::gemm
