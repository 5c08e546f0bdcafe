// The offsets of packed sequences: the first row of each sequence among the rows over all ranks, and the end of the
// last sequence.
#pragma once
#include <mk/deadline.cuh>

namespace mk {

// A call has kSequences sequences, of which the last may be empty. The first offset is 0, no offset is less than the
// previous one, and none is more than kMaxRows. A call with other offsets has no rows.
template <IsPacked Config>
struct Offsets {
  const u32* address;

  // The result of a warp's check of the offsets.
  struct Checked {
    u32 first_wrong;  // 1 + the number of the first offset that is not possible; 0 if all are possible
    u32 hash;         // of all offsets and their order; 0 if an offset is not possible
  };

  // Args: cu_seqlens.
  template <class Args>
  static MK_DEVICE Offsets of(const Args& args) {
    return {reinterpret_cast<const u32*>(args.cu_seqlens)};
  }

  MK_DEVICE u32 begin(u32 sequence) const { return load(address + sequence); }
  MK_DEVICE u32 end(u32 sequence) const { return load(address + sequence + 1); }  // @offsets.end

  // All threads of a warp: check the offsets.
  MK_DEVICE Checked check() const {
    u32 first_wrong = kNone, hash = 0;
    for (u32 i = lane_index(); i <= Config::kSequences; i += kWarp) {
      const u32 offset = load(address + i);
      if (!is_possible(i, offset)) first_wrong = min(first_wrong, i);
      hash += mix(i, offset);
    }
    first_wrong = kNone - max_of_warp(kNone - first_wrong);
    hash = sum_of_warp(hash);
    if (first_wrong != kNone) return {first_wrong + 1, 0};
    return {0, hash};
  }

  // One thread of the first CTA: reports the first wrong offset, if there is one.
  MK_DEVICE void report_wrong(const RankContext& ctx) const {
    if (ctx.refused_rows == 0) return;
    const u32 number = ctx.refused_rows - 1, offset = load(address + number);
    const u32 limit = offset > Config::kMaxRows && number > 0 ? Config::kMaxRows : before(number);
    report_fault(ctx, WaitSite{kLoad, kOffset, ctx.rank, number, limit}, offset, ctx.rank);
  }

 private:
  static constexpr u32 kNone = ~0u;

  MK_DEVICE u32 before(u32 number) const { return number == 0 ? 0 : load(address + number - 1); }

  MK_DEVICE bool is_possible(u32 number, u32 offset) const {
    const u32 most = number == 0 ? 0 : Config::kMaxRows;
    return offset <= most && offset >= before(number);  // @offsets.possible
  }

  // Returns a number for an offset. If an offset changes, the sum of these numbers changes too, except in one of 2^31
  // cases.
  static MK_DEVICE u32 mix(u32 number, u32 offset) {
    u32 bits = (offset + number * 0x9e3779b9u) * 0x6a09e667u;
    bits = (bits ^ bits >> 15) * 0xbb67ae85u;
    return bits ^ bits >> 13;
  }
};

}  // namespace mk
