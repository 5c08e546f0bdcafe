// GEMM + ReduceScatter for a few rows: latency is all that counts, so partial sums leave registers as packets that need
// no flag and no fence.
//
// A tile holds rows of several ranks. Every thread sends its elements to the ranks whose rows they are, then reduces
// those of this rank. It adds them in the order of ranks, its own rounded like the others': the same bits each time.
#pragma once
#include <mk/call.cuh>
#include <mk/comm/idle_ranks.cuh>
#include <mk/comm/ll.cuh>
#include <mk/gemm/epilogue.cuh>
#include <mk/gemm/smem.cuh>
#include <mk/gemm/split_k.cuh>
#include <mk/roles.cuh>

namespace mk::gemm {

template <class Config>
concept LlConfig = TopologyConfig<Config> && RasterConfig<Config> && ScheduleConfig<Config> && requires {
  Config::kM;
  Config::kN;
  Config::kShardRows;        // rows of C that a rank reduces
  Config::kPacketsInFlight;  // of each source, that a thread loads at once: registers bound them
};

template <class Workspace>
concept LlWorkspace = requires(u32 parity, u32 source, u32 tile, u32 group, u32 sub, u32 warp, u32 half) {
  // What a warp has of eight rows of a sub-tile: one half of its sixteen, four packets of each lane.
  Workspace::packets(parity, source, tile, group, sub, warp, half);
};

template <class Config, class Args, class Workspace, GemmSmem Smem, TileOrder Order, class Epilogue>
  requires LlConfig<Config> && MainloopConfig<Config> && LlWorkspace<Workspace>
struct ReduceScatterLl {
  using Ranks = Topology<Config>;
  using Shape = TileShape<Config>;
  using Scheduler = TileScheduler<Config, Order>;
  using Mainloop = gemm::Mainloop<Config, Smem>;
  using IdleRanks = comm::IdleRanks<Config, Workspace>;
  using Packet = comm::LlPacket;

  static constexpr u32 kWorld = Ranks::kWorld;
  static constexpr u32 kPackets = 4;  // of a lane, in eight rows of a sub-tile: four bf16 each
  static constexpr u32 kInFlight = Config::kPacketsInFlight;
  static constexpr u32 kLanePackets = kWarp * Packet::kBytes;  // from one packet of a lane to its next

  static_assert(Ranks::kNodes == 1, "packets travel over NVLink");

  // One thread: A and B of each work tile.
  struct Load {
    static constexpr Agent kAgent = Agent::kThread;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32) {
      typename Mainloop::Stages stages{ctx, Mainloop::barriers(smem)};
      for (u32 i = Scheduler::first(); i < Config::kWorkTiles; i += Scheduler::kStride) {
        const WorkTile work = Scheduler::work_tile(i, ctx);
#pragma unroll 1
        for (u32 step = work.k_begin; step < work.k_end; ++step) {
          Mainloop::load_stage(args, smem, stages, step, Order::row_in_a(work), work.col * Config::kTileN);
        }
      }
    }
  };

  // A warpgroup: its group's elements of each work tile.
  struct Multiply {
    static constexpr Agent kAgent = Agent::kWarpgroup;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
      typename Mainloop::Stages stages{ctx, Mainloop::barriers(smem)};
      for (u32 i = Scheduler::first(); i < Config::kWorkTiles; i += Scheduler::kStride) {
        const WorkTile work = Scheduler::work_tile(i, ctx);
        typename Shape::Accumulators sum;
        Mainloop::multiply(smem, stages, work, group, sum);
        if constexpr (Scheduler::kSplits > 1) SplitK<Scheduler, Workspace, Shape>::reduce(ctx, work, group, sum);
        const Exchange exchange{args, ctx, work, group};
        exchange.send(sum);
        exchange.reduce();
        // Lanes without rows of C skipped the exchange, others waited; the next product needs them together.
        __syncwarp();
      }
    }
  };

  // Before the roles; false if the CTA must end at once.
  static MK_DEVICE bool begin(const Args& args, const RankContext& ctx, const Smem& smem) {
    if (threadIdx.x == 0) init_barriers<Config>(smem);
    prefetch_tensor_maps(args.a, args.b);
    if (!enter(ctx)) return false;
    if constexpr (IdleRanks::kExist) {
      if (blockIdx.x == 0) IdleRanks::announce_begin(ctx, threadIdx.x);
    }
    return true;
  }

  // After them. Here the epoch advances at the very end: an atomic while packets are on their way makes these 1.7 µs
  // later.
  static MK_DEVICE void end(const Args&, const RankContext& ctx) {
    __syncwarp();
    __syncthreads();
    if (threadIdx.x == 0) advance_epoch(ctx);
    if constexpr (IdleRanks::kExist) {
      if (blockIdx.x == 0 && threadIdx.x == 0) IdleRanks::wait_for_owners(ctx);
    }
  }

 private:
  // A warpgroup's exchange of a tile. Lanes stand for rows, so they diverge.
  struct Exchange {
    const Args& args;
    const RankContext& ctx;
    const WorkTile& work;
    u32 group;

    // In the layout of wgmma a thread has elements of this row and of the one 8 below, and of these columns: 2 of each
    // 8.
    MK_DEVICE u32 first_row() const {
      return Order::row_in_a(work) + Shape::group_row(group) + warp() * 16 + lane_index() / 4;
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
          if (row >= Config::kM) continue;
          const float* d = sum + sub * kSubTileRegisters + half * 2;
          u8* slot = ctx.peer_ptr(row / Config::kShardRows, packets_of(ctx.rank, sub, half));  // @ll.sent-slot
#pragma unroll
          for (u32 p = 0; p < kPackets; ++p) {
            comm::store_ll(slot + p * kLanePackets, pack_bf16(d[8 * p], d[8 * p + 1]),
                           pack_bf16(d[8 * p + 4], d[8 * p + 5]), ctx.epoch);
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
          if (row >= Config::kM || row / Config::kShardRows != ctx.rank) continue;
#pragma unroll 1
          for (u32 first = 0; first < kPackets; first += kInFlight) reduce_packets(row, sub, half, first);
        }
      }
    }

   private:
    static MK_DEVICE u32 warp() { return threadIdx.x % kWarpgroup / kWarp; }

    // This lane's packets of a source, in the workspace of whoever adds them up.
    MK_DEVICE Symmetric<u8> packets_of(u32 source, u32 sub, u32 half) const {
      const u32 tile = work.row * Config::kColTiles + work.col;
      const Symmetric<u8> slot = Workspace::packets(ctx.parity(), source, tile, group, sub, warp(), half);  // @ll.slot
      return {slot.offset + lane_index() * Packet::kBytes};
    }

    // Adds up kInFlight packets of all ranks and writes them to C.
    MK_DEVICE void reduce_packets(u32 row, u32 sub, u32 half, u32 first) const {
      const Epilogue epilogue{args};
      const u32 row_in_c = row - ctx.rank * Config::kShardRows;  // @ll.row-in-c
      const u32 col = first_col() + sub * kSubTile + first * 16;
      u8* line = args.c_rows + row_in_c * args.c_row_bytes;

      // What the epilogue adds is loaded before the wait for the packets.
      u32 bias[kInFlight][2], residual[kInFlight][2];
#pragma unroll
      for (u32 p = 0; p < kInFlight; ++p) {
#pragma unroll
        for (u32 pair = 0; pair < 2; ++pair) {
          bias[p][pair] = epilogue.bias_at(col + p * 16 + pair * 8);
          residual[p][pair] = epilogue.residual_at(row_in_c, col + p * 16 + pair * 8);
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
        store_pair(line, col + p * 16, d[0], d[1]);
        store_pair(line, col + p * 16 + 8, d[2], d[3]);
      }
    }

    static MK_DEVICE void store_pair(u8* line, u32 col, float x, float y) {
      if (col >= Config::kN) return;  // @ll.columns
      if constexpr (Config::kFp32Output) {
        store_float2(line + u64{col} * 4, x, y);
      } else {
        store_word(line + col * 2, pack_bf16(x, y));
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
            if (!packets[source][p].has_arrived(ctx.epoch)) missing = source;  // @ll.arrived
          }
        }
        if (missing == kWorld) return;
        const WaitSite site{kMath, kPeerPartial, missing, work.col, ctx.epoch};
        if (deadline.expired(ctx, site, ctx.epoch - 1)) return;
      }
    }
  };
};

}  // namespace mk::gemm
