// Buckets: kernels of one operator for different numbers of rows. Each call runs one bucket.
//
// All CTAs of all ranks choose by the rows of the call, so all CTAs run one kernel. Ranks that were given different
// rows find the difference as without buckets: all buckets share the words with which ranks announce a call, the number
// of the call, the abort word and the gate.
//
// All other memory belongs to one bucket: flags, counters, and the buffers between which calls alternate. A call
// changes only its bucket's memory, and its epoch is the number of calls that ran the bucket. To a bucket, its calls
// are the calls of a separate operator, and calls of other buckets are like calls of other operators.
#pragma once
#include <mk/call.cuh>

namespace mk {

// The kernel for calls with more rows than the previous bucket takes and at most kMaxRows.
template <class Config, class BucketArgs, class BucketSmem, class Kernel, class Roles>
struct Bucket {
  using Args = BucketArgs;

  static constexpr u32 kMaxRows = Config::kMaxRows;

  static MK_DEVICE void run(const Args& args, const RankContext& ctx, u32 smem_base) {
    const BucketSmem smem{smem_base};
    if constexpr (requires { Kernel::prefetch(args, ctx, smem); }) Kernel::prefetch(args, ctx, smem);
    else allow_grid_behind();  // the same number that begin_call sets without buckets
    if (!Kernel::begin(args, ctx, smem)) return;
    Roles::run(args, ctx, smem);
    Kernel::end(args, ctx);
  }
};

// The buckets of an operator, from the fewest rows to the most. Each bucket has arguments of its own.
template <class... Kernels>
struct Buckets {
  static constexpr u32 kBuckets = sizeof...(Kernels);
  static_assert(kBuckets <= kMaxBuckets);

  // All threads, with the context of begin_call.
  static MK_DEVICE void run(const RankContext& ctx, u32 smem_base, const typename Kernels::Args&... args) {
    run_from<0, Kernels...>(ctx, smem_base, args...);
  }

 private:
  template <u32 kBucket, class First, class... Rest>
  static MK_DEVICE void run_from(const RankContext& ctx, u32 smem_base, const typename First::Args& first,
                                 const typename Rest::Args&... rest) {
    if constexpr (sizeof...(Rest) > 0) {
      if (ctx.rows > First::kMaxRows) return run_from<kBucket + 1, Rest...>(ctx, smem_base, rest...);
    }
    RankContext of_bucket = ctx;
    of_bucket.epoch = ctx.bucket_epochs[kBucket] + 1;
    of_bucket.other_calls = ctx.epoch - of_bucket.epoch;
    of_bucket.bucket_epoch = &ctx.state()->bucket_epochs[kBucket];
    First::run(first, of_bucket, smem_base);
  }
};

}  // namespace mk
