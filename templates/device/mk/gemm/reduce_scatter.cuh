// GEMM + ReduceScatter: every rank multiplies its slice of K, and reduces its own rows of C over the ranks. Partial
// sums travel tile by tile beside the computation.
//
// All roles walk the same work tiles. If another rank reduces a tile, the consumers round their sums to bf16 and the
// store threads send them. If this rank does, the load thread also brings what the others have sent, and the consumers
// add it and finish C.
#pragma once
#include <mk/call.cuh>
#include <mk/comm/idle_ranks.cuh>
#include <mk/comm/partials.cuh>
#include <mk/gemm/epilogue.cuh>
#include <mk/gemm/pace.cuh>
#include <mk/gemm/smem.cuh>
#include <mk/gemm/split_k.cuh>
#include <mk/roles.cuh>

namespace mk::gemm {

template <class Config, class Args, class Workspace, GemmSmem Smem, OwnerOrder Order, class Epilogue>
  requires OwnerConfig<Config> && ScheduleConfig<Config> && MainloopConfig<Config> && OutputConfig<Config>
struct ReduceScatter {
  using Shape = TileShape<Config>;
  using Scheduler = TileScheduler<Config, Order>;
  using Mainloop = gemm::Mainloop<Config, Smem>;
  using Output = gemm::Output<Config, Smem>;
  using Partials = comm::Partials<Config, Workspace, Smem, Scheduler, Order>;
  using IdleRanks = comm::IdleRanks<Config, Workspace>;

  // One thread: A and B of each work tile, and behind them, of own tiles, the others' partial sums.
  struct Load {
    static constexpr Agent kAgent = Agent::kThread;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32) {
      typename Mainloop::Stages stages{ctx, Mainloop::barriers(smem)};
      for (u32 i = Scheduler::first(); i < Config::kWorkTiles; i += Scheduler::kStride) {
        const WorkTile work = Scheduler::work_tile(i, ctx);
#pragma unroll 1
        for (u32 step = work.k_begin; step < work.k_end; ++step) {
          if constexpr (Config::kPaceSteps > 0) Pace<Config, Workspace>::keep(ctx, i, step);
          Mainloop::load_stage(args, smem, stages, step, Order::row_in_a(work), work.col * Config::kTileN);
        }
        if (Partials::is_reducer(work, ctx)) Partials::load(ctx, smem, stages, work);
      }
    }
  };

  // A warpgroup: its group's elements of each work tile.
  struct Multiply {
    static constexpr Agent kAgent = Agent::kWarpgroup;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
      typename Mainloop::Stages stages{ctx, Mainloop::barriers(smem)};
      typename Output::Buffers out{ctx, Output::barriers(smem, group)};
      const Epilogue epilogue{args};
      for (u32 i = Scheduler::first(); i < Config::kWorkTiles; i += Scheduler::kStride) {
        const WorkTile work = Scheduler::work_tile(i, ctx);
        const bool is_owner = Partials::is_owner(work, ctx);
        typename Shape::Accumulators sum;
        if (is_owner) epilogue.prefetch_residual(work, group);
        Mainloop::multiply(smem, stages, work, group, sum);
        if constexpr (Scheduler::kSplits > 1) SplitK<Scheduler, Workspace, Shape>::reduce(ctx, work, group, sum);
        if (Partials::is_reducer(work, ctx)) Partials::add(ctx, smem, stages, work, group, sum);  // @reduce-scatter.add
#pragma unroll
        for (u32 sub = 0; sub < Shape::kSubTiles; ++sub) {
          if (!Scheduler::completes(work, sub)) continue;
          float* sub_tile = sum + sub * kSubTileRegisters;
          out.producer_acquire();
          if (is_owner) {
            epilogue.apply_to_sub_tile(work, group, sub, sub_tile);  // @reduce-scatter.epilogue
            Output::write(smem, out, group, sub_tile);
          } else {
            Partials::write(smem.out(group, out.stage()), sub_tile);  // @reduce-scatter.write
            Output::commit(out);
          }
        }
      }
    }
  };

  // One thread per group: its completed sub-tiles to C, or to the rank that reduces them.
  struct Store {
    static constexpr Agent kAgent = Agent::kThread;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
      StoreQueue<typename Output::Buffers> queue{{ctx, Output::barriers(smem, group)}};
      auto& out = queue.out;
      for (u32 i = Scheduler::first(); i < Config::kWorkTiles; i += Scheduler::kStride) {
        const WorkTile work = Scheduler::work_tile(i, ctx);
        const bool is_owner = Partials::is_owner(work, ctx);
        const u32 pieces_per_sub_tile = is_owner ? Output::kPiecesPerSubTile : 1;
        for (u32 piece = 0; piece < Shape::kSubTiles * pieces_per_sub_tile; ++piece) {
          if (!Scheduler::completes(work, piece / pieces_per_sub_tile)) continue;
          out.consumer_wait();
          const u32 buffer = smem.out(group, out.stage());
          if (!Partials::has_rows(work, group)) {
            // All of the group's rows are beyond C.
          } else if (is_owner) {
            Output::store(args, buffer, work, Order::row_in_c(work), group, piece);
          } else {
            Partials::send(ctx, work, group, piece, buffer);
          }
          queue.commit();
        }
        // A flag may only count sub-tiles that have arrived, so the queue runs dry behind every tile.
        queue.drain();
        if (!is_owner) Partials::signal(ctx, work, Scheduler::completed_sub_tiles(work));
      }
      tma_wait<0>();
    }
  };

  // A warp, in a CTA that only communicates: tells this GPU which puts of other nodes have arrived.
  struct WatchArrivals {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32) {
      comm::Network<Config, Workspace>::watch_arrivals(args, ctx);
    }
  };

  // One thread of the same CTA: puts this node's sums of tiles that other nodes' ranks own.
  struct PutSums {
    static constexpr Agent kAgent = Agent::kThread;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32) {
      comm::NodeSums<Config, Workspace>::template put_all<Order>(args, ctx);
    }
  };

  // Before the roles; false if the CTA must end at once.
  static MK_DEVICE bool begin(const Args& args, const RankContext& ctx, const Smem& smem) {
    if (threadIdx.x == 0) init_barriers<Config>(smem);
    prefetch_tensor_maps(args.a, args.b, args.c);
    if (!enter(ctx)) return false;
    if constexpr (IdleRanks::kExist) {
      if (blockIdx.x == 0) IdleRanks::announce_begin(ctx, threadIdx.x);
    }
    return true;
  }

  // After them. Thread 0 is of the load thread's warp, which is done before the CTA is.
  static MK_DEVICE void end(const Args&, const RankContext& ctx) {
    if (threadIdx.x == 0) advance_epoch(ctx);
    if constexpr (IdleRanks::kExist) {
      if (blockIdx.x == 0 && threadIdx.x == 0) IdleRanks::wait_for_owners(ctx);
    }
  }
};

}  // namespace mk::gemm
