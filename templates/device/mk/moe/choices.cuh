// The choices of a rank's tokens, in shared memory. A choice is one of the kTopK experts of a token, or kNoExpert. Each CTA
// reads the choices of a slice of the tokens. All threads of the CTA call these functions together, unless a function
// says otherwise.
#pragma once
#include <mk/moe/experts.cuh>
#include <mk/moe/faults.cuh>

namespace mk::moe {

// The id in place of a choice that the token does not have: -1. It belongs to no destination and makes no row.
constexpr u32 kNoExpert = ~0u;

// Args: the number of tokens, and the kTopK experts of each token.
template <class Args>
concept ChoiceArgs = requires(const Args& args) {
  args.num_tokens;
  args.topk_ids;
};

// Smem: tables with an entry for each choice of the slice.
template <class Smem>
concept ChoiceSmem = requires(const Smem smem, u32 i) {
  smem.choice_expert(i);
  smem.choice_sender(i);  // the choice for which the choice's token is sent to the destination
};

// The tokens that a CTA routes.
struct Slice {
  u32 first, tokens;
  u32 slices;  // slices of the rank that have tokens, one per CTA
};

template <ExpertConfig Config, FaultWorkspace Workspace, ChoiceSmem Smem>
struct Choices {
  using Experts = moe::Experts<Config, Workspace>;
  using Faults = moe::Faults<Workspace>;

  static MK_DEVICE u32 count(const Slice& slice) { return slice.tokens * Config::kTopK; }
  static MK_DEVICE u32 token_of(const Slice& slice, u32 choice) { return slice.first + choice / Config::kTopK; }

  // The slice of this CTA. A call with more than kMaxTokens tokens has a fault, and routes no tokens.
  template <ChoiceArgs Args>
  static MK_DEVICE Slice slice_of(const Args& args) {
    const u32 given = load_word(args.num_tokens);
    const u32 tokens = given > Config::kMaxTokens ? 0 : given;
    const u32 each = (tokens + gridDim.x - 1) / gridDim.x;
    const u32 first = min(blockIdx.x * each, tokens);
    return Slice{first, min(each, tokens - first), each == 0 ? 0 : (tokens + each - 1) / each};
  }

  template <ChoiceArgs Args>
  static MK_DEVICE void check_count(const Args& args, const RankContext& ctx) {
    const u32 given = load_word(args.num_tokens);
    if (given > Config::kMaxTokens) Faults::keep(ctx, {kTokens, 0, 0, Config::kMaxTokens, given});
  }

  // Copies the experts of the slice to shared memory, in whole vectors of 16 bytes. All threads may read them after the
  // next barrier of the CTA.
  template <ChoiceArgs Args>
  static MK_DEVICE void load(const Args& args, const Smem& smem, const Slice& slice) {
    const u32 choices = count(slice);
    for (u32 i = threadIdx.x; i < (choices + 3) / 4 * 4; i += blockDim.x) {
      const u8* id = args.topk_ids + (u64{slice.first} * Config::kTopK + i) * 4;
      store_shared(smem.choice_expert(i), i < choices ? load_word(id) : kNoExpert);
    }
  }

  // Checks the experts, and finds the choice for which each token is sent. A token is sent to a destination for its
  // first expert there, in the order of sending. A choice without an expert gets no sender.
  static MK_DEVICE void read(const RankContext& ctx, const Smem& smem, const Slice& slice) {
    const u32 choices = count(slice);
    for (u32 i = threadIdx.x; i < choices; i += blockDim.x) {
      const u32 expert = load_shared(smem.choice_expert(i)), choice = i % Config::kTopK, token = token_of(slice, i);
      if (expert == kNoExpert) continue;
      if (expert >= Config::kExperts) Faults::keep(ctx, {kExpert, choice, token, Config::kExperts, expert});
      u32 sender = i, sender_expert = expert;
      for (u32 other = i - choice; other < i - choice + Config::kTopK; ++other) {
        const u32 other_expert = load_shared(smem.choice_expert(other));
        if (other_expert == expert && other < i) {
          Faults::keep(ctx, {kExpertTwice, choice, token, Config::kExperts, expert});
        }
        if (Experts::destination_of(ctx, other_expert) != Experts::destination_of(ctx, expert)) continue;
        if (Experts::order_of(other_expert) < Experts::order_of(sender_expert)) {
          sender = other, sender_expert = other_expert;
        }
      }
      store_shared(smem.choice_sender(i), sender);
    }
    __syncthreads();
  }

  // One thread: calls `found(i)` for every choice of an expert in the slice, in order.
  template <class Found>
  static MK_DEVICE void for_each(const Smem& smem, const Slice& slice, u32 expert, const Found& found) {
#pragma unroll 2
    for (u32 i = 0; i < count(slice); i += 4) {
      const Vec16 experts = load_shared_vec16(smem.choice_expert(i));
      if (experts.x == expert) found(i);
      if (experts.y == expert) found(i + 1);
      if (experts.z == expert) found(i + 2);
      if (experts.w == expert) found(i + 3);
    }
  }

  static MK_DEVICE bool is_sender(const Smem& smem, u32 i) { return load_shared(smem.choice_sender(i)) == i; }
};

}  // namespace mk::moe
