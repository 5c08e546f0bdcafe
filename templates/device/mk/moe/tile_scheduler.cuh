// The order of the tiles of all experts, and the assignment of tiles and slices of tiles to CTAs.
//
// The number of rows of each expert is known only during the call, and so is the time for which a CTA waits for rows. A
// CTA therefore takes its next tile from a counter when it is about to run out of tiles. One thread takes the tile and
// passes it on to all warps.
#pragma once
#include <mk/moe/experts.cuh>
#include <mk/moe/split_k.cuh>
#include <mk/moe/tables.cuh>
#include <mk/moe/tile_shape.cuh>
#include <mk/pipeline.cuh>
#include <mk/schedule/tile_counter.cuh>

namespace mk::moe {

// A tile of an expert: `rows` rows from row `row` on, and column tile `col`. If no tile is left, it has no rows.
struct ExpertTile {
  u32 expert, row, rows, col;
  KSlice slice;
};

constexpr u32 kTileBuffers = 2;  // the next tile is taken while one is computed

// Whether the results of experts return to their tokens. The Config of such a kernel has kDownBoxCols.
template <class Config>
concept ReturnsRows = requires { Config::kDownBoxCols; };

// Whether warps that multiply keep the buffer of a tile until they have stored the tile. If elements are promoted, such a warp has no
// registers for its tile, and reads the tile and the addresses of scales behind the products. If rows return to their tokens, it
// reads the places of the rows there. A tile is taken while the tile before it is loaded: the buffer of the tile two before it is
// empty then, unless tiles have fewer steps than the pipeline has stages.
template <class Config>
constexpr bool kKeepsTile = Config::ElementA::kIsPromoted || ReturnsRows<Config>;

template <class Smem>
concept TileSmem = RowTables<Smem> && requires(const Smem smem, u32 buffer) {
  smem.taken_tile(buffer);  // an ExpertTile in four words
  smem.tile_full(buffer);
  smem.tile_empty(buffer);
};

// The order of the tiles of an expert. Groups of kGroupRows row tiles advance along the columns together, so that they share
// weights in L2.
template <ExpertConfig Config, class Workspace, TileSmem Smem>
struct TilesOfExpert {
  using Experts = moe::Experts<Config, Workspace>;

  // Returns tile `index` of an expert whose product has `kColTiles` tiles side by side.
  template <u32 kColTiles>
  static MK_DEVICE ExpertTile at(const RankContext& ctx, const Smem& smem, u32 expert, u32 index) {
    const u32 rows = load_shared(smem.row_begin(expert + 1)) - load_shared(smem.row_begin(expert));
    const u32 tiles = (rows + Config::kTileM - 1) / Config::kTileM;
    constexpr u32 kPerGroup = Config::kGroupRows * kColTiles;
    const u32 first = index / kPerGroup * Config::kGroupRows;
    const u32 group = min(Config::kGroupRows, tiles - first), position = first + index % kPerGroup % group;
    const u32 row = row_tile_at(ctx, smem, expert, position, tiles) * Config::kTileM;
    return ExpertTile{expert, row, min(Config::kTileM, rows - row), index % kPerGroup / group, {}};
  }

 private:
  // Returns the row tile at a position of the order of an expert's row tiles.
  //
  // If rows arrive, this is the order in which they are expected. Near rows come from this node, or from this rank if there is one
  // node. The row tiles that have only near rows come first. The other row tiles are divided among the other ranks, and follow one
  // from each rank in turn.
  //
  // If the rows are there before the call, only results travel. The rows of an expert are ordered by rank, and each rank begins with
  // the rows of the next rank: if ranks have equal shares of the rows, they return results to different ranks at any time.
  static MK_DEVICE u32 row_tile_at(const RankContext& ctx, const Smem& smem, u32 expert, u32 position, u32 tiles) {
    if constexpr (Experts::kWorld == 1) {
      return position;
    } else if constexpr (!SourceTables<Smem>) {
      const u32 tile = position + static_cast<u32>(u64{tiles} * (ctx.rank + 1) / Experts::kWorld);
      return tile < tiles ? tile : tile - tiles;
    } else {
      constexpr u32 kNear = Experts::kNodes > 1 ? Experts::kLocalWorld : 1, kOthers = Experts::kWorld - kNear;
      const u32 first = Experts::kNodes > 1 ? ctx.node_first_rank : ctx.rank, last = first + kNear;
      const u32 begin = (load_shared(smem.source_row_begin(expert, first)) + Config::kTileM - 1) / Config::kTileM;
      const u32 end = last == Experts::kWorld ? tiles
                                              : load_shared(smem.source_row_begin(expert, last)) / Config::kTileM;
      const u32 near = begin < end ? end - begin : 0;
      if (position < near) return begin + position;
      const u32 others = tiles - near, i = position - near, turn = i % kOthers;
      const u32 tile = turn * (others / kOthers) + min(turn, others % kOthers) + i / kOthers;
      return tile < begin ? tile : tile + near;
    }
  }
};

// The order of the tiles of one product: whole tiles, and then slices. Experts come in their order, which is the order of
// their rows in C.
template <ExpertConfig Config, class Workspace, TileSmem Smem, class Shape>
  requires SplitConfig<Config>
struct ExpertOrder {
  static constexpr bool kDividesTiles = Config::kMostSplits > 1;
  static_assert(Shape::kColTiles < 1 << 16, "the column of a tile is half a word");

  u32 expert = 0;  // the expert of the last tile, where the search for the next one begins

  // Returns the work at position `index`, which is not below that of an earlier call.
  MK_DEVICE ExpertTile work_at(const RankContext& ctx, const Smem& smem, u32 index) {
    const SplitTiles divided = SplitTiles::of<Config>(load_shared(smem.tile_begin(Config::kLocalExperts)));
    if (divided.splits == 1 || index < divided.first) return tile_at(ctx, smem, index);
    const u32 i = index - divided.first, split_tile = i / divided.splits, split = i % divided.splits;
    ExpertTile tile = tile_at(ctx, smem, divided.first + split_tile);
    tile.slice = KSlice(ctx.parity(), split_tile, split, divided.splits);
    return tile;
  }

 private:
  MK_DEVICE ExpertTile tile_at(const RankContext& ctx, const Smem& smem, u32 index) {
    if (index >= load_shared(smem.tile_begin(Config::kLocalExperts))) return ExpertTile{};
    while (index >= load_shared(smem.tile_begin(expert + 1))) ++expert;
    const u32 within = index - load_shared(smem.tile_begin(expert));
    return TilesOfExpert<Config, Workspace, Smem>::template at<Shape::kColTiles>(ctx, smem, expert, within);
  }
};

template <ExpertConfig Config, schedule::TileCounterWorkspace Workspace, TileSmem Smem, class Order>
struct TileScheduler {
  using Counter = schedule::TileCounter<Workspace>;

  static constexpr u32 kWarps = Config::kThreads / kWarp;
  static constexpr bool kDividesTiles = Order::kDividesTiles;

  // A buffer is full when the thread that takes tiles has written a tile to it, and empty when every warp of the CTA
  // has read it.
  using Barriers = PipelineBarriers<kTileBuffers, 1, kWarps>;

  static MK_DEVICE Barriers barriers(const Smem& smem) { return {smem.tile_full(0), smem.tile_empty(0)}; }

  // The first thread of the load warps takes tiles. Warps of role `kReader` read them.
  template <Role kReader>
  struct Sites {
    static constexpr Role kProducer = kLoad, kConsumer = kReader;
    static constexpr Wait kFull = kStageFull, kEmpty = kStageEmpty;
    static constexpr bool kIsProducerWatched = false, kIsConsumerWatched = false;
  };

  // One thread: takes tiles.
  struct Taker {
    const Smem& smem;
    Pipeline<Barriers, Sites<kLoad>> tiles;
    Order order;

    MK_DEVICE Taker(const RankContext& ctx, const Smem& smem) : smem(smem), tiles(ctx, barriers(smem)) {}

    MK_DEVICE void take() {
      const ExpertTile tile = order.work_at(tiles.ctx, smem, Counter::take(tiles.ctx));
      tiles.producer_acquire();
      const Vec16 words{tile.expert, tile.row, tile.rows << 16 | tile.col, tile.slice.bits};
      store_shared_vec16(smem.taken_tile(tiles.stage()), words);
      tiles.producer_commit();
    }
  };

  // A warp: reads the tiles that were taken. If `kKeeps`, a tile is read until `release`.
  template <Role kReader>
  struct Reader {
    static constexpr bool kKeeps = kReader == kMultiply && kKeepsTile<Config>;

    const Smem& smem;
    Pipeline<Barriers, Sites<kReader>> tiles;

    MK_DEVICE Reader(const RankContext& ctx, const Smem& smem) : smem(smem), tiles(ctx, barriers(smem)) {}

    // Returns false if no tile is left. `sync` makes threads converge: the threads of the warp, or of more warps. It may do nothing in a
    // reader that keeps its tile, since `release` makes the warp converge.
    template <class Sync>
    MK_DEVICE bool next(ExpertTile& tile, const Sync& sync) {
      wait();
      read(tile, tiles.stage());
      sync();
      if constexpr (!kKeeps) tiles.consumer_release_warp();
      else if (tile.rows == 0) release();
      return tile.rows > 0;
    }

    // The buffer of the last tile.
    MK_DEVICE u32 place() const { return kKeeps ? tiles.stage() : tiles.stage() ^ 1; }

    // Reads the last tile again.
    MK_DEVICE void again(ExpertTile& tile) const { read(tile, place()); }

    // Ends the reading of the last tile. The lanes of a warp have read it.
    MK_DEVICE void release() {
      if constexpr (!kKeeps) return;
      __syncwarp();
      tiles.consumer_release_warp();
    }

   private:
    MK_DEVICE void read(ExpertTile& tile, u32 place) const {
      const Vec16 words = load_shared_vec16(smem.taken_tile(place));
      tile = ExpertTile{words.x, words.y, words.z >> 16, words.z & 0xffff, {}};
      if constexpr (kDividesTiles) tile.slice.bits = words.w;
    }

    // The load warps wait for the same tiles as the warps that multiply, with a deadline. A deadline in the warps that
    // multiply would make them spill registers.
    MK_DEVICE void wait() const {
      if constexpr (kReader == kMultiply) {
        tiles.consumer_wait_watched();
      } else {
        tiles.consumer_wait();
      }
    }
  };
};

}  // namespace mk::moe
