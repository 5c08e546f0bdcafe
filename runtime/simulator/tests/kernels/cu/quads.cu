// Each lane exchanges a pair of bf16 with the lane at the other end of its quad. Sums and maxima of quads must be
// correct.
KERNEL(32) {
  const u32 lane = mk::lane_index();
  const u32 pair = mk::load(words(args.input) + (lane ^ 3));
  const float low = mk::exchange(mk::Bf16::low(pair), 3), high = mk::exchange(mk::Bf16::high(pair), 3);
  const float sum = mk::quad_sum(lane), greatest = mk::quad_max(lane);
  const float eight = mk::log2_approx(mk::exp2_approx(8.0f));
  const bool right = sum == lane / 4 * 16 + 6 && greatest == (lane | 3) && eight > 7.9999f && eight < 8.0001f;
  mk::store(words(args.output) + lane, right ? mk::Bf16::pack(low, high) : 0);
}
