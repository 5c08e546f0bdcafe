// A warp copies the matrix to shared memory in rounds of 512 bytes, one round ahead. The other warp copies them to the
// output.
KERNEL(64) {
  const u32 smem = shared_start();
  const u32 full = smem + 8192, free = full + 32;
  const u32 lane = mk::lane_index();
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 4; ++i) {
      mk::barrier_init(full + i * 8, mk::kWarp);
      mk::barrier_init(free + i * 8, mk::kWarp);
    }
  }
  __syncthreads();
  mk::PipelineState<4> state, done;
  if (mk::warp_index() == 0) {
    for (u32 round = 0; round < 16; ++round) {
      WAIT(free + state.stage * 8, state.phase ^ 1);
      mk::copy_async(smem + state.stage * 512 + lane * 16, args.input + round * 512 + lane * 16, 16);
      mk::copy_commit();
      state.advance();
      if (round == 0) continue;
      mk::copy_wait<1>();
      mk::barrier_arrive(full + done.stage * 8);
      done.advance();
    }
    mk::copy_wait<0>();
    mk::barrier_arrive(full + done.stage * 8);
  } else {
    for (u32 round = 0; round < 16; ++round) {
      WAIT(full + state.stage * 8, state.phase);
      const u32 from = smem + state.stage * 512 + (mk::kWarp - 1 - lane) * 16;
      mk::store_vec16(args.output + round * 512 + (mk::kWarp - 1 - lane) * 16, mk::load_shared_vec16(from));
      mk::barrier_arrive(free + state.stage * 8);
      state.advance();
    }
  }
}
