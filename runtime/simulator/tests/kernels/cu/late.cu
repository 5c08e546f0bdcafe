// Warp 1 of rank 1 waits for three words of rank 0 one after the other. Each comes at least half a deadline after the
// previous one. Warp 0 waits for warp 1.
KERNEL(64) {
  constexpr u64 deadline_ns = 100'000'000;
  constexpr u64 barrier_deadline_ns = deadline_ns;
  mk::RankContext ctx{args.workspaces, args.host, gate(args), deadline_ns, 0, args.rank, 2, args.call, 0};
  const u32 barrier = shared_start();
  const u32* never = words(args.workspaces[0] + 1024);
  u32* flags = words(args.workspaces[1] + 2048);
  const u32 lane = mk::lane_index();
  if (threadIdx.x == 0) mk::barrier_init(barrier, 1);
  __syncthreads();
  if (args.rank == 0) {
    if (threadIdx.x == 0) {
      for (u32 i = 0; i < 3; ++i) {
        const u64 start_ns = mk::global_time_ns();
        while (mk::load_acquire_sys(never) == 0 && mk::global_time_ns() - start_ns < deadline_ns / 2) __nanosleep(32);
        mk::store_release_sys(flags + i, 1);
      }
    }
  } else if (mk::warp_index() == 1) {
    if (lane == 0) {
      for (u32 i = 0; i < 3; ++i) mk::wait_flag(ctx, flags + i, mk::WaitSite{mk::kLoad, mk::kChunk, 0, i, 1});
      mk::barrier_arrive(barrier);
    }
  } else {
    ctx.deadline_ns = barrier_deadline_ns;
    if (lane == 0) mk::wait_barrier(ctx, barrier, 0, mk::kMultiply, mk::kStageFull, 0);
    __syncwarp();
  }
  if (mk::warp_index() == 0) mk::store(words(args.output) + lane, mk::load(words(args.input) + lane));
}
