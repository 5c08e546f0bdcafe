// A whose rows come from all ranks: the order of tiles that waits least for them, and where the load thread finds them.
#pragma once
#include <mk/comm/shards.cuh>
#include <mk/gemm/mainloop.cuh>

namespace mk::gemm {

template <class Config>
concept ShardOrderConfig = TopologyConfig<Config> && TileConfig<Config> && RasterConfig<Config> && requires {
  Config::kM;
  Config::kShardRows;  // rows of A on every rank but perhaps the last ones
};

// Own rows come first, since they are there. If tiles lie within shards, those of the others follow in turn, as they
// arrive: every rank sends its first rows first, and ranks of this node are faster than others. If tiles straddle shards,
// the order only begins with the tile that has the first own row.
template <ShardOrderConfig Config>
struct ShardOrder {
  using Ranks = Topology<Config>;

  static constexpr bool kRaggedRows = Config::kM % Config::kTileM != 0;

  static constexpr u32 kShardRowTiles = Config::kShardRows / Config::kTileM;
  static constexpr bool kTilesInShards =
      Config::kShardRows % Config::kTileM == 0 && kShardRowTiles * Ranks::kWorld == Config::kRowTiles;

  static MK_DEVICE Tile tile(u32 index, const RankContext& ctx) {
    const TileCoord coord = raster<Config>(index);
    return {row_tile(coord.row, ctx), coord.col};  // @gathered.tile
  }
  static MK_DEVICE bool is_gap(const Tile&) { return false; }

  static MK_DEVICE u32 row_in_a(const Tile& tile) { return tile.row * Config::kTileM; }
  static MK_DEVICE u32 row_in_c(const Tile& tile) { return tile.row * Config::kTileM; }
  static MK_DEVICE u32 rows_of_c(const Tile&) { return Config::kM; }

  // Of tiles that lie within shards: whether a tile's rows are this rank's own, and its first row among them.
  static MK_DEVICE bool is_own(const Tile& tile, const RankContext& ctx) {
    return tile.row / kShardRowTiles == ctx.rank;
  }
  static MK_DEVICE u32 row_in_shard(const Tile& tile) { return tile.row % kShardRowTiles * Config::kTileM; }

 private:
  static MK_DEVICE u32 row_tile(u32 position, const RankContext& ctx) {
    if constexpr (!kTilesInShards) {
      return (position + ctx.rank * Config::kShardRows / Config::kTileM) % Config::kRowTiles;  // @gathered.straddling
    } else {
      constexpr u32 kNear = Ranks::kLocalWorld - 1;              // other ranks of this node
      constexpr u32 kFar = Ranks::kPeerNodes * Ranks::kLocalWorld;  // ranks of other nodes
      if (position < kShardRowTiles) return ctx.rank * kShardRowTiles + position;
      u32 remote = position - kShardRowTiles;
      if constexpr (kNear > 0) {
        if (kFar == 0 || remote < kNear * kShardRowTiles) {
          const u32 local = (ctx.local_rank() + 1 + remote % kNear) % Ranks::kLocalWorld;
          return (ctx.node_first_rank + local) * kShardRowTiles + remote / kNear;
        }
        remote -= kNear * kShardRowTiles;
      }
      if constexpr (kFar > 0) {
        const u32 turn = remote % kFar;
        const u32 node = (ctx.rank / Ranks::kLocalWorld + 1 + turn / Ranks::kLocalWorld) % Ranks::kNodes;
        const u32 local = (ctx.local_rank() + turn) % Ranks::kLocalWorld;
        return (node * Ranks::kLocalWorld + local) * kShardRowTiles + remote / kFar;
      }
    }
  }
};

// Args: the tensor maps own_a, if tiles lie within shards, and gathered_a.
template <class Config, class Args, class Workspace, class Order>
struct GatheredA {
  using Shards = comm::Shards<Config, Workspace>;

  static constexpr u32 kSliceSteps = kCeilDiv<Config::kSliceCols, Config::kTileK>;

  static MK_DEVICE void load(const Args& args, const RankContext& ctx, const WorkTile& work, u32 step, u32 to,
                             u32 barrier) {
    const u32 k = step * Config::kTileK, row = Order::row_in_a(work);
    if constexpr (Order::kTilesInShards) {
      if (Order::is_own(work, ctx)) return tma_load_2d(to, args.own_a, barrier, k, Order::row_in_shard(work));
    }
    if (step == work.k_begin || step % kSliceSteps == 0) {  // @gathered.each-slice
      Shards::wait_rows(ctx, kLoad, row, min(row + Config::kTileM, Config::kM), step / kSliceSteps);  // @gathered.wait-rows
      // Others have written the rows by ordinary stores or through a copy engine, and the flag has acquired them for
      // this thread. The fence lets TMA, which is another proxy, read them after that.
      fence_proxy_async();  // @gathered.proxy-fence
    }
    tma_load_3d(to, args.gathered_a, barrier, k, row, ctx.parity());  // @gathered.load
  }
};

}  // namespace mk::gemm
