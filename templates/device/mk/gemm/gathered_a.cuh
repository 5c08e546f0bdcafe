// A whose rows come from all ranks: the order of tiles with the shortest waits for rows, and the loads of rows.
#pragma once
#include <mk/comm/shards.cuh>
#include <mk/gemm/mainloop.cuh>

namespace mk::gemm {

template <class Config>
concept ShardOrderConfig = TileConfig<Config> && RasterConfig<Config> && requires {
  Config::kShardRows;  // rows of A on every rank except perhaps the last ranks
};

// Own rows come first, since they need not arrive. If tiles lie within shards, the tiles of the other ranks follow in
// the order in which their rows arrive: every rank sends its first rows first, and ranks of this node are faster than
// ranks of other nodes. If tiles straddle shards, the order is a raster that begins with the tile that has the first
// own row.
template <ShardOrderConfig Config>
struct ShardOrder : AllRows<Config> {
  using Ranks = Topology<Config>;

  static constexpr u32 kShardRowTiles = Config::kShardRows / Config::kTileM;
  static constexpr bool kTilesInShards =
      Config::kShardRows % Config::kTileM == 0 && kShardRowTiles * Ranks::kWorld == Config::kRowTiles;

  // Whether tiles that have only own rows are read from the caller's operand.
  static constexpr bool kReadsOwnRows = kTilesInShards;
  // Whether a tile with own rows may need row `row` of the own shard in `gathered`.
  static MK_DEVICE bool gathers_own(const RankContext&, u32) { return !kTilesInShards; }

  static MK_DEVICE u32 slots(const RankContext&) { return Config::kRowTiles * Config::kColTiles; }
  static MK_DEVICE Tile tile(u32 index, const RankContext& ctx) {
    const TileCoord coord = raster<Config>(index, Config::kRowTiles);
    return {row_tile(coord.row, ctx), coord.col};
  }
  static MK_DEVICE bool is_gap(const Tile&) { return false; }

  // Whether a tile has this rank's own rows, and its first row among them. Both are for tiles that lie within shards.
  static MK_DEVICE bool is_own(const Tile& tile, const RankContext& ctx) {
    return tile.row / kShardRowTiles == ctx.rank;
  }
  static MK_DEVICE u32 row_in_shard(const Tile& tile, const RankContext&) {
    return tile.row % kShardRowTiles * Config::kTileM;
  }

 private:
  static MK_DEVICE u32 row_tile(u32 position, const RankContext& ctx) {
    if constexpr (!kTilesInShards) {
      return (position + ctx.rank * Config::kShardRows / Config::kTileM) % Config::kRowTiles;
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

// The order for calls that give the rows. Tiles may then straddle shards. A tile counts for the rank that has its first
// row.
template <ShardOrderConfig Config>
struct RowsOrder : AllRows<Config> {
  using Ranks = Topology<Config>;
  using Rows = CallRows<Config>;
  using AllRows<Config>::row_tiles;

  static constexpr bool kReadsOwnRows = true;

  static constexpr u32 kMostSlots = Config::kRowTiles * Config::kColTiles;
  static MK_DEVICE u32 slots(const RankContext& ctx) { return row_tiles(ctx) * Config::kColTiles; }
  static MK_DEVICE Tile tile(u32 index, const RankContext& ctx) {
    const TileCoord coord = raster<Config>(index, row_tiles(ctx));
    return {row_tile(coord.row, ctx), coord.col};
  }
  static MK_DEVICE bool is_gap(const Tile&) { return false; }

  // Whether a tile has only own rows, and its first row among them.
  static MK_DEVICE bool is_own(const Tile& tile, const RankContext& ctx) {
    const u32 first = tile.row * Config::kTileM, own = first_row(ctx.rank, ctx);
    return first >= own && min(first + Config::kTileM, Rows::all(ctx)) <= first_row(ctx.rank + 1, ctx);
  }
  static MK_DEVICE u32 row_in_shard(const Tile& tile, const RankContext& ctx) {
    return tile.row * Config::kTileM - first_row(ctx.rank, ctx);
  }

  // Whether row `row` of the own shard lies in a tile that also has other ranks' rows.
  static MK_DEVICE bool gathers_own(const RankContext& ctx, u32 row) {
    return !is_own(Tile{(first_row(ctx.rank, ctx) + row) / Config::kTileM}, ctx);
  }

 private:
  // The first row of a rank, or the end of all rows if the rank has no rows.
  static MK_DEVICE u32 first_row(u32 rank, const RankContext& ctx) {
    return min(rank * Rows::of_shard(ctx), Rows::all(ctx));
  }
  // The first tile of a rank, and the number of its tiles.
  static MK_DEVICE u32 first_tile(u32 rank, const RankContext& ctx) {
    return ceil_div(first_row(rank, ctx), Config::kTileM);
  }
  static MK_DEVICE u32 tiles_of(u32 rank, const RankContext& ctx) {
    return first_tile(rank + 1, ctx) - first_tile(rank, ctx);
  }

  // The first ranks have a full shard each, with `rounds` or `rounds` + 1 tiles. After the own tiles come rounds, each
  // with a tile of every rank with a full shard: first the rounds of the ranks of this node, then the rounds of the
  // other ranks. The remaining tiles come last, rank by rank.
  static MK_DEVICE u32 row_tile(u32 position, const RankContext& ctx) {
    const u32 own = tiles_of(ctx.rank, ctx);
    if (position < own) return first_tile(ctx.rank, ctx) + position;
    u32 remote = position - own;
    const u32 full = Rows::full_ranks(ctx);
    const u32 rounds = Rows::of_shard(ctx) / Config::kTileM;
    const u32 node = min(ctx.node_first_rank, full), node_end = min(node + Ranks::kLocalWorld, full);
    const u32 near = node_end - node - (ctx.rank < full);
    if (remote < rounds * near) {
      const u32 begin = ctx.rank < full ? ctx.rank + 1 - node : 0;
      const Divisor<Config, Ranks::kLocalWorld - 1> peers{near};
      const Divisor<Config, Ranks::kLocalWorld> of_node{node_end - node};
      const u32 rank = node + of_node.remainder(begin + peers.remainder(remote));
      return first_tile(rank, ctx) + peers.quotient(remote);
    }
    remote -= rounds * near;
    const u32 far = full - (node_end - node);
    if constexpr (Ranks::kNodes > 1) {
      if (remote < rounds * far) {
        const Divisor<Config, Ranks::kPeerNodes * Ranks::kLocalWorld> peers{far};
        const Divisor<Config, Ranks::kWorld> of_all{full};
        const u32 rank = of_all.remainder(node_end + peers.remainder(remote));
        return first_tile(rank, ctx) + peers.quotient(remote);
      }
      remote -= rounds * far;
    }
    u32 rank = ctx.rank;
    for (u32 i = 1; i < Ranks::kWorld; ++i) {
      rank = (rank + 1) % Ranks::kWorld;
      const u32 done = rank < full ? rounds : 0;
      const u32 left = tiles_of(rank, ctx) - done;
      if (remote < left) return first_tile(rank, ctx) + done + remote;
      remote -= left;
    }
    return 0;  // not reached
  }
};

// Args: the tensor maps own_a, if own rows are read in place, and gathered_a.
template <class Config, class Args, class Workspace, class Order>
struct GatheredA {
  using Shards = comm::Shards<Config, Workspace>;

  static constexpr u32 kSliceSteps = kCeilDiv<Config::kSliceCols, Config::kTileK>;
  static constexpr bool kScalesArrive = comm::kSentScales<Config> > 0;

  // Whether a tile has rows of other ranks.
  static MK_DEVICE bool awaits_rows(const WorkTile& work, const RankContext& ctx) {
    if constexpr (Order::kReadsOwnRows) return !Order::is_own(work, ctx);
    else return true;
  }

  static MK_DEVICE void load(const Args& args, const RankContext& ctx, const WorkTile& work, u32 step, u32 to,
                             u32 barrier) {
    const u32 k = step * Config::kTileK, row = Order::row_in_a(work, ctx);
    if constexpr (Order::kReadsOwnRows) {
      if (!awaits_rows(work, ctx)) return tma_load_2d(to, args.own_a, barrier, k, Order::row_in_shard(work, ctx));
    }
    if constexpr (!kScalesArrive) wait(ctx, work, step);
    tma_load_3d(to, args.gathered_a, barrier, k, row, ctx.parity());
  }

  // The load thread, before it arrives on the barrier of a stage: waits for the rows of the stage, and for the scales of
  // these rows, which come with the first slice. Threads read the scales by ordinary loads when the stage is full. The
  // flag has acquired the scales for this thread, whose arrival releases them to the threads that wait on the barrier.
  // With an arrival before the wait, only the bytes of TMA would complete the barrier, and these release nothing that
  // this thread has acquired.
  static MK_DEVICE void wait_with_scales(const RankContext& ctx, const WorkTile& work, u32 step) {
    if (!awaits_rows(work, ctx)) return;
    if (step == work.k_begin && step >= kSliceSteps) wait_slice(ctx, work, 0);
    wait(ctx, work, step);
  }

  // The scales of row `row` of A, which is in this tile.
  static MK_DEVICE const u8* scales(const Args& args, const RankContext& ctx, const WorkTile& work, u32 row) {
    if constexpr (Order::kReadsOwnRows) {
      if (!awaits_rows(work, ctx)) {
        const u32 in_tile = row - Order::row_in_a(work, ctx);
        return comm::scales_of_row(args, Order::row_in_shard(work, ctx) + in_tile);
      }
    }
    return ctx.local_ptr(Workspace::gathered(ctx.parity(), row)) + Config::ElementA::bytes(Config::kK);
  }

 private:
  static MK_DEVICE void wait_slice(const RankContext& ctx, const WorkTile& work, u32 slice) {
    const u32 row = Order::row_in_a(work, ctx);
    const u32 end = min(row + Config::kTileM, CallRows<Config>::all(ctx));
    Shards::wait_rows(ctx, kLoad, row, end, slice);
  }

  // Waits for the rows of a stage that is the first stage of a slice or of the work tile.
  static MK_DEVICE void wait(const RankContext& ctx, const WorkTile& work, u32 step) {
    if (step == work.k_begin || step % kSliceSteps == 0) {
      wait_slice(ctx, work, step / kSliceSteps);
      // Other threads have written the rows by ordinary stores or through a copy engine, and the flag has acquired them
      // for this thread. TMA is another proxy, and may read the rows only after this fence.
      fence_proxy_async();
    }
  }
};

}  // namespace mk::gemm
