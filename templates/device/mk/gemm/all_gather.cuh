// AllGather + GEMM. Every rank sends its rows of A to all other ranks, and multiplies the rows of all ranks: own rows
// first, and the rows of other ranks as they arrive.
//
// `gathered` has two buffers, and calls alternate between them. Either SMs or copy engines push the rows.
#pragma once
#include <mk/comm/host_copies.cuh>
#include <mk/comm/push_shards.cuh>
#include <mk/gemm/gathered_a.cuh>
#include <mk/gemm/gemm.cuh>

namespace mk::gemm {

// If CTAs that compute push, Config also has kPushUnroll, the number of loads of 16 bytes that a thread has in flight.
// If CTAs that only communicate push, Config has kSlotBytes, the size of a warp's slot.
template <class Config>
concept AllGatherConfig = comm::PushConfig<Config> && requires {
  Config::kPushWarps;  // warps that push in each pushing CTA; 0 if copy engines push
};

template <AllGatherConfig Config, class Args, class Workspace, GemmSmem Smem, class Order, class Epilogue>
struct AllGather {
  using Gemm =
      gemm::Gemm<Config, Args, Workspace, Smem, Order, Epilogue, GatheredA<Config, Args, Workspace, Order>>;
  using Shards = comm::Shards<Config, Workspace>;
  using PushShards = comm::PushShards<Config, Workspace, Order>;

  static constexpr u32 kWarps = Config::kThreads / kWarp;
  static constexpr bool kUsesCopyEngines = Config::kPushWarps == 0;

  using Scheduler = typename Gemm::Scheduler;
  using Load = typename Gemm::Load;
  using Store = typename Gemm::Store;

  // A warpgroup: computes its part of each work tile. Warps that push do so first.
  struct Multiply {
    static constexpr Agent kAgent = Agent::kWarpgroup;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
      if constexpr (kPushesFirst) push_by_registers(args, ctx, warp_index() - kFirstPushWarp);
      Gemm::Multiply::run(args, ctx, smem, group);
    }
  };

  // A warp of a CTA that computes: pushes pieces of the own rows to every peer through registers.
  struct PushByRegisters {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32) {
      push_by_registers(args, ctx, 0);
    }
  };

  // One thread of each warp of a CTA that only communicates, or the warp if scales travel: pushes pieces of the own rows
  // to every peer through shared memory.
  struct Push {
    static constexpr Agent kAgent = PushShards::kPushAgent;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 warp) {
      auto copy = comm::StagedCopy::of_warp(ctx, smem);
      PushShards::template push<Config::kSlotBytes>(args, ctx, copy, warp * Config::kCommCtas + blockIdx.x,
                                                    Config::kCommCtas * kWarps);
    }
  };

  struct Puts {
    static MK_DEVICE u32 of_call(const RankContext& ctx) { return Shards::chunks(ctx); }
  };
  using WatchArrivals = comm::WatchArrivals<Config, Workspace, Puts>;

  // One thread: puts the own rows to the peers on other nodes.
  struct PutShard {
    static constexpr Agent kAgent = Agent::kThread;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32) {
      PushShards::put_all(args, ctx);
    }
  };

  // One thread, or a warp if scales travel: pushes pieces of the own rows to the ranks of this node, and then forwards
  // rows that peers have put here.
  struct PushAndRelay {
    static constexpr Agent kAgent = PushShards::kPushAgent;
    static constexpr u32 kWorkers = Config::kCommCtas * kWarps - 2;  // the other two warps watch and put

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 worker) {
      auto copy = comm::StagedCopy::of_warp(ctx, smem);
      PushShards::template push<Config::kSlotBytes>(args, ctx, copy, worker, kWorkers);
      if (PushShards::is_leader()) PushShards::template relay<Config::kSlotBytes>(ctx, copy, worker, kWorkers);
    }
  };

  // Across nodes, the role of all warps of the CTAs that only communicate.
  using Communicate = InTurn<Config::kCommCtas, WatchArrivals, PutShard, PushAndRelay>;

  static MK_DEVICE void prefetch(const Args& args, const RankContext& ctx, const Smem& smem) {
    if constexpr (Order::kReadsOwnRows) {
      Gemm::prefetch_with(args, ctx, smem, args.own_a, args.gathered_a, args.b);
    } else {
      Gemm::prefetch_with(args, ctx, smem, args.gathered_a, args.b);
    }
  }

  // Runs before the roles. Returns false if the CTA must end at once.
  static MK_DEVICE bool begin(const Args& args, const RankContext& ctx, const Smem& smem) {
    if (!Gemm::begin(args, ctx, smem)) return false;
    if constexpr (kUsesCopyEngines) {
      if (blockIdx.x == 0 && threadIdx.x == 0) comm::request_copies(ctx, args.shard, args.shard_row_bytes);
    }
    return true;
  }

  // Runs after the roles.
  static MK_DEVICE void end(const Args& args, const RankContext& ctx) {
    Gemm::end(args, ctx);
    if constexpr (TakesRows<Config>) PushShards::count_unused(ctx);
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    if constexpr (kUsesCopyEngines) comm::wait_copies<Topology<Config>::kWorld>(ctx);
    if constexpr (!TakesRows<Config> && Shards::kFirstEmpty < Topology<Config>::kWorld) Shards::wait_empty(ctx, kLoad);
  }

 private:
  static constexpr u32 kFirstPushWarp = kWarpgroupWarps - 1;  // of a CTA that computes

  // Whether the warps that multiply also push.
  static constexpr bool kPushesFirst = Config::kCommCtas == 0 && Config::kPushWarps > 1;

  static MK_DEVICE void push_by_registers(const Args& args, const RankContext& ctx, u32 number) {
    PushShards::template push_by_registers<Config::kPushUnroll>(args, ctx, number * gridDim.x + blockIdx.x,
                                                                gridDim.x * Config::kPushWarps);
  }
};

}  // namespace mk::gemm
