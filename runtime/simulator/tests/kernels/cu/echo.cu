// CTA 0 sends a vector of each lane in packets. CTA 1 stores the received vector to the address of the sent vector, and
// to the output.
KERNEL(32) {
  u8* source = args.input + mk::lane_index() * 16;
  u8* slot = args.workspaces[0] + mk::lane_index() * 16;
  if (blockIdx.x == 0) {
    const mk::Vec16 data = mk::load_sent_vec16(source);
    mk::store_packet(slot, {~data.x, ~data.y, ~data.z, ~data.w});
  } else {
    mk::Vec16 packet = {};
    while ((packet.x | packet.y) == 0 || (packet.z | packet.w) == 0) packet = mk::load_packet<mk::Ordering::kRelaxed>(slot);
    const mk::Vec16 data{~packet.x, ~packet.y, ~packet.z, ~packet.w};
    mk::store_vec16(args.output + mk::lane_index() * 16, data);
    mk::store_vec16(source, data);
  }
}
