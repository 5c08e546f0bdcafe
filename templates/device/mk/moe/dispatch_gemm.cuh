// MoE dispatch + grouped GEMM. Every token is sent to the ranks of its experts, and each rank multiplies the rows of
// each of its experts by the expert's weight.
//
// All CTAs route first (mk/moe/routing.cuh). Then the communication CTAs send tokens while the other CTAs compute. A
// token is sent once to each destination. The communication CTAs compute too when they have sent all tokens. A CTA
// waits for the rows of its tile only, so it computes while other rows are still on their way.
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

  // A warp of a communication CTA: sends tokens. Warps are numbered over all communication CTAs: first the first warps
  // of all CTAs, then their second warps, and so on. Across nodes, warp 0 watches arrivals and warp 1 puts tokens. If
  // chunks are acknowledged, warp 2 acknowledges them.
  struct SendTokens {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 warp) {
      constexpr u32 kCount = Config::kCommCtas * kWarps;
      const u32 number = warp * Config::kCommCtas + blockIdx.x;
      if constexpr (Ranks::kNodes == 1) {
        TokenPush<Config, Args, Workspace, Smem>::run(args, ctx, smem, number, kCount);
      } else {
        using Tokens = NodeTokens<Config, Args, Workspace, Smem>;
        constexpr bool kAcknowledges = TokenChunks<Config, Workspace>::kAreAcknowledged;
        constexpr u32 kFirstSender = kAcknowledges ? 3 : 2;
        if (number == 0) {
          Tokens::watch_arrivals(args, ctx, smem);
        } else if (kAcknowledges && number == 2) {
          if constexpr (kAcknowledges) Tokens::acknowledge(args, ctx, smem);
        } else if ((Tokens::kSendsScales && number != 1) || elect_one()) {
          if (number == 1) {
            Tokens::put_all(args, ctx, smem);
          } else {
            Tokens::push(args, ctx, smem, number - kFirstSender, kCount - kFirstSender);
          }
        }
      }
      __syncwarp();
    }
  };

  // A warp: loads a quarter of each tile's rows. The first thread of the first warp also takes tiles and loads weights.
  struct Load {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 warp) {
      GroupedGemm::load(args, ctx, smem, warp);
    }
  };

  // A warpgroup: computes its part of each tile of C and stores it.
  struct Multiply {
    static constexpr Agent kAgent = Agent::kWarpgroup;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
      GroupedGemm::multiply(args, ctx, smem, group);
    }
  };

  // Runs before the roles. Returns false if the CTA must end at once, because another call is under way, routing has
  // been aborted, or operands have wrong values. The host then has a report of the cause.
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
    // No tokens are put after the packets, so this is the end of the call's puts.
    if constexpr (Ranks::kNodes > 1) {
      if (blockIdx.x == 0 && warp_index() == 0) comm::Network<Config, Workspace>::end_watch(args, ctx, false);
    }
    end(args, ctx);
    return false;
  }

  // Runs after the roles. Thread 0 belongs to a load warp. It comes here when it has loaded its last tile, which is
  // before the CTA has computed it.
  static MK_DEVICE void end(const Args&, const RankContext& ctx) {
    if (threadIdx.x == 0) Scheduler::Counter::advance_epoch(ctx);
  }
};

}  // namespace mk::moe
