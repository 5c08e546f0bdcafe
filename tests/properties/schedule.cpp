// Checks the schedule of a kernel, as computed by the kernel's device code. The headers are plain C++, so the compiler of
// the host accepts them. schedules.rs compiles this program once per kernel and runs it.
#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>

#include "kernel.cu"

const mk::sim::Calls* mk_calls = nullptr;  // This program does not call the simulator.

using Scheduler = Kernel::Scheduler;
using Ranks = mk::Topology<Config>;
using Rows = mk::CallRows<Config>;

template <class Order>
static constexpr bool kHasOwners = requires(mk::gemm::Tile tile) { Order::rank_of(tile); };

static u32 call_rows = 0;  // rows of the call, for kernels with rows at run time

static mk::RankContext context(u32 rank) {
  const u32 first = Ranks::kNodes == 1 ? 0 : rank / Ranks::kLocalWorld * Ranks::kLocalWorld;
  mk::RankContext ctx{nullptr, nullptr, nullptr, 0, 1, rank, Ranks::kLocalWorld, 1, first};
  ctx.rows = call_rows;
  return ctx;
}

static int failures = 0;

static void expect(bool holds, const char* what, u32 rank, u32 index) {
  if (holds || ++failures > 10) return;
  std::printf("%u rows, rank %u, work tile %u: %s\n", Rows::all(context(rank)), rank, index, what);
}

// Returns the rank that owns a tile, or 0 for orders without owners.
template <class Order>
static u32 owner_of(const mk::gemm::Tile& tile) {
  if constexpr (kHasOwners<Order>) {
    return Order::rank_of(tile);
  } else {
    return 0;
  }
}

// The position in a rank's order at which each tile is computed, by the tile's owner, row and column.
using Position = std::map<std::tuple<u32, u32, u32>, u32>;

static Position positions(u32 rank) {
  Position at;
  u32 steps = 0;
  for (u32 i = 0; i < Scheduler::end(context(rank)); ++i) {
    const auto work = Scheduler::work_tile(i, context(rank));
    if (Order::is_gap(work)) continue;
    expect(work.row < Order::row_tiles(context(rank)) && work.col < Config::kColTiles, "a tile beyond C", rank, i);
    steps += work.k_end - work.k_begin;
    const bool is_new = at.try_emplace({owner_of<Order>(work), work.row, work.col}, i).second;
    expect(is_new == (Scheduler::is_whole(work) || work.split == 0), "a tile is computed twice", rank, i);
    u32 completed = 0;
    for (u32 sub = 0; sub < Scheduler::kSubTiles; ++sub) {
      completed += Scheduler::completes(work, sub);
      u32 finishers = 0;
      auto other = work;
      for (other.split = 0; other.split < Scheduler::kSplits; ++other.split) {
        finishers += Scheduler::completes(other, sub);
      }
      const bool has_one = Scheduler::is_whole(work) || finishers == 1;
      expect(has_one, "a sub-tile of a shared tile has not one CTA that completes it", rank, i);
    }
    const u32 counted = Scheduler::completes_any(work) ? Scheduler::completed_sub_tiles(work) : 0;
    expect(completed == counted, "a CTA counts other sub-tiles than it completes", rank, i);
    expect(work.k_begin < work.k_end, "a CTA has no slice of K", rank, i);
  }
  expect(steps == at.size() * Config::kKSteps, "slices of K do not add up", rank, 0);
  return at;
}

// Checks that the tiles of all owners are computed, and that the tiles of one owner contain each row of C.
template <class Config, class Order>
static void check_owners(const std::map<u32, Position>& orders) {
  if constexpr (kHasOwners<Order>) {
    for (u32 rank = 0; rank < Ranks::kWorld; ++rank) {
      const u32 owners = Order::owners(context(rank));
      const u32 places = owners * Order::owner_tiles(context(rank));
      const u32 tiles = Order::kHasGaps ? Order::row_tiles(context(rank)) * Config::kColTiles : places;
      expect(orders.at(rank).size() == tiles, "tiles are missing", rank, 0);
      expect(owners <= Config::kOwners, "there are more owners than the plan has", rank, 0);
      expect(Order::shard_tiles(context(rank)) <= Config::kShardTiles, "a rank owns more tiles than the plan has", rank, 0);
      if (context(rank).local_rank() >= owners) continue;
      // The peers of a tile's owner compute their part of the tile no later in their order. So owners cannot wait for each
      // other in a circle. Ranks that own no tiles do not wait.
      for (const auto& [tile, index] : orders.at(rank)) {
        if (Scheduler::work_tile(index, context(rank)).owner != context(rank).local_rank()) continue;
        for (u32 peer = 0; peer < owners; ++peer) {
          const u32 peer_rank = context(rank).node_first_rank + peer;
          const auto theirs = orders.at(peer_rank).find(tile);
          const bool is_in_time = theirs != orders.at(peer_rank).end() && theirs->second <= index;
          expect(is_in_time, "a peer computes its part later", rank, index);
        }
      }
    }
    u32 rows = 0;
    for (const auto& [tile, index] : orders.at(0)) {
      if (std::get<2>(tile) != 0) continue;
      const auto work = Scheduler::work_tile(index, context(0));
      const u32 first = Order::row_in_c(work), end = Order::rows_of_c(work, context(0));
      rows += first < end ? mk::min(Config::kTileM, end - first) : 0;
    }
    expect(rows == Rows::all(context(0)), "rows of C are missing, or are in two tiles", 0, 0);
  } else {
    const u32 tiles = Order::row_tiles(context(0)) * Config::kColTiles;
    for (const auto& [rank, order] : orders) expect(order.size() == tiles, "tiles are missing", rank, 0);
  }
}

// If the epilogue does not check rows, no tile has rows beyond C.
template <class Order>
static void check_rows(u32 rank) {
  for (u32 i = 0; i < Scheduler::end(context(rank)) && !Order::kRaggedRows; ++i) {
    const auto work = Scheduler::work_tile(i, context(rank));
    const bool is_inside = Order::row_in_c(work) + Config::kTileM <= Order::rows_of_c(work, context(rank));
    expect(Order::is_gap(work) || is_inside, "a tile has rows beyond C", rank, i);
  }
}

// CTAs that share a tile wait for each other. So each CTA has at most one shared tile, which is its last tile.
static void check_shared_tiles() {
  if (Scheduler::kSplits == 1) return;
  const u32 tiles = mk::TakesRows<Config> ? Scheduler::split_tiles(context(0))
                                          : (Config::kWorkTiles - Config::kWholeTiles) / Scheduler::kSplits;
  const u32 shared = tiles * Scheduler::kSplits, whole = Scheduler::end(context(0)) - shared;
  expect(shared <= Config::kComputeCtas, "a CTA shares two tiles", 0, shared);
  expect(shared == 0 || whole % Config::kComputeCtas == 0, "a shared tile is not last", 0, 0);
}

// Tiles of the rank's rows come first, unless the raster mixes them with other tiles.
template <class Config, class Order>
static void check_own_rows(u32 rank) {
  if constexpr (requires { Order::kTilesInShards; }) {
    if constexpr (Order::kTilesInShards) {
      if (Order::kShardRowTiles % Config::kRasterRows != 0) return;
      for (u32 i = 0; i < Order::kShardRowTiles * Config::kColTiles; ++i) {
        const auto tile = Order::tile(i, context(rank));
        expect(Order::is_own(tile, context(rank)), "a tile of others comes before own ones", rank, i);
      }
    }
  }
}

// Every row of a shard is sent once, and a piece is in one chunk. All flags of a source reach an equal count, also flags of
// chunks without rows.
template <class Config, class Kernel>
static void check_pieces(u32 rank) {
  if constexpr (requires { typename Kernel::PushShards; }) {
    using Push = typename Kernel::PushShards;
    using Shards = typename Kernel::Shards;
    expect((Config::kKSteps - 1) * Config::kTileK / Config::kSliceCols < Shards::kSlices, "a slice is missing", rank, 0);
    expect(Config::kSliceCols % Config::kTileK == 0 || Shards::kSlices == 1, "a stage has two slices", rank, 0);
    expect(!Kernel::kUsesCopyEngines || Shards::kArrivals == 1, "a copy counts more than once", rank, 0);
    if (Kernel::kUsesCopyEngines) return;
    std::map<std::pair<u32, u32>, u32> rows, counts;  // by slice and row, and by chunk and slice
    const u32 own_rows = Rows::of_rank(context(rank), rank), chunks = Shards::chunks(context(rank));
    expect(chunks <= Shards::kChunks, "there are more chunks than the plan has", rank, 0);
    for (u32 i = 0; i < Push::pieces(context(rank)); ++i) {
      const auto piece = Push::piece_at(context(rank), i);
      expect(piece.chunk < chunks && piece.slice < Shards::kSlices, "a piece has no flag", rank, i);
      ++counts[{piece.chunk, piece.slice}];
      for (u32 row = piece.row; row < own_rows && row < piece.row + Config::kPieceRows; ++row) {
        expect(row / Config::kChunkRows == piece.chunk, "a row has another chunk's flag", rank, i);
        expect(++rows[{piece.slice, row}] == 1, "a row travels twice", rank, i);
      }
    }
    expect(rows.size() == own_rows * Shards::kSlices, "a row does not travel", rank, 0);
    expect(counts.size() == chunks * Shards::kSlices, "a flag counts nothing", rank, 0);
    for (const auto& [flag, count] : counts) expect(count == Shards::kArrivals, "a flag has the wrong count", rank, flag.first);
  }
}

// Every row of A that a tile needs is in place or in `gathered`.
template <class Config, class Order>
static void check_gathered_rows(u32 rank) {
  if constexpr (requires { Order::gathers_own(context(0), 0u); }) {
    const auto ctx = context(rank);
    const u32 first = rank * Rows::of_shard(ctx), end = first + Rows::of_rank(ctx, rank);
    for (u32 i = 0; i < Order::slots(ctx); ++i) {
      const auto tile = Order::tile(i, ctx);
      if (Order::kReadsOwnRows && Order::is_own(tile, ctx)) continue;
      const u32 row = Order::row_in_a(tile, ctx);
      for (u32 own = std::max(row, first); own < std::min(row + Config::kTileM, end); ++own) {
        expect(Order::gathers_own(ctx, own - first), "a tile lacks own rows", rank, i);
      }
    }
  }
}

static void check_call() {
  std::map<u32, Position> orders;
  for (u32 rank = 0; rank < Ranks::kWorld; ++rank) {
    orders[rank] = positions(rank);
    check_rows<Order>(rank);
    check_own_rows<Config, Order>(rank);
    check_gathered_rows<Config, Order>(rank);
    check_pieces<Config, Kernel>(rank);
  }
  check_owners<Config, Order>(orders);
  check_shared_tiles();
}

template <class Config>
static void check_calls() {
  if constexpr (mk::TakesRows<Config>) {
    constexpr u32 kMost = Config::kMaxRows;
    for (const u32 rows : {0u, 1u, 2u, 5u, 64u, 65u, 130u, kMost / 3, kMost / 2, kMost - 1, kMost}) {
      call_rows = std::min(rows, kMost);
      check_call();
    }
  } else {
    check_call();
  }
}

int main() {
  check_calls<Config>();
  return failures != 0;
}
