// A whole layer of experts: tokens are sent to the ranks of their experts, which apply two products to each row, and the results
// return to their tokens.
//
// Tokens travel as mk/moe/tokens.cuh describes. The rows of the first product, silu(gate) · up, stay on the rank. They have
// elements of the type of tokens and, if tokens have scales, scales behind their elements. A tile of the second product is
// stored directly to the ranks of its tokens, where each choice of a token has a place. When all ranks have returned all rows,
// each rank adds up the results of its own tokens, in the order of their choices.
#pragma once
#include <mk/call.cuh>
#include <mk/moe/grouped_gemm.cuh>
#include <mk/moe/layer_order.cuh>
#include <mk/moe/returned_product.cuh>
#include <mk/moe/routing.cuh>
#include <mk/roles.cuh>

namespace mk::moe {

template <class Workspace>
concept LayerWorkspace = requires(u32 parity, u32 source, u32 row, u32 part) {
  Workspace::choices(parity, source, row);   // the choice whose row a source has listed
  Workspace::hidden_rows(row);               // by expert
  Workspace::hidden_ready(row, part);        // the mark of the last call in which a warp stored its part of a row tile
};

// The weights of the second product.
struct DownWeights {
  template <class Args>
  static MK_DEVICE const CUtensorMap& map(const Args& args) { return args.down; }
  template <class Args>
  static MK_DEVICE const u8* scales(const Args& args) { return args.down_scales; }
  template <class Args>
  static MK_DEVICE u64 scales_row_bytes(const Args& args) { return args.down_scales_row_bytes; }
};

template <class Config, class Args, LayerWorkspace Workspace, ReturnSmem Smem, GroupedEpilogue Epilogue>
struct MoeLayer {
  using Up = GroupedGemm<Config, Args, Workspace, Smem, Epilogue>;
  using Returned = ReturnedProduct<Config, Args, Workspace, Smem, DownWeights, false>;  // the second product
  using Down = typename Returned::Product;
  static constexpr u32 kUpTiles = Up::Shape::kColTiles, kDownTiles = Down::Shape::kColTiles;

  using Order = LayerOrder<Config, Workspace, Smem, kUpTiles, kDownTiles>;
  using Scheduler = TileScheduler<Config, Workspace, Smem, Order>;
  using Routing = moe::Routing<Config, Args, Workspace, Smem, Order>;
  using Experts = moe::Experts<Config, Workspace>;
  using Message = RoutingMessage<Config, Workspace>;
  using Results = moe::Results<Config, Args, Workspace>;
  using Tiles = typename Scheduler::template Reader<kMultiply>;
  using Sum = typename Up::Shape::Accumulator;  // of either product

  static constexpr u32 kWarps = Config::kThreads / kWarp;
  static constexpr u32 kParts = kUpTiles * kMultiplyWarps;  // of the hidden rows of a row tile
  static_assert(Experts::kNodes == 1, "results travel over NVLink");
  static constexpr bool kQuantises = gemm::kScales<Config> == gemm::Scales::kBlock;
  static_assert(kQuantises == Config::ElementA::kIsPromoted, "hidden rows of e4m3 have scales of blocks");
  static_assert(!kQuantises || !Up::Shape::kRaggedCols, "the second product reads whole blocks");

  // A warp of a communication CTA: sends tokens. Warps are numbered over all communication CTAs: first the first warps
  // of all CTAs, then their second warps, and so on.
  struct SendTokens {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 warp) {
      const u32 number = warp * Config::kCommCtas + blockIdx.x;
      TokenPush<Config, Args, Workspace, Smem>::run(args, ctx, smem, number, Config::kCommCtas * kWarps);
      __syncwarp();
    }
  };

  // A warp: loads a quarter of each tile's rows. The first thread of the first warp also takes tiles and loads weights.
  struct Load {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 warp) {
      const bool is_first = warp == 0 && lane_index() == 0;
      typename Up::StageLoader loader{ctx, smem};
      typename Scheduler::Taker taker{ctx, smem};
      typename Scheduler::template Reader<kLoad> tiles{ctx, smem};
      const auto take = [&] {
        if (is_first) taker.take();
      };
      ExpertTile tile;
      take();
      while (tiles.next(tile, [] { __syncwarp(); })) {
        if (tile.col < kUpTiles) {
          typename Up::RowLoader rows{smem, warp, lane_index(), {}};
          rows.find(
              tile, [&](u32 row) { return Up::find_row(args, ctx, smem, tile.expert, row); },
              [&](u32 row, const typename Up::Row& found) { Up::keep_scales(args, smem, tiles.place(), row, found); });
          Up::load_tile(args, loader, rows, tile, is_first, take);
        } else {
          wait_hidden(ctx, smem, tile);
          tile.col -= kUpTiles;
          typename Down::RowLoader rows{smem, warp, lane_index(), {}};
          rows.find(
              tile, [&](u32 row) { return hidden_row(ctx, smem, tile, row); },
              [&](u32 row, const typename Down::Row& found) {
                Down::keep_scales(args, smem, tiles.place(), row, found);
                if (row < tile.rows) store_address(smem.return_address(tiles.place(), row), destination(ctx, smem, tile, row));
              });
          Down::load_tile(args, loader, rows, tile, is_first, take);
        }
      }
    }
  };

  // A warpgroup: computes its part of each tile and stores it. Then it adds up results of own tokens.
  struct Multiply {
    static constexpr Agent kAgent = Agent::kWarpgroup;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
      typename Up::Stages stages{ctx, Up::barriers(smem)};
      Tiles tiles{ctx, smem};
      ExpertTile tile;
      while (tiles.next(tile, [] {})) {
        Sum sum;
        if (tile.col < kUpTiles) multiply_up(args, ctx, smem, stages, tiles, tile, group, sum);
        else Returned::template multiply<kUpTiles>(args, smem, stages, tiles, tile, group, sum);
        tiles.release();
      }
      Results::signal(ctx);
      Results::add_up(args, ctx, blockIdx.x * kMultiplyWarps + warp_index() - kLoadWarps, gridDim.x * kMultiplyWarps,
                      OwnTokens{args});
    }
  };

  // Runs before the roles. Returns false if the CTA must end at once, because another call is under way, routing has
  // been aborted, or operands have wrong values. The host then has a report of the cause.
  static MK_DEVICE bool begin(const Args& args, const RankContext& ctx, const Smem& smem) {
    if (threadIdx.x == 0) {
      Up::barriers(smem).init();
      Scheduler::barriers(smem).init();
      if constexpr (Experts::kWorld > 1) comm::init_copy_slots<kWarps>(smem);
      fence_barrier_init();
    }
    Routing::load_choices(args, smem);
    prefetch_tensor_maps(args.b, args.down);
    if (!enter(ctx)) return false;
    if (Routing::route(args, ctx, smem)) return true;
    end(args, ctx);
    return false;
  }

  // Runs after the roles. Thread 0 belongs to a load warp. It comes here when it has loaded its last tile, which is
  // before the CTA has computed it.
  static MK_DEVICE void end(const Args&, const RankContext& ctx) {
    if (threadIdx.x == 0) Scheduler::Counter::advance_epoch(ctx);
  }

 private:
  static MK_DEVICE u32 row_tile(const Smem& smem, const ExpertTile& tile) {
    return load_shared(smem.tile_begin(tile.expert)) / Order::kColTiles + tile.row / Config::kTileM;
  }

  // A load warp: waits until all parts of the hidden rows of a tile have been stored.
  static MK_DEVICE void wait_hidden(const RankContext& ctx, const Smem& smem, const ExpertTile& tile) {
    const u32 number = row_tile(smem, tile);
    for (u32 part = lane_index(); part < kParts; part += kWarp) {
      const WaitSite site{kLoad, kHidden, ctx.rank, number, ctx.mark()};
      wait_mark(ctx, ctx.local_ptr(Workspace::hidden_ready(number, part)), site);
    }
    __syncwarp();
  }

  // The address of row `row` of the tile's expert.
  static MK_DEVICE typename Down::Row hidden_row(const RankContext& ctx, const Smem& smem, const ExpertTile& tile, u32 row) {
    const u8* elements = ctx.local_ptr(Workspace::hidden_rows(load_shared(smem.row_begin(tile.expert)) + row));
    return {elements, elements + kHiddenBytes};
  }

  static constexpr u32 kHiddenBytes = Config::ElementA::bytes(Config::kCols);  // of the elements of a row

  // The address to which row `row` of a tile returns.
  static MK_DEVICE u8* destination(const RankContext& ctx, const Smem& smem, const ExpertTile& tile, u32 row) {
    const auto listed = Up::listed_row(smem, tile.expert, tile.row + row);
    const u32 choice = load(ctx.local_ptr(Workspace::choices(ctx.parity(), listed.source, 0)) + listed.at);
    return ctx.peer_ptr(listed.source, Workspace::results(choice));
  }

  // The rows of a tile among the hidden rows.
  struct HiddenRows {
    static constexpr bool kMayLackRows = false;

    const RankContext& ctx;
    const Smem& smem;
    const ExpertTile& tile;

    MK_DEVICE u32 first() const { return load_shared(smem.row_begin(tile.expert)) + tile.row; }
    MK_DEVICE u8* line(u32 first, u32 row) const { return ctx.local_ptr(Workspace::hidden_rows(first + row)); }
    MK_DEVICE u8* scales(u32 first, u32 row) const { return line(first, row) + kHiddenBytes; }
  };

  // A warpgroup: computes its part of a tile of hidden rows, and stores it.
  static MK_DEVICE void multiply_up(const Args& args, const RankContext& ctx, const Smem& smem, typename Up::Stages& stages,
                                    const Tiles& tiles, ExpertTile& tile, u32 group, Sum& sum) {
    const bool has_rows = Up::multiply_tile(args, smem, stages, tile, tiles.place(), Up::Shape::kKSteps, group, sum);
    if constexpr (kQuantises) tiles.again(tile);
    if (has_rows) {
      const HiddenRows rows{ctx, smem, tile};
      const auto sync = [] { __syncwarp(); };
      if constexpr (kQuantises) Up::template store_quantised<typename Config::ElementA>(args, smem, tile, tiles.place(), group, sum, sync, rows);
      else Up::store_sums(args, smem, tile, tiles.place(), group, sum, sync, rows);
    }
    __syncwarp();
    if (lane_index() != 0) return;
    const u32 part = tile.col * kMultiplyWarps + threadIdx.x / kWarp - kLoadWarps;
    store_release_gpu(ctx.local_ptr(Workspace::hidden_ready(row_tile(smem, tile), part)), ctx.mark());
  }

  // The tokens of this rank, and the experts of these tokens.
  struct OwnTokens {
    const Args& args;

    MK_DEVICE u32 tokens() const { return load_word(args.num_tokens); }
    MK_DEVICE u32 find(u32 choice) const { return load_word(args.topk_ids + u64{choice} * 4); }
  };
  static_assert(Results::kNone == kNoExpert);
};

}  // namespace mk::moe
