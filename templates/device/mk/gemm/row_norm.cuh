// RMSNorm of the rows of C, by the warps that have the elements. The norm is taken of the new residual, rounded as in
// C.
//
// Each warp sends the squares of its elements to the warp that adds up the squares of a row. That warp sends the total to
// all warps of this GPU. Squares and totals travel in words that validate themselves. A fence would first wait for the
// packets that the SM has on their way to peers. If every warp added up all squares of its rows itself, all SMs would
// poll the same lines (`docs/performance.md#loads-and-stores`).
#pragma once
#include <mk/call_rows.cuh>
#include <mk/comm/ll.cuh>
#include <mk/deadline.cuh>
#include <mk/gemm/tile_shape.cuh>
#include <mk/norm.cuh>

namespace mk::gemm {

template <class Workspace>
concept RowNormWorkspace = requires(u32 parity, u32 row) {
  // For each sub-tile of a row, the sum of the squares of its columns and the mark of the call. See comm/ll.cuh.
  Workspace::squares(parity, row);
  Workspace::row_squares(parity, row);  // the mark of the call, and the sum of the squares of all columns
};

// Args: the destination of the norm of C.
template <class Args>
concept RowNormArgs = requires(const Args& args) {
  args.weight;
  args.y;
  args.y_row_bytes;
};

// Only kernels that normalise instantiate the functions.
template <class Config, class Workspace>
struct RowNorm {
  using ElementC = typename Config::ElementC;

  static constexpr u32 kSubTiles = Config::kColTiles * Config::kTileN / kSubTile;  // of a row

  // A converged warp, whose quads share rows: sends the squares of its rows in a sub-tile.
  static MK_DEVICE void keep_squares(const RankContext& ctx, bool has_row, u32 row, u32 sub, float squares) {
    static_assert(RowNormWorkspace<Workspace>);
    __syncwarp();
    squares = quad_sum(squares);
    if (!has_row || lane_index() % Fragment::kRowLanes != 0) return;
    store_relaxed_sys(word(ctx, row, sub), u64{ctx.mark()} << 32 | as_bits(squares));
  }

  // A converged warp, number `warp` of its CTA, that has sent all its squares: adds up the squares of some rows, in one
  // order on all ranks, and sends the totals. All CTAs take part.
  static MK_DEVICE void sum_rows(const RankContext& ctx, u32 warp) {
    static_assert(Config::kCommCtas == 0);
    for (u32 row = warp * gridDim.x + blockIdx.x; row < CallRows<Config>::all(ctx); row += kWarps * gridDim.x) {
      LlPacket packets[kLaneVecs] = {};
      wait_squares(ctx, row, packets);
      __syncwarp();
      float sum = 0.0f;
#pragma unroll
      for (u32 v = 0; v < kLaneVecs; ++v) sum += as_float(packets[v].first()) + as_float(packets[v].second());
      sum = warp_sum(sum);
      if (lane_index() == 0) store_relaxed_sys(total(ctx, row), u64{as_bits(sum)} << 32 | ctx.mark());
    }
  }

  // A lane: waits for the factor of the elements of a row.
  static MK_DEVICE float wait_scale(const RankContext& ctx, u32 row) {
    Deadline deadline(ctx);
    for (;;) {
      const u64 word = load_relaxed_sys(total(ctx, row));
      const u32 mark = static_cast<u32>(word);
      const float squares = as_float(static_cast<u32>(word >> 32));
      if (mark == ctx.mark()) return RmsNorm<Config, ElementC>::scale(squares, Config::kN / ElementC::kPerVec);
      if (deadline.expired(ctx, WaitSite{kMultiply, kPartial, ctx.rank, row, ctx.mark()}, mark)) return 0.0f;
    }
  }

 private:
  using LlPacket = comm::LlPacket;

  static constexpr u32 kWarps = kGroups * kWarpgroupWarps;     // of a CTA
  static constexpr u32 kRowVecs = kCeilDiv<kSubTiles, 2>;      // packets of a row
  static constexpr u32 kLaneVecs = kCeilDiv<kRowVecs, kWarp>;  // packets of a row that a lane adds up

  static MK_DEVICE u64* word(const RankContext& ctx, u32 row, u32 sub) {
    return reinterpret_cast<u64*>(ctx.local_ptr(Workspace::squares(ctx.parity(), row))) + sub;
  }
  static MK_DEVICE u64* total(const RankContext& ctx, u32 row) {
    return ctx.local_ptr(Workspace::row_squares(ctx.parity(), row));
  }

  // Loads this lane's packets of a row until no packet is missing.
  static MK_DEVICE void wait_squares(const RankContext& ctx, u32 row, LlPacket (&packets)[kLaneVecs]) {
    Deadline deadline(ctx);
    for (;;) {
      u32 missing = kLaneVecs;
#pragma unroll
      for (u32 v = 0; v < kLaneVecs; ++v) {
        const u32 vec = v * kWarp + lane_index();
        if (vec < kRowVecs) packets[v] = comm::load_ll(reinterpret_cast<const u8*>(word(ctx, row, 2 * vec)));
      }
#pragma unroll
      for (u32 v = 0; v < kLaneVecs; ++v) {
        const u32 vec = v * kWarp + lane_index();
        if (vec < kRowVecs && !has_arrived(packets[v], vec, ctx.mark())) missing = v;
      }
      if (missing == kLaneVecs) return;
      if (deadline.expired(ctx, WaitSite{kMultiply, kPartial, ctx.rank, row, ctx.mark()}, 0)) return;
    }
  }

  // If the number of sub-tiles is odd, the last packet has one.
  static MK_DEVICE bool has_arrived(const LlPacket& packet, u32 vec, u32 mark) {
    return packet.words.y == mark && (packet.words.w == mark || 2 * vec + 1 >= kSubTiles);
  }
};

}  // namespace mk::gemm
