// A kernel that does not belong to mkernel and holds SMs beside its kernels, as a collective of NCCL does: it ends when
// the same kernel runs on all ranks.
#include <mk/deadline.cuh>

struct Args {
  mk::u32* begun;  // by rank, in host memory: the number of the last launch that has begun
  mk::u32 rank, ranks, launch;
  mk::u32 hold_ns;
};

extern "C" __global__ void __launch_bounds__(32, 1) tenant(const __grid_constant__ Args args) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  const mk::u64 start_ns = mk::global_time_ns();
  while (mk::global_time_ns() - start_ns < args.hold_ns) __nanosleep(32);
  mk::store_release_sys(args.begun + args.rank, args.launch);
  for (mk::u32 r = 0; r < args.ranks; ++r) {
    while (!mk::has_reached(mk::load_acquire_sys(args.begun + r), args.launch)) __nanosleep(32);
  }
}
