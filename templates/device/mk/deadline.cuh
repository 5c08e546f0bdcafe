// Waits that end. Each wait has a deadline, and also ends when any rank or the host aborts.
//
// When the deadline of a wait for a peer expires, the kernel records the wait in host memory, and raises the abort word
// of every rank of its node. The other waits of these ranks for peers then return within about 50 µs. The kernel runs
// to its end with the data in its buffers, which may be wrong, and the host finds the record and discards the result. A
// trap would destroy the CUDA context, and with it the memory of the process. After an abort the context stays usable,
// but the communicator makes no more calls: see enter().
#pragma once
#include <mk/barrier.cuh>
#include <mk/rank_context.cuh>

namespace mk {

// The waiting role and the awaited event, for the report.
struct WaitSite {
  Role role;
  Wait wait;
  u32 peer, index, wanted;
};

// Flags are polled with pauses, so that polls do not delay the store of the writer.
constexpr u32 kPollPauseNs = 32;

// The host's abort word lies across PCIe. If a hundred CTAs read this word every 50 µs, all traffic across PCIe gets
// slower, above all the commands of the copy engines (measured: 0.3 ms per copy). So CTAs read the word every 10 ms.
constexpr u64 kHostLookNs = 10'000'000;

MK_RARE void write_report(const RankContext& ctx, Report* out, const WaitSite& site, u32 seen, u32 aborted_by,
                          u64 waited_ns) {
  store_relaxed_sys(&out->rank, ctx.rank);
  store_relaxed_sys(&out->cta, blockIdx.x);
  store_relaxed_sys(&out->role, site.role);
  store_relaxed_sys(&out->wait, site.wait);
  store_relaxed_sys(&out->peer, site.peer);
  store_relaxed_sys(&out->index, site.index);
  store_relaxed_sys(&out->wanted, site.wanted);
  store_relaxed_sys(&out->seen, seen);
  store_relaxed_sys(&out->epoch, ctx.call());
  store_relaxed_sys(&out->aborted_by, aborted_by);
  store_relaxed_sys(&out->waited_ns, waited_ns);
  store_release_sys(&out->valid, 1);
}

// Records that this rank gives up a call, so that it makes no later call. Every wait has this code, and the address of
// the gate may not occupy registers before it is needed: the reduction in two shots would spill three registers.
MK_RARE void note_failure(const RankContext& ctx) {
  store_relaxed_sys(&loaded_here(ctx.gate)->failed, 1);
}

// Reports a failed wait to the host. A rank has one report, which its first failed wait claims.
MK_RARE void report(const RankContext& ctx, const WaitSite& site, u32 seen, u32 aborted_by, u64 waited_ns) {
  if (exchange_relaxed_gpu(&ctx.state()->reported, 1) != 0) return;
  note_failure(ctx);
  write_report(ctx, &ctx.host->report, site, seen, aborted_by, waited_ns);
}

// Reports wrong values in the operands of rank `source` in this call. Only the first caller in a call writes the
// report. The report ends no wait, and later calls are not affected. A report that the host has not read yet is kept,
// so the host gets the report of the first of several calls. The host sets `valid` to 0 when it has read the other
// fields.
MK_RARE void report_fault(const RankContext& ctx, const WaitSite& site, u32 value, u32 source) {
  if (exchange_relaxed_gpu(&ctx.state()->faulted, ctx.call_mark()) == ctx.call_mark()) return;
  Report* out = &ctx.host->fault;
  if (load_acquire_sys(&out->valid) != 0) return;
  write_report(ctx, out, site, value, source == ctx.rank ? 0 : 1 + source, 0);
}

// Ends all waits of this node's ranks in this operator.
MK_RARE void raise_abort(const RankContext& ctx, u32 cause) {
  note_abort();
  for (u32 r = 0; r < ctx.local_world; ++r) {
    store_relaxed_sys(&ctx.peer_ptr(r, Symmetric<State>{0})->abort, cause);
  }
}

// Ends a wait that began at `start_ns` if its deadline has passed, or if there was an abort. `aborted_by` is the abort
// word that the caller has read. Raises the abort word of every rank, unless another rank has aborted and so has raised
// all abort words.
MK_RARE bool abort_if_due(const RankContext& ctx, const WaitSite& site, u32 seen, u32 aborted_by, u64 start_ns) {
  const u64 waited_ns = global_time_ns() - start_ns;
  if (aborted_by == 0 && waited_ns < ctx.deadline_ns) return false;
  report(ctx, site, seen, aborted_by, waited_ns);
  const bool is_heard = aborted_by != kHostAbort && (aborted_by & kHeard) != 0;
  if (aborted_by == 0 || aborted_by == kHostAbort || is_heard) {
    raise_abort(ctx, is_heard ? aborted_by : 1 + ctx.rank);
  }
  return true;
}

// An aborted rank must not send results computed from other ranks' data, since receivers treat all data that arrive as
// valid. A thread that has acquired data that was computed after an abort also sees the abort.
MK_DEVICE bool is_aborted(const RankContext& ctx) { return load_relaxed_sys(&ctx.state()->abort) != 0; }

// The word with which a rank announces its call: the mark, and the lengths in the upper half.
MK_DEVICE u64 begin_word(const RankContext& ctx) { return u64{ctx.lengths} << 32 | ctx.call_mark(); }

// Returns whether a rank has begun this call with other rows than this rank. If so, reports the difference and ends the
// waits of all ranks, which would wait for data that are not sent.
MK_RARE bool refuse_other_rows(const RankContext& ctx, Role role, u32 rank) {
  const u64 word = load_relaxed_sys(ctx.local_ptr(ctx.begun) + rank);
  if (static_cast<u32>(word) != ctx.call_mark() || word == begin_word(ctx)) return false;
  report(ctx, WaitSite{role, kSameRows, rank, ctx.operator_number, ctx.lengths}, static_cast<u32>(word >> 32), 0, 0);
  // Both words are stored on every rank of the node. A rank that sees the abort then finds a rank with other rows, and
  // reports it.
#pragma unroll 1
  for (u32 i = 1; i < ctx.local_world; ++i) {
    const u32 peer = (ctx.local_rank() + i) % ctx.local_world;
    store_relaxed_sys(ctx.peer_ptr(peer, ctx.begun) + ctx.rank, begin_word(ctx));
    if (ctx.node_first_rank + peer != rank) store_relaxed_sys(ctx.peer_ptr(peer, ctx.begun) + rank, word);
  }
  fence_sys();
  raise_abort(ctx, 1 + ctx.rank);
  return true;
}

// Returns whether any rank of this node has begun this call with other rows than this rank, and reports the first such
// rank.
MK_RARE bool refuse_other_rows(const RankContext& ctx, Role role) {
#pragma unroll 1  // every wait has this loop
  for (u32 i = 1; i < ctx.local_world; ++i) {
    const u32 rank = ctx.node_first_rank + (ctx.local_rank() + i) % ctx.local_world;
    if (refuse_other_rows(ctx, role, rank)) return true;
  }
  return false;
}

// Reports that other ranks have given up this call, though this rank waits for nothing.
MK_RARE void report_abort(const RankContext& ctx, Role role, u32 aborted_by) {
  const u32 peer = (aborted_by & kHeard) != 0 ? aborted_by & ~(kHeard | kLost) : aborted_by - 1;
  report(ctx, WaitSite{role, kBegun, peer, 0, ctx.call_mark()}, 0, aborted_by, 0);
}

// Whether the call was aborted, before a role leaves out a part of its own result, or a put. The call then also fails
// on this rank, even if all its waits succeed. Peers count the puts of all operators, so a later put of this rank would
// be taken for the missing put.
MK_RARE bool gives_up(const RankContext& ctx, Role role) {
  const u32 aborted_by = load_relaxed_sys(&ctx.state()->abort);
  if (aborted_by != 0) report_abort(ctx, role, aborted_by);
  return aborted_by != 0;
}

// Reports which rank has given up a call before this rank has begun it. If the other ranks have given up because a rank
// gave other rows, reports that difference. If this rank has given up the call, ends the waits of the other ranks for a
// call that does not take place. After a failed call of this operator, ranks may have announced different calls by one
// number, so their rows are not compared.
MK_RARE void report_given_up(const RankContext& ctx, u32 aborted_by) {
  if (aborted_by == 1 + ctx.rank) raise_abort(ctx, aborted_by);
  if (ctx.begun.offset != 0 && load_relaxed_sys(&ctx.state()->reported) == 0) {
    fence_sys();  // orders the abort before the words of the rank that raised it
    if (refuse_other_rows(ctx, kLoad)) return;
  }
  report_abort(ctx, kLoad, aborted_by);
}

// The time that a wait for a peer may take.
struct Deadline {
  u64 start_ns = 0, host_look_ns = 0;
  u32 polls = 0;
  TracePolls traced;

  MK_DEVICE Deadline(const RankContext& ctx) : traced(ctx.trace) {}

  // Call this after each poll that has not found the wanted value.
  MK_RARE bool expired(const RankContext& ctx, const WaitSite& site, u32 seen) {
    if (polls == 0) {
      start_ns = global_time_ns();
      host_look_ns = start_ns + kHostLookNs;
      traced.begin(site.role, site.wait, site.peer, site.index);
    }
    if (++polls % kPollsPerLook != 0) return false;
    u32 aborted_by = load_relaxed_sys(&ctx.state()->abort);
    if (ctx.begun.offset != 0) {
      if (aborted_by != 0) fence_sys();  // orders the abort before the words of the rank that raised it
      if (refuse_other_rows(ctx, site.role)) return true;
    }
    if (aborted_by == 0 && global_time_ns() > host_look_ns) {
      host_look_ns += kHostLookNs;
      const u32 host_abort = load_relaxed_sys(&ctx.host->abort);
      if (host_abort != 0) aborted_by = (host_abort & kHeard) != 0 ? host_abort : kHostAbort;
    }
    return abort_if_due(ctx, site, seen, aborted_by, start_ns);
  }
};

// Counters wrap around at 2^32, so they are compared by their difference.
MK_DEVICE bool has_reached(u32 counter, u32 wanted) { return static_cast<int>(counter - wanted) >= 0; }

// Waits until a counter that every call advances by the same number has reached `site.wanted`, and acquires all earlier
// releases of its writers. Returns the counter's value, which is less only after an abort.
MK_DEVICE u32 wait_flag(const RankContext& ctx, const u32* flag, const WaitSite& site) {
  Deadline deadline(ctx);
  for (;;) {
    const u32 seen = load_acquire_sys(flag);
    if (has_reached(seen, site.wanted) || deadline.expired(ctx, site, seen)) return seen;
    __nanosleep(kPollPauseNs);
  }
}

// Waits until a flag that not every call writes has the value `site.wanted`, which is the mark of this call. Acquires
// the release of its writer.
MK_DEVICE void wait_mark(const RankContext& ctx, const u32* flag, const WaitSite& site) {
  Deadline deadline(ctx);
  for (;;) {
    const u32 seen = load_acquire_sys(flag);
    if (seen == site.wanted || deadline.expired(ctx, site, seen)) return;
    __nanosleep(kPollPauseNs);
  }
}

// A thread that arrives at a barrier may have waited for several peers in turn, and for each almost as long as the
// deadline. Only a peer that has not begun the call makes other ranks wait that long. The number of such waits is
// therefore the number of other ranks. With one more wait for the work itself, this makes 8 on a node. In larger jobs,
// more than 7 ranks would have to be late by a deadline each.
constexpr u32 kBarrierDeadlines = 8;

// Waits until the barrier's phase of this parity is complete. An abort does not end this wait. The CTA's own warps and
// TMA complete the phase once every wait for a peer has ended, and a pipeline whose waits return early would lose
// count. If the phase is still not complete after kBarrierDeadlines deadlines, the kernel is wrong, and only a trap can
// end it. `kTryWait` decides which writes the thread then sees: the writes of its CTA, or of its cluster.
template <bool (*kTryWait)(u32, u32) = barrier_try_wait>
MK_DEVICE void wait_barrier(const RankContext& ctx, u32 barrier, u32 parity, Role role, Wait wait, u32 index) {
  // A try suspends the thread, perhaps until the phase is complete.
  if constexpr (kIsTraced && kTryWait == barrier_try_wait) {
    if (barrier_is_complete(barrier, parity)) return;
  }
  const TraceWait traced(ctx.trace, role, wait, ctx.rank, index);
  if (kTryWait(barrier, parity)) return;
  u64 start_ns = 0;
  for (u32 polls = 1; !kTryWait(barrier, parity); ++polls) {
    if (polls % kBarrierPollsPerLook != 0) continue;
    if (start_ns == 0) start_ns = global_time_ns();
    const u64 waited_ns = global_time_ns() - start_ns;
    if (waited_ns < kBarrierDeadlines * ctx.deadline_ns) continue;
    report(ctx, WaitSite{role, wait, ctx.rank, index, parity}, parity ^ 1, 0, waited_ns);
    __trap();
  }
}

// Waits without a deadline, for warps that have wgmma products in flight. With a trap in the same loop as the wait,
// ptxas finds no registers for the accumulators of these warps. Another thread of the CTA must wait for the warps with
// a deadline. The trap of that thread also ends these warps.
MK_DEVICE void wait_barrier_watched(const RankContext&, u32 barrier, u32 parity, Role, Wait, u32) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

}  // namespace mk
