// Each CTA of a cluster of two writes words to the shared memory of the other CTA, and reads these words back.
KERNEL(32) {
  const u32 own = shared_start() + mk::lane_index() * 4;
  const u32 there = mk::cluster_address(own, mk::cluster_rank() ^ 1);
  const u32 word = (mk::cluster_rank() ^ 1) * 32 + mk::lane_index();
  mk::cluster_sync();  // it has started
  mk::store_shared_cluster(there, mk::load(words(args.input) + word));
  mk::cluster_sync();  // both have written
  mk::store(words(args.output) + (word ^ 32), mk::load_shared(own));
  mk::load_shared_cluster(there);
  mk::cluster_sync();  // both have read
}
