// C = A B on one rank, and the common parts of all operators with a GEMM. In each CTA, a thread loads, two warpgroups
// multiply, and two threads store.
//
// All roles walk the same work tiles. Policies decide the source of A, the order of tiles, and the use of a sum.
#pragma once
#include <mk/call.cuh>
#include <mk/comm/begin.cuh>
#include <mk/gemm/cluster_sums.cuh>
#include <mk/gemm/epilogue.cuh>
#include <mk/gemm/pace.cuh>
#include <mk/gemm/quantised_output.cuh>
#include <mk/gemm/smem.cuh>
#include <mk/gemm/split_k.cuh>
#include <mk/roles.cuh>

namespace mk::gemm {

template <class Config, class Args, class Workspace, GemmSmem Smem, TileOrder Order, class Epilogue,
          class Source = LocalA<Config, Args, Order>>
  requires ScheduleConfig<Config> && MainloopConfig<Config> && OutputConfig<Config>
struct Gemm {
  using Shape = TileShape<Config>;
  using Scheduler = TileScheduler<Config, Order>;
  using Mainloop = gemm::Mainloop<Config, Smem>;
  using Output = gemm::Output<Config, Smem>;
  using Quantised = QuantisedOutput<Config, Args, Smem, Order>;
  using Begin = comm::Begin<Config, Workspace>;
  using Places = TileScales<Config, Args, Order, Source>;

  // Whether every tile is shared by the CTAs of a cluster. Such kernels have no store role.
  static constexpr bool kInClusters = ClusterSmem<Smem>;

  // One thread: loads A and B of each work tile. The next grid may start when all loads are under way. If it started
  // earlier, its own first loads would delay the loads of this grid (`docs/performance.md#first-loads`).
  struct Load {
    static constexpr Agent kAgent = Agent::kThread;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32) {
      typename Mainloop::Stages stages{ctx, Mainloop::barriers(smem)};
      for (u32 i = Scheduler::first(); i < Scheduler::end(ctx); i += Scheduler::kStride) {
        load_tile(args, ctx, smem, stages, i, Scheduler::work_tile(i, ctx));
      }
      allow_grid_behind();
    }
  };

  // A warpgroup: computes its part of each work tile.
  struct Multiply {
    static constexpr Agent kAgent = Agent::kWarpgroup;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
      typename Mainloop::Stages stages{ctx, Mainloop::barriers(smem)};
      const Epilogue epilogue{args, ctx};
      if constexpr (kInClusters) return multiply_in_cluster(ctx, smem, stages, epilogue, group);
      else multiply_tiles(ctx, smem, stages, epilogue, group);
    }

    // Every cluster has one tile.
    static MK_DEVICE void multiply_in_cluster(const RankContext& ctx, const Smem& smem, typename Mainloop::Stages& stages,
                                              const Epilogue& epilogue, u32 group) {
      using Sums = ClusterSums<Config, Smem>;
      const u32 index = Scheduler::first();
      const WorkTile work = Scheduler::work_tile(index, ctx);
      typename Shape::Accumulator sum;
      epilogue.prefetch_residual(work, group);
      multiply_tile(epilogue.args, ctx, smem, stages, index, work, group, sum);
      const TraceStep traced(ctx.trace, kFinishTile, kMultiply, index);
      const u32 warp = group * kWarpgroupWarps + Fragment::warp();
      if (!warp_has_rows<Config, Order>(work, warp, ctx)) return;
      Sums::exchange(ctx, smem, work, warp, sum);
#pragma unroll
      for (u32 block = 0; block < Sums::kBlocksOfC; ++block) {
        if (Sums::owner(block) != work.split) continue;
        if constexpr (kScalesSums<Config>) {
          const Places places{epilogue.args, ctx, work, group};
          const SumScales<Config, Places> scales{places};
#pragma unroll
          for (u32 part = 0; part < Shape::kWeightCols; ++part) {
            scales.template apply<Fragment::kBlockCols>(block + part * Sums::kBlocksOfC, sum);
          }
        }
        epilogue.store_block(work, group, block, sum);
      }
    }

    static MK_DEVICE void multiply_tiles(const RankContext& ctx, const Smem& smem, typename Mainloop::Stages& stages,
                                         const Epilogue& epilogue, u32 group) {
      typename Output::Buffers out{ctx, Output::barriers(smem, group)};
      for_each_sum(
          epilogue.args, ctx, smem, stages, group, [&](const WorkTile& work) { epilogue.prefetch_residual(work, group); },
          [&](const WorkTile& work, typename Shape::Accumulator& sum) {
#pragma unroll
            for (u32 sub = 0; sub < Shape::kSubTilesOfC; sub += Scheduler::kTogether) {
              if (!Scheduler::completes(work, sub)) continue;
              out.producer_acquire();
#pragma unroll
              for (u32 i = 0; i < Scheduler::kTogether; ++i) epilogue.apply_to_sub_tile(work, group, sub + i, sum);
              if constexpr (HasScalesOfC<Args>) Quantised::write(epilogue.args, ctx, smem, out, work, group, sub, sum);
              else Output::write(smem, out, group, sum.template part<kSubTile>(sub));
            }
          });
    }
  };

  // A thread per group, or a warp if calls give their rows: stores the sub-tiles that the CTA completes to C.
  struct Store {
    static constexpr Agent kAgent = Output::kStoreAgent;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
      StoreQueue<typename Output::Buffers, kAgent> queue{{ctx, Output::barriers(smem, group)}};
      for (u32 i = Scheduler::first(); i < Scheduler::end(ctx); i += Scheduler::kStride) {
        const TraceStep traced(ctx.trace, kStoreTile, kStore, i);
        const WorkTile work = Scheduler::work_tile(i, ctx);
        if (!Output::template stores_by_tma<Order>(work, group, ctx)) {
          if constexpr (kAgent == Agent::kWarp) {
            Scheduler::for_each_piece(work, Output::kPiecesPerSubTile, [&](u32 piece) {
              queue.wait_in_warp();
              const u32 buffer = smem.out(group, queue.out.stage());
              Output::template copy<Order>(args.c_rows, args.c_row_bytes, ctx, buffer, work, group, piece);
              queue.commit_in_warp();
            });
          }
        } else if (queue.is_leader()) {
          Scheduler::for_each_piece(work, Output::kPiecesPerSubTile, [&](u32 piece) {
            queue.wait();
            Output::template store<Order>(args, smem.out(group, queue.out.stage()), work, group, piece);
            queue.commit();
          });
        } else {
          Scheduler::for_each_piece(work, Output::kPiecesPerSubTile, [&](u32) { queue.out.advance(); });
        }
      }
      tma_wait<0>();
    }
  };

  // One thread: loads A and B of work tile `index`. The first stages of a CTA's first work tile already have B.
  static MK_DEVICE void load_tile(const Args& args, const RankContext& ctx, const Smem& smem,
                                  typename Mainloop::Stages& stages, u32 index, const WorkTile& work) {
    const TraceStep traced(ctx.trace, kLoadTile, kLoad, index);
    u32 step = work.k_begin;
    if (index == Scheduler::first()) {
      // If A comes from other ranks, B of all stages has arrived before A (`docs/performance.md#first-loads`).
      u32 with_b = Mainloop::first_stages(work);
      if constexpr (requires { Source::awaits_rows(work, ctx); }) {
        if (Source::awaits_rows(work, ctx)) with_b = Mainloop::load_other_b(args, smem, work);
      }
#pragma unroll 1
      for (const u32 end = step + with_b; step < end; ++step) {
        if constexpr (Config::kPaceSteps > 0) Pace<Config, Workspace>::keep(ctx, index, step);
        Mainloop::template load_stage_a<Source>(args, ctx, smem, stages, work, step);
      }
    }
#pragma unroll 1
    for (; step < work.k_end; ++step) {
      if constexpr (Config::kPaceSteps > 0) Pace<Config, Workspace>::keep(ctx, index, step);
      Mainloop::template load_stage<Source>(args, ctx, smem, stages, work, step);
    }
  }

  // A warpgroup: for each work tile calls `prepare(work)`, computes its sums, and calls `finish(work, sum)`. If several CTAs
  // share the tile, the sums of the other CTAs have been added.
  //
  // A CTA shares only its last tile, and in one round it has no other tile. The loop ends after either: otherwise the
  // compiler would assume that the waits for other CTAs and ranks diverge warps, and would converge the warps before each
  // product (`docs/performance.md#loops-of-products`).
  template <class Prepare, class Finish>
  static MK_DEVICE void for_each_sum(const Args& args, const RankContext& ctx, const Smem& smem,
                                     typename Mainloop::Stages& stages, u32 group, const Prepare& prepare,
                                     const Finish& finish) {
    for (u32 i = Scheduler::first(); i < Scheduler::end(ctx); i += Scheduler::kStride) {
      const WorkTile work = Scheduler::work_tile(i, ctx);
      if (Order::is_gap(work)) continue;
      typename Shape::Accumulator sum;
      prepare(work);
      multiply_tile(args, ctx, smem, stages, i, work, group, sum);
      const TraceStep traced(ctx.trace, kFinishTile, kMultiply, i);
      if constexpr (Scheduler::kSplits > 1) {
        if (!Scheduler::is_whole(work)) {
          SplitK<Config, Order, Workspace>::reduce(ctx, work, group, sum);
          scale(args, ctx, work, group, sum);
          return finish(work, sum);
        }
      }
      scale(args, ctx, work, group, sum);
      if constexpr (Scheduler::kIsOneRound) return finish(work, sum);
      else finish(work, sum);
    }
  }

  // A warpgroup: computes its sums of work tile `index`. These sums include scales of blocks, but no other scales.
  static MK_DEVICE void multiply_tile(const Args& args, const RankContext& ctx, const Smem& smem,
                                      typename Mainloop::Stages& stages, u32 index, const WorkTile& work, u32 group,
                                      typename Shape::Accumulator& sum) {
    const TraceStep traced(ctx.trace, kMultiplyTile, kMultiply, index);
    // A CTA of a cluster has one granule.
    if constexpr (kGranules<Config> > 1 && !kInClusters) {
      multiply_granules(smem, stages, work, group, sum);
    } else if constexpr (!Config::ElementA::kIsPromoted) {
      Mainloop::multiply(smem, stages, work.k_begin, work.k_end, group, sum);
    } else if constexpr (kScales<Config> == Scales::kBlock) {
      // More stages would make the loop long, and the addresses of scales that arrive would not fit into registers. Without
      // such a loop, late releases are a loss.
      constexpr bool kUnrolls = Config::kStages <= 4 && !Source::kScalesArrive;
      BlockScales<Config, Places> scales{Places{args, ctx, work, group}};
      Mainloop::template multiply_promoting<kUnrolls, kUnrolls>(smem, stages, work.k_begin, work.k_end, group, scales, sum);
    } else {
      if constexpr (kScalesSums<Config>) SumScales<Config, Places>{Places{args, ctx, work, group}}.prefetch();
      NoStageScales scales;
      Mainloop::template multiply_promoting<true, false>(smem, stages, work.k_begin, work.k_end, group, scales, sum);
    }
  }

  // A warpgroup: computes its sums of each granule of K of a work tile, and adds them as a binary tree. The granules of a
  // slice of K are a subtree, whose root is the sum of the slice.
  static MK_DEVICE void multiply_granules(const Smem& smem, typename Mainloop::Stages& stages, const WorkTile& work,
                                          u32 group, typename Shape::Accumulator& sum) {
    constexpr u32 kAll = kGranules<Config>, kOfSlice = kAll / Scheduler::kSplits;
    static_assert(!Config::ElementA::kIsPromoted && kAll <= 4 && kAll % Scheduler::kSplits == 0);
    const bool is_whole = Scheduler::is_whole(work);
    const u32 first = is_whole ? 0 : work.split * kOfSlice, count = is_whole ? kAll : kOfSlice;
    typename Shape::Accumulator products, pair;
    sum.fill(-0.0f), pair.fill(-0.0f);  // every number plus -0.0 is the number itself, 0.0 included
    u32 begin = work.k_begin;
#pragma unroll 1
    for (u32 granule = 1; granule <= count; ++granule) {
      const u32 end = (first + granule) * Config::kKSteps / kAll;
      Mainloop::multiply(smem, stages, begin, end, group, products);
      begin = end;
      if constexpr (kAll == 2) {
        sum.add(products);
      } else {
        pair.add(products);
        if (granule % 2 == 1 && granule != count) continue;
        sum.add(pair);
        pair.fill(-0.0f);
      }
    }
  }

  // A warpgroup: multiplies the sums that the CTA completes by the scales that the sums do not include.
  static MK_DEVICE void scale(const Args& args, const RankContext& ctx, const WorkTile& work, u32 group,
                              typename Shape::Accumulator& sum) {
    if constexpr (kScalesSums<Config>) {
      const Places places{args, ctx, work, group};
      const SumScales<Config, Places> scales{places};
#pragma unroll
      for (u32 sub = 0; sub < Shape::kSubTiles; ++sub) {
        if (!Scheduler::completes_sums(work, sub)) continue;
        __syncwarp();  // keeps the loads of all sub-tiles from being in flight at once, for which there are no registers
        scales.template apply<kSubTile>(sub, sum);
      }
    }
  }

  // Runs before the call reads memory that earlier work writes. If the grid may start early, earlier work must not
  // write B.
  static MK_DEVICE void prefetch(const Args& args, const RankContext& ctx, const Smem& smem) {
    prefetch_with(args, ctx, smem, args.a, args.b);
  }

  // Prefetches with these tensor maps.
  template <class... Maps>
  static MK_DEVICE void prefetch_with(const Args& args, const RankContext& ctx, const Smem& smem, const Maps&... maps) {
    prefetch_tensor_maps(maps...);
    if constexpr (requires { args.c; }) prefetch_tensor_maps(args.c);
    if (threadIdx.x != 0) return;
    init_barriers<Config>(smem);
    // If each call gives the rows, the first tile depends on the rows, which are known only in begin().
    if constexpr (!TakesRows<Config>) load_first_b(args, ctx, smem);
  }

  // Runs before the roles. Returns false if the CTA must end at once.
  static MK_DEVICE bool begin(const Args& args, const RankContext& ctx, const Smem& smem) {
    if constexpr (TakesRows<Config>) {
      if (threadIdx.x == 0) load_first_b(args, ctx, smem);
    }
    if (!has_entered(ctx, smem)) {
      if (threadIdx.x == 0) for_first_tile(ctx, [&](const WorkTile& work) { Mainloop::drop_first_b(ctx, smem, work); });
      return false;
    }
    Begin::announce(ctx);
    return true;
  }

  // All threads. The CTAs of a cluster enter a call together or not at all, since they wait for each other's sums.
  static MK_DEVICE bool has_entered(const RankContext& ctx, const Smem& smem) {
    const bool entered = enter(ctx);
    if constexpr (kInClusters) return ClusterSums<Config, Smem>::all_entered(smem, entered);
    else return entered;
  }

  // One thread: loads B of the first stages of this CTA's first work tile.
  static MK_DEVICE void load_first_b(const Args& args, const RankContext& ctx, const Smem& smem) {
    for_first_tile(ctx, [&](const WorkTile& work) { Mainloop::load_first_b(args, smem, work); });
  }

  // Calls a function with this CTA's first work tile, if the CTA has a tile.
  template <class Function>
  static MK_DEVICE void for_first_tile(const RankContext& ctx, const Function& function) {
    const u32 first = Scheduler::first();
    if (first >= Scheduler::end(ctx)) return;
    const WorkTile work = Scheduler::work_tile(first, ctx);
    if (!Order::is_gap(work)) function(work);
  }

  // Runs after the roles. Thread 0 belongs to the warp of the load thread, which comes here before the CTA has
  // finished.
  static MK_DEVICE void end(const Args&, const RankContext& ctx) {
    if (threadIdx.x == 0) advance_epoch(ctx);
    end_rows<false>(ctx);
  }

  // All threads, at the end of a call that gives its rows: count the tiles that the call has not used, and wait until
  // all ranks of the node have begun the call. See Begin::wait_for_peers.
  template <bool kComparesPlaces>
  static MK_DEVICE void end_rows(const RankContext& ctx) {
    if constexpr (TakesRows<Config>) {
      if constexpr (Scheduler::kSplits > 1) {
        SplitK<Config, Order, Workspace>::template count_unused<Config::kThreads>(ctx);
      }
      if (blockIdx.x == 0 && threadIdx.x == 0) Begin::report_refused_rows(ctx);
      Begin::template wait_in_warp<kComparesPlaces>(ctx);
    }
  }
};

}  // namespace mk::gemm
