// Tables in shared memory that say for the whole call where rows, tokens and tiles are. Routing writes them.
#pragma once
#include <mk/types.cuh>

namespace mk::moe {

template <class Smem>
concept RowTables = requires(const Smem smem, u32 expert, u32 source) {
  // Of this rank's experts, the first tile and the first row of C; one more entry says where the last expert's end.
  smem.tile_begin(expert);
  smem.row_begin(expert);
  // Of such an expert's rows, the first from rank `source`, and where they begin in that rank's list.
  smem.source_row_begin(expert, source);
  smem.list_begin(expert, source);
};

template <class Smem>
concept TokenTables = requires(const Smem smem, u32 destination) {
  smem.tokens_to(destination);  // tokens that this rank sends there
};

// The same between nodes.
template <class Smem>
concept NodeTokenTables = TokenTables<Smem> && requires(const Smem smem, u32 peer) {
  smem.rows_at(peer);      // rows that tokens for a peer's node make there
  smem.tokens_from(peer);  // tokens that a peer sends here
};

}  // namespace mk::moe
