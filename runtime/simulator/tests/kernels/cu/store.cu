// One warp stores the matrix by TMA in four parts, all from the same addresses in shared memory.
KERNEL(32) {
  const u32 smem = shared_start();
  const u32 lane = mk::lane_index();
  for (u32 part = 0; part < 4; ++part) {
    for (u32 i = lane; i < 512; i += mk::kWarp) {
      mk::store_shared(smem + i * 4, mk::load(words(args.input) + part * 512 + i));
    }
    mk::fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) {
      mk::tma_store_bytes(args.output + part * 2048, smem, 2048);
      mk::tma_commit();
      mk::tma_wait_read<0>();
    }
    __syncwarp();
  }
  if (lane == 0) mk::tma_wait<0>();
}
