// The cached rows of K and V: the number of rows of each sequence that each rank has before its new rows.
#pragma once
#include <mk/call_words.cuh>

namespace mk {

// A call has a number for each rank and batch, at most kCachedRows. A call with other numbers has no rows.
template <HasCache Config>
struct CachedRows {
  using Ranks = Topology<Config>;

  const u32* address;  // [rank, batch]

  static constexpr u32 kCount = Ranks::kWorld * Config::kBatch;

  // Args: cached_rows.
  template <class Args>
  static MK_DEVICE CachedRows of(const Args& args) {
    return {reinterpret_cast<const u32*>(args.cached_rows)};
  }

  MK_DEVICE u32 at(u32 rank, u32 batch) const { return load(address + rank * Config::kBatch + batch); }

  // All threads of a warp: check the numbers, and enter them in the context of the call.
  MK_DEVICE void enter(RankContext& ctx) const {
    u32 most = 0;
    const CheckedWords checked = check_words(address, kCount, [&](u32, u32 rows) {
      if (rows > most) most = rows;
      return rows <= Config::kCachedRows;
    });
    ctx.refused_length = checked.first_wrong;
    if (checked.first_wrong != 0) ctx.rows = 0;
    ctx.most_cached = max_of_warp(most);
    ctx.lengths = kLengthsHash | (checked.hash + mix_word(kCount, ctx.rows));
  }

  // One thread of the first CTA: reports the first wrong number, if any.
  MK_DEVICE void report_wrong(const RankContext& ctx) const {
    if (ctx.refused_length == 0) return;
    const u32 number = ctx.refused_length - 1;
    const WaitSite site{kLoad, kCachedRows, number / Config::kBatch, number % Config::kBatch, Config::kCachedRows};
    report_fault(ctx, site, load(address + number), ctx.rank);
  }
};

}  // namespace mk
