// The elected thread of one warp fills shared memory and signals the other warp.
KERNEL(64) {
  const u32 smem = shared_start();
  const u32 full = smem + 1024;
  const u32 lane = mk::lane_index();
  if (threadIdx.x == 0) mk::barrier_init(full, 1);
  __syncthreads();
  if (mk::warp_index() == 0) {
    const bool leads = mk::elect_one();
    if (leads) {
      for (u32 i = 0; i < 32; ++i) mk::store_shared(smem + i * 4, mk::load(words(args.input) + i));
    }
    if (leads) mk::barrier_arrive(full);
  } else {
    WAIT(full, 0);
    const u32 own = mk::load_shared(smem + lane * 4);
    u32 value = 0;
    for (u32 i = 0; i < 32; ++i) {
      const u32 of_lane = mk::broadcast(own, i);
      if (lane == i) value = of_lane;
    }
    mk::store(words(args.output) + lane, value);
  }
}
