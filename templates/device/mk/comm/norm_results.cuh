// Results whose rows are normalised: rows of z become rows of C and of its norm, Y.
//
// A norm needs a whole row, whose tiles may have several owners. The owner of a tile sends z to a slot of the workspace of every
// rank that needs the rows, its own included, and beside it the sum of the squares of each row of a sub-tile. A flag per tile counts
// the sub-tiles that have arrived. A warp that finds all tiles of a row adds up the squares and takes the row from the slots to C
// and to Y, so that every element travels once and is read once.
//
// The warps that collect results take a row after the other. The warps that multiply join them when they have multiplied: the last
// rows are complete only then.
#pragma once
#include <mk/comm/results.cuh>
#include <mk/norm.cuh>

namespace mk::comm {

template <class Workspace>
concept NormResultsWorkspace = ResultsWorkspace<Workspace> && requires(u32 parity, u32 tile, u32 group, u32 piece) {
  Workspace::results(parity, tile, group, piece);
  Workspace::tile_squares(parity, tile, group, piece);  // of each row of a sub-tile
  Workspace::rows_taken(parity);                        // rows that warps of this rank have taken
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
  static constexpr u32 kSubTiles = kGroups * Shape::kSubTiles;  // counts of a flag per tile and call
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
      store_word(reinterpret_cast<u8*>(there + row), as_bits(half == 0 ? squares[0] : squares[1]));
    }
  }

  // One thread: stores a piece from an output buffer to its slots.
  static MK_DEVICE void send(const RankContext& ctx, const Tile& tile, u32 group, u32 piece, u32 buffer, u32 bytes) {
    const Symmetric<u8> slot = Workspace::results(ctx.parity(), number(tile), group, piece);
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
      add_relaxed_sys(ctx.local_ptr(Workspace::result_ready(tiles + i)), kSubTiles);
    });
  }

  template <class Args>
  static MK_DEVICE void put_all(const Args&, const RankContext&) {}

  // ---- all ranks that have the rows

  // A warp: normalises rows that no other warp of this rank has taken. `kUnroll`: the vectors of a row that a lane loads at once.
  template <u32 kUnroll, class Args>
  static MK_DEVICE void collect(const Args& args, const RankContext& ctx) {
    for (u32 row = take(ctx); row < Order::rows_of_rank(ctx); row = take(ctx)) normalise<kUnroll>(args, ctx, row);
  }

  // All threads of the grid, at the end: one resets the number of rows that the next call has taken.
  static MK_DEVICE void reset(const RankContext& ctx) {
    if (blockIdx.x == 0 && threadIdx.x == 0) store(ctx.local_ptr(Workspace::rows_taken(ctx.parity() ^ 1)), 0);
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

  // A row of a sub-tile, number `sub` of those of a row of C.
  struct Line {
    u32 tile, group, sub;

    static MK_DEVICE Line of(u32 row, u32 sub) {
      const u32 tile = row / Config::kTileM * Config::kColTiles + sub / kSubTilesOfTile, in_tile = sub % kSubTilesOfTile;
      if constexpr (Shape::kSplitsRows) return {tile, row % Config::kTileM / gemm::kSubTile, in_tile};
      else return {tile, in_tile / Shape::kSubTiles, in_tile % Shape::kSubTiles};
    }
  };

  // A warp: takes the next row of this rank.
  static MK_DEVICE u32 take(const RankContext& ctx) {
    u32 row = 0;
    if (lane_index() == 0) row = fetch_add_relaxed_gpu(ctx.local_ptr(Workspace::rows_taken(ctx.parity())), 1);
    return broadcast(row, 0);
  }

  template <u32 kUnroll, class Args>
  static MK_DEVICE void normalise(const Args& args, const RankContext& ctx, u32 row) {
    wait_row(ctx, row);
    u8 *c = args.c_rows + row * args.c_row_bytes, *y = args.y + row * args.y_row_bytes;
    Vec16 z[kUnroll];
    const auto load = [&](u32 first) {
#pragma unroll
      for (u32 u = 0; u < kUnroll; ++u) {
        if (first + u * kWarp < kRowVecs) z[u] = load_written_vec16(place(ctx, row, first + u * kWarp));
      }
    };
    load(lane_index());  // beside the loads of squares
    const float scale = Norm::scale(squares_of_row(ctx, row), kRowVecs);
    for (u32 first = lane_index(); first < kRowVecs; first += kWarp * kUnroll) {
#pragma unroll
      for (u32 u = 0; u < kUnroll; ++u) {
        const u32 byte = (first + u * kWarp) * kVecBytes;
        if (first + u * kWarp >= kRowVecs) continue;
        store_vec16(c + byte, z[u]);
        store_vec16(y + byte, Norm::scaled(z[u], scale, load_vec16(args.weight + byte)));
      }
      load(first + kWarp * kUnroll);
    }
  }

  // A warp: waits until all tiles of a row are here.
  static MK_DEVICE void wait_row(const RankContext& ctx, u32 row) {
    for (u32 col = lane_index(); col < Config::kColTiles; col += kWarp) {
      const Tile tile = Order::tile_at(row / Config::kTileM, col, ctx);
      wait_flag(ctx, ctx.local_ptr(Workspace::result_ready(number(tile))),
                WaitSite{mk::kCollect, kResult, Order::rank_of(tile), tile.index, ctx.epoch * kSubTiles});
    }
    __syncwarp();
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
    return piece + in_piece * kLineBytes + (vec % kLineVecs ^ in_piece % kLineVecs) * kVecBytes;
  }
};

}  // namespace mk::comm
