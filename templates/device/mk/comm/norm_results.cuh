// Results whose rows are normalised: rows of z become rows of C and of its norm, Y.
//
// A norm needs a whole row, whose tiles may have several owners. The owner of a tile sends z to a slot of the workspace of every
// rank that needs the rows, its own included, and beside it the sum of the squares of each row of a sub-tile. A flag per tile counts
// the sub-tiles that have arrived. A warp that finds all tiles of a row adds up the squares and takes the row from the slots to C
// and to Y, so that every element travels once and is read once.
//
// The warps that collect results normalise all rows but the last ones. The last rows are complete when the warps that multiply have
// nothing else to do, so that these warps normalise them.
#pragma once
#include <mk/comm/results.cuh>
#include <mk/norm.cuh>

namespace mk::comm {

template <class Workspace>
concept NormResultsWorkspace = ResultsWorkspace<Workspace> && requires(u32 parity, u32 tile, u32 group, u32 piece) {
  Workspace::results(parity, tile, group, piece);
  Workspace::tile_squares(parity, tile, group, piece);  // of each row of a sub-tile
};

// Args: C by address, and Y. Tiles are numbered by their places in C, since a row needs its tiles and not their owners.
template <ResultsConfig Config, NormResultsWorkspace Workspace, class Order>
  requires NormalisesRows<Config>
struct NormResults {
  using Ranks = Topology<Config>;
  using Shape = gemm::TileShape<Config>;
  using Tile = gemm::Tile;
  using ElementC = typename Config::ElementC;
  using Norm = RmsNorm<Config, ElementC>;

  static constexpr bool kExist = true;
  static constexpr bool kOnPeers = false;
  static constexpr u32 kSubTiles = gemm::kGroups * Shape::kSubTiles;  // counts of a flag per tile and call
  static constexpr u32 kReceivers = Order::kSharesResults ? Ranks::kLocalWorld : 1;
  static_assert(Ranks::kNodes == 1, "squares travel over NVLink");

  // ---- the owner: warps that multiply, and store threads

  // A converged warp: sends the squares of its rows of a sub-tile of z, which it rounds as the output buffer does.
  static MK_DEVICE void send_squares(const RankContext& ctx, const Tile& tile, u32 group, u32 sub,
                                      Accumulator<gemm::kSubTile, float*> z) {
    float squares[2] = {0.0f, 0.0f};
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
#pragma unroll
      for (u32 block = 0; block < gemm::kSubTile / Fragment::kBlockCols; block += 2) {
        const float *left = z.pair(half, block * Fragment::kBlockCols);
        const float *right = z.pair(half, (block + 1) * Fragment::kBlockCols);
        squares[half] += squares_of_pair<ElementC>(ElementC::pack(left[0], left[1])) +
                         squares_of_pair<ElementC>(ElementC::pack(right[0], right[1]));  // as LaneElements adds them
      }
      squares[half] = quad_sum(squares[half]);
    }
    // The first two lanes of a quad store its two rows, so that a warp stores neighbouring words.
    const u32 half = lane_index() % Fragment::kRowLanes;
    if (half >= 2) return;
    const Symmetric<float> slot = Workspace::tile_squares(ctx.parity(), number(tile), group, sub);
    const u32 row = Fragment::row() + half * Fragment::kHalfRows;
#pragma unroll 1
    for (u32 i = 0; i < kReceivers; ++i) {
      float* there = ctx.peer_ptr(receiver(ctx, i), slot);
      store_word(reinterpret_cast<u8*>(there + row), as_bits(half == 0 ? squares[0] : squares[1]));  // @norm-results.squares
    }
  }

  // One thread: stores a piece from an output buffer to its slots.
  static MK_DEVICE void send(const RankContext& ctx, const Tile& tile, u32 group, u32 piece, u32 buffer, u32 bytes) {
    const Symmetric<u8> slot = Workspace::results(ctx.parity(), number(tile), group, piece);  // @norm-results.sent-slot
    for (u32 i = 0; i < kReceivers; ++i) tma_store_bytes(ctx.peer_ptr(receiver(ctx, i), slot), buffer, bytes);
  }

  // One thread, after finish_stores: counts `sub_tiles` of a tile, whose squares the warps that multiply have sent before.
  static MK_DEVICE void count(const RankContext& ctx, const Tile& tile, u32 sub_tiles) {
    for (u32 i = 0; i < kReceivers; ++i) {
      add_relaxed_sys(ctx.peer_ptr(receiver(ctx, i), Workspace::result_ready(number(tile))), sub_tiles);
    }
  }

  // All threads of the grid: count the tiles that the call does not have, since every call must advance every counter of this
  // rank by the same number as every other call.
  static MK_DEVICE void count_unused(const RankContext& ctx) {
    const u32 tiles = Order::tiles_of_rank(ctx);
    for_each_in_grid<Config::kThreads>(Config::kRowTiles * Config::kColTiles - tiles, [&](u32 i) {
      add_relaxed_sys(ctx.local_ptr(Workspace::result_ready(tiles + i)), kSubTiles);  // @norm-results.unused
    });
  }

  template <class Args>
  static MK_DEVICE void put_all(const Args&, const RankContext&) {}

  // ---- all ranks that have the rows

  // A warp, number `worker` of `workers` that collect: normalises all rows but the last ones.
  template <class Args>
  static MK_DEVICE void collect(const Args& args, const RankContext& ctx, u32 worker, u32 workers) {
    for (u32 row = worker; row < first_of_last_rows(ctx); row += workers) normalise(args, ctx, row);
  }

  // A warp, number `worker` of `workers` that have multiplied: normalises the last rows.
  template <class Args>
  static MK_DEVICE void collect_last(const Args& args, const RankContext& ctx, u32 worker, u32 workers) {
    const u32 first = first_of_last_rows(ctx);
    for (u32 row = first + worker; row < Order::rows_of_rank(ctx); row += workers) normalise(args, ctx, row);
  }

 private:
  static constexpr u32 kSubTilesOfTile = Config::kTileN / gemm::kSubTile;  // of a row
  static constexpr u32 kSubTilesOfRow = Config::kColTiles * kSubTilesOfTile;
  static constexpr u32 kRowVecs = Config::kN / ElementC::kPerVec;
  static constexpr u32 kLineVecs = kLineBytes / kVecBytes;

  static MK_DEVICE u32 number(const Tile& tile) { return tile.row * Config::kColTiles + tile.col; }
  static MK_DEVICE u32 receiver(const RankContext& ctx, u32 distance) {
    return (ctx.local_rank() + distance) % Ranks::kLocalWorld;
  }

  // Row tiles that advance together are complete at the same time: those after this row at the end of the call.
  static MK_DEVICE u32 first_of_last_rows(const RankContext& ctx) {
    const u32 tiles = Order::row_tiles(ctx);
    if (tiles < Config::kRasterRows) return 0;
    return (tiles - Config::kRasterRows) / Config::kRasterRows * Config::kRasterRows * Config::kTileM;
  }

  // A row of a sub-tile, number `sub` of those of a row of C.
  struct Line {
    u32 tile, group, sub;

    static MK_DEVICE Line of(u32 row, u32 sub) {
      const u32 tile = row / Config::kTileM * Config::kColTiles + sub / kSubTilesOfTile, in_tile = sub % kSubTilesOfTile;
      if constexpr (Shape::kSplitsRows) return {tile, row % Config::kTileM / gemm::kSubTile, in_tile};
      else return {tile, in_tile / Shape::kSubTiles, in_tile % Shape::kSubTiles};
    }
  };

  template <class Args>
  static MK_DEVICE void normalise(const Args& args, const RankContext& ctx, u32 row) {
    constexpr u32 kUnroll = Config::kCollectUnroll;
    wait_row(ctx, row);
    const float scale = Norm::scale(squares_of_row(ctx, row), kRowVecs);
    u8 *c = args.c_rows + row * args.c_row_bytes, *y = args.y + row * args.y_row_bytes;
    for (u32 first = lane_index(); first < kRowVecs; first += kWarp * kUnroll) {
      Vec16 z[kUnroll];
#pragma unroll
      for (u32 u = 0; u < kUnroll; ++u) {
        if (first + u * kWarp < kRowVecs) z[u] = load_written_vec16(place(ctx, row, first + u * kWarp));
      }
#pragma unroll
      for (u32 u = 0; u < kUnroll; ++u) {
        const u32 byte = (first + u * kWarp) * kVecBytes;
        if (first + u * kWarp >= kRowVecs) continue;
        store_vec16(c + byte, z[u]);
        store_vec16(y + byte, Norm::scaled(z[u], scale, load_vec16(args.weight + byte)));
      }
    }
  }

  // A warp: waits until all tiles of a row are here.
  static MK_DEVICE void wait_row(const RankContext& ctx, u32 row) {
    for (u32 col = lane_index(); col < Config::kColTiles; col += kWarp) {
      const Tile tile = Order::tile_at(row / Config::kTileM, col, ctx);
      wait_flag(ctx, ctx.local_ptr(Workspace::result_ready(number(tile))),  // @norm-results.wait
                WaitSite{mk::kCollect, kResult, Order::rank_of(tile), tile.index, ctx.epoch * kSubTiles});
    }
    __syncwarp();  // @norm-results.warp
  }

  // A warp: adds the squares of a row in the order in which RowNorm adds them.
  static MK_DEVICE float squares_of_row(const RankContext& ctx, u32 row) {
    float sum = 0.0f;
    for (u32 sub = 2 * lane_index(); sub < kSubTilesOfRow; sub += 2 * kWarp) {
      sum += squares_of_line(ctx, row, sub) + (sub + 1 < kSubTilesOfRow ? squares_of_line(ctx, row, sub + 1) : 0.0f);
    }
    __syncwarp();
    return warp_sum(sum);
  }
  static MK_DEVICE float squares_of_line(const RankContext& ctx, u32 row, u32 sub) {
    const Line line = Line::of(row, sub);
    const float* squares = ctx.local_ptr(Workspace::tile_squares(ctx.parity(), line.tile, line.group, line.sub));
    return as_float(load_written_word(reinterpret_cast<const u8*>(squares + row % gemm::kSubTile)));
  }

  // The address of a vector of a row, in TMA's swizzle.
  static MK_DEVICE const u8* place(const RankContext& ctx, u32 row, u32 vec) {
    const Line line = Line::of(row, vec / kLineVecs);
    const u8* piece = ctx.local_ptr(Workspace::results(ctx.parity(), line.tile, line.group, line.sub));
    const u32 in_piece = row % gemm::kSubTile;
    return piece + in_piece * kLineBytes + (vec % kLineVecs ^ in_piece % kLineVecs) * kVecBytes;  // @norm-results.swizzle
  }
};

}  // namespace mk::comm
