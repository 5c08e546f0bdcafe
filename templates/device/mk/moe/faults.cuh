// Faults: wrong values in a call's operands, such as too many tokens or an expert that does not exist. A rank finds
// faults in its own operands. Messages carry them to all ranks, and every rank reports them to its host.
#pragma once
#include <mk/deadline.cuh>

namespace mk::moe {

template <class Workspace>
concept FaultWorkspace = requires {
  Workspace::fault_mark();  // the mark of the last call in which this rank found a fault
  Workspace::fault();       // the words of that fault
};

// The first words of a message. All are 0 if its sender has found no fault.
struct FaultWords {
  static constexpr u32 kCount = 5;

  u32 wait, choice, token, limit, value;
};

template <FaultWorkspace Workspace>
struct Faults {
  // Records a fault unless this rank has recorded one in this call.
  static MK_DEVICE void keep(const RankContext& ctx, const FaultWords& fault) {
    if (exchange_relaxed_gpu(ctx.local_ptr(Workspace::fault_mark()), ctx.mark()) == ctx.mark()) return;
    u32* words = ctx.local_ptr(Workspace::fault());
    const u32 values[] = {fault.wait, fault.choice, fault.token, fault.limit, fault.value};
    for (u32 i = 0; i < FaultWords::kCount; ++i) store(words + i, values[i]);
  }

  // Returns whether this rank has recorded a fault in this call. The answer is final once all CTAs of the rank have
  // met.
  static MK_DEVICE bool is_kept(const RankContext& ctx) {
    return load_relaxed_sys(ctx.local_ptr(Workspace::fault_mark())) == ctx.mark();
  }

  // One thread: writes the fault of this rank to the head of a message, or zeros if there is none.
  static MK_DEVICE void write(const RankContext& ctx, u32* message) {
    const bool has_fault = is_kept(ctx);
    const u32* words = ctx.local_ptr(Workspace::fault());
    for (u32 i = 0; i < FaultWords::kCount; ++i) store(message + i, has_fault ? load(words + i) : 0);
  }

  // Returns whether a message has a fault.
  static MK_DEVICE bool is_in(const u32* message) { return load(message) != 0; }

  // One thread: reports the fault in the message of rank `source` to the host.
  static MK_DEVICE void report_from(const RankContext& ctx, const u32* message, u32 source) {
    const WaitSite site{kPush, static_cast<Wait>(load(message)), load(message + 1), load(message + 2), load(message + 3)};
    report_fault(ctx, site, load(message + 4), source);
  }
};

}  // namespace mk::moe
