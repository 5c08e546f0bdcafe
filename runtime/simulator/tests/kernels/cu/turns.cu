// Warp 0 fills a buffer and warp 1 empties it, in turns. Each warp waits for the other warp at one barrier, and arrives
// at a second barrier when it is done.
KERNEL(64) {
  const u32 lane = mk::lane_index(), buffer = shared_start() + lane * 4;
  for (u32 round = 0; round < 4; ++round) {
    if (mk::warp_index() == 0) {
      if (round > 0) mk::sync_named(2, 64);
      mk::store_shared(buffer, mk::load(words(args.input) + round * 32 + lane));
      mk::arrive_named(1, 64);
    } else {
      mk::sync_named(1, 64);
      mk::store(words(args.output) + round * 32 + (lane ^ 1), mk::load_shared(shared_start() + (lane ^ 1) * 4));
      mk::arrive_named(2, 64);
    }
  }
  if (mk::warp_index() == 0) mk::sync_named(2, 64);
}
