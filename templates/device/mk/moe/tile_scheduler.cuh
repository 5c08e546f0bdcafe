// Which tile of which expert a CTA computes next.
//
// How many rows an expert has is known only in the call, and so is how long a CTA waits for rows. So each CTA takes a
// tile when it is about to have none left: one thread takes them from a counter and passes them on to all warps.
#pragma once
#include <mk/moe/experts.cuh>
#include <mk/moe/tables.cuh>
#include <mk/moe/tile_shape.cuh>
#include <mk/pipeline.cuh>
#include <mk/schedule/tile_counter.cuh>

namespace mk::moe {

// A tile of an expert's rows, from `row` on, and of its columns. Without rows if there is none left.
struct ExpertTile {
  u32 expert, row, rows, col;
};

constexpr u32 kTileBuffers = 2;  // a tile is taken while the last one is computed

template <class Smem>
concept TileSmem = RowTables<Smem> && requires(const Smem smem, u32 buffer) {
  smem.taken_tile(buffer);  // an ExpertTile
  smem.tile_full(buffer);
  smem.tile_empty(buffer);
};

template <ExpertConfig Config, schedule::TileCounterWorkspace Workspace, TileSmem Smem, class Shape>
struct TileScheduler {
  using Experts = moe::Experts<Config, Workspace>;
  using Counter = schedule::TileCounter<Workspace>;

  static constexpr u32 kWarps = Config::kThreads / kWarp;

  // The thread that takes tiles makes a buffer full, and every warp of the CTA makes it empty.
  using Barriers = PipelineBarriers<kTileBuffers, 1, kWarps>;

  static MK_DEVICE Barriers barriers(const Smem& smem) { return {smem.tile_full(0), smem.tile_empty(0)}; }

  // The loaders' first thread takes tiles; `kReader` reads them.
  template <Role kReader>
  struct Sites {
    static constexpr Role kProducer = kLoad, kConsumer = kReader;
    static constexpr Wait kFull = kStageFull, kEmpty = kStageEmpty;
  };

  // One thread.
  struct Taker {
    const Smem& smem;
    Pipeline<Barriers, Sites<kLoad>> tiles;
    u32 expert = 0;  // of the last tile; experts only grow

    MK_DEVICE Taker(const RankContext& ctx, const Smem& smem) : smem(smem), tiles(ctx, barriers(smem)) {}

    MK_DEVICE void take() {
      const ExpertTile tile = tile_at(tiles.ctx, smem, Counter::take(tiles.ctx), expert);
      tiles.producer_acquire();  // @tiles.acquire
      store_shared_vec16(smem.taken_tile(tiles.stage()), Vec16{tile.expert, tile.row, tile.rows, tile.col});
      tiles.producer_commit();
    }
  };

  // A warp.
  template <Role kReader>
  struct Reader {
    const Smem& smem;
    Pipeline<Barriers, Sites<kReader>> tiles;

    MK_DEVICE Reader(const RankContext& ctx, const Smem& smem) : smem(smem), tiles(ctx, barriers(smem)) {}

    // False when there is no tile left.
    MK_DEVICE bool next(ExpertTile& tile) {
      wait();  // @tiles.wait
      const Vec16 words = load_shared_vec16(smem.taken_tile(tiles.stage()));
      tile = ExpertTile{words.x, words.y, words.z, words.w};
      __syncwarp();
      tiles.consumer_release_warp();
      return tile.rows > 0;
    }

   private:
    // The loaders wait for the same tiles with a deadline; beside it, warps that multiply would spill registers.
    MK_DEVICE void wait() const {
      if constexpr (kReader == kMultiply) {
        tiles.consumer_wait_watched();
      } else {
        tiles.consumer_wait();
      }
    }
  };

 private:
  // Tile `index`. Experts come in the order in which their rows do. Groups of row tiles advance along the columns
  // together, so that they share weights in L2. `expert`: that of an earlier tile.
  static MK_DEVICE ExpertTile tile_at(const RankContext& ctx, const Smem& smem, u32 index, u32& expert) {
    if (index >= load_shared(smem.tile_begin(Config::kLocalExperts))) return ExpertTile{};
    while (index >= load_shared(smem.tile_begin(expert + 1))) ++expert;
    const u32 within = index - load_shared(smem.tile_begin(expert));
    const u32 rows = load_shared(smem.row_begin(expert + 1)) - load_shared(smem.row_begin(expert));
    const u32 tiles = (rows + Config::kTileM - 1) / Config::kTileM;
    constexpr u32 kPerGroup = Config::kGroupRows * Shape::kColTiles;
    const u32 first = within / kPerGroup * Config::kGroupRows;
    const u32 group = min(Config::kGroupRows, tiles - first), position = first + within % kPerGroup % group;
    const u32 row = row_tile_at(ctx, smem, expert, position, tiles) * Config::kTileM;
    return ExpertTile{expert, row, min(Config::kTileM, rows - row), within % kPerGroup / group};
  }

  // Row tiles of an expert in the order in which their rows arrive: those whose rows are all near, which is on this node,
  // or on one node on this rank; then those of the others, of each of their ranks in turn.
  static MK_DEVICE u32 row_tile_at(const RankContext& ctx, const Smem& smem, u32 expert, u32 position, u32 tiles) {
    if constexpr (Experts::kWorld == 1) {
      return position;
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

}  // namespace mk::moe
