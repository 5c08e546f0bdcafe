// Grouped GEMM: the products of the rows of each expert with its weight.
//
// Four warps load rows from their places in memory, and TMA loads weights. Two warpgroups multiply
// (mk/gemm/mainloop.cuh) and write the rows of C that the expert has. If rows have scales, the load warps also pass on
// where the scales lie.
#pragma once
#include <mk/copy.cuh>
#include <mk/gemm/mainloop.cuh>
#include <mk/gemm/quantised_rows.cuh>
#include <mk/moe/expert_scales.cuh>
#include <mk/moe/output_rows.cuh>
#include <mk/moe/tile_scheduler.cuh>
#include <mk/moe/tokens.cuh>

namespace mk::moe {

constexpr u32 kRowVectors = kLineBytes / kVecBytes;  // vectors of a row of a stage

template <class Config>
concept GroupedGemmConfig = GroupedConfig<Config> && gemm::MainloopConfig<Config> && requires {
  typename Config::ElementC;
  Config::kCopiesAhead;  // stages whose copies a load warp has in flight; fewer than kStages
};

template <class Smem>
concept GroupedSmem = gemm::MainloopSmem<Smem> && TileSmem<Smem> && OutputSmem<Smem> && requires(const Smem smem, u32 row) {
  smem.row_address(row);  // the address of a row of the tile in global memory, or 0
};

// Args: the tensor map b of the weights, and C.
template <class Args>
concept GroupedArgs = requires(const Args& args) {
  args.b;
  args.c;
  args.c_row_bytes;
};

template <GroupedGemmConfig Config, GroupedArgs Args, class Workspace, GroupedSmem Smem, GroupedEpilogue Epilogue,
          class Weights = FirstWeights>
struct GroupedGemm {
  using Shape = TileShape<Config, Epilogue>;
  using ElementC = typename Config::ElementC;
  using Mainloop = gemm::Mainloop<Config, Smem, Shape>;
  using Places = ExpertScales<Config, Args, Smem, Shape, Weights>;
  using Output = OutputRows<Config, Smem, Shape>;
  static constexpr bool kHasRowScales = gemm::kHasRowScales<Config>;
  static_assert(!kHasRowScales || RowScaleSmem<Smem>);
  using Scheduler = TileScheduler<Config, Workspace, Smem, ExpertOrder<Config, Workspace, Smem, Shape>>;
  using Experts = moe::Experts<Config, Workspace>;

  // A stage is full when its weights have arrived and the four load warps have written its rows. It is empty when all
  // warps that multiply have read it.
  using Barriers = PipelineBarriers<Config::kStages, 1 + kLoadWarps, kMultiplyWarps>;
  using Stages = Pipeline<Barriers, LoadSites<Config::ElementA::kIsPromoted>>;

  static MK_DEVICE Barriers barriers(const Smem& smem) { return {smem.stage_full(0), smem.stage_empty(0)}; }

  // One thread, before the first barrier of the CTA.
  static MK_DEVICE void init_barriers(const Smem& smem) {
    barriers(smem).init();
    Scheduler::barriers(smem).init();
  }

  // The addresses of a row, and of its scales if rows have scales.
  struct Row {
    const u8* elements;
    const u8* scales;
  };

  // Passes on the address of the scales of row `row` of a tile. A row beyond the tile gets scales of weights, which can be loaded; the
  // sums of that row are not stored.
  static MK_DEVICE void keep_scales(const Args& args, const Smem& smem, u32 place, u32 row, const Row& found) {
    if constexpr (kHasRowScales) {
      store_address(smem.scales_address(place, row), found.scales != nullptr ? found.scales : Weights::scales(args));
    }
  }

  // A load warp's part of a stage, which is a quarter of the tile's rows. Eight threads copy a row, a vector each, so
  // the warp copies four rows at once.
  struct RowLoader {
    static constexpr u32 kRows = Config::kTileM / kLoadWarps, kRowsAtOnce = kWarp / kRowVectors;
    static constexpr u32 kCopies = kRows / kRowsAtOnce;

    // Where elements are promoted, the warps that multiply leave too few registers for the addresses.
    static constexpr u32 kKept = Config::ElementA::kIsPromoted ? 0 : kCopies;

    const Smem& smem;
    u32 warp, lane;
    const u8* from[kKept + 1];

    MK_DEVICE u32 row(u32 copy) const { return warp * kRows + lane / kRowVectors + copy * kRowsAtOnce; }
    MK_DEVICE u32 vector() const { return lane % kRowVectors; }

    // The row of a tile whose address this lane finds, if it finds one.
    MK_DEVICE u32 found_row() const { return warp * kRows + lane; }
    MK_DEVICE bool finds_row(const ExpertTile& tile) const { return lane < kRows && found_row() < tile.rows; }

    // Finds the rows of a tile. Each lane finds the address of one row by `find_row(row)`, and passes on what else belongs to
    // the row by `keep(row, found)`. Then all lanes read the addresses of the rows that they copy.
    template <class FindRow, class Keep>
    MK_DEVICE void find(const ExpertTile& tile, const FindRow& find_row, const Keep& keep) {
      if (lane < kRows) {
        const u32 row = found_row();
        Row found = {};
        if (row < tile.rows) found = find_row(tile.row + row);
        store_address(smem.row_address(row), found.elements);
        keep(row, found);
      }
      __syncwarp();
      if constexpr (kKept > 0) {
#pragma unroll
        for (u32 i = 0; i < kKept; ++i) from[i] = load_address(smem.row_address(row(i)));
      }
    }

    MK_DEVICE const u8* address(u32 copy) const {
      if constexpr (kKept > 0) return from[copy];
      else return load_address(smem.row_address(row(copy)));
    }

    // Issues the copies of stage `step`, in the swizzle that wgmma expects. Writes zeros where the tile has no row or
    // the token has no column.
    MK_DEVICE void copy(u32 stage, u32 step, const ExpertTile& tile) const {
      const u32 offset = (step * kRowVectors + vector()) * kVecBytes;
#pragma unroll
      for (u32 i = 0; i < kCopies; ++i) {
        bool exists = row(i) < tile.rows;
        if constexpr (Shape::kRaggedHidden) exists = exists && offset < Config::ElementA::bytes(Config::kHidden);
        copy_async(stage + row(i) * kLineBytes + (vector() ^ row(i) % 8) * kVecBytes, address(i) + offset,
                   exists ? kVecBytes : 0);
      }
      copy_commit();
    }
  };

  // A load warp's place in the pipeline of stages.
  struct StageLoader {
    const Smem& smem;
    Stages stages;
    PipelineState<Config::kStages> copied;

    MK_DEVICE StageLoader(const RankContext& ctx, const Smem& smem) : smem(smem), stages(ctx, barriers(smem)) {}

    MK_DEVICE void commit_stage() {
      fence_proxy_async_shared();
      __syncwarp();
      if (lane_index() == 0) barrier_arrive(stages.barriers.full(copied.stage));
      copied.advance();
    }
  };

  // A load warp: loads the stages of a tile, whose rows it has found. `is_first`: whether this is the first thread of the first
  // load warp, which also loads the weights. All lanes call `meanwhile()` while the last copies arrive. The warps that multiply
  // see what it has stored behind the last stage.
  template <class Loader, class Meanwhile>
  static MK_DEVICE void load_tile(const Args& args, Loader& loader, const RowLoader& rows, const ExpertTile& tile, bool is_first,
                                  const Meanwhile& meanwhile) {
    const Smem& smem = loader.smem;
    auto& stages = loader.stages;
    const u32 begin = tile.slice.begin(Shape::kKSteps), end = tile.slice.end(Shape::kKSteps);
#pragma unroll 1
    for (u32 step = begin; step < end; ++step) {
      stages.producer_acquire();
      if (is_first) load_weights(Weights::map(args), smem, stages, tile, step);
      rows.copy(smem.a(stages.stage()), step, tile);
      stages.advance();
      if (step - begin < Config::kCopiesAhead) continue;
      copy_wait<Config::kCopiesAhead>();
      loader.commit_stage();
    }
    meanwhile();
    // No copies stay in flight here, since the rows of the next tile may arrive much later.
    copy_wait<0>();
    for (u32 left = min(Config::kCopiesAhead, end - begin); left > 0; --left) loader.commit_stage();
  }

  // A load warp. The first thread of the first load warp also takes the tiles and loads the weights.
  static MK_DEVICE void load(const Args& args, const RankContext& ctx, const Smem& smem, u32 warp) {
    const u32 lane = lane_index();
    const bool is_first = warp == 0 && lane == 0;
    StageLoader loader{ctx, smem};
    typename Scheduler::Taker taker{ctx, smem};
    typename Scheduler::template Reader<kLoad> tiles{ctx, smem};
    RowLoader rows{smem, warp, lane, {}};
    ExpertTile tile;
    if (is_first) taker.take();
    while (tiles.next(tile, [] { __syncwarp(); })) {
      rows.find(
          tile, [&](u32 row) { return find_row(args, ctx, smem, tile.expert, row); },
          [&](u32 row, const Row& found) { keep_scales(args, smem, tiles.place(), row, found); });
      load_tile(args, loader, rows, tile, is_first, [&] {
        if (is_first) taker.take();
      });
    }
  }

  // A warpgroup: multiplies its part of each tile, and stores it to C. Slices of tiles come last, in a loop of their
  // own, whose number of stages is not a constant.
  //
  // There is no __syncwarp behind the first loop, since warps could wait there for lanes that are still in the loop:
  // the compiler would not treat warps as converged in the loop, would keep the stage in registers of each thread and
  // not of the warp, and would make warps converge before each product (`docs/performance.md#loops-of-products`).
  static MK_DEVICE void multiply(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
    Stages stages{ctx, barriers(smem)};
    typename Scheduler::template Reader<kMultiply> tiles{ctx, smem};
    ExpertTile tile;
    while (tiles.next(tile, [] { __syncwarp(); })) {
      if constexpr (Scheduler::kDividesTiles) {
        if (!tile.slice.is_whole_tile()) return multiply_slices(args, ctx, smem, stages, tiles, tile, group);
      }
      typename Shape::Accumulator sum;
      if (multiply_tile(args, smem, stages, tile, tiles.place(), Shape::kKSteps, group, sum)) {
        if constexpr (Config::ElementA::kIsPromoted) tiles.again(tile);
        store_to_c(args, smem, tile, tiles.place(), group, sum, [] { __syncwarp(); });
      }
      tiles.release();
    }
  }

  // A warpgroup: multiplies slices of tiles from `tile` on. If it is the last to store its sums over a slice of a tile,
  // it adds up the sums over all slices of the tile, and stores the result to C.
  static MK_DEVICE void multiply_slices(const Args& args, const RankContext& ctx, const Smem& smem, Stages& stages,
                                        typename Scheduler::template Reader<kMultiply>& tiles, ExpertTile& tile, u32 group) {
    using Split = SplitK<Workspace, Shape>;
    do {
      typename Shape::Accumulator sum;
      const u32 steps = tile.slice.end(Shape::kKSteps) - tile.slice.begin(Shape::kKSteps);
      if (!multiply_tile(args, smem, stages, tile, tiles.place(), steps, group, sum)) continue;
      if constexpr (Config::ElementA::kIsPromoted) tiles.again(tile);
      const u32 is_last = smem.out(group * kWarpgroupWarps);  // the buffer's first word, while the buffer has no rows of C
      if (!Split::store_sums(ctx, tile.slice, group, sum, is_last)) continue;
      Split::add_sums(ctx, tile.slice, group, sum);
      store_to_c(args, smem, tile, tiles.place(), group, sum, Split::sync);
    } while (tiles.release(), tiles.next(tile, Split::sync));
  }

  // A warpgroup: computes its sums of the stages of a tile. Returns false if the other warpgroup has all rows of the tile.
  static MK_DEVICE bool multiply_tile(const Args& args, const Smem& smem, Stages& stages, const ExpertTile& tile, u32 place, u32 steps, u32 group,
                                      typename Shape::Accumulator& sum) {
    if (Shape::kSplitsRows && Shape::group_row(group) >= tile.rows) {
#pragma unroll 1
      for (u32 step = 0; step < steps; ++step) {
        stages.consumer_wait();
        stages.consumer_release_warp();
      }
      return false;
    }
    if constexpr (!Config::ElementA::kIsPromoted) {
      Mainloop::multiply(smem, stages, 0, steps, group, sum);
    } else {
      const u32 begin = tile.slice.begin(Shape::kKSteps);
      const Places places{args, smem, tile, place, group};
      multiply_scaled(places, stages, begin, begin + steps, sum);
    }
    return true;
  }

  // A warpgroup: does the same for elements that are promoted, over stages [begin, end) of K. Scales of blocks are in the
  // sums, others are not. Behind the wait for the first stage, the load warps have passed on the addresses of the rows'
  // scales, and have acquired the scales.
  static MK_DEVICE void multiply_scaled(const Places& places, Stages& stages, u32 begin, u32 end,
                                        typename Shape::Accumulator& sum) {
    if constexpr (kHasRowScales) stages.consumer_wait();
    if constexpr (gemm::kScales<Config> == gemm::Scales::kBlock) {
      gemm::BlockScales<Config, Places> scales{places};
      Mainloop::template multiply_promoting<false, false>(places.smem, stages, begin, end, places.group, scales, sum);
    } else {
      if constexpr (gemm::kScalesSums<Config>) gemm::SumScales<Config, Places>{places}.prefetch();
      gemm::NoStageScales scales;
      Mainloop::template multiply_promoting<false, false>(places.smem, stages, begin, end, places.group, scales, sum);
    }
  }

  // A warpgroup: multiplies its sums of a tile by the scales that are not in them.
  template <class Sync>
  static MK_DEVICE void scale(const Places& places, typename Shape::Accumulator& sum, const Sync& sync) {
    const gemm::SumScales<Config, Places> scales{places};
    constexpr u32 kPart = gemm::kSubTile / Shape::kWeightCols;
#pragma unroll
    for (u32 part = 0; part < Shape::kGroupN / kPart; ++part) {
      sync();  // keeps the loads of all parts from being in flight at once, for which there are no registers
      scales.template apply<kPart>(part, sum);
    }
  }

  // The first row of a tile whose sums a warp has.
  static MK_DEVICE u32 first_row() {
    const u32 warp = threadIdx.x / kWarp - kLoadWarps;
    return (Shape::kSplitsRows ? warp : warp % kWarpgroupWarps) * Fragment::kWarpRows;
  }

  // The rows of a tile in C.
  struct RowsOfC {
    static constexpr bool kMayLackRows = false;

    const Args& args;
    const Smem& smem;
    const ExpertTile& tile;

    // The word is loaded for each sub-tile, since the sums leave few registers.
    MK_DEVICE u32 first() const { return load_shared(smem.row_begin(tile.expert)) + tile.row; }
    MK_DEVICE u8* line(u32 first, u32 row) const { return args.c + u64{first + row} * args.c_row_bytes; }
    MK_DEVICE u8* scales(u32 first, u32 row) const { return args.c_scales + u64{first + row} * args.c_scales_row_bytes; }
  };

  // A warpgroup: stores its sums of a tile to C.
  template <class Sync>
  static MK_DEVICE void store_to_c(const Args& args, const Smem& smem, const ExpertTile& tile, u32 place, u32 group,
                                   typename Shape::Accumulator& sum, const Sync& sync) {
    const RowsOfC rows{args, smem, tile};
    if constexpr (gemm::HasScalesOfC<Args>) store_quantised<ElementC>(args, smem, tile, place, group, sum, sync, rows);
    else store_sums(args, smem, tile, place, group, sum, sync, rows);
  }

  // A warpgroup: turns its sums of a tile into elements, and stores the elements to `rows`.
  template <class Sync, class Rows>
  static MK_DEVICE void store_sums(const Args& args, const Smem& smem, const ExpertTile& tile, u32 place, u32 group,
                                   typename Shape::Accumulator& sum, const Sync& sync, const Rows& rows) {
    if constexpr (gemm::kScalesSums<Config>) scale(Places{args, smem, tile, place, group}, sum, sync);
    const u32 col = tile.col * Shape::kTileCols + (Shape::kSplitsRows ? 0 : group * Shape::kGroupCols);
#pragma unroll
    for (u32 sub = 0; sub < Shape::kGroupCols / gemm::kSubTile; ++sub) {
      Epilogue::template apply<gemm::kSubTile>(sum, sub);
      Output::template store<ElementC>(rows, smem, tile, first_row(), col + sub * gemm::kSubTile, sum.template part<gemm::kSubTile>(sub), sync);
    }
  }

  // A warpgroup: turns its sums of a tile into elements of e4m3, and stores the elements and the scales of their blocks to `rows`. A warp
  // has all columns of a block.
  template <class E, class Sync, class Rows>
  static MK_DEVICE void store_quantised(const Args& args, const Smem& smem, const ExpertTile& tile, u32 place, u32 group,
                                        typename Shape::Accumulator& sum, const Sync& sync, const Rows& rows) {
    using Block = gemm::QuantisedRows<gemm::kScaleBlock>;
    static_assert(Shape::kSplitsRows && Shape::kGroupCols % gemm::kScaleBlock == 0);
    if constexpr (gemm::kScalesSums<Config>) scale(Places{args, smem, tile, place, group}, sum, sync);
#pragma unroll
    for (u32 sub = 0; sub < Shape::kGroupCols / gemm::kSubTile; ++sub) Epilogue::template apply<gemm::kSubTile>(sum, sub);
    const u32 first = rows.first(), row = first_row();
#pragma unroll
    for (u32 index = 0; index < Shape::kGroupCols / gemm::kScaleBlock; ++index) {
      const u32 block = tile.col * (Shape::kTileCols / gemm::kScaleBlock) + index;
      if (Shape::kRaggedCols && block * gemm::kScaleBlock >= Config::kCols) break;
      const auto own = sum.template part<gemm::kScaleBlock>(index);
      const float scales[2] = {Quantise::scale(Block::greatest(own, 0)), Quantise::scale(Block::greatest(own, 1))};
      sync();
      Block::write(Output::memory(smem), own, scales);
      sync();
      Output::template copy_lines<E>(rows, smem, tile, row, first, block * gemm::kScaleBlock);
      Block::store_scales(scales, max(tile.rows, row) - row,
                          [&](u32 of_warp) { return rows.scales(first, row + of_warp) + Fp32::bytes(block); });
    }
  }

  // The source of row `row` of an expert, and its place on the source's list.
  struct ListedRow {
    u32 source, at;
  };
  static MK_DEVICE ListedRow listed_row(const Smem& smem, u32 expert, u32 row) {
    u32 source = 0;
    while (source + 1 < Experts::kWorld && row >= load_shared(smem.source_row_begin(expert, source + 1))) ++source;
    return {source, load_shared(smem.list_begin(expert, source)) + row - load_shared(smem.source_row_begin(expert, source))};
  }

  // Waits until row `row` of an expert has arrived, and returns its addresses.
  static MK_DEVICE Row find_row(const Args& args, const RankContext& ctx, const Smem& smem, u32 expert, u32 row)
    requires TokenArgs<Args>
  {
    const auto [source, at] = listed_row(smem, expert, row);
    const u32 token = mk::load(RoutingMessage<Config, Workspace>::list_from(ctx, source) + at);
    if constexpr (Experts::kWorld > 1) {
      using Tokens = moe::Tokens<Config, Args, Workspace, Smem>;
      if (source != ctx.rank) {
        const u8* elements = Tokens::acquire(ctx, smem, source, token);
        return {elements, elements + Tokens::kTokenBytes};
      }
    }
    const u8* elements = args.tokens + token * args.token_stride_bytes;
    if constexpr (kHasRowScales) return {elements, comm::scales_of_row(args, token)};
    else return {elements, nullptr};
  }

  // One thread: loads the weights of stage `step`, in boxes of kBoxCols columns.
  static MK_DEVICE void load_weights(const CUtensorMap& weights, const Smem& smem, const Stages& stages, const ExpertTile& tile,
                                     u32 step) {
    const u32 full = stages.producer_expect(Shape::kStageBytesB), stage = smem.b(stages.stage());
#pragma unroll
    for (u32 at = 0; at < Config::kTileN; at += Config::kBoxCols) {
      const u32 col = Shape::weight_col(tile.col, at, Config::kCols), k = step * Config::kTileK;
      if constexpr (Config::kBMnMajor) {
        tma_load_3d(stage + at * Shape::kRowBytes, weights, full, col, k, tile.expert);
      } else {
        tma_load_3d(stage + at * Shape::kRowBytes, weights, full, k, col, tile.expert);
      }
    }
  }
};

}  // namespace mk::moe
