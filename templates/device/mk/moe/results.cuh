// The results of experts, with the tokens to which they belong: a place for each choice of each token. The rank of the tokens adds
// them up with the router's weights.
//
// One buffer is enough: a rank returns rows only after the receiver has said where, in the same call. The receiver has then ended the
// previous call, and with it the sums of the results of that call.
#pragma once
#include <mk/deadline.cuh>
#include <mk/vec_sum.cuh>

namespace mk::moe {

template <class Workspace>
concept ResultsWorkspace = requires(u32 source, u32 choice) {
  Workspace::returned(source);  // the warps of a rank that have returned all their rows, over all calls
  Workspace::results(choice);   // what the choice's expert made of the token
};

// Args: the router's weights, and C.
template <class Args>
concept ResultsArgs = requires(const Args& args) {
  args.topk_weights;
  args.c;
  args.c_row_bytes;
};

template <class Config, ResultsArgs Args, ResultsWorkspace Workspace>
struct Results {
  using Ranks = Topology<Config>;
  using Element = typename Config::ElementC;

  static constexpr u32 kNone = ~0u;                                   // of a choice without a result
  static constexpr u32 kWarps = kGroups * kWarpgroupWarps;            // of a CTA
  static constexpr u32 kVecs = Element::bytes(Config::kHidden) / 16;  // of a result
  static constexpr u32 kChunks = kCeilDiv<kVecs, kWarp>;              // vectors that a warp adds up at a time
  static constexpr u32 kAtOnce = Config::kTopK < 8 ? Config::kTopK : 8;  // results that are on their way to a warp

  // A warp, after the stores of its last row: counts itself on all ranks.
  static MK_DEVICE void signal(const RankContext& ctx) {
    __syncwarp();
    if (lane_index() < Ranks::kWorld) {
      fence_sys();
      add_relaxed_sys(ctx.peer_ptr(lane_index(), Workspace::returned(ctx.rank)), 1);
    }
    __syncwarp();
  }

  // A warp, number `first` of `warps`: waits for the results of all ranks, and stores the sums of `own.tokens()` tokens to C.
  // `own.find(choice)` is kNone if the choice has no result, and otherwise any other number.
  template <class Own>
  static MK_DEVICE void add_up(const Args& args, const RankContext& ctx, u32 first, u32 warps, const Own& own) {
    if (lane_index() < Ranks::kWorld) {
      const u32 source = lane_index(), wanted = ctx.epoch * gridDim.x * kWarps;
      wait_flag(ctx, ctx.local_ptr(Workspace::returned(source)), WaitSite{kMultiply, kReturned, source, 0, wanted});
    }
    __syncwarp();
    const u32 end = own.tokens() * kChunks;
    for (u32 i = first; i < end; i += warps) add_up_chunk(args, ctx, i / kChunks, i % kChunks * kWarp + lane_index(), own);
  }

 private:
  // A warp: adds up vector `vec` of all results of a token.
  template <class Own>
  static MK_DEVICE void add_up_chunk(const Args& args, const RankContext& ctx, u32 token, u32 vec, const Own& own) {
    const u32 lane = lane_index(), choice = token * Config::kTopK + lane;
    u32 found = kNone, weight_bits = 0;
    if (lane < Config::kTopK) {
      found = own.find(choice);
      weight_bits = load_word(args.topk_weights + u64{choice} * 4);
    }
    const bool has_vec = vec < kVecs;
    VecSum<Element> sum;
    bool is_empty = true;
    for (u32 begin = 0; begin < Config::kTopK; begin += kAtOnce) {
      Vec16 vecs[kAtOnce] = {};
      u32 exists = 0;
#pragma unroll
      for (u32 k = 0; k < kAtOnce; ++k) {
        const bool is_choice = begin + k < Config::kTopK && broadcast(found, (begin + k) % kWarp) != kNone;
        exists |= (is_choice ? 1u : 0u) << k;
        if (!is_choice || !has_vec) continue;
        vecs[k] = load_vec16(ctx.local_ptr(Workspace::results(token * Config::kTopK + begin + k)) + vec * 16);
      }
#pragma unroll
      for (u32 k = 0; k < kAtOnce; ++k) {
        const float weight = as_float(broadcast(weight_bits, (begin + k) % kWarp));
        if ((exists >> k & 1) != 0) sum.add(vecs[k], weight);
      }
      is_empty = is_empty && exists == 0;
    }
    // The sum of no results is +0.
    if (has_vec) store_vec16(args.c + token * args.c_row_bytes + vec * 16, is_empty ? Vec16{} : sum.result());
  }
};

}  // namespace mk::moe
