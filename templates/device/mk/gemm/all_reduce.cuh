// GEMM + AllReduce in two shots. Every rank multiplies its slice of K. The owner of each tile of C reduces it and sends
// the result to all other ranks.
#pragma once
#include <mk/comm/norm_results.cuh>
#include <mk/comm/peer_results.cuh>
#include <mk/gemm/owner_reduce.cuh>

namespace mk::gemm {

template <class Config>
using AllReduceRounds = OwnerRounds<Config, TilesOfRounds>;

template <class Config, class Args, class Workspace, GemmSmem Smem, OwnerOrder Order, class Epilogue,
          class Results = comm::Results<Config, Workspace, Order>>
struct AllReduce : OwnerReduce<Config, Args, Workspace, Smem, Order, Epilogue, Results> {
  using Reduce = OwnerReduce<Config, Args, Workspace, Smem, Order, Epilogue, Results>;

  // One thread of a CTA that only communicates, number `worker` of the threads with this role: forwards results from
  // other nodes to the ranks of this node.
  struct RelayResults {
    static constexpr Agent kAgent = Agent::kThread;
    // Two other warps of these CTAs watch arrivals and put.
    static constexpr u32 kWorkers = Config::kCommCtas * (Config::kThreads / kWarp) - 2;

    static MK_DEVICE void run(const Args&, const RankContext& ctx, const Smem& smem, u32 worker) {
      const auto copy = comm::StagedCopy::of_warp(ctx, smem);
      Results::template relay<Config::kSlotBytes>(ctx, copy, worker, kWorkers);
    }
  };

  // The role of all warps of the CTAs that only communicate.
  using Communicate = InTurn<Config::kCommCtas, typename Reduce::WatchArrivals, typename Reduce::PutSums, RelayResults>;
};

// The operator if owners store straight to C of all ranks.
template <class Config, class Args, class Workspace, GemmSmem Smem, OwnerOrder Order, class Epilogue>
using AllReduceOnPeers =
    AllReduce<Config, Args, Workspace, Smem, Order, Epilogue, comm::PeerResults<Config, Workspace, Smem, Order>>;

// The operator if rows are normalised on their way to C.
template <class Config, class Args, class Workspace, GemmSmem Smem, OwnerOrder Order, class Epilogue>
using AllReduceNorm =
    AllReduce<Config, Args, Workspace, Smem, Order, Epilogue, comm::NormResults<Config, Workspace, Order>>;

}  // namespace mk::gemm
