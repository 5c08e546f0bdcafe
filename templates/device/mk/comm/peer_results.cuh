// Results that owners store directly to C of the other ranks of a node, which lies at the same place of symmetric
// memory on all ranks.
//
// The owner stores each piece of a tile from an output buffer to C of every rank. The other ranks only wait for the
// tile's flags. C of a rank is in use until the rank begins the call, so a store thread first waits until all ranks
// have begun the call (comm/begin.cuh). A rank computes the tiles that it owns a round later than the tiles of other
// owners, and by then the other ranks have begun.
#pragma once
#include <mk/comm/results.cuh>

namespace mk::comm {

template <ResultsConfig Config, ResultsWorkspace Workspace, class Smem, class Order>
struct PeerResults : ResultFlags<Config, Workspace, Order> {
  using Flags = ResultFlags<Config, Workspace, Order>;
  using Ranks = Topology<Config>;
  using Tile = gemm::Tile;
  using Output = gemm::Output<Config, Smem>;
  using Begin = comm::Begin<Config, Workspace>;
  using Flags::peer_at;

  static constexpr bool kExist = true;
  static constexpr bool kOnPeers = true;
  static_assert(Ranks::kNodes == 1, "ranks of other nodes are not in reach");

  // A thread of a store role, before it stores a tile to the other ranks: returns false if the thread must not store.
  // `has_begun`: whether the thread has already waited for the other ranks.
  static MK_DEVICE bool may_store(const RankContext& ctx, bool& has_begun) {
    if (!has_begun) {
      has_begun = true;
#pragma unroll 1
      for (u32 i = 1; i < Ranks::kLocalWorld; ++i) Begin::wait_for_result(ctx, peer_at(ctx, i), kStore);
      fence_proxy_async();  // orders the other ranks' begin before the stores by TMA
    }
    return !is_aborted(ctx);  // a wait that has failed has raised the abort word
  }

  // One thread: stores a piece from an output buffer to C of the other ranks.
  template <class Args>
  static MK_DEVICE void store(const Args& args, const RankContext& ctx, const Tile& tile, u32 group, u32 piece, u32 buffer) {
#pragma unroll 1  // the store threads have few registers
    for (u32 i = 1; i < Ranks::kLocalWorld; ++i) {
      Output::template store_to_peer<Order>(args, peer_at(ctx, i), buffer, tile, group, piece);
    }
  }

  // A warp: copies the rows of the call from an output buffer to the same places of C on the other ranks. Args: C of
  // these ranks by address.
  template <class Args>
  static MK_DEVICE void copy(const Args& args, const RankContext& ctx, const Tile& tile, u32 group, u32 piece, u32 buffer) {
#pragma unroll 1
    for (u32 i = 1; i < Ranks::kLocalWorld; ++i) {
      u8* there = args.results[peer_at(ctx, i)];
      Output::template copy<Order>(there, args.c_row_bytes, ctx, buffer, tile, group, piece);
    }
  }

  // A warp, number `worker` of `workers`: waits until the other owners' tiles are in C. Each lane waits for some tiles.
  template <class Args>
  static MK_DEVICE void collect(const Args&, const RankContext& ctx, u32 worker, u32 workers) {
    const auto others = Flags::Others::of(ctx);
    for (u32 i = worker * kWarp + lane_index(); i < others.tiles; i += workers * kWarp) {
      const Tile tile = others.tile(i, ctx);
      if (!Order::is_gap(tile)) Flags::wait(ctx, tile);
    }
  }
};

}  // namespace mk::comm
