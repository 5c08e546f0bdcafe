// The schedule of a kernel, by its own device code: headers are plain C++, so the host's compiler takes them as they are.
// schedules.rs compiles this once per kernel, with -DKERNEL="<kernel>.cu", and runs it.
#include <cstdio>
#include <map>
#include <tuple>

#include KERNEL

const mk::sim::Calls* mk_calls = nullptr;  // nothing here asks the simulator

using Scheduler = Kernel::Scheduler;
using Ranks = mk::Topology<Config>;

template <class Order>
static constexpr bool kHasOwners = mk::gemm::OwnerOrder<Order>;

static mk::RankContext context(u32 rank) {
  const u32 first = Ranks::kNodes == 1 ? 0 : rank / Ranks::kLocalWorld * Ranks::kLocalWorld;
  return {nullptr, nullptr, nullptr, 0, 1, rank, Ranks::kLocalWorld, 1, first};
}

static int failures = 0;

static void expect(bool holds, const char* what, u32 rank, u32 index) {
  if (holds || ++failures > 10) return;
  std::printf("rank %u, work tile %u: %s\n", rank, index, what);
}

// The rank that owns a tile; of orders without owners, one stands for all.
template <class Order>
static u32 owner_of(const mk::gemm::Tile& tile) {
  if constexpr (kHasOwners<Order>) {
    return Order::rank_of(tile);
  } else {
    return 0;
  }
}

// Where in a rank's order each tile is computed, by its owner, row and column.
using Position = std::map<std::tuple<u32, u32, u32>, u32>;

static Position positions(u32 rank) {
  Position at;
  u32 steps = 0;
  for (u32 i = 0; i < Config::kWorkTiles; ++i) {
    const auto work = Scheduler::work_tile(i, context(rank));
    expect(work.row < Config::kRowTiles && work.col < Config::kColTiles, "a tile beyond C", rank, i);
    steps += work.k_end - work.k_begin;
    const bool is_new = at.try_emplace({owner_of<Order>(work), work.row, work.col}, i).second;
    expect(is_new == (Scheduler::is_whole(work) || work.split == 0), "a tile is computed twice", rank, i);
    for (u32 sub = 0; sub < Scheduler::kSubTiles && !Scheduler::is_whole(work); ++sub) {
      u32 finishers = 0;
      auto other = work;
      for (other.split = 0; other.split < Scheduler::kSplits; ++other.split) {
        finishers += Scheduler::completes(other, sub);
      }
      expect(finishers == 1, "a sub-tile of a shared tile has not one CTA that completes it", rank, i);
    }
  }
  expect(steps == at.size() * Config::kKSteps, "slices of K do not add up", rank, 0);
  return at;
}

// Tiles of all owners, and rows of C in the tiles of each.
template <class Order>
static void check_owners(const std::map<u32, Position>& orders) {
  if constexpr (kHasOwners<Order>) {
    for (u32 rank = 0; rank < Ranks::kWorld; ++rank) {
      const u32 tiles = Config::kOwners * Order::kOwnerTiles;
      expect(orders.at(rank).size() == tiles, "tiles are missing", rank, 0);
      if (context(rank).local_rank() >= Config::kOwners) continue;
      // A rank that reduces a tile finds that its peers compute their part no later in their order. So ranks with tiles
      // of their own cannot wait for each other in a circle; those without wait for nobody.
      for (const auto& [tile, index] : orders.at(rank)) {
        if (Scheduler::work_tile(index, context(rank)).owner != context(rank).local_rank()) continue;
        for (u32 peer = 0; peer < Config::kOwners; ++peer) {
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
      const u32 first = Order::row_in_c(work), end = Order::rows_of_c(work);
      rows += first < end ? mk::min(Config::kTileM, end - first) : 0;
    }
    expect(rows == Config::kM, "rows of C are missing, or are in two tiles", 0, 0);
  } else {
    expect(orders.at(0).size() == Config::kRowTiles * Config::kColTiles, "tiles are missing", 0, 0);
  }
}

int main() {
  std::map<u32, Position> orders;
  for (u32 rank = 0; rank < Ranks::kWorld; ++rank) orders[rank] = positions(rank);
  check_owners<Order>(orders);
  return failures != 0;
}
