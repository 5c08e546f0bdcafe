// The rows of the sum of a token. Lane i of a warp has the row that stands for entry i of the token.
//
// Rows are added in the order of the ranks or nodes that have added them up, and the rows of this rank in the order of
// entries. Results are therefore bitwise repeatable.
#pragma once
#include <mk/batch_invariant.cuh>
#include <mk/moe/topk.cuh>
#include <mk/vec_sum.cuh>

namespace mk::moe {

// The row that a lane contributes to a sum. Rows are added in the order of their positions.
struct SumRow {
  static constexpr u32 kNone = ~0u;            // the position of a lane that has no row
  static constexpr u32 kNoGroup = ~0u;         // the group of a lane that has no row
  static constexpr u32 kOneBits = 0x3f800000;  // 1.0, the weight of rows that other ranks have weighted

  u32 position = kNone, weight_bits = 0;
  const u8* from = nullptr;

  // The rank that has added up the row, or the first rank of the node that has added it up.
  MK_DEVICE u32 group() const { return position / kWarp; }

  // A warp: returns the position of a lane's row. Rows are ordered by group. A group is the rank or the node that has
  // added up the row. This rank may have several rows of a token, and each of their lanes has its row. For any other
  // group, the lane of the first entry has the row.
  template <TopkConfig Config>
  static MK_DEVICE u32 position_in_sum(u32 group, bool is_own) {
    const u32 lane = lane_index();
    bool is_first = true;
    if constexpr (Topology<Config>::kWorld > 1) {
      for (u32 i = 0; i < Config::kTopK; ++i) {
        const u32 other = broadcast(group, i);
        is_first &= i >= lane || other != group;
      }
    }
    return group != kNoGroup && (is_own || is_first) ? group * kWarp + lane : kNone;
  }
};

// A warp: the order in which the rows of its lanes are added.
template <TopkConfig Config>
struct RowOrder {
  u32 count = 0;   // rows of the sum
  u32 before = 0;  // rows that come before the row of this lane

  MK_DEVICE explicit RowOrder(const SumRow& row) {
    for (u32 i = 0; i < Config::kTopK; ++i) {
      const u32 position = broadcast(row.position, i);
      before += position < row.position;
      count += position != SumRow::kNone;
    }
  }

  // The lane with row number i of the sum, in lane i.
  MK_DEVICE u32 lane() const {
    u32 lane = 0;
    for (u32 i = 0; i < Config::kTopK; ++i) {
      if (broadcast(before, i) == lane_index()) lane = i;
    }
    return lane;
  }
};

// The sum of a vector of the rows of a token.
template <class Config>
struct SumOfGroups : VecSum<typename Config::Element> {
  MK_DEVICE void add(const Vec16& vec, float weight, u32) { VecSum<typename Config::Element>::add(vec, weight); }
};

// If the sum must not depend on the rank that has the token, this rank rounds the sum of its own rows, and the sum of its own
// node, as other ranks and nodes round theirs.
template <BatchInvariant Config>
struct SumOfGroups<Config> {
  using Sum = VecSum<typename Config::Element>;
  using Ranks = Topology<Config>;

  Sum all, of_node, of_rank;
  u32 group = 0;  // of the rows in `of_rank`

  MK_DEVICE void add(const Vec16& vec, float weight, u32 rank) {
    if (rank != group) end_rank();
    if (Ranks::kNodes > 1 && rank / Ranks::kLocalWorld != group / Ranks::kLocalWorld) end_node();
    group = rank;
    of_rank.add(vec, weight);
  }

  MK_DEVICE Vec16 result() {
    end_rank();
    if constexpr (Ranks::kNodes == 1) return of_node.result();
    end_node();
    return all.result();
  }

 private:
  // The sum of no rows, -0, changes no sum.
  MK_DEVICE void end_rank() {
    of_node.add(of_rank.result());
    of_rank = {};
  }
  MK_DEVICE void end_node() {
    all.add(of_node.result());
    of_node = {};
  }
};

// The tokens of a rank with `tokens` tokens whose sums take the low-latency path, and the tokens whose sums pass
// through the pipeline: either all tokens or none.
template <class Config>
MK_DEVICE u32 low_latency_tokens(u32 tokens) {
  return tokens <= Config::kLowLatencyTokens ? tokens : 0;
}
template <class Config>
MK_DEVICE u32 pipelined_tokens(u32 tokens) {
  return tokens > Config::kLowLatencyTokens ? tokens : 0;
}

// The row of an entry, on the rank that has it.
template <class Args, class Entry>
MK_DEVICE const u8* own_row(const Args& args, const Entry& entry) {
  return args.rows + entry.row() * args.row_bytes;
}

}  // namespace mk::moe
