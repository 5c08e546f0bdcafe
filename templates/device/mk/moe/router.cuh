// The choice of experts from the router's logits: the kTopK experts of a token with the greatest scores, and the weights of
// these experts.
//
// The score of an expert is the sigmoid of its logit, or its part of the softmax of all logits. Experts are compared by score plus
// bias. Without bias and groups, experts are compared by logits, which have the order of scores and keep differences that scores
// round away. The order is total: NaN comes last, and of equal numbers the lower expert comes first. So every token gets kTopK
// different experts whatever its logits are, and bits repeat.
//
// A warp chooses the experts of a token. Lane l has experts l, l + kWarp, and so on.
#pragma once
#include <mk/activation.cuh>
#include <mk/element.cuh>
#include <mk/moe/choices.cuh>
#include <mk/norm.cuh>

namespace mk::moe {

enum class Scores { kSoftmax, kSigmoid };

template <class Config>
concept RouterConfig = ExpertConfig<Config> && requires {
  Config::kScores;
  typename Config::ElementLogits;
  Config::kRenormalises;  // whether the weights of a token are divided by their sum
  Config::kScoreScale;    // the factor of weights
};

// If a token may have experts of some groups only.
template <class Config>
concept HasGroups = requires {
  Config::kGroups;     // of consecutive experts
  Config::kTopGroups;  // groups that may have experts of a token
};

// Args: the logits, and the operands to which the choices are written.
template <class Args>
concept RouterArgs = ChoiceArgs<Args> && requires(const Args& args) {
  args.logits;
  args.logits_row_bytes;
  args.topk_weights;
};

// If a bias is added to scores.
template <class Args>
concept HasScoreBias = requires(const Args& args) { args.score_bias; };

// Integers above 0 that have the order of numbers. NaN has the least key, and -0 the key of +0.
struct Key {
  static constexpr u32 kNone = 0, kNaN = 1, kSign = 0x80000000;

  static MK_DEVICE u32 of(float value) {
    const u32 bits = as_bits(value + 0.0f);
    if ((bits & ~kSign) > as_bits(infinity())) return kNaN;
    return (bits & kSign) != 0 ? ~bits : bits | kSign;
  }
  static MK_DEVICE float value(u32 key) { return as_float((key & kSign) != 0 ? key & ~kSign : ~key); }
};

template <RouterConfig Config, RouterArgs Args, FaultWorkspace Workspace, ChoiceSmem Smem>
struct Router {
  using Choices = moe::Choices<Config, Workspace, Smem>;
  using Element = typename Config::ElementLogits;

  static constexpr u32 kPerLane = kCeilDiv<Config::kExperts, kWarp>;
  static_assert(Config::kTopK <= kWarp, "a lane has a choice");

  // All threads of a CTA: choose the experts of the slice's tokens.
  static MK_DEVICE void choose(const Args& args, const Smem& smem, const Slice& slice) {
    const u32 lane = lane_index(), choices = Choices::count(slice);
    for (u32 i = warp_index(); i < slice.tokens; i += blockDim.x / kWarp) {
      const Choice choice = Token{args, slice.first + i}.choose();
      if (lane < Config::kTopK) {
        const u64 at = (u64{slice.first + i} * Config::kTopK + lane) * 4;
        store_shared(smem.choice_expert(i * Config::kTopK + lane), choice.expert);
        store_word(args.topk_ids + at, choice.expert);
        store_word(args.topk_weights + at, as_bits(choice.weight));
      }
    }
    // Threads read choices in whole vectors.
    const u32 unused = (4 - choices % 4) % 4;
    if (threadIdx.x < unused) store_shared(smem.choice_expert(choices + threadIdx.x), kNoExpert);
    __syncthreads();
  }

 private:
  struct Choice {
    u32 expert;
    float weight;
  };

  // Returns the index of the lane with the greatest key, the lowest index if several lanes have this key. Indices are below 2^31.
  static MK_DEVICE u32 index_of_greatest(u32 key, u32 index) {
    const u32 greatest = max_of_warp(key);
    return ~max_of_warp(key == greatest ? ~index : 0);
  }

  // A token, and the numbers that all of its scores need.
  struct Token {
    const u8* logits;
    const Args& args;
    float greatest, factor;  // softmax: the greatest logit, and 1 / the sum of exponentials

    MK_DEVICE Token(const Args& args, u32 token) : logits(args.logits + token * args.logits_row_bytes), args(args) {}

    // A warp: returns choice `lane_index()`.
    MK_DEVICE Choice choose() {
      float values[kPerLane];
      for_each([&](u32 i, u32 expert) { values[i] = logit(expert); });
      if constexpr (Config::kScores == Scores::kSoftmax) {
        greatest = -infinity();
        for_each([&](u32 i, u32) { greatest = max(greatest, values[i]); });
        greatest = warp_max(greatest);
        float sum = 0.0f;
        for_each([&](u32 i, u32) { sum += exponential(values[i]); });
        factor = reciprocal_approx(warp_sum(sum));
      }
      u32 keys[kPerLane] = {};
      for_each([&](u32 i, u32 expert) { keys[i] = Key::of(compared(values[i], expert)); });
      if constexpr (HasGroups<Config>) keep_best_groups(keys);
      u32 expert = 0;
#pragma unroll 1
      for (u32 k = 0; k < Config::kTopK; ++k) {
        const u32 chosen = take_greatest(keys);
        if (lane_index() == k) expert = chosen;
      }
      return {expert, weight(lane_index() < Config::kTopK ? score(logit(expert)) : 0.0f)};
    }

   private:
    // Calls `found(i, expert)` for each expert of this lane.
    template <class Found>
    static MK_DEVICE void for_each(const Found& found) {
#pragma unroll
      for (u32 i = 0; i < kPerLane; ++i) {
        const u32 expert = i * kWarp + lane_index();
        if (expert < Config::kExperts) found(i, expert);
      }
    }

    MK_DEVICE float logit(u32 expert) const {
      const u8* p = logits + Element::bytes(expert);
      if constexpr (Element::kBytes == 4) return Element::at(load_word(p), 0);
      else return Element::at(load_half(p), 0);
    }

    MK_DEVICE float exponential(float logit) const { return exp2_approx(kLog2E * (logit - greatest)); }
    MK_DEVICE float score(float logit) const {
      if constexpr (Config::kScores == Scores::kSoftmax) return exponential(logit) * factor;
      else return sigmoid(logit);
    }

    // The number by which an expert is compared.
    MK_DEVICE float compared(float logit, u32 expert) const {
      if constexpr (HasScoreBias<Args>) return score(logit) + as_float(load_word(args.score_bias + Fp32::bytes(expert)));
      else if constexpr (HasGroups<Config>) return score(logit);
      else return logit;
    }

    // A warp: returns the expert with the greatest key, and takes this key away.
    static MK_DEVICE u32 take_greatest(u32 (&keys)[kPerLane]) {
      u32 best = Key::kNone, index = 0;
      for_each([&](u32 i, u32 expert) {
        if (keys[i] > best) best = keys[i], index = expert;
      });
      const u32 chosen = index_of_greatest(best, index);
      for_each([&](u32 i, u32 expert) {
        if (expert == chosen) keys[i] = Key::kNone;
      });
      return chosen;
    }

    // A warp: takes the keys of all experts away that are not in the best kTopGroups groups.
    static MK_DEVICE void keep_best_groups(u32 (&keys)[kPerLane]) {
      constexpr u32 kEach = Config::kExperts / Config::kGroups;
      static_assert(Config::kGroups <= kWarp, "a lane has the score of a group");
      static_assert(kEach * Config::kTopGroups >= Config::kTopK && kEach * Config::kGroups == Config::kExperts);
      u32 group_score = Key::kNone;  // of group `lane_index()`
#pragma unroll 1
      for (u32 group = 0; group < Config::kGroups; ++group) {
        const float score = score_of_group(keys, group * kEach, kEach);
        if (lane_index() == group) group_score = Key::of(score);
      }
      u32 kept = 0;
#pragma unroll 1
      for (u32 k = 0; k < Config::kTopGroups; ++k) {
        const u32 group = index_of_greatest(group_score, lane_index());
        if (lane_index() == group) group_score = Key::kNone;
        kept |= 1u << group;
      }
      for_each([&](u32 i, u32 expert) {
        if ((kept >> expert / kEach & 1) == 0) keys[i] = Key::kNone;
      });
    }

    // A warp: returns the sum of the two greatest numbers among `size` experts from `first` on, or the only number.
    static MK_DEVICE float score_of_group(const u32 (&keys)[kPerLane], u32 first, u32 size) {
      u32 best = Key::kNone, second = Key::kNone;
      for_each([&](u32 i, u32 expert) {
        if (expert - first >= size) return;
        if (keys[i] > best) second = best, best = keys[i];
        else if (keys[i] > second) second = keys[i];
      });
      const u32 greatest = max_of_warp(best);
      if (lane_index() == index_of_greatest(best, lane_index())) best = second;
      const u32 next = max_of_warp(best);
      return Key::value(greatest) + (next == Key::kNone ? 0.0f : Key::value(next));
    }

    // A warp: returns the weight of this lane's choice, which has this score. The score of a lane without a choice is 0.
    static MK_DEVICE float weight(float score) {
      if constexpr (Config::kRenormalises) {
        // Scores of 0 have weights of 0, as in DeepSeek-V3.
        constexpr float kLeast = 1e-20f;
        score *= reciprocal_approx(warp_sum(score) + kLeast);
      }
      return score * Config::kScoreScale;
    }
  };
};

}  // namespace mk::moe
