// Rank 0 passes a word per lane to rank 1, call by call, through one slot.
KERNEL(32) {
  const u32 lane = mk::lane_index();
  u32* slot = words(args.workspaces[1]);
  u32* sent = slot + 1024;                           // call whose words are in the slot
  u32* taken = words(args.workspaces[0]) + 1024;     // call whose words were taken out
  if (args.rank == 0) {
    if (lane == 0) {
      while (mk::load_acquire_sys(taken) != args.call - 1) __nanosleep(32);
    }
    __syncwarp();
    mk::store(slot + lane, mk::load(words(args.input) + lane));
    __syncwarp();
    if (lane == 0) mk::store_release_sys(sent, args.call);
    mk::store(words(args.output) + lane, mk::load(words(args.input) + lane));
  } else {
    if (lane == 0) {
      while (mk::load_acquire_sys(sent) != args.call) __nanosleep(32);
    }
    __syncwarp();
    mk::store(words(args.output) + lane, mk::load(slot + lane));
    __syncwarp();
    if (lane == 0) mk::store_release_sys(taken, args.call);
  }
}
