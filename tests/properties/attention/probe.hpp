// Prints as JSON the tiles, keys, parts and puts that the device code of a kernel computes. The compiler of the host
// accepts the headers. The text of each kernel up to its roles is in its own namespace.
#include <cstdio>
#include <mk/attention/ring_attention.cuh>

extern "C" const mk::sim::Calls* mk_calls;
const mk::sim::Calls* mk_calls = nullptr;  // This program does not call the simulator.

using mk::u32;

// Prints an array with the output of `print(i)` for each i below `count`.
template <class Print>
void list(u32 count, Print print) {
  std::printf("[");
  for (u32 i = 0; i < count; ++i) {
    if (i > 0) std::printf(",");
    print(i);
  }
  std::printf("]");
}

template <class Kernel>
struct Probe;

template <class Config, class Args, class Workspace, class Smem, class Mask>
struct Probe<mk::attention::RingAttention<Config, Args, Workspace, Smem, Mask>> {
  using Kernel = mk::attention::RingAttention<Config, Args, Workspace, Smem, Mask>;
  using Ranks = mk::Topology<Config>;
  using Sequence = mk::attention::Sequence<Config>;
  using Scheduler = typename Kernel::Scheduler;

  static void print() {
    std::printf("{\"tiles\":");
    list(Scheduler::tiles(call(0), Smem{}), [](u32 i) {
      const auto tile = Scheduler::tile(call(0), Smem{}, i);
      std::printf("{\"batch\":%u,\"head\":%u,\"chunk\":%u,\"row\":%u}", tile.batch, tile.head, tile.rank_chunk, tile.row);
    });
    std::printf(",\"ranks\":");
    list(Ranks::kWorld, print_rank);
    std::printf("}");
  }

 private:
  static constexpr u32 kPeers = Ranks::kWorld > 1 ? Ranks::kWorld : 0;

  // A call on a rank. Rows at run time come from the text of the kernel.
  static mk::RankContext call(u32 rank) {
    mk::RankContext ctx{};
    ctx.rank = rank;
    if constexpr (requires { Config::kCallRows; }) ctx.rows = Config::kCallRows;
    if constexpr (mk::HasCache<Config>) {
      for (u32 i = 0; i < Ranks::kWorld; ++i) {
        const u32 rows = Sequence::cached_rows(sequence(), i);
        if (rows > ctx.most_cached) ctx.most_cached = rows;
      }
    }
    return ctx;
  }

  static mk::attention::SequenceRows sequence() {
    mk::RankContext ctx{};
    if constexpr (requires { Config::kCallRows; }) ctx.rows = Config::kCallRows;
    return Sequence::of_call(ctx);
  }

  static void print_rank(u32 rank) {
    std::printf("{\"chunks\":");
    list(Sequence::kKeyChunks, [&](u32 i) {
      std::printf("{\"number\":%u,\"rows\":%u}", Sequence::chunk_of(rank, i), Sequence::chunk_rows(sequence(), rank, i));
    });
    std::printf(",\"blocks\":");
    list(Sequence::row_tiles(sequence()), [&](u32 i) { print_blocks(rank, i); });
    std::printf(",\"readers\":");
    list(kPeers, [&](u32 source) { print_readers(rank, source); });
    std::printf(",\"parts\":");
    if constexpr (Ranks::kWorld > 1) print_parts(rank);
    if constexpr (Ranks::kWorld == 1) std::printf("[]");
    std::printf(",\"puts\":");
    if constexpr (Ranks::kNodes > 1) print_puts(rank);
    if constexpr (Ranks::kNodes == 1) std::printf("[]");
    std::printf("}");
  }

  // Prints the blocks that a tile of queries meets. A tile without rows meets none.
  static void print_blocks(u32 rank, u32 row_tile) {
    const mk::RankContext ctx = call(rank);
    const u32 chunk_tiles = Sequence::chunk_tiles(sequence());
    const mk::attention::QueryTile tile{0, 0, row_tile / chunk_tiles, row_tile % chunk_tiles * Config::kTileRows, sequence()};
    mk::attention::KvIterator<Config, Mask> blocks(ctx, tile);
    mk::attention::KvBlock block{};
    const char* separator = "";
    std::printf("[");
    while (!Scheduler::is_empty(ctx, tile) && blocks.next(block)) {
      std::printf("%s{\"source\":%u,\"chunk\":%u,\"row\":%u}", separator, block.source, block.rank_chunk, block.row);
      separator = ",";
    }
    std::printf("]");
  }

  static void print_readers(u32 rank, u32 source) {
    if constexpr (Ranks::kWorld > 1) {
      std::printf("%u", mk::attention::KvSlots<Config, Workspace, Mask>::readers(sequence(), rank, source));
    }
  }

  // Prints the parts in the order in which they are sent, with their block, their ranks, and their put to other nodes.
  static void print_parts(u32 rank) {
    using Push = mk::attention::KvPush<Config, Args, Workspace, Smem, Mask>;
    const mk::RankContext ctx = call(rank);
    list(Push::parts(ctx, Smem{}), [&](u32 i) {
      const auto part = Push::part_at(ctx, Smem{}, rank, i);
      std::printf("{\"head\":%u,\"chunk\":%u,\"row\":%u,\"index\":%u", part.batch * Config::kKvHeads + part.kv_head,
                  part.rank_chunk, part.row, part.index);
      std::printf(",\"receivers\":[");
      const char* separator = "";
      for (u32 peer = 0; peer < Ranks::kWorld && part.has_rows(); ++peer) {
        if (peer == rank || !Push::Slots::attends(sequence(), peer, part.chunk())) continue;
        std::printf("%s%u", separator, peer);
        separator = ",";
      }
      u32 put = 0;
      if constexpr (Ranks::kNodes > 1) put = mk::attention::KvForward<Config, Args, Workspace, Smem, Mask>::put_of(ctx, part);
      std::printf("],\"put\":%u}", put);
    });
  }

  // Prints the puts and the nodes that need them.
  static void print_puts(u32 rank) {
    using Forward = mk::attention::KvForward<Config, Args, Workspace, Smem, Mask>;
    const mk::RankContext ctx = call(rank);
    list(Forward::puts(ctx), [&](u32 i) {
      const auto put = Forward::put_at(ctx, Smem{}, rank, i);
      std::printf("{\"head\":%u,\"chunk\":%u,\"row\":%u,\"tiles\":%u,\"nodes\":", put.head, put.rank_chunk, put.first_row,
                  put.tiles);
      list(Ranks::kNodes, [&](u32 node) {
        const bool is_needed = Forward::node_attends(ctx, node, Sequence::chunk_of(rank, put.rank_chunk));
        std::printf(is_needed ? "true" : "false");
      });
      std::printf("}");
    });
  }
};
