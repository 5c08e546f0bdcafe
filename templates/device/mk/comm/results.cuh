// Results: the rank that reduces a tile sends the result to all other ranks.
//
// A slot of the workspace holds one tile of C in the layout of output buffers, which is pieces of 64 rows of 128 bytes
// in TMA's swizzle. The owner stores each piece to its own C and to the slot on every other rank of its node. A flag
// per tile counts the sub-tiles that have arrived. On these ranks, a warp of every CTA copies the pieces to C in the
// order in which they arrive.
//
// Across nodes, the owner also keeps the tile in its own slot. The tile is put from there to the peers, which forward
// it to the ranks of their nodes.
#pragma once
#include <mk/comm/node_sums.cuh>
#include <mk/comm/staged_copy.cuh>
#include <mk/gemm/store.cuh>

namespace mk::comm {

// The policy of an operator whose results stay on the ranks that reduce them.
struct NoResults {
  static constexpr bool kExist = false;
  static constexpr bool kOnPeers = false;

  static MK_DEVICE void send(const RankContext&, const gemm::Tile&, u32, u32, u32, u32) {}
  static MK_DEVICE void count(const RankContext&, const gemm::Tile&, u32) {}
  static MK_DEVICE void count_unused(const RankContext&) {}
  template <class Args>
  static MK_DEVICE void put_all(const Args&, const RankContext&) {}
};

template <class Config>
concept ResultsConfig = RowsConfig<Config> && gemm::OutputConfig<Config> && requires {
  Config::kN;
  Config::kShardTiles;  // tiles that a rank owns; with rows at run time, the most tiles that a rank may own
  Config::kOwners;      // ranks of a node that own tiles; with rows at run time, the most ranks that may own tiles
};

template <class Workspace>
concept ResultsWorkspace = requires(u32 tile) {
  Workspace::result_ready(tile);  // the sub-tiles that have arrived, over all calls
};

// The flags of results, for results in the workspace and for results that owners store to C.
template <ResultsConfig Config, ResultsWorkspace Workspace, class Order>
struct ResultFlags {
  using Ranks = Topology<Config>;
  using Shape = gemm::TileShape<Config>;
  using Tile = gemm::Tile;

  static constexpr u32 kSubTiles = kGroups * Shape::kSubTiles;  // counts of a flag per tile and call

  // One thread, after finish_stores: counts `sub_tiles` of a tile on the flags of the other ranks of this node.
  static MK_DEVICE void count(const RankContext& ctx, const Tile& tile, u32 sub_tiles) {
    for (u32 i = 1; i < Ranks::kLocalWorld; ++i) {
      add_relaxed_sys(ctx.peer_ptr(peer_at(ctx, i), Workspace::result_ready(number(tile, ctx))), sub_tiles);
      trace_flag(ctx.trace, kResult, ctx.node_first_rank + peer_at(ctx, i), tile.index);
    }
  }

  // All threads of the grid: count the tiles that the call does not have, since all calls must advance a counter by
  // equal numbers. The missing tiles are this rank's own tiles, counted on the other ranks of this node, and the tiles
  // that this rank would forward, counted on all ranks of this node.
  static MK_DEVICE void count_unused(const RankContext& ctx) {
    if constexpr (Config::kOwners < Ranks::kLocalWorld) {
      if (ctx.local_rank() >= Config::kOwners) return;  // this rank owns no tile in any call, so it has no flags
    }
    const u32 shard_tiles = Order::shard_tiles(ctx), owners = Order::owners(ctx);
    for_each_in_grid<Config::kThreads>(Ranks::kNodes * Config::kShardTiles, [&](u32 i) {
      const u32 node = i / Config::kShardTiles, index = i % Config::kShardTiles;
      const u32 owner = node * Ranks::kLocalWorld + ctx.local_rank();
      const bool is_own = owner == ctx.rank;
      if (ctx.local_rank() < owners && index < shard_tiles && !Order::is_gap(Order::tile_of_rank(owner, index, ctx))) return;
      const Symmetric<u32> ready = Workspace::result_ready(owner * Config::kShardTiles + index);
      for (u32 distance = is_own ? 1 : 0; distance < Ranks::kLocalWorld; ++distance) {
        add_relaxed_sys(ctx.peer_ptr(peer_at(ctx, distance), ready), kSubTiles);
      }
    });
  }

  // The tiles of other owners, one of each owner in turn.
  struct Others {
    u32 owners, ranks, tiles;  // ranks that own tiles, the same ranks without this rank, and their tiles

    static MK_DEVICE Others of(const RankContext& ctx) {
      const u32 owners = Ranks::kNodes * Order::owners(ctx);
      const bool is_idle = owners < Ranks::kWorld && ctx.rank >= owners;
      const u32 others = is_idle ? owners : owners - 1;
      return {owners, others, owners == 0 ? 0 : others * Order::shard_tiles(ctx)};
    }
    MK_DEVICE Tile tile(u32 turn, const RankContext& ctx) const {
      const Divisor<Config, Ranks::kWorld - 1> in_turn{ranks};
      const Divisor<Config, Ranks::kWorld> all_owners{owners};
      const u32 owner = all_owners.remainder(ctx.rank + 1 + in_turn.remainder(turn));
      return Order::tile_of_rank(owner, in_turn.quotient(turn), ctx);
    }
  };

  // One thread: waits until a whole tile has arrived here.
  static MK_DEVICE void wait(const RankContext& ctx, const Tile& tile) {
    wait_flag(ctx, ctx.local_ptr(Workspace::result_ready(number(tile, ctx))),
              WaitSite{mk::kCollect, kResult, Order::rank_of(tile), tile.index, ctx.epoch * kSubTiles});
  }

  // The number of a tile among the tiles of all owners.
  static MK_DEVICE u32 number(const Tile& tile, const RankContext& ctx) {
    return Order::rank_of(tile) * Config::kShardTiles + Order::own_index(tile, ctx);
  }

  static MK_DEVICE u32 peer_at(const RankContext& ctx, u32 distance) {
    return (ctx.local_rank() + distance) % Ranks::kLocalWorld;
  }
};

// Args: C by address.
template <class Args>
concept ResultsArgs = requires(const Args& args) {
  args.c_rows;
  args.c_row_bytes;
};

// Workspace: also results(parity, tile, group, piece).
// Config: also kCollectUnroll, the 16-byte loads that a thread has in flight.
template <ResultsConfig Config, ResultsWorkspace Workspace, class Order>
struct Results : ResultFlags<Config, Workspace, Order> {
  using Flags = ResultFlags<Config, Workspace, Order>;
  using Ranks = Topology<Config>;
  using Shape = gemm::TileShape<Config>;
  using Tile = gemm::Tile;
  using Flags::kSubTiles;
  using Flags::number;
  using Flags::peer_at;
  using Network = comm::Network<Config, Workspace>;
  using NodeSums = comm::NodeSums<Config, Workspace, Order>;
  using Begin = comm::Begin<Config, Workspace>;
  using ElementC = typename Config::ElementC;

  static constexpr bool kExist = true;
  static constexpr bool kOnPeers = false;
  static constexpr u32 kPieceCols = ElementC::kPerLine;
  static constexpr u32 kPiecesPerSubTile = gemm::kSubTile / kPieceCols;
  static constexpr u32 kPieces = Shape::kSubTiles * kPiecesPerSubTile;  // pieces of a group
  using Slots = PutSlots<Config, Order, kPieces>;

  // ---- the owner: store threads and, across nodes, the thread that puts

  // One thread: stores a piece from an output buffer to the slots of the other ranks of this node.
  static MK_DEVICE void send(const RankContext& ctx, const Tile& tile, u32 group, u32 piece, u32 buffer, u32 bytes) {
    const Symmetric<u8> slot = slot_of(ctx, tile, group, piece);
    // Puts to other nodes read this rank's own slot.
    for (u32 i = Ranks::kNodes > 1 ? 0 : 1; i < Ranks::kLocalWorld; ++i) {
      tma_store_bytes(ctx.peer_ptr(peer_at(ctx, i), slot), buffer, bytes);
    }
  }

  // One thread: puts the results of own tiles to all peers. After an abort, puts nothing more.
  template <class Args>
  static MK_DEVICE void put_all(const Args& args, const RankContext& ctx) {
    const u32 shard_tiles = Order::shard_tiles(ctx);
    Begin::template put<Network>(args, ctx, kChannel);
    for (u32 first = 0; first < shard_tiles; first += Config::kPutTiles) {
      const u32 index = Ranks::kPeerNodes * shard_tiles + first;  // own tiles come last
      const u32 tiles = min(Config::kPutTiles, shard_tiles - first);
      if (!NodeSums::wait_put_ready(ctx, index, tiles)) return;
      const Tile tile = Order::tile_of(ctx.local_rank(), index, ctx);
      const Symmetric<u8> slot = slot_of(ctx, tile, 0, 0);
      Network::put_to_all(args, ctx, kChannel, slot, tiles * Slots::tile_bytes(ctx));
    }
  }

  // ---- the other ranks

  // One thread, number `worker` of `workers`: forwards results that peers on other nodes have put here to the ranks of
  // this node.
  template <u32 kSlotBytes>
  static MK_DEVICE void relay(const RankContext& ctx, StagedCopy copy, u32 worker, u32 workers) {
    for (u32 i = worker; i < Order::shard_tiles(ctx) * Ranks::kPeerNodes; i += workers) {
      const u32 peer = i % Ranks::kPeerNodes, index = i / Ranks::kPeerNodes;
      const Tile tile = Order::tile_of_rank(Network::rank_of_peer(ctx, peer), index, ctx);
      if (Order::is_gap(tile)) continue;
      Network::wait_put(ctx, kPush, kChannel, peer, Begin::kPuts + index / Config::kPutTiles);
      if (is_aborted(ctx)) return;
      const Symmetric<u32> ready = Workspace::result_ready(number(tile, ctx));
      fence_sys();
      add_relaxed_sys(ctx.local_ptr(ready), kSubTiles);
      if constexpr (Ranks::kLocalWorld > 1) {
        const Symmetric<u8> slot = slot_of(ctx, tile, 0, 0);
        fence_proxy_async();  // a NIC has written what TMA reads next
        copy.copy_bytes<kSlotBytes>(ctx.local_ptr(slot), Slots::tile_bytes(ctx), index, [&](const StagedRows& staged) {
          for (u32 distance = 1; distance < Ranks::kLocalWorld; ++distance) {
            u8* there = ctx.peer_ptr(peer_at(ctx, distance), slot);
            tma_store_bytes(there + staged.part, staged.address, staged.bytes);
          }
        });
        copy.finish();
        fence_sys();
        for (u32 distance = 1; distance < Ranks::kLocalWorld; ++distance) {
          add_relaxed_sys(ctx.peer_ptr(peer_at(ctx, distance), ready), kSubTiles);
        }
      }
    }
  }

  // A warp, number `worker` of `workers`: copies pieces of the other owners' results to C.
  template <ResultsArgs Args>
  static MK_DEVICE void collect(const Args& args, const RankContext& ctx, u32 worker, u32 workers) {
    const auto others = Flags::Others::of(ctx);
    for (u32 i = worker; i < others.tiles * kGroups * kPieces; i += workers) {
      const u32 piece = i % kPieces, group = i / kPieces % kGroups, turn = i / (kGroups * kPieces);
      const Tile tile = others.tile(turn, ctx);
      if (Order::is_gap(tile)) continue;
      if (lane_index() == 0) Flags::wait(ctx, tile);
      __syncwarp();
      const TraceStep traced(ctx.trace, kCopyData, mk::kCollect, i);
      copy_piece(args, ctx, ctx.local_ptr(slot_of(ctx, tile, group, piece)),
                 Order::row_in_c(tile) + Shape::group_row(group),
                 Shape::first_col(tile.col, group) + piece * kPieceCols);
    }
  }

 private:
  static constexpr u32 kChannel = 1;  // sums use the other channel

  // The place of a piece of a tile. Across nodes, the slots of an owner follow each other without gaps.
  static MK_DEVICE Symmetric<u8> slot_of(const RankContext& ctx, const Tile& tile, u32 group, u32 piece) {
    if constexpr (Ranks::kNodes == 1) {
      return Workspace::results(ctx.parity(), number(tile, ctx), group, piece);
    } else {
      const Symmetric<u8> first = Workspace::results(ctx.parity(), Order::rank_of(tile) * Config::kShardTiles, 0, 0);
      const Symmetric<u8> slot = Slots::slot(ctx, first, Order::own_index(tile, ctx));
      return {slot.offset + (group * kPieces + piece) * Slots::piece_bytes(ctx)};
    }
  }

  // A warp: copies a piece out of TMA's swizzle to C. Skips rows and columns beyond C. Owners send only the parts of 16
  // rows that C has, so the warp reads no other parts.
  template <class Args>
  static MK_DEVICE void copy_piece(const Args& args, const RankContext& ctx, const u8* from, u32 row, u32 col) {
    constexpr u32 kUnroll = Config::kCollectUnroll;
    static_assert(kWarp * kUnroll * 16 <= kPartBytes, "a warp reads no more than a part at once");
    const u32 rows = CallRows<Config>::all(ctx);
    const u32 bytes = row < rows ? bytes_of_rows(rows - row) : 0;
    for (u32 first = lane_index(); first < bytes / 16; first += kWarp * kUnroll) {
      Vec16 data[kUnroll];
#pragma unroll
      for (u32 u = 0; u < kUnroll; ++u) data[u] = load_written_vec16(from + (first + u * kWarp) * 16);
#pragma unroll
      for (u32 u = 0; u < kUnroll; ++u) {
        const u32 line = first / 8 + u * (kWarp / 8);
        const u32 to_row = row + line, to_col = col + (first % 8 ^ line % 8) * ElementC::kPerVec;
        if (to_row >= rows || to_col >= Config::kN) continue;
        u8* to = args.c_rows + to_row * args.c_row_bytes;
        store_vec16(to + ElementC::bytes(to_col), data[u]);
      }
    }
  }
};

}  // namespace mk::comm
