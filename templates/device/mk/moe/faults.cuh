// What can be wrong with the values of a call's operands: how many tokens there are, and which experts they choose. Any
// rank can find a fault in its own operands, and all ranks report it.
#pragma once
#include <mk/deadline.cuh>

namespace mk::moe {

template <class Workspace>
concept FaultWorkspace = requires {
  Workspace::fault_mark();  // mark of the last call in which this rank found a fault
  Workspace::fault();       // the words of that fault
};

// The first words of a message, 0 if its sender found no fault. Kernels of both parities of the call have the same.
struct FaultWords {
  static constexpr u32 kCount = 5;

  u32 wait, choice, token, limit, value;
};

template <FaultWorkspace Workspace>
struct Faults {
  // Keeps one fault of this rank and call, the first to come.
  static MK_DEVICE void keep(const RankContext& ctx, const FaultWords& fault) {
    if (exchange_relaxed_gpu(ctx.local_ptr(Workspace::fault_mark()), ctx.mark()) == ctx.mark()) return;
    u32* words = ctx.local_ptr(Workspace::fault());
    const u32 values[] = {fault.wait, fault.choice, fault.token, fault.limit, fault.value};
    for (u32 i = 0; i < FaultWords::kCount; ++i) store(words + i, values[i]);
  }

  // Whether this rank has found one; certain once all of its CTAs have met.
  static MK_DEVICE bool is_kept(const RankContext& ctx) {
    return load_relaxed_sys(ctx.local_ptr(Workspace::fault_mark())) == ctx.mark();
  }

  // One thread: the fault of this rank to the head of a message, or zeros.
  static MK_DEVICE void write(const RankContext& ctx, u32* message) {
    const bool has_fault = is_kept(ctx);
    const u32* words = ctx.local_ptr(Workspace::fault());
    for (u32 i = 0; i < FaultWords::kCount; ++i) store(message + i, has_fault ? load(words + i) : 0);
  }

  // Whether the message of rank `source` has a fault; one thread of the rank reports it to the host.
  static MK_DEVICE bool report_from(const RankContext& ctx, const u32* message, u32 source) {
    const u32 wait = load(message);
    if (wait == 0) return false;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      const WaitSite site{kPush, static_cast<Wait>(wait), load(message + 1), load(message + 2), load(message + 3)};
      report_fault(ctx, site, load(message + 4), source);
    }
    return true;
  }
};

}  // namespace mk::moe
