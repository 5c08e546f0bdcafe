// The offsets of packed sequences: the first row of each sequence among the rows over all ranks, and the end of the
// last sequence.
#pragma once
#include <mk/call_words.cuh>

namespace mk {

// A call has kSequences sequences. The last sequences may be empty. The first offset is 0, no offset is less than the
// previous one, and no offset exceeds kMaxRows. A call with other offsets has no rows.
template <IsPacked Config>
struct Offsets {
  const u32* address;

  // Args: cu_seqlens.
  template <class Args>
  static MK_DEVICE Offsets of(const Args& args) {
    return {reinterpret_cast<const u32*>(args.cu_seqlens)};
  }

  MK_DEVICE u32 begin(u32 sequence) const { return load(address + sequence); }
  MK_DEVICE u32 end(u32 sequence) const { return load(address + sequence + 1); }

  // All threads of a warp: check the offsets.
  MK_DEVICE CheckedWords check() const {
    return check_words(address, Config::kSequences + 1, [&](u32 number, u32 offset) { return is_possible(number, offset); });
  }

  // One thread of the first CTA: reports the first wrong offset, if any.
  MK_DEVICE void report_wrong(const RankContext& ctx) const {
    if (ctx.refused_length == 0) return;
    const u32 number = ctx.refused_length - 1, offset = load(address + number);
    const u32 limit = offset > Config::kMaxRows && number > 0 ? Config::kMaxRows : before(number);
    report_fault(ctx, WaitSite{kLoad, kOffset, ctx.rank, number, limit}, offset, ctx.rank);
  }

 private:
  MK_DEVICE u32 before(u32 number) const { return number == 0 ? 0 : load(address + number - 1); }

  MK_DEVICE bool is_possible(u32 number, u32 offset) const {
    const u32 most = number == 0 ? 0 : Config::kMaxRows;
    return offset <= most && offset >= before(number);
  }
};

}  // namespace mk
