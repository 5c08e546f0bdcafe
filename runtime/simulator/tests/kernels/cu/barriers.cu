// Warp 0 passes words to warp 1 through two buffers, which it uses in turn for four rounds.
KERNEL(64) {
  const u32 smem = shared_start();
  const u32 full = smem + 1024, free = smem + 1040;  // 8 bytes for each buffer
  const u32 lane = mk::lane_index();
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 2; ++i) {
      mk::barrier_init(full + i * 8, 1);
      mk::barrier_init(free + i * 8, 1);
    }
  }
  __syncthreads();
  mk::PipelineState<2> state;
  for (u32 round = 0; round < 4; ++round) {
    const u32 buffer = smem + state.stage * 128 + lane * 4;
    if (mk::warp_index() == 0) {
      WAIT(free + state.stage * 8, state.phase ^ 1);
      mk::store_shared(buffer, mk::load(words(args.input) + round * 32 + lane));
      __syncwarp();
      if (lane == 0) mk::barrier_arrive(full + state.stage * 8);
    } else {
      WAIT(full + state.stage * 8, state.phase);
      mk::store(words(args.output) + round * 32 + lane, mk::load_shared(buffer));
      __syncwarp();
      if (lane == 0) mk::barrier_arrive(free + state.stage * 8);
    }
    state.advance();
  }
}
