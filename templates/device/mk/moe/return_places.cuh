// Return places: the addresses to which the results of this rank's rows return.
//
// Rows lie in the order of experts, and expert_offsets has the first row of each expert. For each of its choices, a rank stores the
// number of the choice to the rank that has the row. Ranks load and multiply while these numbers are on their way, since the numbers
// are needed only when a tile is stored.
//
// Operands may have wrong values. A rank leaves wrong row indices out of its sums, so no rank waits for a row that no rank returns. A
// rank whose offsets are wrong has no rows.
//
// One buffer of places is enough: a rank that begins a call has ended the previous call, for which all ranks have returned all their
// rows, and so have read all their places.
#pragma once
#include <mk/moe/tables.cuh>
#include <mk/moe/topk.cuh>

namespace mk::moe {

template <class Workspace>
concept PlacesWorkspace = requires(u32 parity, u32 source, u32 row) {
  Workspace::places(row);              // the number of the row's choice, below the mark of the last call in which the row had a choice
  Workspace::placed(source);           // the CTAs of a rank that have stored all their places, over all calls
  Workspace::rows_of(parity, source);  // the rows of a rank
};

// Args: the row indices and the weights of this rank's choices, and the first row of each of its experts.
template <class Args>
concept PlacesArgs = TopkArgs<Args> && requires(const Args& args) { args.expert_offsets; };

template <class Config, PlacesArgs Args, PlacesWorkspace Workspace, RowTables Smem, class Shape>
struct ReturnPlaces {
  using Ranks = Topology<Config>;
  using Topk = moe::Topk<Config, Args>;

  static constexpr u32 kChoices = Config::kMaxTokens * Config::kTopK;  // of a rank
  static_assert(u64{Ranks::kWorld} * kChoices <= ~0u, "choices of all ranks are numbered in a word");

  // The first choice of a thread, and the number of tokens. Both are loaded before a call begins.
  struct First {
    u32 given, row_index;
  };
  static MK_DEVICE u32 first_choice() { return blockIdx.x * blockDim.x + threadIdx.x; }
  static MK_DEVICE First load_first(const Args& args) {
    return {load_word(args.num_tokens), first_choice() < kChoices ? Topk::load_row_index(args, first_choice()) : kNoRow};
  }

  // All threads: send the numbers of own choices, and fill the tables of this rank's experts. The last warp signals the ranks.
  static MK_DEVICE void exchange(const Args& args, const RankContext& ctx, const Smem& smem, const First& first) {
    const u32 end = Topk::check_tokens(ctx, ctx.rank, first.given) * Config::kTopK;
    u32 choice = first_choice();
    const u64 before = choice < end ? send_place(ctx, choice, first.row_index) : 0;
    place_experts(args, ctx, smem);  // while the answer is on its way
    if (choice < end) check_place(ctx, choice, first.row_index, before);
    for (choice += gridDim.x * blockDim.x; choice < end; choice += gridDim.x * blockDim.x) {
      const u32 row_index = Topk::load_row_index(args, choice);
      check_place(ctx, choice, row_index, send_place(ctx, choice, row_index));
    }
    __syncthreads();
    const u32 lane = lane_index();
    if (threadIdx.x < blockDim.x - kWarp || lane >= Ranks::kWorld) return;
    if (blockIdx.x == 0) {
      store(ctx.peer_ptr(lane, Workspace::rows_of(ctx.parity(), ctx.rank)), load_shared(smem.row_begin(Config::kLocalExperts)));
    }
    fence_sys();
    add_relaxed_sys(ctx.peer_ptr(lane, Workspace::placed(ctx.rank)), 1);
  }

  // A warp: waits for the places of all rows.
  static MK_DEVICE void wait(const RankContext& ctx) {
    if (lane_index() < Ranks::kWorld) {
      const u32 source = lane_index(), wanted = ctx.epoch * gridDim.x;
      wait_flag(ctx, ctx.local_ptr(Workspace::placed(source)), WaitSite{kLoad, kPlaced, source, source, wanted});
    }
    __syncwarp();
  }

  // The address to which a row of this rank returns, or null if no choice has the row. The warp has waited for places.
  static MK_DEVICE u8* of_row(const RankContext& ctx, u32 row) {
    const u64 place = load(ctx.local_ptr(Workspace::places(row)));
    if (static_cast<u32>(place >> 32) != ctx.mark()) return nullptr;
    const u32 number = static_cast<u32>(place);
    return ctx.peer_ptr(number / kChoices, Workspace::results(number % kChoices));
  }

  // A warp, number `first` of `warps`, which has waited for places: reports own choices whose row does not exist. The warps that add
  // up have no registers for a report.
  static MK_DEVICE void report_absent_rows(const Args& args, const RankContext& ctx, u32 first, u32 warps) {
    const u32 end = Topk::valid_tokens(load_word(args.num_tokens)) * Config::kTopK;
    for (u32 choice = first * kWarp + lane_index(); choice < end; choice += warps * kWarp) {
      const u32 row_index = Topk::load_row_index(args, choice);
      if (!has_row(row_index) || exists(ctx, row_index)) continue;
      const WaitSite site{kLoad, kNoSuchRow, choice % Config::kTopK, choice / Config::kTopK, rows_of(ctx, row_index)};
      report_fault(ctx, site, row_index, ctx.rank);
    }
  }

  // The tokens of this rank, and the rows of their choices. The numbers of rows of all ranks have arrived.
  struct OwnTokens {
    const Args& args;
    const RankContext& ctx;

    MK_DEVICE u32 tokens() const { return Topk::valid_tokens(load_word(args.num_tokens)); }
    MK_DEVICE u32 find(u32 choice) const {
      const u32 row_index = Topk::load_row_index(args, choice);
      return has_row(row_index) && exists(ctx, row_index) ? row_index : kNoRow;
    }
  };

 private:
  // All threads: fill the tables of this rank's experts from expert_offsets. The tables are complete behind the next barrier of the CTA.
  static MK_DEVICE void place_experts(const Args& args, const RankContext& ctx, const Smem& smem) {
    int is_wrong = 0;
    for (u32 e = threadIdx.x; e <= Config::kLocalExperts; e += blockDim.x) {
      const u32 offset = load_word(args.expert_offsets + e * 4);
      const u32 before = e == 0 ? 0 : load_word(args.expert_offsets + (e - 1) * 4), most = e == 0 ? 0 : Config::kMaxRows;
      store_shared(smem.row_begin(e), offset);
      if (before <= offset && offset <= most) continue;
      is_wrong = 1;
      if (blockIdx.x == 0 && before <= Config::kMaxRows) report_fault(ctx, WaitSite{kPush, kExpertOffset, before, e, most}, offset, ctx.rank);
    }
    const bool has_rows = __syncthreads_or(is_wrong) == 0;
    for (u32 e = threadIdx.x; e <= Config::kLocalExperts; e += blockDim.x) {
      u32 tiles = 0, begin = 0;
#pragma unroll 8
      for (u32 i = 1; has_rows && i <= e; ++i) {
        const u32 end = load_shared(smem.row_begin(i));
        tiles += (end - begin + Config::kTileM - 1) / Config::kTileM * Shape::kColTiles;
        begin = end;
      }
      store_shared(smem.tile_begin(e), tiles);
      if (!has_rows) store_shared(smem.row_begin(e), 0);
    }
  }

  static MK_DEVICE bool has_row(u32 row_index) { return row_index < Topk::kRowIndices; }
  // The rows of the rank of a row.
  static MK_DEVICE u32 rows_of(const RankContext& ctx, u32 row_index) {
    return load(ctx.local_ptr(Workspace::rows_of(ctx.parity(), row_index / Config::kMaxRows)));
  }
  static MK_DEVICE bool exists(const RankContext& ctx, u32 row_index) {
    return row_index % Config::kMaxRows < rows_of(ctx, row_index);
  }

  // Sends the number of a choice to the rank that has the row, if there is one. Returns the earlier word of the row.
  static MK_DEVICE u64 send_place(const RankContext& ctx, u32 choice, u32 row_index) {
    if (!has_row(row_index)) return 0;
    u64* place = ctx.peer_ptr(row_index / Config::kMaxRows, Workspace::places(row_index % Config::kMaxRows));
    return exchange_relaxed_sys(place, u64{ctx.mark()} << 32 | (ctx.rank * kChoices + choice));
  }

  // Reports a wrong row index, or a row that another choice has, too. `before`: the earlier word of the row.
  static MK_DEVICE void check_place(const RankContext& ctx, u32 choice, u32 row_index, u64 before) {
    const u32 token = choice / Config::kTopK, index = choice % Config::kTopK;
    if (Topk::is_wrong(row_index)) Topk::report_wrong_row_index(ctx, ctx.rank, token, index, row_index);
    if (has_row(row_index) && static_cast<u32>(before >> 32) == ctx.mark()) Topk::report_row_twice(ctx, ctx.rank, token, index, row_index);
  }
};

}  // namespace mk::moe
