// Results whose rows are normalised: rows of z become rows of C and of its norm, Y.
//
// A norm needs a whole row, whose tiles may have several owners. The owner of a tile stores z to its own C and sends it to a slot
// of the workspace of every other rank that needs the rows. Every rank that needs the rows also gets the sum of the squares of each
// row of a sub-tile. A flag per tile counts the sub-tiles that have arrived. A warp that finds all tiles of a row adds up the
// squares, takes what the slots have of the row to C, and the normalised row to Y: every element travels once and is read once.
//
// The warps that collect results take a row after the other. The warps that multiply join them when they have multiplied: the last
// rows are complete only then.
#pragma once
#include <mk/comm/results.cuh>
#include <mk/quantised_norm.cuh>

namespace mk::comm {

template <class Workspace>
concept NormResultsWorkspace = ResultsWorkspace<Workspace> && requires(u32 parity, u32 tile, u32 group, u32 sub) {
  Workspace::tile_squares(parity, tile, group, sub);  // of each row of a sub-tile
  Workspace::rows_taken(parity);                      // rows that warps of this rank have taken
};

// Args: C by address, and Y. Tiles are numbered by their places in C, since a row needs its tiles and not their owners.
// Workspace: also results(parity, tile, group, piece), if several ranks need the rows.
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

  // One thread: stores a piece from an output buffer to the slots of the other ranks.
  static MK_DEVICE void send(const RankContext& ctx, const Tile& tile, u32 group, u32 piece, u32 buffer, u32 bytes) {
    if constexpr (kReceivers > 1) {
      const Symmetric<u8> slot = Workspace::results(ctx.parity(), number(tile), group, piece);
      for (u32 i = 1; i < kReceivers; ++i) tma_store_bytes(ctx.peer_ptr(receiver(ctx, i), slot), buffer, bytes);
    }
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

  // A warp: normalises rows that no other warp of this rank has taken, one row at a time
  // (`docs/performance.md#rows-to-normalise`).
  template <class Args>
  static MK_DEVICE void collect(const Args& args, const RankContext& ctx) {
    for (u32 row = take(ctx); row < Order::rows_of_rank(ctx); row = take(ctx)) normalise(args, ctx, row);
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
  static constexpr u32 kTileVecs = Config::kTileN / ElementC::kPerVec;  // of a row of a tile

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

  // In a step, a warp takes a vector of a row per lane. Lanes have the same places in the tiles of all steps.
  static constexpr u32 kSteps = kCeilDiv<kRowVecs, kWarp>, kUnroll = Config::kCollectUnroll;
  static constexpr u32 kStepTiles = kWarp / kTileVecs;
  static_assert(kTileVecs <= kWarp && kUnroll * kStepTiles <= kWarp, "a word has a bit for each tile of kUnroll steps");

  // Each lane stores a vector and loads the vector of a later step in its place, so that kUnroll loads are on their way.
  template <class Args>
  static MK_DEVICE void normalise(const Args& args, const RankContext& ctx, u32 row) {
    using Quantised = QuantisedNorm<ElementC, Config, Args>;
    wait_row(ctx, row);
    const u32 in_lane = lane_index() * kVecBytes;
    u8* const c = args.c_rows + row * args.c_row_bytes + in_lane;
    u8* const y = args.y + row * args.y_row_bytes + in_lane;
    const u8* const slots = place(ctx, row);
    const u32 lane_tile = lane_index() / kTileVecs;
    Vec16 z[kUnroll];
    const auto has = [&](u32 step) { return step * kWarp + lane_index() < kRowVecs; };
    const auto is_in_c = [&](u32 owned, u32 u) { return kReceivers == 1 || (owned >> (u * kStepTiles + lane_tile) & 1) != 0; };
    const auto load = [&](u32 owned, u32 step, u32 u) {
      if (!has(step + u)) return;
      const u8* in_c = c + (step + u) * kWarp * kVecBytes;
      z[u] = load_written_vec16(is_in_c(owned, u) ? in_c : slots + (step + u) * kStepBytes);
    };
    [[maybe_unused]] float greatest = 0.0f;  // |z * weight| of the row, and then the greatest magnitude of its norm
    if constexpr (kSharesScale<Config>) {
#pragma unroll 1
      for (u32 step = 0; step < kSteps; ++step) {
        load(owned_tiles(ctx, row, step), step, 0);
        if (has(step)) greatest = Norm::greater(greatest, z[0], load_vec16(args.weight + in_lane + step * kWarp * kVecBytes));
      }
      __syncwarp();
      greatest = warp_max(greatest);
    }
    u32 owned = owned_tiles(ctx, row, 0);
#pragma unroll
    for (u32 u = 0; u < kUnroll; ++u) load(owned, 0, u);
    const float scale = Norm::scale(squares_of_row(ctx, row), kRowVecs);
    if constexpr (kSharesScale<Config>) greatest = Quantised::magnitude(greatest, scale);
#pragma unroll 1
    for (u32 step = 0; step < kSteps; step += kUnroll) {
      const u32 owned_now = owned;
      owned = owned_tiles(ctx, row, step + kUnroll);
#pragma unroll
      for (u32 u = 0; u < kUnroll; ++u) {
        const u32 byte = (step + u) * kWarp * kVecBytes;
        if constexpr (QuantisesRows<Config>) {
          Vec16 normalised[1];
          if (has(step + u)) {
            if (!is_in_c(owned_now, u)) store_vec16(c + byte, z[u]);
            normalised[0] = Norm::scaled(z[u], scale, load_vec16(args.weight + in_lane + byte));
          }
          __syncwarp();
          Quantised::store_vecs(args, row, (step + u) * kWarp + lane_index(), normalised, greatest);
        } else {
          if (!has(step + u)) continue;
          if (!is_in_c(owned_now, u)) store_vec16(c + byte, z[u]);
          store_vec16(y + byte, Norm::scaled(z[u], scale, load_vec16(args.weight + in_lane + byte)));
        }
        load(owned, step + kUnroll, u);
      }
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

  // A warp: a bit for each tile of kUnroll steps from `step` on, whether this rank owns the tile.
  static MK_DEVICE u32 owned_tiles(const RankContext& ctx, u32 row, u32 step) {
    if constexpr (kReceivers == 1) return ~0u;
    const u32 col = step * kStepTiles + lane_index();
    const bool is_own = col < Config::kColTiles && Order::rank_of(Order::tile_at(row / Config::kTileM, col, ctx)) == ctx.rank;
    return sum_of_warp(u32{is_own} << lane_index());
  }

  // The place in slots of this lane's vector of a row in the first step, in TMA's swizzle.
  static constexpr u32 kStepBytes = kStepTiles * kSubTiles * gemm::kSubTileBytes;
  static MK_DEVICE const u8* place(const RankContext& ctx, u32 row) {
    if constexpr (kReceivers == 1) return nullptr;  // this rank owns all tiles
    else {
      const u32 vec = min(lane_index(), kRowVecs - 1);  // lanes beyond a short row load nothing
      const Line line = Line::of(row, vec / kLineVecs);
      const u8* piece = ctx.local_ptr(Workspace::results(ctx.parity(), line.tile, line.group, line.sub));
      const u32 in_piece = row % gemm::kSubTile;
      return piece + in_piece * kLineBytes + (vec % kLineVecs ^ in_piece % kLineVecs) * kVecBytes;
    }
  }
};

}  // namespace mk::comm
