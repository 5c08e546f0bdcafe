// Grouped GEMM + combine: the products of the rows of each expert with its weight, which return to the tokens of the rows. Each rank
// adds up the results of its own tokens, in the order of their choices.
//
// At the begin of a call, ranks send each other the places to which results return (mk/moe/return_places.cuh). A CTA waits for these
// places only when it has loaded its first tile.
#pragma once
#include <mk/call.cuh>
#include <mk/moe/return_places.cuh>
#include <mk/moe/returned_product.cuh>
#include <mk/roles.cuh>

namespace mk::moe {

// Args: the rows, by expert.
template <class Args>
concept RowsArgs = requires(const Args& args) {
  args.a;
  args.a_row_bytes;
};

template <class Config, RowsArgs Args, class Workspace, ReturnSmem Smem>
struct GemmCombine {
  using Returned = ReturnedProduct<Config, Args, Workspace, Smem, FirstWeights, true>;
  using Product = typename Returned::Product;
  using Scheduler = typename Product::Scheduler;
  using Places = ReturnPlaces<Config, Args, Workspace, Smem, typename Product::Shape>;
  using Results = moe::Results<Config, Args, Workspace>;
  using Row = typename Product::Row;
  static_assert(Topology<Config>::kNodes == 1, "results travel over NVLink");
  static_assert(Results::kNone == kNoRow);

  // A warp: loads a quarter of each tile's rows. The first thread of the first warp also takes tiles and loads weights.
  struct Load {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 warp) {
      const bool is_first = warp == 0 && lane_index() == 0;
      typename Product::StageLoader loader{ctx, smem};
      typename Scheduler::Taker taker{ctx, smem};
      typename Scheduler::template Reader<kLoad> tiles{ctx, smem};
      typename Product::RowLoader rows{smem, warp, lane_index(), {}};
      bool have_places = false;
      ExpertTile tile;
      if (is_first) taker.take();
      while (tiles.next(tile, [] { __syncwarp(); })) {
        const u32 first = load_shared(smem.row_begin(tile.expert));
        rows.find(
            tile, [&](u32 row) { return row_of_a(args, first + row); },
            [&](u32 row, const Row& found) { Product::keep_scales(args, smem, tiles.place(), row, found); });
        Product::load_tile(args, loader, rows, tile, is_first, [&] {
          if (is_first) taker.take();
          if (!have_places) Places::wait(ctx);
          have_places = true;
          if (!rows.finds_row(tile)) return;
          store_address(smem.return_address(tiles.place(), rows.found_row()), Places::of_row(ctx, first + tile.row + rows.found_row()));
        });
      }
      if (!have_places) Places::wait(ctx);
      Places::report_absent_rows(args, ctx, blockIdx.x * kLoadWarps + warp, gridDim.x * kLoadWarps);
    }
  };

  // A warpgroup: computes its part of each tile, and returns it. Then it adds up results of own tokens.
  struct Multiply {
    static constexpr Agent kAgent = Agent::kWarpgroup;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
      typename Product::Stages stages{ctx, Product::barriers(smem)};
      typename Scheduler::template Reader<kMultiply> tiles{ctx, smem};
      ExpertTile tile;
      while (tiles.next(tile, [] {})) {
        typename Product::Shape::Accumulator sum;
        Returned::template multiply<0>(args, smem, stages, tiles, tile, group, sum);
        tiles.release();
      }
      Results::signal(ctx);
      Results::add_up(args, ctx, blockIdx.x * kMultiplyWarps + warp_index() - kLoadWarps, gridDim.x * kMultiplyWarps,
                      typename Places::OwnTokens{args, ctx});
    }
  };

  // Runs before the roles. Returns false if the CTA must end at once, because another call is under way. The host then has a report
  // of the cause.
  static MK_DEVICE bool begin(const Args& args, const RankContext& ctx, const Smem& smem) {
    if (threadIdx.x == 0) {
      Product::init_barriers(smem);
      fence_barrier_init();
    }
    const auto first = Places::load_first(args);
    prefetch_tensor_maps(args.b);
    if (!enter(ctx)) return false;
    Places::exchange(args, ctx, smem, first);
    return true;
  }

  // Runs after the roles. Thread 0 belongs to a load warp. It comes here when it has loaded its last tile, which is
  // before the CTA has computed it.
  static MK_DEVICE void end(const Args&, const RankContext& ctx) {
    if (threadIdx.x == 0) Scheduler::Counter::advance_epoch(ctx);
  }

 private:
  static MK_DEVICE Row row_of_a(const Args& args, u32 row) {
    const u8* elements = args.a + u64{row} * args.a_row_bytes;
    if constexpr (Product::kHasRowScales) return {elements, comm::scales_of_row(args, row)};
    else return {elements, nullptr};
  }
};

}  // namespace mk::moe
