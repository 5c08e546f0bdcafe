// Waits that end: each has a deadline, and sees the abort of any rank or of the host.
//
// When the deadline of a wait for a peer passes, the kernel records who waited for what in host memory and raises the
// abort word of every rank. From then on every such wait of every rank returns at once: the kernel runs to its end over
// whatever is in its buffers, and the host, which finds the record, discards the result. The context stays usable.
#pragma once
#include <mk/abi.cuh>
#include <mk/barrier.cuh>
#include <mk/memory.cuh>

namespace mk {

// What a wait needs to know of its surroundings.
struct Watch {
  u8* const* workspaces;
  HostPage* host;
  Gate* gate;
  u64 deadline_ns;
  u32 number;              // of the operator, from 1 on
  u32 rank, world, epoch;  // the world of this node, whose workspaces are in reach
  u32 first = 0;  // its first rank

  // This rank's number on its node, and its workspace.
  __device__ __forceinline__ u32 local() const { return rank - first; }
  __device__ __forceinline__ u8* here() const { return workspaces[local()]; }
  __device__ __forceinline__ State* state() const { return reinterpret_cast<State*>(here()); }

  // What stands for this call in words that not every call writes. Such a word may be as old as the operator, so that no
  // window tells old epochs from new ones: it is compared for equality. Words that were never written are 0, which is
  // the mark of no call: call 2^32, whose epoch is 0, has the mark of call 2^31 instead. A mark comes again after 2^31
  // calls at the earliest, and then deceives only who waits for a word that was last written in exactly that call.
  // 64 bits would never come again, but tagged words have only 32 beside what they tell.
  __device__ __forceinline__ u32 mark() const { return epoch != 0 ? epoch : 0x80000000u; }
};

constexpr Wait kStageFree = kStageEmpty, kOutputFree = kOutputEmpty;

// What is waited for, for the report.
struct Awaited {
  Role role;
  Wait wait;
  u32 peer, index, wanted;
};

__device__ __forceinline__ void write_report(const Watch& watch, Report* out, const Awaited& what, u32 seen, u32 aborted_by,
                                             u64 waited_ns) {
  store_relaxed_sys(&out->rank, watch.rank);
  store_relaxed_sys(&out->cta, blockIdx.x);
  store_relaxed_sys(&out->role, what.role);
  store_relaxed_sys(&out->wait, what.wait);
  store_relaxed_sys(&out->peer, what.peer);
  store_relaxed_sys(&out->index, what.index);
  store_relaxed_sys(&out->wanted, what.wanted);
  store_relaxed_sys(&out->seen, seen);
  store_relaxed_sys(&out->epoch, watch.epoch);
  store_relaxed_sys(&out->aborted_by, aborted_by);
  store_relaxed_sys(&out->waited_ns, waited_ns);
  store_release_sys(&out->valid, 1);
}

// The first caller of a rank writes the report.
__device__ __forceinline__ void report(const Watch& watch, const Awaited& what, u32 seen, u32 aborted_by,
                                       u64 waited_ns) {
  if (exchange_relaxed_gpu(&watch.state()->reported, 1) != 0) return;
  write_report(watch, &watch.host->report, what, seen, aborted_by, waited_ns);
}

// What is wrong with the values of this call's operands, of rank `source`; the first caller of a call writes it. No wait is
// given up, and the next call is a call like any other. What the host has not read yet stays: of several calls it gets the
// first, and `valid` is 0 only when the host no longer reads the rest.
__device__ __forceinline__ void report_fault(const Watch& watch, const Awaited& what, u32 value, u32 source) {
  if (exchange_relaxed_gpu(&watch.state()->faulted, watch.mark()) == watch.mark()) return;
  Report* out = &watch.host->fault;
  if (load_acquire_sys(&out->valid) != 0) return;
  write_report(watch, out, what, value, source == watch.rank ? 0 : 1 + source, 0);
}

// Ends all waits of this node's ranks in this operator.
__device__ __forceinline__ void raise_abort(const Watch& watch, u32 cause) {
  for (u32 r = 0; r < watch.world; ++r) {
    store_relaxed_sys(&reinterpret_cast<State*>(watch.workspaces[r])->abort, cause);
  }
}

// Whether to give up a wait that began at `start_ns`. `aborted_by` is what the caller saw of abort words. Tells every
// rank, unless the abort came from one.
__device__ __forceinline__ bool give_up(const Watch& watch, const Awaited& what, u32 seen, u32 aborted_by,
                                        u64 start_ns) {
  const u64 waited_ns = global_time_ns() - start_ns;
  if (aborted_by == 0 && waited_ns < watch.deadline_ns) return false;
  report(watch, what, seen, aborted_by, waited_ns);
  const bool is_lost = aborted_by != kHostAbort && (aborted_by & kLost) != 0;
  if (aborted_by == 0 || aborted_by == kHostAbort || is_lost) {
    raise_abort(watch, is_lost ? aborted_by : 1 + watch.rank);
  }
  return true;
}

// Whether a wait of this node was given up: what is in buffers then is not to leave this rank. Whoever acquired what was
// made of it knows.
__device__ __forceinline__ bool is_given_up(const Watch& watch) {
  return load_relaxed_sys(&watch.state()->abort) != 0;
}

// Between two polls of a flag, so that its pollers don't crowd out its writer.
constexpr u32 kPollPauseNs = 32;

// Polls of a flag between two looks at clock and abort words: about 50 µs.
constexpr u32 kFlagPollsPerLook = 128;

// The host's abort word is read this seldom. A read crosses PCIe; a hundred CTAs that each read it every 50 µs slow
// down all else that does, the copy engines' commands first (measured: 0.3 ms per copy).
constexpr u64 kHostLookNs = 10'000'000;

// Between two looks at the host's answer, which cross PCIe.
constexpr u32 kAnswerPauseNs = 1000;

// What the host may need for its answer beyond twice the deadline: its thread may stand still for long.
constexpr u64 kAnswerLimitNs = 60'000'000'000;

// How long a wait for a peer has lasted.
struct Patience {
  u64 start_ns = 0, host_look_ns = 0;
  u32 polls = 0;

  // After a poll in vain: whether to give up.
  __device__ __forceinline__ bool ends(const Watch& watch, const Awaited& what, u32 seen) {
    if (polls == 0) {
      start_ns = global_time_ns();
      host_look_ns = start_ns + kHostLookNs;
    }
    if (++polls % kFlagPollsPerLook != 0) return false;
    u32 aborted_by = load_relaxed_sys(&watch.state()->abort);
    if (aborted_by == 0 && global_time_ns() > host_look_ns) {
      host_look_ns += kHostLookNs;
      const u32 host_abort = load_relaxed_sys(&watch.host->abort);
      if (host_abort != 0) aborted_by = (host_abort & kLost) != 0 ? host_abort : kHostAbort;
    }
    return give_up(watch, what, seen, aborted_by, start_ns);
  }
};

// Until the flag, which every call advances by as much (modulo 2^32), has reached `what.wanted`. Acquires what came before
// the flag. Returns what it has reached: less if the wait gave up.
__device__ __forceinline__ u32 wait_flag(const Watch& watch, const u32* flag, const Awaited& what) {
  Patience patience;
  for (;;) {
    const u32 seen = load_acquire_sys(flag);
    if (static_cast<int>(seen - what.wanted) >= 0 || patience.ends(watch, what, seen)) return seen;
    __nanosleep(kPollPauseNs);
  }
}

// Until the flag is `what.wanted`, the mark of this call; of a flag that not every call writes. Acquires what came before it.
__device__ __forceinline__ void wait_mark(const Watch& watch, const u32* flag, const Awaited& what) {
  Patience patience;
  for (;;) {
    const u32 seen = load_acquire_sys(flag);
    if (seen == what.wanted || patience.ends(watch, what, seen)) return;
    __nanosleep(kPollPauseNs);
  }
}

// One thread, after a wait for the end of its copies was given up: until no copy reads what the caller may now free. The
// kernel withdraws, then looks whether the host has claimed; the host claims, then looks whether the kernel has withdrawn.
// Between the two steps each has a fence, so one of them sees the other's word: either the host makes no copies, or the
// kernel waits for its answer. Copies end by themselves. If the answer stays away all the same, only a trap ends both.
__device__ __forceinline__ void end_copies(const Watch& watch) {
  store_relaxed_sys(&watch.host->withdrawn, 1);
  fence_sc_sys();
  if (load_relaxed_sys(&watch.host->claimed) != watch.epoch) return;
  const u64 start_ns = global_time_ns();
  while (load_acquire_sys(&watch.host->answered) != watch.epoch) {
    __nanosleep(kAnswerPauseNs);
    const u64 waited_ns = global_time_ns() - start_ns;
    if (waited_ns < 2 * watch.deadline_ns + kAnswerLimitNs) continue;
    report(watch, Awaited{kPush, kSent, watch.rank, watch.rank, watch.epoch}, 0, 0, waited_ns);
    __trap();
  }
}

// A call in one word: its number, that of its operator, and the low bits of what `due` was when it began, plus 1.
__device__ __forceinline__ u64 call_name(u32 epoch, u32 number, u32 due) {
  return u64{epoch} << 32 | (number & 0xffff) << 16 | ((due + 1) & 0xffff);
}

// Who this call's CTA meets: for its report, and so that all other ranks stop waiting for a call that is none. Where both
// calls are of one operator, they have read the same epoch; what is refused is the later.
// `is_first`: whether the other call got the first word.
__device__ __forceinline__ void refuse(const Watch& watch, bool is_first) {
  const Gate* gate = watch.gate;
  const u64 last = load_relaxed_sys(&gate->last);
  const u32 epoch = static_cast<u32>(last >> 32), number = static_cast<u32>(last) >> 16;
  const bool is_same = number == (watch.number & 0xffff) && epoch == watch.epoch;
  if (is_same && !is_first) return;  // if this is that call, the other one's first CTA is refused too
  report(watch, Awaited{kLoad, kOverlap, watch.number, number, watch.epoch + is_same}, epoch, 0, 0);
  raise_abort(watch, 1 + watch.rank);
}

// All threads of a CTA, before it does anything that others see; in place of __syncthreads. False if another call is under
// way: then the CTA must end. Calls that wait for each other, as those of one stream do, find all words equal to `due`. Of
// two others, one finds that a word was raised since: each call raises every word once, and `due` only when all its CTAs
// have raised theirs. A call that begins when those of the one before are all counted (advance_epoch) is not refused. The
// CTAs that still run then wait for no other CTA to start, and the two calls use different halves of what peers write.
// To count CTAs at their end instead costs far more than it is worth: 1 to 20 µs (H200).
__device__ __forceinline__ bool enter(const Watch& watch) {
  u32 is_refused = 0, due = 0;
  if (threadIdx.x / kWarp == 1) {
    const u32 lane = lane_index();
    due = load_relaxed_sys(&watch.gate->due);
    for (u32 word = blockIdx.x + lane * gridDim.x; word < kGateWords; word += kWarp * gridDim.x) {
      is_refused |= fetch_add_relaxed_gpu(&watch.gate->entered[word], gridDim.x) != due;
    }
    if (blockIdx.x == 0 && lane == 0 && is_refused == 0) {
      store_relaxed_sys(&watch.gate->last, call_name(watch.epoch, watch.number, due));
    }
  }
  if (__syncthreads_or(is_refused) != 0) {
    if (threadIdx.x == kWarp) refuse(watch, blockIdx.x == 0 && is_refused != 0);
    return false;
  }
  return true;
}

// Polls of a barrier in shared memory between two looks at the clock; they are short.
constexpr u32 kBarrierPollsPerLook = 4096;

// Who arrives at a barrier may have waited for one thing after the other, for each almost as long as the deadline. What it
// waits for is of other ranks: of those that have not come yet, since one that has is kept by none but those. So it takes
// as many deadlines as there are other ranks, which come one after the other, and one for the work itself: 8 on a node.
// In larger jobs more than 7 ranks would have to be late by a deadline each.
constexpr u32 kBarrierDeadlines = 8;

// Until the barrier's phase of `parity` is over. What a CTA's own warps and its TMA owe each other comes for certain
// once every wait for a peer ends, so an abort must not break this wait: the ring of stages would lose count. If it fails
// all the same, the kernel is wrong, and only a trap ends it, after kBarrierDeadlines of them.
__device__ __forceinline__ void wait_barrier(const Watch& watch, u32 barrier, u32 parity, Role role, Wait wait,
                                             u32 index) {
  if (barrier_try_wait(barrier, parity)) return;
  u64 start_ns = 0;
  for (u32 polls = 1; !barrier_try_wait(barrier, parity); ++polls) {
    if (polls % kBarrierPollsPerLook != 0) continue;
    if (start_ns == 0) start_ns = global_time_ns();
    const u64 waited_ns = global_time_ns() - start_ns;
    if (waited_ns < kBarrierDeadlines * watch.deadline_ns) continue;
    report(watch, Awaited{role, wait, watch.rank, index, parity}, parity ^ 1, 0, waited_ns);
    __trap();
  }
}

// The same without a deadline, for warps that have products in flight: beside a trap ptxas finds no registers for those.
// Another thread of the CTA must wait for these warps with a deadline. Its trap ends them too.
__device__ __forceinline__ void wait_barrier_watched(const Watch&, u32 barrier, u32 parity, Role, Wait, u32) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

}  // namespace mk
