// Rank 1 waits with a deadline for a chunk of rank 0.
KERNEL(32) {
  const mk::RankContext ctx{args.workspaces, args.host, gate(args), 100'000'000, 0, args.rank, 2, args.call, 0};
  u32* flag = words(args.workspaces[1] + 1024);
  u32* own = words(args.workspaces[1] + 2048);
  const u32 lane = mk::lane_index();
  if (args.rank == 0) {
    if (lane == 0) mk::store_release_sys(flag, 8);
  } else if (lane == 0) {
    // The first wait ends at once.
    mk::store_release_sys(own, 5);
    mk::wait_flag(ctx, own, mk::WaitSite{mk::kLoad, mk::kChunk, 1, 23, 5});
    mk::wait_flag(ctx, flag, mk::WaitSite{mk::kLoad, mk::kChunk, 0, 24, 8});
  }
  mk::store(words(args.output) + lane, mk::load(words(args.input) + lane));
}
