// One thread loads the matrix by TMA, twice to the same addresses; the other warp copies it out each time.
KERNEL(64) {
  const u32 smem = shared_start();
  const u32 full = smem + 8192, free = smem + 8200;
  const u32 lane = mk::lane_index();
  if (threadIdx.x == 0) {
    mk::barrier_init(full, 1);
    mk::barrier_init(free, 1);
    mk::fence_barrier_init();
  }
  __syncthreads();
  if (mk::warp_index() == 0) {
    if (mk::elect_one()) {
      for (u32 round = 0; round < 2; ++round) {
        WAIT(free, round + 1);
        mk::barrier_expect(full, 8192);
        mk::tma_load_2d(smem, args.input_map, full, 0, 0);
      }
    }
    __syncwarp();
  } else {
    for (u32 round = 0; round < 2; ++round) {
      WAIT(full, round);
      for (u32 i = lane; i < 2048; i += mk::kWarp) mk::store(words(args.output) + i, mk::load_shared(smem + i * 4));
      __syncwarp();
      if (lane == 0) mk::barrier_arrive(free);
    }
  }
}
