// Two CTAs of a cluster each load half of the matrix for both, twice to the same addresses. Each CTA copies the half
// that the other CTA has loaded to the output.
KERNEL(64) {
  const u32 smem = shared_start();
  const u32 full = smem + 8192, free = smem + 8200;
  const u32 lane = mk::lane_index(), own = mk::cluster_rank(), other = own ^ 1;
  if (threadIdx.x == 0) {
    mk::barrier_init(full, 1);
    mk::barrier_init(free, 2);
    mk::fence_barrier_init();
  }
  mk::cluster_sync();  // barriers are there
  if (mk::warp_index() == 0) {
    if (mk::elect_one()) {
      for (u32 round = 0; round < 2; ++round) {
        while (!mk::barrier_try_wait_cluster(free, round + 1)) {
        }
        mk::barrier_expect(full, 8192);
        mk::tma_load_2d_multicast(smem + own * 4096, args.input_map, full, 0, own * 32, 0b11);
      }
    }
    __syncwarp();
  } else {
    for (u32 round = 0; round < 2; ++round) {
      WAIT(full, round);
      for (u32 i = other * 1024 + lane; i < other * 1024 + 1024; i += mk::kWarp) {
        mk::store(words(args.output) + i, mk::load_shared(smem + i * 4));
      }
      __syncwarp();
      if (lane == 0) {
        mk::barrier_arrive(free);
        mk::barrier_arrive_cluster(mk::cluster_address(free, other));
      }
    }
  }
  mk::cluster_sync();  // no CTA is needed any more
}
