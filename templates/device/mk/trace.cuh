// Traces: when the waits and the steps of roles begin and end.
//
// A kernel that is traced defines MK_TRACE. In all other kernels the objects of this header are empty, and the compiler
// removes them. A trace belongs to one call: it begins when the call begins, and the host reads it after the call.
//
// Each thread has a slice of the buffer and keeps its next place there in a register. Of the active threads of a warp with
// one event, the first one writes. The last place of a slice counts the events for which there was no room.
//
// Times are ticks of the clock of an SM, which is read in a few cycles. Each CTA also reads the clock that all SMs of a GPU
// share, at its begin and at the end of each warp. From these pairs, the host converts ticks to ns.
#pragma once
#include <mk/abi.cuh>
#include <mk/memory.cuh>

namespace mk {

#ifdef MK_TRACE

constexpr bool kIsTraced = true;

// The trace of a thread. The context of a call is constant for roles, but not the place of the next event.
struct Trace {
  const TraceBuffer* buffer = nullptr;
  u32 call = 0;           // the number of the call; without buckets the epoch, with which it shares a register
  mutable u32 place = 0;  // the index of this thread's next event in the buffer

  // All threads, when no earlier call writes to the buffer any more.
  MK_DEVICE void begin(const TraceBuffer& of_call, u32 number) {
    buffer = &of_call;
    call = number;
    const u32 thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    const bool is_first = lane_index() == 0;
    place = is_first ? thread / kWarp * of_call.first_events
                     : threads / kWarp * of_call.first_events + thread * of_call.other_events;
    if (is_first) store_warp(0, 0);
    if (threadIdx.x != 0) return;
    TraceCta* cta = at<TraceCta>(of_call.ctas) + blockIdx.x;
    store(&cta->begin_ns, global_time_ns());
    store(&cta->begin_ticks, sm_ticks());
    store(&cta->sm, sm_index());
    store(&cta->call, number);
  }

  // An agent, before its role. A role ends with its phase or with its warp. An event at the end of each role would keep values
  // in registers throughout the role.
  MK_DEVICE void begin_role(u32 index) const { write_moment_of_warp(what(kRunRole, 0, 0, 0), index); }

  // All threads, at the end of a phase, before the next role of the warp begins.
  MK_DEVICE void end_phase() const {
    write_moment_of_warp(what(kEndStep, 0, kRunRole, 0), 0);
    __syncwarp();
  }

  // All threads, after the last role of the warp.
  MK_DEVICE void end() const {
    __syncwarp();
    if (lane_index() == 0) store_warp(global_time_ns(), sm_ticks());
  }

  // Writes an event of this thread. `what` of the event behind it is 0, so that the host finds the last event. If only the
  // last place of the slice is left, counts the event there. The first event also writes the call there: threads without
  // events write nothing, and their slices have events of earlier calls.
  MK_DEVICE void write(u32 begin, u32 end, u32 what, u32 index) const {
    TraceEvent* here = event(place);
    const u32 last = last_of_slice(), in_slice = place & last;
    if (in_slice == last) {
      fetch_add_relaxed_gpu(&here->index, 1);
      return;
    }
    if (in_slice == 0) store_vec16(reinterpret_cast<u8*>(here + last), {call, 0, 0, 0});
    store_vec16(reinterpret_cast<u8*>(here), {begin, end, what, index});
    store(&here[1].what, 0);
    ++place;
  }

  MK_DEVICE void write_moment(u32 what, u32 index) const {
    const u32 moment = now();
    write(moment, moment, what, index);
  }
  // Writes an event that the active threads of the warp have in common.
  MK_DEVICE void write_moment_of_warp(u32 what, u32 index) const {
    if (is_first_active()) write_moment(what, index);
  }

  static MK_DEVICE u32 now() { return static_cast<u32>(sm_ticks()); }

  // The word of an event: its activity, the role, the awaited event, and the rank that is awaited or whose flag is raised.
  static MK_DEVICE u32 what(Activity activity, u32 role, u32 wait, u32 peer) {
    return role | wait << 4 | activity << 12 | peer << 16;
  }

 private:
  // The number of events of a slice is a power of 2, so this is also the mask of a place in its slice.
  MK_DEVICE u32 last_of_slice() const {
    return (lane_index() == 0 ? buffer->first_events : buffer->other_events) - 1;
  }
  template <class T>
  MK_DEVICE T* at(u64 offset) const {
    return reinterpret_cast<T*>(buffer->address + offset);
  }
  MK_DEVICE TraceEvent* event(u32 of_place) const { return at<TraceEvent>(buffer->events) + of_place; }
  MK_DEVICE void store_warp(u64 ns, u64 ticks) const {
    TraceWarp* warp = at<TraceWarp>(buffer->warps) + (blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    store(&warp->end_ns, ns);
    store(&warp->end_ticks, ticks);
  }
};

// A step of a role, as long as the object lives. Its begin and its end are two events, since warps that multiply have no
// register for the begin (one kernel would spill 9 registers).
struct TraceStep {
  const Trace& trace;
  const Activity step;

  MK_DEVICE TraceStep(const Trace& trace, Activity step, u32 role, u32 index) : trace(trace), step(step) {
    trace.write_moment_of_warp(Trace::what(step, role, 0, 0), index);
  }
  MK_DEVICE ~TraceStep() { trace.write_moment_of_warp(Trace::what(kEndStep, 0, step, 0), 0); }
};

// A wait, as long as the object lives. A wait that ends in the tick of its begin is no event.
struct TraceWait {
  const Trace& trace;
  u32 what, index, begin;

  MK_DEVICE TraceWait(const Trace& trace, u32 role, u32 wait, u32 peer, u32 index)
      : trace(trace), what(Trace::what(kAwait, role, wait, peer)), index(index), begin(Trace::now()) {}
  MK_DEVICE ~TraceWait() {
    const u32 end = Trace::now();
    if (end != begin && is_first_active()) trace.write(begin, end, what, index);
  }
};

// A wait by polls, which begins if its first poll does not find the wanted value. Threads of a warp that poll together may wait
// for different ranks, and one thread writes for each rank. The begin and the end are two events, since some waits have no
// registers for the first one (attention over cached rows would spill 33 registers).
struct TracePolls {
  const Trace& trace;
  bool is_writer = false;

  MK_DEVICE TracePolls(const Trace& trace) : trace(trace) {}
  MK_DEVICE ~TracePolls() { end(); }
  // Ends this wait. The next poll begins another one.
  MK_DEVICE TracePolls& operator=(const TracePolls&) {
    end();
    return *this;
  }
  MK_DEVICE void begin(u32 role, u32 wait, u32 peer, u32 index) {
    const u32 what = Trace::what(kPoll, role, wait, peer);
    is_writer = is_first_active(what);
    if (is_writer) trace.write_moment(what, index);
  }
  MK_DEVICE void end() {
    if (is_writer) trace.write_moment(Trace::what(kEndStep, 0, kPoll, 0), 0);
    is_writer = false;
  }
};

// The moment at which a thread has raised the flag of rank `peer` for which a wait with this code and this index waits.
MK_DEVICE void trace_flag(const Trace& trace, u32 wait, u32 peer, u32 index) {
  const u32 what = Trace::what(kRaiseFlag, 0, wait, peer);
  if (is_first_active(what)) trace.write_moment(what, index);
}

#else

constexpr bool kIsTraced = false;

struct Trace {
  template <class Buffer>
  MK_DEVICE void begin(const Buffer&, u32) {}
  MK_DEVICE void begin_role(u32) const {}
  MK_DEVICE void end_phase() const {}
  MK_DEVICE void end() const {}
};

struct TraceStep {
  MK_DEVICE TraceStep(const Trace&, Activity, u32, u32) {}
};

struct TraceWait {
  MK_DEVICE TraceWait(const Trace&, u32, u32, u32, u32) {}
};

struct TracePolls {
  MK_DEVICE TracePolls(const Trace&) {}
  MK_DEVICE void begin(u32, u32, u32, u32) const {}
};

MK_DEVICE void trace_flag(const Trace&, u32, u32, u32) {}

#endif

}  // namespace mk
