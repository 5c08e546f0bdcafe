// Top-k entries: the rows of the experts' results that make up a token's sum, and the weight of each row.
//
// Operands may have wrong values. Every rank finds wrong entries by itself and leaves them out of the sum, so no rank
// waits for a row that no rank sends. Ranks report wrong entries to the host.
#pragma once
#include <mk/deadline.cuh>
#include <mk/moe/row_index.cuh>

namespace mk::moe {

template <class Config>
concept TopkConfig = TopologyConfig<Config> && requires {
  Config::kTopK;       // entries of a token
  Config::kMaxTokens;  // the most tokens of a rank
  Config::kMaxRows;    // the most rows of a rank's experts
};

// Args: the row indices of each token, and the weights of these rows. See mk/moe/row_index.cuh.
template <class Args>
concept TopkArgs = requires(const Args& args) {
  args.num_tokens;  // tokens of this rank
  args.row_indices;
  args.topk_weights;
};

// An entry of a token. Lane i of a warp has entry i. Entries without a row have the row index kNoRow, and so has a lane
// without an entry. The weight of such an entry may have any value.
template <TopkConfig Config>
struct TopkEntry {
  u32 row_index = kNoRow, weight_bits = 0;

  // The rank that has the row. The number is not below the number of ranks if the row index is wrong or there is no
  // row.
  MK_DEVICE u32 rank() const { return row_index / Config::kMaxRows; }
  MK_DEVICE u32 row() const { return row_index % Config::kMaxRows; }
};

template <TopkConfig Config, TopkArgs Args>
struct Topk {
  using Entry = TopkEntry<Config>;
  static constexpr u32 kRowIndices = Topology<Config>::kWorld * Config::kMaxRows;

  static MK_DEVICE u32 load_row_index(const Args& args, u32 i) { return load_word(args.row_indices + u64{i} * 4); }
  static MK_DEVICE u32 load_weight(const Args& args, u32 i) { return load_word(args.topk_weights + u64{i} * 4); }

  // Loads entry `i` of all entries of all tokens. Returns an entry without a row if operands have no room for entry
  // `i`.
  static MK_DEVICE Entry load_entry(const Args& args, u32 i) {
    if (i >= Config::kMaxTokens * Config::kTopK) return Entry{};
    return Entry{load_row_index(args, i), load_weight(args, i)};
  }

  // A warp: loads the entries of a token.
  static MK_DEVICE Entry load_entries(const Args& args, u32 token) {
    const u32 lane = lane_index(), i = token * Config::kTopK + lane;
    if (lane >= Config::kTopK) return Entry{};
    return Entry{load_row_index(args, i), load_weight(args, i)};
  }

  // Returns the number of tokens that take part in the call. The number is 0 if the caller has given more than
  // kMaxTokens.
  static MK_DEVICE u32 valid_tokens(u32 given) { return given > Config::kMaxTokens ? 0 : given; }

  // Returns valid_tokens(given), and reports a number of tokens of rank `source` that is too large.
  static MK_DEVICE u32 check_tokens(const RankContext& ctx, u32 source, u32 given) {
    if (given <= Config::kMaxTokens) return given;
    report_fault(ctx, WaitSite{kPush, kTokens, 0, 0, Config::kMaxTokens}, given, source);
    return 0;
  }

  // Whether the row index is wrong. kNoRow, the index of no row, is not wrong.
  static MK_DEVICE bool is_wrong(u32 row_index) {
    return row_index >= kRowIndices && row_index != kNoRow;
  }

  // A warp: reports a wrong row index of a token of rank `source`.
  static MK_DEVICE void check_entries(const RankContext& ctx, u32 source, u32 token, const Entry& entry) {
    const u32 lane = lane_index();
    if (lane >= Config::kTopK || !is_wrong(entry.row_index)) return;
    report_wrong_row_index(ctx, source, token, lane, entry.row_index);
  }
  // One thread: reports a row index that another token has, too. Only the rank with the row finds this, and one of the
  // two tokens gets no sum, so the call fails on this rank and on the rank of that token. Other ranks may have all
  // their sums by now, and fail with the next call.
  static MK_DEVICE void report_row_twice(const RankContext& ctx, u32 source, u32 token, u32 index, u32 row_index) {
    report(ctx, WaitSite{kLoad, kRowTwice, index, token, source}, row_index, 0, 0);
    raise_abort(ctx, 1 + ctx.rank);
  }
  static MK_DEVICE void report_wrong_row_index(const RankContext& ctx, u32 source, u32 token, u32 index, u32 row_index) {
    report_fault(ctx, WaitSite{kPush, kRowIndex, index, token, kRowIndices}, row_index, source);
  }
};

}  // namespace mk::moe
