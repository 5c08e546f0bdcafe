// Grouped GEMM: the products of the rows of each expert with its weight.
//
// Four warps load rows from their places in memory, and TMA loads weights. Two warpgroups multiply
// (mk/gemm/mainloop.cuh) and write the rows of C that the expert has.
#pragma once
#include <mk/copy.cuh>
#include <mk/gemm/mainloop.cuh>
#include <mk/gemm/store.cuh>
#include <mk/moe/tile_scheduler.cuh>
#include <mk/moe/tokens.cuh>

namespace mk::moe {

constexpr u32 kLoadWarps = 4;
constexpr u32 kMultiplyWarps = gemm::kGroups * kWarpgroupWarps;
constexpr u32 kRowVectors = kLineBytes / kVecBytes;  // vectors of a row of a stage

template <class Config>
concept GroupedGemmConfig = GroupedConfig<Config> && gemm::MainloopConfig<Config> && requires {
  typename Config::ElementC;
  Config::kCopiesAhead;  // stages whose copies a load warp has in flight; fewer than kStages
};

template <class Smem>
concept GroupedSmem = gemm::MainloopSmem<Smem> && TileSmem<Smem> && requires(const Smem smem, u32 row, u32 warp) {
  smem.row_address(row);  // the address of a row of the tile in global memory, or 0
  smem.out(warp);         // 16 rows of 64 columns, for a warp that multiplies
};

// Args: the tensor map b of the weights, and C.
template <class Args>
concept GroupedArgs = TokenArgs<Args> && requires(const Args& args) {
  args.b;
  args.c;
  args.c_row_bytes;
};

template <GroupedGemmConfig Config, GroupedArgs Args, class Workspace, GroupedSmem Smem, GroupedEpilogue Epilogue>
struct GroupedGemm {
  using Shape = TileShape<Config, Epilogue>;
  using ElementC = typename Config::ElementC;
  using Mainloop = gemm::Mainloop<Config, Smem>;
  using Scheduler = TileScheduler<Config, Workspace, Smem, Shape>;
  using Experts = moe::Experts<Config, Workspace>;
  using Message = RoutingMessage<Config, Workspace>;

  // A stage is full when its weights have arrived and the four load warps have written its rows. It is empty when all
  // warps that multiply have read it.
  using Barriers = PipelineBarriers<Config::kStages, 1 + kLoadWarps, kMultiplyWarps>;  // @grouped.arrivals
  using Stages = Pipeline<Barriers, StageSites>;

  static MK_DEVICE Barriers barriers(const Smem& smem) { return {smem.stage_full(0), smem.stage_empty(0)}; }

  // One thread, before the first barrier of the CTA.
  static MK_DEVICE void init_barriers(const Smem& smem) {
    barriers(smem).init();
    Scheduler::barriers(smem).init();
  }

  // A load warp's part of a stage, which is a quarter of the tile's rows. Eight threads copy a row, a vector each, so
  // the warp copies four rows at once.
  struct RowLoader {
    static constexpr u32 kRows = Config::kTileM / kLoadWarps, kRowsAtOnce = kWarp / kRowVectors;
    static constexpr u32 kCopies = kRows / kRowsAtOnce;

    const Smem& smem;
    u32 warp, lane;
    const u8* from[kCopies];

    MK_DEVICE u32 row(u32 copy) const { return warp * kRows + lane / kRowVectors + copy * kRowsAtOnce; }
    MK_DEVICE u32 vector() const { return lane % kRowVectors; }

    // Finds the rows of a tile. Each lane finds the address of one row. Then all lanes read the addresses of the rows
    // that they copy.
    MK_DEVICE void find(const Args& args, const RankContext& ctx, const ExpertTile& tile) {
      if (lane < kRows) {
        const u32 row = warp * kRows + lane;
        u64 at = 0;
        if (row < tile.rows) at = reinterpret_cast<u64>(find_row(args, ctx, smem, tile.expert, tile.row + row));
        store_shared(smem.row_address(row), static_cast<u32>(at));
        store_shared(smem.row_address(row) + 4, static_cast<u32>(at >> 32));
      }
      __syncwarp();  // @grouped.addresses
#pragma unroll
      for (u32 i = 0; i < kCopies; ++i) {
        const u32 address = smem.row_address(row(i));
        from[i] = reinterpret_cast<const u8*>(u64{load_shared(address + 4)} << 32 | load_shared(address));
      }
    }

    // Issues the copies of stage `step`, in the swizzle that wgmma expects. Writes zeros where the tile has no row or
    // the token has no column.
    MK_DEVICE void copy(u32 stage, u32 step, const ExpertTile& tile) const {
      const u32 offset = (step * kRowVectors + vector()) * kVecBytes;
#pragma unroll
      for (u32 i = 0; i < kCopies; ++i) {
        bool exists = row(i) < tile.rows;
        if constexpr (Shape::kRaggedHidden) exists = exists && offset < Config::ElementA::bytes(Config::kHidden);
        copy_async(stage + row(i) * kLineBytes + (vector() ^ row(i) % 8) * kVecBytes, from[i] + offset,
                   exists ? kVecBytes : 0);
      }
      copy_commit();
    }
  };

  // A load warp. The first thread of the first load warp also takes the tiles and loads the weights.
  static MK_DEVICE void load(const Args& args, const RankContext& ctx, const Smem& smem, u32 warp) {
    const u32 lane = lane_index();
    const bool is_first = warp == 0 && lane == 0;
    Stages stages{ctx, barriers(smem)};
    PipelineState<Config::kStages> copied;
    const auto commit_stage = [&] {
      fence_proxy_async_shared();  // @grouped.copies-fence
      __syncwarp();
      if (lane == 0) barrier_arrive(stages.barriers.full(copied.stage));
      copied.advance();
    };
    typename Scheduler::Taker taker{ctx, smem};
    typename Scheduler::template Reader<kLoad> tiles{ctx, smem};
    RowLoader rows{smem, warp, lane, {}};
    ExpertTile tile;
    if (is_first) taker.take();
    while (tiles.next(tile, [] { __syncwarp(); })) {
      rows.find(args, ctx, tile);
      const u32 begin = tile.slice.begin(Shape::kKSteps), end = tile.slice.end(Shape::kKSteps);
#pragma unroll 1
      for (u32 step = begin; step < end; ++step) {
        stages.producer_acquire();  // @grouped.acquire
        if (is_first) load_weights(args, smem, stages, tile, step);
        rows.copy(smem.a(stages.stage()), step, tile);
        stages.advance();
        if (step - begin < Config::kCopiesAhead) continue;
        copy_wait<Config::kCopiesAhead>();  // @grouped.copies
        commit_stage();
      }
      if (is_first) taker.take();  // the counter answers while the last copies arrive
      // No copies stay in flight here, since the rows of the next tile may arrive much later.
      copy_wait<0>();  // @grouped.last-copies
      for (u32 left = min(Config::kCopiesAhead, end - begin); left > 0; --left) commit_stage();
    }
  }

  // A warpgroup: multiplies its part of each tile, and stores it to C. Slices of tiles come last, in a loop of their
  // own, whose number of stages is not a constant.
  //
  // There is no __syncwarp behind the first loop, since warps could wait there for lanes that are still in the loop:
  // the compiler would not treat warps as converged in the loop, would keep the stage in registers of each thread and
  // not of the warp, and would make warps converge before each product (H100, 2048 rows of one expert, tiles of
  // 128x128: 118 µs instead of 110 µs).
  static MK_DEVICE void multiply(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
    Stages stages{ctx, barriers(smem)};
    typename Scheduler::template Reader<kMultiply> tiles{ctx, smem};
    ExpertTile tile;
    while (tiles.next(tile, [] { __syncwarp(); })) {
      if constexpr (Scheduler::kDividesTiles) {
        if (!tile.slice.is_whole_tile()) return multiply_slices(args, ctx, smem, stages, tiles, tile, group);
      }
      typename Shape::Accumulators sum;
      if (!multiply_tile(smem, stages, tile, Shape::kKSteps, group, sum)) continue;
      store_sums(args, smem, tile, group, sum, [] { __syncwarp(); });
    }
  }

 private:
  // A warpgroup: multiplies slices of tiles from `tile` on. If it is the last to store its sums over a slice of a tile,
  // it adds up the sums over all slices of the tile, and stores the result to C.
  static MK_DEVICE void multiply_slices(const Args& args, const RankContext& ctx, const Smem& smem, Stages& stages,
                                        typename Scheduler::template Reader<kMultiply>& tiles, ExpertTile& tile, u32 group) {
    using Split = SplitK<Workspace, Shape>;
    do {
      typename Shape::Accumulators sum;
      const u32 steps = tile.slice.end(Shape::kKSteps) - tile.slice.begin(Shape::kKSteps);
      if (!multiply_tile(smem, stages, tile, steps, group, sum)) continue;
      const u32 is_last = smem.out(group * kWarpgroupWarps);  // the buffer's first word, while the buffer has no rows of C
      if (!Split::store_sums(ctx, tile.slice, group, sum, is_last)) continue;
      Split::add_sums(ctx, tile.slice, group, sum);
      store_sums(args, smem, tile, group, sum, Split::sync);
    } while (tiles.next(tile, Split::sync));
  }

  // A warpgroup: computes its sums of the stages of a tile. Returns false if the other warpgroup has all rows of the tile.
  static MK_DEVICE bool multiply_tile(const Smem& smem, Stages& stages, const ExpertTile& tile, u32 steps, u32 group,
                                      typename Shape::Accumulators& sum) {
    if (Shape::kSplitsRows && Shape::group_row(group) >= tile.rows) {
#pragma unroll 1
      for (u32 step = 0; step < steps; ++step) {
        stages.consumer_wait();
        stages.consumer_release_warp();
      }
      return false;
    }
    Mainloop::multiply(smem, stages, 0, steps, group, sum);
    return true;
  }

  // The first row of a tile whose sums a warp has.
  static MK_DEVICE u32 first_row() {
    const u32 warp = threadIdx.x / kWarp - kLoadWarps;
    return (Shape::kSplitsRows ? warp : warp % kWarpgroupWarps) * Fragment::kWarpRows;
  }

  // A warpgroup: turns its sums of a tile into elements of C, and stores the elements.
  template <class Sync>
  static MK_DEVICE void store_sums(const Args& args, const Smem& smem, const ExpertTile& tile, u32 group,
                                   typename Shape::Accumulators& sum, const Sync& sync) {
    const u32 col = tile.col * Shape::kTileCols + (Shape::kSplitsRows ? 0 : group * Shape::kGroupCols);
#pragma unroll
    for (u32 sub = 0; sub < Shape::kGroupCols / gemm::kSubTile; ++sub) {
      float* sub_tile = sum + sub * gemm::kSubTileRegisters;
      Epilogue::template apply<Shape::kGroupCols, gemm::kSubTileRegisters>(sub_tile);
      store_rows(args, smem, tile, first_row(), col + sub * gemm::kSubTile, sub_tile, sync);
    }
  }

  // Waits until row `row` of an expert has arrived, and returns its address.
  static MK_DEVICE const u8* find_row(const Args& args, const RankContext& ctx, const Smem& smem, u32 expert, u32 row) {
    u32 source = 0;
    while (source + 1 < Experts::kWorld && row >= load_shared(smem.source_row_begin(expert, source + 1))) ++source;
    const u32 at = load_shared(smem.list_begin(expert, source)) + row - load_shared(smem.source_row_begin(expert, source));
    const u32 token = mk::load(Message::list_from(ctx, source) + at);
    if constexpr (Experts::kWorld > 1) {
      if (source != ctx.rank) return Tokens<Config, Args, Workspace, Smem>::acquire(ctx, smem, source, token);
    }
    return args.tokens + token * args.token_stride_bytes;
  }

  // One thread: loads the weights of stage `step`, in boxes of kBoxCols columns.
  static MK_DEVICE void load_weights(const Args& args, const Smem& smem, const Stages& stages, const ExpertTile& tile,
                                     u32 step) {
    const u32 full = stages.producer_expect(Shape::kStageBytesB), stage = smem.b(stages.stage());
#pragma unroll
    for (u32 at = 0; at < Config::kTileN; at += Config::kBoxCols) {
      const u32 col = Shape::weight_col(tile.col, at, Config::kCols), k = step * Config::kTileK;
      if constexpr (Config::kBMnMajor) {
        tma_load_3d(stage + at * Shape::kRowBytes, args.b, full, col, k, tile.expert);
      } else {
        tma_load_3d(stage + at * Shape::kRowBytes, args.b, full, k, col, tile.expert);
      }
    }
  }

  // A warp: stores its 16 rows of a sub-tile, which begin at row `first` of the tile, to C.
  template <class Sync>
  static MK_DEVICE void store_rows(const Args& args, const Smem& smem, const ExpertTile& tile, u32 first, u32 col,
                                   const float* sum, const Sync& sync) {
    const u32 lane = lane_index(), out = smem.out(threadIdx.x / kWarp - kLoadWarps);
    // The word is loaded for each sub-tile, since the sums leave few registers.
    const u32 rows_before = load_shared(smem.row_begin(tile.expert));
    sync();  // @grouped.out-read
    gemm::write_rows<ElementC>(out, sum);
    sync();
    const u32 at = col + lane % 8 * ElementC::kPerVec;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32 row = i * 4 + lane / 8;
      if (first + row >= tile.rows || (Shape::kRaggedCols && at >= Config::kCols)) continue;  // @grouped.rows
      u8* line = args.c + u64{rows_before + tile.row + first + row} * args.c_row_bytes;
      store_vec16(line + ElementC::bytes(at), load_shared_vec16(out + row * kLineBytes + (lane % 8 ^ row % 8) * 16));
    }
  }
};

}  // namespace mk::moe
