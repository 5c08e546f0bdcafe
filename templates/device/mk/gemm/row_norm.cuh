// RMSNorm of the rows of C, after all warps of this GPU have stored what they have of them. What is normalised is the new
// residual, rounded to bf16.
#pragma once
#include <mk/call_rows.cuh>
#include <mk/deadline.cuh>
#include <mk/gemm/tile_shape.cuh>
#include <mk/norm.cuh>

namespace mk::gemm {

template <class Workspace>
concept RowNormWorkspace = requires(u32 parity, u32 row, u32 sub, u32 warp) {
  // Sums of squares of the columns of a row in a sub-tile, of the four lanes that have them.
  Workspace::squares(parity, row, sub);
  Workspace::rows_stored(warp);  // counts the CTAs whose warp of this number has stored its elements, over all calls
};

// Args: the new residual as the C of the exchange, and where its norm goes.
template <class Args>
concept RowNormArgs = requires(const Args& args) {
  args.c_rows;
  args.c_row_bytes;
  args.weight;
  args.y;
  args.y_row_bytes;
};

// Config: kRowWarps, the warps that share a row. Only kernels that normalise instantiate the functions.
template <class Config, class Args, class Workspace>
struct RowNorm {
  static constexpr u32 kWarps = kGroups * kWarpgroupWarps;  // of a CTA
  static constexpr u32 kRowVecs = Config::kN / 8;
  static constexpr u32 kSubTiles = Config::kColTiles * Config::kTileN / kSubTile;  // of a row

  // The squares of two bf16.
  static MK_DEVICE float squares(u32 pair) { return low_bf16(pair) * low_bf16(pair) + high_bf16(pair) * high_bf16(pair); }

  // A lane: what it has of a row in a sub-tile. Four lanes share the row. Columns beyond C are zeros.
  static MK_DEVICE void keep_squares(const RankContext& ctx, u32 row, u32 sub, float squares) {
    static_assert(RowNormWorkspace<Workspace>);
    store_float(reinterpret_cast<u8*>(ctx.local_ptr(Workspace::squares(ctx.parity(), row, sub)) + lane_index() % 4), squares);
  }

  // A converged warp, number `warp` of its CTA, that has stored all its elements. Each call counts every warp of every CTA,
  // however many tiles there are.
  static MK_DEVICE void run(const Args& args, const RankContext& ctx, u32 warp) {
    static_assert(RowNormArgs<Args>);
    if (lane_index() == 0) add_release_gpu(ctx.local_ptr(Workspace::rows_stored(warp)), 1);  // @row-norm.count
    if (lane_index() < kWarps) {
      wait_flag(ctx, ctx.local_ptr(Workspace::rows_stored(lane_index())),  // @row-norm.wait
                WaitSite{kMultiply, kPartial, ctx.rank, lane_index(), ctx.epoch * gridDim.x});
    }
    __syncwarp();
    const u32 units = CallRows<Config>::all(ctx) * Config::kRowWarps;
    for (u32 i = warp * gridDim.x + blockIdx.x; i < units; i += kWarps * gridDim.x) {
      normalise(args, ctx, i / Config::kRowWarps, i % Config::kRowWarps);
    }
  }

 private:
  using Rms = RmsNorm<Config, false>;

  // A warp: one of kRowWarps parts of a row. All warps and ranks add the squares of a row in the same order.
  static MK_DEVICE void normalise(const Args& args, const RankContext& ctx, u32 row, u32 part) {
    float squares = 0.0f;
    for (u32 sub = lane_index(); sub < kSubTiles; sub += kWarp) {
      const float4 of_lanes = load_float4(ctx.local_ptr(Workspace::squares(ctx.parity(), row, sub)));  // @row-norm.squares
      squares += of_lanes.x + of_lanes.y + of_lanes.z + of_lanes.w;
    }
    const float scale = Rms::scale(warp_sum(squares), kRowVecs);
    const u8* from = args.c_rows + row * args.c_row_bytes;
    u8* to = args.y + row * args.y_row_bytes;
    for (u32 vec = part * kWarp + lane_index(); vec < kRowVecs; vec += Config::kRowWarps * kWarp) {
      const Vec16 z = load_written_vec16(from + vec * 16);
      store_vec16(to + vec * 16, Rms::scaled(z, scale, load_vec16(args.weight + vec * 16)));
    }
    __syncwarp();
  }
};

}  // namespace mk::gemm
