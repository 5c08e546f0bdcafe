// Copies fp32 through shared memory and straight to the output, and words that no thread writes, with an activation
// that changes no value.
KERNEL(32) {
  const u32 lane = mk::lane_index(), smem = shared_start();
  const float* from = reinterpret_cast<const float*>(args.input) + lane * 4;
  const float4 v = mk::load_float4(from);
  mk::store_shared_float2(smem + lane * 16, v.x, v.y);
  mk::store_shared_float2(smem + lane * 16 + 8, v.z, v.w);
  __syncwarp();
  mk::store_vec16(args.output + (lane ^ 1) * 16, mk::load_shared_vec16(smem + (lane ^ 1) * 16));
  const float4 w = mk::load_float4(from + 128);
  mk::store_float2(args.output + 512 + lane * 16, w.x, w.y);
  mk::store_float(args.output + 512 + lane * 16 + 8, w.z);
  mk::store_float(args.output + 512 + lane * 16 + 12, w.w);
  const u32 word = mk::load_word(args.input + 1024 + lane * 4);
  const float low = mk::Bf16::low(word), high = mk::Bf16::high(word);
  mk::store_word(args.output + 1024 + lane * 4, mk::Bf16::pack(mk::relu(low) - mk::relu(-low), mk::relu(high) - mk::relu(-high)));
}
