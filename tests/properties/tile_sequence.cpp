// Prints the tiles of each rank in the order of the kernel's device code, for a call with the most rows: the rank, the owner, the
// row and the column of each tile, and the rows of A that the tile multiplies. tile_sequence.rs compiles this program once per
// kernel and runs it.
#include <cstdio>

#include "kernel.cu"

const mk::sim::Calls* mk_calls = nullptr;  // This program does not call the simulator.

using Ranks = mk::Topology<Config>;
using Rows = mk::CallRows<Config>;

template <class Order>
static u32 owner_of(const mk::gemm::Tile& tile) {
  if constexpr (requires { Order::rank_of(tile); }) return Order::rank_of(tile);
  else return 0;
}

// Prints the chunks of the rows of a tile, as the load warp waits for the chunks.
template <class Config, class Kernel>
static void print_chunks(u32 row, u32 end, const mk::RankContext& ctx) {
  if constexpr (requires { typename Kernel::PushShards; }) {
    const u32 shard_rows = Rows::of_shard(ctx);
    for (u32 last = 0xffffffff; row < end; ++row) {
      const u32 chunk = row % shard_rows / Config::kChunkRows, number = row / shard_rows * 65536 + chunk;
      if (number != last) std::printf(" %u:%u", row / shard_rows, chunk);
      last = number;
    }
  }
}

template <class Config, class Order, class Kernel>
static void print(u32 rank) {
  const u32 first = Ranks::kNodes == 1 ? 0 : rank / Ranks::kLocalWorld * Ranks::kLocalWorld;
  mk::RankContext ctx{nullptr, nullptr, nullptr, 0, 1, rank, Ranks::kLocalWorld, 1, first};
  if constexpr (mk::TakesRows<Config>) ctx.rows = Config::kMaxRows;
  for (u32 i = 0; i < Order::slots(ctx); ++i) {
    const auto tile = Order::tile(i, ctx);
    if (Order::is_gap(tile)) continue;
    const u32 row = Order::row_in_a(tile, ctx), end = mk::min(row + Config::kTileM, Rows::all(ctx));
    std::printf("%u: %u %u %u rows %u..%u", rank, owner_of<Order>(tile), tile.row, tile.col, row, end);
    print_chunks<Config, Kernel>(row, end, ctx);
    std::printf("\n");
  }
}

int main() {
  for (u32 rank = 0; rank < Ranks::kWorld; ++rank) print<Config, Order, Kernel>(rank);
}
