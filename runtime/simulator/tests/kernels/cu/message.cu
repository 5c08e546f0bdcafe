// CTA 0 passes a word per lane to CTA 1.
KERNEL(32) {
  const u32 lane = mk::lane_index();
  u32* data = words(args.workspaces[0]);
  u32* flag = data + 1024;
  if (blockIdx.x == 0) {
    mk::store(data + lane, mk::load(words(args.input) + lane));
    __syncwarp();  // one lane publishes for all
    if (lane == 0) mk::store_release_gpu(flag, 1);
  } else {
    if (lane == 0) {
      while (mk::load_acquire_gpu(flag) != 1) __nanosleep(32);
    }
    __syncwarp();  // one lane has seen for all
    mk::store(words(args.output) + lane, mk::load(data + lane));
  }
}
