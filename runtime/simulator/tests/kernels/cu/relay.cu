// CTA 0 pushes the matrix to the workspace by TMA, CTA 1 copies the matrix within the workspace by ordinary accesses,
// and CTA 2 loads the copy by TMA.
KERNEL(32) {
  const u32 smem = shared_start();
  const u32 full = smem + 8192;
  const u32 lane = mk::lane_index();
  u8* first = args.workspaces[0];
  u8* second = first + 8192;
  u32* flags = words(first + 16384);
  if (lane == 0) {
    mk::barrier_init(full, 1);
    mk::fence_barrier_init();
  }
  __syncwarp();
  if (blockIdx.x == 0 && lane == 0) {
    mk::barrier_expect(full, 8192);
    mk::tma_load_bytes(smem, args.input, 8192, full);
    WAIT(full, 0);
    mk::tma_store_bytes(first, smem, 8192);
    mk::tma_commit();
    mk::tma_wait<0>();
    mk::store_release_gpu(flags, 1);
  }
  if (blockIdx.x == 1) {
    while (mk::load_acquire_gpu(flags) != 1) __nanosleep(32);
    for (u32 i = lane; i < 2048; i += mk::kWarp) mk::store(words(second) + i, mk::load(words(first) + i));
    __syncwarp();
    if (lane == 0) mk::store_release_gpu(flags + 1, 1);
  }
  if (blockIdx.x == 2 && lane == 0) {
    while (mk::load_acquire_gpu(flags + 1) != 1) __nanosleep(32);
    mk::fence_proxy_async();
    mk::barrier_expect(full, 8192);
    mk::tma_load_bytes(smem, second, 8192, full);
    WAIT(full, 0);
    mk::tma_store_2d(args.output_map, smem, 0, 0);
    mk::tma_commit();
    mk::tma_wait<0>();
  }
}
