// MoE dispatch + grouped GEMM: tokens go to the ranks of their experts, and each rank multiplies the rows of each of its
// experts with the expert's weight.
//
// All CTAs route first. Then some of them send tokens, once per destination, while the others compute; those compute too
// when they have sent all. Rows are awaited tile by tile, as they arrive.
#pragma once
#include <mk/call.cuh>
#include <mk/moe/grouped_gemm.cuh>
#include <mk/moe/node_tokens.cuh>
#include <mk/moe/routing.cuh>
#include <mk/roles.cuh>

namespace mk::moe {

template <class Config, class Args, class Workspace, class Smem, GroupedEpilogue Epilogue>
struct DispatchGemm {
  using GroupedGemm = moe::GroupedGemm<Config, Args, Workspace, Smem, Epilogue>;
  using Routing = moe::Routing<Config, Args, Workspace, Smem, typename GroupedGemm::Shape>;
  using Scheduler = typename GroupedGemm::Scheduler;
  using Ranks = Topology<Config>;

  static constexpr u32 kWarps = Config::kThreads / kWarp;

  // A warp of a CTA that sends before it computes. They are counted over these CTAs, so that the first ones of all CTAs
  // come first. Between nodes, the first one watches arrivals and the second one puts.
  struct SendTokens {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 warp) {
      constexpr u32 kCount = Config::kCommCtas * kWarps;
      const u32 number = warp * Config::kCommCtas + blockIdx.x;
      if constexpr (Ranks::kNodes == 1) {
        if (elect_one()) TokenPush<Config, Args, Workspace, Smem>::push(args, ctx, smem, number, kCount);
      } else {
        using Tokens = NodeTokens<Config, Args, Workspace, Smem>;
        if (number == 0) {
          Tokens::watch_arrivals(args, ctx, smem);
        } else if (elect_one()) {
          if (number == 1) {
            Tokens::put_all(args, ctx, smem);
          } else {
            Tokens::push(args, ctx, smem, number - 2, kCount - 2);
          }
        }
      }
      __syncwarp();
    }
  };

  // A warp: its quarter of each tile's rows; the first warp's first thread also takes tiles and loads weights.
  struct Load {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 warp) {
      GroupedGemm::load(args, ctx, smem, warp);
    }
  };

  // A warpgroup: its group's part of each tile's product, and of C.
  struct Multiply {
    static constexpr Agent kAgent = Agent::kWarpgroup;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
      GroupedGemm::multiply(args, ctx, smem, group);
    }
  };

  // Before the roles; false if the CTA must end at once: because of another call, or because nothing can be multiplied,
  // and the host knows why.
  static MK_DEVICE bool begin(const Args& args, const RankContext& ctx, const Smem& smem) {
    if (threadIdx.x == 0) {
      GroupedGemm::init_barriers(smem);
      if constexpr (Ranks::kWorld > 1) comm::init_copy_slots<kWarps>(smem);
      fence_barrier_init();
    }
    Routing::load_choices(args, smem);
    prefetch_tensor_maps(args.b);
    if (!enter(ctx)) return false;
    if (Routing::route(args, ctx, smem)) return true;
    // No tokens follow the packets.
    if constexpr (Ranks::kNodes > 1) {
      if (blockIdx.x == 0 && warp_index() == 0) comm::Network<Config, Workspace>::end_watch(args, ctx, false);
    }
    end(args, ctx);
    return false;
  }

  // After them. Thread 0 is a loader's, which is done before the CTA is.
  static MK_DEVICE void end(const Args&, const RankContext& ctx) {
    if (threadIdx.x == 0) Scheduler::Counter::advance_epoch(ctx);
  }
};

}  // namespace mk::moe
