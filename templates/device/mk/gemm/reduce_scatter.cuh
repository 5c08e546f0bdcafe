// GEMM + ReduceScatter: every rank multiplies its slice of K, and reduces its own rows of C over the ranks.
#pragma once
#include <mk/comm/idle_ranks.cuh>
#include <mk/comm/norm_results.cuh>
#include <mk/gemm/owner_reduce.cuh>

namespace mk::gemm {

template <class Config, class Args, class Workspace, GemmSmem Smem, OwnerOrder Order, class Epilogue,
          class Results = comm::NoResults>
struct ReduceScatter : OwnerReduce<Config, Args, Workspace, Smem, Order, Epilogue, Results> {
  using Gemm = gemm::Gemm<Config, Args, Workspace, Smem, Order, Epilogue>;
  using Reduce = OwnerReduce<Config, Args, Workspace, Smem, Order, Epilogue, Results>;
  using IdleRanks = comm::IdleRanks<Config, Workspace>;

  // Runs before the roles. Returns false if the CTA must end at once.
  static MK_DEVICE bool begin(const Args& args, const RankContext& ctx, const Smem& smem) {
    if (!Gemm::begin(args, ctx, smem)) return false;
    if constexpr (kHasIdleRanks) {
      if (blockIdx.x == 0) IdleRanks::announce_begin(ctx, threadIdx.x);
    }
    return true;
  }

  // Runs after the roles.
  static MK_DEVICE void end(const Args& args, const RankContext& ctx) {
    Reduce::end(args, ctx);
    if constexpr (kHasIdleRanks) {
      if (blockIdx.x == 0 && threadIdx.x == 0) IdleRanks::wait_for_owners(ctx);
    }
  }

 private:
  // If each call gives the rows, all ranks announce that they have begun.
  static constexpr bool kHasIdleRanks = !TakesRows<Config> && IdleRanks::kExist;
};

// The operator if rows are normalised on their way to C.
template <class Config, class Args, class Workspace, GemmSmem Smem, OwnerOrder Order, class Epilogue>
using ReduceScatterNorm =
    ReduceScatter<Config, Args, Workspace, Smem, Order, Epilogue, comm::NormResults<Config, Workspace, Order>>;

}  // namespace mk::gemm
