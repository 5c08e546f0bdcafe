// The begin and the end of a call: the number of the call, the check that no other call is under way, and the
// permission for the next call to begin.
#pragma once
#include <mk/cached_rows.cuh>
#include <mk/grid.cuh>
#include <mk/offsets.cuh>

namespace mk {

// All threads, first. The grid may have been started while the previous grid was still running. Until that grid has
// ended, a kernel may only run `Kernel::prefetch`, if it has that function. This function loads data that no earlier
// work on the stream writes, and gets a context without the number of the call. A kernel with `prefetch` calls
// allow_grid_behind itself, and so do its buckets.
//
// Every CTA reads the number of the call for itself. `Args` has workspaces, host, gate, deadline_ns, operator_number and
// rank, and the endpoint if ranks of several nodes communicate.
template <TopologyConfig Config, class Workspace, class Kernel, class Args, class Smem>
MK_DEVICE RankContext begin_call(const Args& args, const Smem& smem) {
  const u32 node_first_rank = Config::kNodes == 1 ? 0 : args.rank / Config::kLocalWorld * Config::kLocalWorld;
  RankContext ctx{args.workspaces,      args.host, args.gate,           args.deadline_ns,
                  args.operator_number, args.rank, Config::kLocalWorld, 0,
                  node_first_rank};
  if constexpr (requires { Kernel::prefetch(args, ctx, smem); }) Kernel::prefetch(args, ctx, smem);
  wait_for_grids_before();
  if constexpr (!requires { Kernel::prefetch(args, ctx, smem); } && !requires { Kernel::kBuckets; }) allow_grid_behind();
  ctx.epoch = load_early(&ctx.state()->epoch) + 1;
  if constexpr (requires { Kernel::kBuckets; }) {
#pragma unroll
    for (u32 i = 0; i < Kernel::kBuckets; ++i) ctx.bucket_epochs[i] = load_early(&ctx.state()->bucket_epochs[i]);
  }
  if constexpr (requires { args.endpoint; }) {
    ctx.network = args.endpoint.network;
    ctx.network_call = load_early(&ctx.network->calls) + 1;
  }
  if constexpr (requires { args.result_place; }) ctx.result_place = args.result_place;
  if constexpr (requires { args.rows_address; }) {
    // The work before this call on its stream has written the word.
    const u32 given = args.rows_address != nullptr ? load(args.rows_address) : args.rows;
    ctx.max_rows = Config::kMaxRows;
    ctx.rows = given <= Config::kMaxRows ? given : 0;
    ctx.refused_rows = given - ctx.rows;
    ctx.lengths = ctx.rows;
    if constexpr (requires { Workspace::begun(0u, 0u); }) ctx.begun = Workspace::begun(ctx.parity(), 0u);
  }
  if constexpr (IsPacked<Config>) {
    const auto checked = Offsets<Config>::of(args).check();
    ctx.lengths = kLengthsHash | checked.hash;
    ctx.refused_length = checked.first_wrong;
    if constexpr (requires { Workspace::begun(0u, 0u); }) ctx.begun = Workspace::begun(ctx.parity(), 0u);
  }
  if constexpr (HasCache<Config>) CachedRows<Config>::of(args).enter(ctx);
  if constexpr (requires { args.trace; }) ctx.trace.begin(args.trace, ctx.epoch);
  return ctx;
}

// Names a call in one word: the number of the call, the number of its operator, and 1 plus the low bits of `due` at its
// begin.
MK_DEVICE u64 call_name(u32 epoch, u32 operator_number, u32 due) {
  return u64{epoch} << 32 | (operator_number & 0xffff) << 16 | ((due + 1) & 0xffff);
}

// Reports the call that overlaps with this call, and ends the waits of all other ranks for a call that does not take
// place. If two calls of one operator have read one epoch, the later call is refused. `is_first`: whether the other
// call got the first word. If both calls begin at once, the other call may not have left its name yet, and is then
// reported as operator 0.
MK_DEVICE void refuse(const RankContext& ctx, bool is_first) {
  const Gate* gate = ctx.gate;
  u64 last = load_relaxed_sys(&gate->last);
  const u32 due = load_relaxed_sys(&gate->due), left = load_relaxed_sys(&gate->left);
  if (left == due && static_cast<u16>(last) != static_cast<u16>(due + 1)) last = 0;
  const u32 epoch = static_cast<u32>(last >> 32), operator_number = static_cast<u32>(last) >> 16;
  const bool is_same = operator_number == (ctx.operator_number & 0xffff) && epoch == ctx.call();
  if (is_same && !is_first) return;  // if this call is the overlapped call, the first CTA of the other call is refused too
  report(ctx, WaitSite{kLoad, kOverlap, ctx.operator_number, operator_number, ctx.call() + is_same}, epoch, 0, 0);
  raise_abort(ctx, 1 + ctx.rank);
}

// All threads of a CTA, before the CTA makes any access that other CTAs see. Takes the place of __syncthreads. Returns
// false if another call is under way, or if the call was given up. The CTA must then end.
//
// Calls that wait for each other, such as calls of one stream, find all words equal to `due`. Of two calls that do not
// wait for each other, one finds a word that was raised since: each call raises every word once, and `due` only when
// all its CTAs have raised their words.
//
// A CTA counts itself for `due` before it ends (advance_epoch). A call that began then could send its data while the
// previous call still receives, and peers that have ended both calls could send data of a third call to the buffers
// from which the first call receives. CTAs of kernels with small grids, two of which fit on a GPU, therefore also count
// themselves for `left` at their end (leave), and `left` must have reached `due`. A fast CTA of this call may have left
// already. The other kernels raise both words at once: with their shared memory and their registers, a second grid has
// no room before CTAs of the first grid have ended, unless the kernels leave SMs unused.
//
// A rank may also begin a call that other ranks have given up, or a call behind one that it has given up itself. In the
// first case, it would find the data that others had sent by then, and perhaps wait for nothing more. In the second
// case, it would send data computed from the results of the failed call, and send them to buffers that other ranks may
// still read. Such a call does not take place. One lane checks this and reports it, since an abort that is raised at
// that moment may reach some lanes of a warp and not others.
MK_DEVICE bool enter(const RankContext& ctx) {
  u32 is_refused = 0;
  u32 given_up_by = 0;  // as in abort words: 1 + the rank that gave up this call before this rank began it, or 0
  if (threadIdx.x >= kWarp) {
    // A small grid has many words for each CTA. One warp would add to them in several rounds: 1.4 µs with one CTA (H100).
    const u32 thread = threadIdx.x - kWarp, threads = blockDim.x - kWarp;
    const u32 step = threads * gridDim.x;
    u32 word = blockIdx.x + thread * gridDim.x;
    u32 due = 0, raised = 0, left = 0, aborted_by = 0, failed = 0;
    if (thread == 0 || word < kGateWords) due = load_relaxed_sys(&ctx.gate->due);
    if (word < kGateWords) raised = fetch_add_relaxed_gpu(&ctx.gate->entered[word], gridDim.x);
    // These loads follow the first add: ptxas waits for `failed` at once, which would delay an add behind it by 0.2 µs.
    if (thread == 0) {
      aborted_by = load_relaxed_sys(&ctx.state()->abort);
      failed = load_relaxed_sys(&ctx.gate->failed);
      left = load_relaxed_sys(&ctx.gate->left);
    }
    is_refused = word < kGateWords && raised != due;
    for (word += step; word < kGateWords; word += step) {
      is_refused |= fetch_add_relaxed_gpu(&ctx.gate->entered[word], gridDim.x) != due;
    }
    if (thread == 0) {
      // This rank gives up a call if it has given up an earlier call of any operator.
      given_up_by = aborted_by == 0 && failed != 0 ? 1 + ctx.rank : aborted_by;
      is_refused |= !has_reached(left, due);
      if (blockIdx.x == 0 && is_refused == 0) {
        store_relaxed_sys(&ctx.gate->last, call_name(ctx.call(), ctx.operator_number, due));
      }
    }
  }
  if (__syncthreads_or(is_refused | given_up_by) == 0) return true;
  const bool is_given_up = __syncthreads_or(given_up_by) != 0;
  if (threadIdx.x == kWarp) {
    if (is_given_up) report_given_up(ctx, given_up_by);
    else refuse(ctx, blockIdx.x == 0 && is_refused != 0);
  }
  return false;
}

// One thread of each CTA, after enter(): counts that all threads of its CTA have read the epoch. The last CTA runs
// `before_next`, which prepares the state that the next call expects, and advances the epoch. The count implies nothing
// about the CTA's work, so it may come long before the CTA ends. A count after the work would take 1 µs more.
// `kLeaves`: the CTAs do not call leave().
template <bool kLeaves = true, class BeforeNext>
MK_DEVICE void advance_epoch(const RankContext& ctx, BeforeNext before_next) {
  State* state = ctx.state();
  if (fetch_add_acq_rel_gpu(&state->readers, 1) + 1 != ctx.call() * gridDim.x) return;
  before_next();
  // The count is read again: kept from the begin of the call until here, it would take a register.
  if (ctx.network != nullptr) store_early(&ctx.network->calls, load_early(&ctx.network->calls) + 1);
  if (ctx.bucket_epoch != nullptr) store_early(ctx.bucket_epoch, ctx.epoch);
  store_early(&state->epoch, ctx.call());
  if constexpr (kLeaves) add_relaxed_sys(&ctx.gate->left, gridDim.x);
  add_relaxed_sys(&ctx.gate->due, gridDim.x);
}

template <bool kLeaves = true>
MK_DEVICE void advance_epoch(const RankContext& ctx) {
  advance_epoch<kLeaves>(ctx, [] {});
}

// All threads, after their last access of the call: counts the CTA. No fence orders the CTA's accesses before the
// count, because they are complete: received data have been used, and data stored to this GPU are in L2 long before a
// peer can begin a third call.
MK_DEVICE void leave(const RankContext& ctx) {
  __syncthreads();
  if (threadIdx.x == 0) add_relaxed_sys(&ctx.gate->left, 1);
}

}  // namespace mk
