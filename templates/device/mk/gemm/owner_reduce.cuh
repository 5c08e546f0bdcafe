// A GEMM whose K is spread over ranks, in two shots: one rank reduces the partial sums of all ranks for a tile. Partial
// sums travel tile by tile while other tiles are computed.
//
// All roles walk the same work tiles. If another rank reduces a tile, the consumers round their sums and the
// store threads send them. If this rank reduces it, the load thread also loads the partial sums of the other ranks, and
// the consumers add them and complete C. The policy `Order` says which rank reduces a tile. The policy `Results` says
// which other ranks get the result.
#pragma once
#include <mk/comm/partials.cuh>
#include <mk/comm/results.cuh>
#include <mk/gemm/gemm.cuh>
#include <mk/gemm/owner_rounds.cuh>

namespace mk::gemm {

template <class Config, class Args, class Workspace, GemmSmem Smem, OwnerOrder Order, class Epilogue, class Results>
  requires OwnerConfig<Config>
struct OwnerReduce {
  using Gemm = gemm::Gemm<Config, Args, Workspace, Smem, Order, Epilogue>;
  using Shape = typename Gemm::Shape;
  using Scheduler = typename Gemm::Scheduler;
  using Mainloop = typename Gemm::Mainloop;
  using Output = typename Gemm::Output;
  using Partials = comm::Partials<Config, Workspace, Smem, Scheduler, Order>;
  using NodeSums = comm::NodeSums<Config, Workspace, Order>;

  static constexpr bool kNormalises = NormalisesRows<Config>;

  // One thread: loads A and B of each work tile. For a tile that this rank reduces, it then loads the partial sums of
  // the other ranks.
  struct Load {
    static constexpr Agent kAgent = Agent::kThread;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32) {
      allow_grid_behind();  // not at the end, since partial sums of other ranks come last
      typename Mainloop::Stages stages{ctx, Mainloop::barriers(smem)};
      for (u32 i = Scheduler::first(); i < Scheduler::end(ctx); i += Scheduler::kStride) {
        const WorkTile work = Scheduler::work_tile(i, ctx);
        if (Order::is_gap(work)) continue;
        Gemm::load_tile(args, ctx, smem, stages, i, work);
        if (Partials::is_reducer(work, ctx) && Scheduler::completes_any(work)) {
          Partials::load(ctx, smem, stages, work);
        }
      }
    }
  };

  // A warpgroup: computes its part of each work tile.
  struct Multiply {
    static constexpr Agent kAgent = Agent::kWarpgroup;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
      typename Mainloop::Stages stages{ctx, Mainloop::barriers(smem)};
      typename Output::Buffers out{ctx, Output::barriers(smem, group)};
      const Epilogue epilogue{args, ctx};
      Gemm::for_each_sum(
          args, ctx, smem, stages, group,
          [&](const WorkTile& work) {
            if (Partials::is_owner(work, ctx)) epilogue.prefetch_residual(work, group);
          },
          [&](const WorkTile& work, typename Shape::Accumulator& sum) {
            const bool is_owner = Partials::is_owner(work, ctx);
            if (Partials::is_reducer(work, ctx)) Partials::add(ctx, smem, stages, work, group, sum);
#pragma unroll
            for (u32 sub = 0; sub < Shape::kSubTiles; ++sub) {
              if (!Scheduler::completes(work, sub)) continue;
              out.producer_acquire();
              if (is_owner) {
                epilogue.apply_to_sub_tile(work, group, sub, sum);
                const auto sub_tile = sum.template part<kSubTile>(sub);
                if constexpr (kNormalises) {
                  __syncwarp();
                  Results::send_squares(ctx, work, group, sub, sub_tile);
                }
                Output::write(smem, out, group, sub_tile);
              } else {
                Partials::write(smem.out(group, out.stage()), sum.template part<kSubTile>(sub));
                Output::commit(out);
              }
            }
          });
      if constexpr (kNormalises) Results::collect(args, ctx);
    }
  };

  // A warp of each CTA that computes: takes the results to C, or waits until they are there if the owners store them.
  struct Collect {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32) {
      if constexpr (kNormalises) Results::collect(args, ctx);
      else Results::collect(args, ctx, Scheduler::first(), Scheduler::kStride);
    }
  };

  // A thread per group, or a warp if calls give their rows: stores the sub-tiles that the CTA completes. If this rank
  // owns the tile, they go to C and to the ranks that need results. Otherwise they go to the rank that reduces them.
  struct Store {
    static constexpr Agent kAgent = Output::kStoreAgent;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
      StoreQueue<typename Output::Buffers, kAgent> queue{{ctx, Output::barriers(smem, group)}};
      [[maybe_unused]] bool has_begun = false;
      for (u32 i = Scheduler::first(); i < Scheduler::end(ctx); i += Scheduler::kStride) {
        const WorkTile work = Scheduler::work_tile(i, ctx);
        if (Order::is_gap(work) || !Scheduler::completes_any(work)) continue;
        const TraceStep traced(ctx.trace, kStoreTile, kStore, i);
        const bool is_owner = Partials::is_owner(work, ctx);
        const u32 pieces_per_sub_tile = is_owner ? Output::kPiecesPerSubTile : 1;
        if (!is_owner || Output::template stores_by_tma<Order>(work, group, ctx)) {
          if (!queue.is_leader()) {
            Scheduler::for_each_piece(work, pieces_per_sub_tile, [&](u32) { queue.out.advance(); });
            continue;
          }
          [[maybe_unused]] bool may_store = false;
          if constexpr (Results::kOnPeers) may_store = is_owner && Results::may_store(ctx, has_begun);
          Scheduler::for_each_piece(work, pieces_per_sub_tile, [&](u32 piece) {
            queue.wait();
            const u32 buffer = smem.out(group, queue.out.stage());
            const u32 bytes = Partials::bytes_of_rows(work, group, ctx);
            if (bytes == 0) {
              // All of the group's rows are beyond C.
            } else if (is_owner) {
              Output::template store<Order>(args, buffer, work, group, piece);
              if constexpr (!Results::kOnPeers) Results::send(ctx, work, group, piece, buffer, bytes);
              else if (may_store) Results::store(args, ctx, work, group, piece, buffer);
            } else {
              Partials::send(ctx, work, group, piece, buffer, bytes);
            }
            queue.commit();
          });
        } else if constexpr (kAgent == Agent::kWarp) {
          bool may_store = false;
          if constexpr (Results::kOnPeers) may_store = broadcast(Results::may_store(ctx, has_begun), 0) != 0;
          Scheduler::for_each_piece(work, pieces_per_sub_tile, [&](u32 piece) {
            queue.wait_in_warp();
            copy(args, ctx, smem.out(group, queue.out.stage()), work, group, piece, may_store);
            queue.commit_in_warp();
          });
          if (!queue.is_leader()) continue;
        }
        // A sum that a wait has left incomplete is not counted. The load takes no time beside the stores.
        const bool is_valid = !is_aborted(ctx);
        // A flag may only count sub-tiles that have arrived, so all stores of a tile are complete before it is counted.
        queue.drain();
        if (is_owner && !Results::kExist) continue;
        Partials::finish_stores();
        if (!is_valid) continue;
        const u32 sub_tiles = Scheduler::completed_sub_tiles(work);
        if (is_owner) Results::count(ctx, work, sub_tiles);
        // Across nodes, results are put like sums, so their sub-tiles are counted on the same flags.
        if (!is_owner || Config::kNodes > 1) Partials::count(ctx, work, sub_tiles);
      }
      tma_wait<0>();
    }

   private:
    // A warp: copies what the call has of a piece of an own tile to C, and to the ranks that need results.
    static MK_DEVICE void copy(const Args& args, const RankContext& ctx, u32 buffer, const WorkTile& work, u32 group,
                               u32 piece, bool may_store) {
      const u32 bytes = Partials::bytes_of_rows(work, group, ctx);
      if (bytes == 0) return;  // all of the group's rows are beyond C
      Output::template copy<Order>(args.c_rows, args.c_row_bytes, ctx, buffer, work, group, piece);
      if constexpr (Results::kOnPeers) {
        if (may_store) Results::copy(args, ctx, work, group, piece, buffer);
      } else if (elect_one()) {
        Results::send(ctx, work, group, piece, buffer, bytes);
      }
    }
  };

  // The role of the warp that watches arrivals.
  struct Puts {
    static MK_DEVICE u32 of_call(const RankContext& ctx) { return ceil_div(Order::shard_tiles(ctx), Config::kPutTiles); }
  };
  using WatchArrivals = comm::WatchArrivals<Config, Workspace, Puts>;

  // One thread of a CTA that only communicates: puts this node's sums of tiles that ranks of other nodes own, and then
  // this rank's results.
  struct PutSums {
    static constexpr Agent kAgent = Agent::kThread;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32) {
      if (!NodeSums::put_all(args, ctx)) return;
      Results::put_all(args, ctx);
    }
  };

  static MK_DEVICE void prefetch(const Args& args, const RankContext& ctx, const Smem& smem) {
    Gemm::prefetch(args, ctx, smem);
  }
  static MK_DEVICE bool begin(const Args& args, const RankContext& ctx, const Smem& smem) {
    return Gemm::begin(args, ctx, smem);
  }
  static MK_DEVICE void end(const Args& args, const RankContext& ctx) {
    Gemm::end(args, ctx);
    if constexpr (kNormalises) Results::reset(ctx);
    if constexpr (TakesRows<Config>) {
      Partials::count_unused(ctx);
      if constexpr (Config::kNodes > 1) NodeSums::template count_unused<Config::kNodes - 1 + Results::kExist>(ctx);
      Results::count_unused(ctx);
    }
  }
};

}  // namespace mk::gemm
