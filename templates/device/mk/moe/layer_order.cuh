// The order of the tiles of a layer of experts, which has two products: up, whose results are the hidden rows, and down.
//
// A tile of down needs all hidden rows of its row tile. It comes behind the last tile of up of its expert and, as long as tiles
// of up are left, at least two tiles of up for each CTA later, so that CTAs seldom wait. All CTAs run and take tiles in this order,
// and a tile waits only for tiles before it and for tokens of other ranks, which wait for no tile. So CTAs do not wait for each
// other in a circle.
//
// Tiles of up and of down are mixed evenly, so that results leave for other ranks at an even rate.
#pragma once
#include <mk/moe/tile_scheduler.cuh>

namespace mk::moe {

// Tiles of a layer in one numbering: a row tile has kUpTiles tiles of up, and behind them kDownTiles tiles of down. `col` of an
// ExpertTile counts both.
template <ExpertConfig Config, class Workspace, TileSmem Smem, u32 kUpTiles, u32 kDownTiles>
struct LayerOrder {
  static constexpr bool kDividesTiles = false;
  static constexpr u32 kColTiles = kUpTiles + kDownTiles;
  static_assert(kColTiles < 1 << 16, "the column of a tile is half a word");

  using Tiles = TilesOfExpert<Config, Workspace, Smem>;

  // A block of the order: the tiles of up of one expert, and the tiles of down of experts [down, down_end), evenly mixed. `begin`
  // is the position of the block's first tile. If up == kLocalExperts, the block has no tiles of up.
  u32 begin = 0, up = 0, down = 0, down_end = 0;

  // Returns the work at position `index`, which is not below that of an earlier call.
  MK_DEVICE ExpertTile work_at(const RankContext& ctx, const Smem& smem, u32 index) {
    if (index >= load_shared(smem.tile_begin(Config::kLocalExperts))) return ExpertTile{};
    for (;;) {
      const u32 ups = up == Config::kLocalExperts ? 0 : row_tiles(smem, up, up + 1) * kUpTiles;
      const u32 downs = row_tiles(smem, down, down_end) * kDownTiles, within = index - begin;
      if (within < ups + downs) return tile_in_block(ctx, smem, within, ups, downs);
      next_block(smem, ups + downs);
    }
  }

 private:
  static MK_DEVICE u32 row_tiles(const Smem& smem, u32 first, u32 end) {
    return (load_shared(smem.tile_begin(end)) - load_shared(smem.tile_begin(first))) / kColTiles;
  }

  // Begins the next block behind a block of `tiles` tiles. Its tiles of down are those of experts whose hidden rows are probably
  // complete when the block begins.
  MK_DEVICE void next_block(const Smem& smem, u32 tiles) {
    begin += tiles;
    down = down_end;
    if (up < Config::kLocalExperts) ++up;
    // A CTA computes one tile and has taken another.
    const u32 lag = 2 * gridDim.x;
    const bool is_last = up == Config::kLocalExperts;
    while (down_end < up && (is_last || row_tiles(smem, down_end + 1, up) * kUpTiles >= lag)) ++down_end;
  }

  // Tile `within` of the block. Of the first i tiles, i · downs / (ups + downs) are tiles of down.
  MK_DEVICE ExpertTile tile_in_block(const RankContext& ctx, const Smem& smem, u32 within, u32 ups, u32 downs) const {
    const u32 before = downs_before(within, ups, downs);
    if (downs_before(within + 1, ups, downs) == before) {
      return Tiles::template at<kUpTiles>(ctx, smem, up, within - before);
    }
    u32 expert = down, i = before;
    for (; i >= row_tiles(smem, expert, expert + 1) * kDownTiles; ++expert) i -= row_tiles(smem, expert, expert + 1) * kDownTiles;
    ExpertTile tile = Tiles::template at<kDownTiles>(ctx, smem, expert, i);
    tile.col += kUpTiles;
    return tile;
  }
  static MK_DEVICE u32 downs_before(u32 tiles, u32 ups, u32 downs) {
    return static_cast<u32>(u64{tiles} * downs / (ups + downs));
  }
};

}  // namespace mk::moe
