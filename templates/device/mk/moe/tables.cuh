// Tables in shared memory that say where rows, tokens and tiles are. They are filled at the begin of a call, and valid until its
// end.
#pragma once
#include <mk/memory.cuh>

namespace mk::moe {

template <class Smem>
concept RowTables = requires(const Smem smem, u32 expert) {
  // The first tile and the first row of each of this rank's experts. One more entry is the end of the last expert.
  smem.tile_begin(expert);
  smem.row_begin(expert);
};

// Kernels that route tokens also have these tables.
template <class Smem>
concept SourceTables = RowTables<Smem> && requires(const Smem smem, u32 expert, u32 source) {
  // The index of the first row from rank `source` among the rows of such an expert, and in the list of that rank.
  smem.source_row_begin(expert, source);
  smem.list_begin(expert, source);
};

template <class Smem>
concept TokenTables = requires(const Smem smem, u32 destination) {
  smem.tokens_to(destination);  // tokens that this rank sends to the destination
};

// Kernels of several nodes also have these tables.
template <class Smem>
concept NodeTokenTables = TokenTables<Smem> && requires(const Smem smem, u32 peer) {
  smem.rows_at(peer);      // rows that this rank's tokens have on a peer's node
  smem.tokens_from(peer);  // tokens that a peer sends here
  smem.outgoing_begin(peer);  // the first token for a peer among all tokens that are put
};

// Kernels of several nodes: the begin of each segment, which holds the tokens of a source on a rank.
template <class Smem>
concept SegmentTables = requires(const Smem smem, u32 source, u32 peer, u32 local_rank) {
  smem.segment_begin(source);            // the segment of a source on this rank
  smem.own_segment(local_rank);          // the segment of this rank on a rank of its node
  smem.peer_segment(peer, local_rank);   // the segment of a peer on a rank of this node
};

// A thread: stores or loads an address in shared memory.
MK_DEVICE void store_address(u32 to, const u8* address) {
  const u64 bits = reinterpret_cast<u64>(address);
  store_shared(to, static_cast<u32>(bits));
  store_shared(to + 4, static_cast<u32>(bits >> 32));
}
MK_DEVICE const u8* load_address(u32 from) {
  return reinterpret_cast<const u8*>(u64{load_shared(from + 4)} << 32 | load_shared(from));
}

}  // namespace mk::moe
