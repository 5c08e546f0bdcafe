// The rows of a call, and the rows of each rank. Both are constants unless each call gives the rows.
#pragma once
#include <mk/divisor.cuh>
#include <mk/rank_context.cuh>

namespace mk {

// If each call gives the rows, kM and kShardRows are the values for the most rows, and so are all numbers that the plan
// derives from them.
template <class Config>
concept RowsConfig = TopologyConfig<Config> && requires {
  Config::kM;  // rows over all ranks
};

// If each rank has its own rows, Config also has kShardRows, the number of rows of every rank except perhaps the last
// ranks.
template <RowsConfig Config>
struct CallRows {
  using Ranks = Topology<Config>;

  // The number of rows over all ranks.
  static MK_DEVICE u32 all(const RankContext& ctx) {
    if constexpr (TakesRows<Config>) return ctx.rows;
    else return Config::kM;
  }

  // The number of rows of every rank except perhaps the last ranks.
  static MK_DEVICE u32 of_shard(const RankContext& ctx) {
    if constexpr (TakesRows<Config>) return ceil_div(ctx.rows, Ranks::kWorld);
    else return Config::kShardRows;
  }

  // The number of rows of a rank.
  static MK_DEVICE u32 of_rank(const RankContext& ctx, u32 rank) {
    const u32 before = rank * of_shard(ctx);
    return before < all(ctx) ? min(of_shard(ctx), all(ctx) - before) : 0;
  }

  // The number of ranks that have rows, which are the first ranks. With more rows than the bound below, all ranks have
  // rows.
  static MK_DEVICE u32 ranks(const RankContext& ctx) {
    if (all(ctx) > (Ranks::kWorld - 1) * (Ranks::kWorld - 1)) return Ranks::kWorld;
    return all(ctx) == 0 ? 0 : ceil_div(all(ctx), of_shard(ctx));
  }

  // The number of ranks that have a full shard, which are the first ranks.
  static MK_DEVICE u32 full_ranks(const RankContext& ctx) {
    if (all(ctx) == Ranks::kWorld * of_shard(ctx)) return Ranks::kWorld;
    return all(ctx) / of_shard(ctx);
  }
};

// All threads of a grid of CTAs of kThreads threads: for each i below `count`, one thread calls `body(i)`.
template <u32 kThreads, class Body>
MK_DEVICE void for_each_in_grid(u32 count, const Body& body) {
  for (u32 i = blockIdx.x * kThreads + threadIdx.x; i < count; i += gridDim.x * kThreads) body(i);
}

}  // namespace mk
