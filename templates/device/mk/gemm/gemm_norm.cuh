// A GEMM of one rank whose rows are normalised. The warps that multiply store the new residual to C from registers, send the
// squares of its rows to each other, and normalise the stored rows.
#pragma once
#include <mk/gemm/gemm.cuh>
#include <mk/gemm/lane_elements.cuh>

namespace mk::gemm {

template <class Config, class Args, class Workspace, GemmSmem Smem, TileOrder Order, class Epilogue>
  requires NormalisesRows<Config>
struct GemmNorm {
  using Gemm = gemm::Gemm<Config, Args, Workspace, Smem, Order, Epilogue>;
  using Shape = typename Gemm::Shape;
  using Scheduler = typename Gemm::Scheduler;
  using Mainloop = typename Gemm::Mainloop;
  using Load = typename Gemm::Load;
  using Elements = LaneElements<Config, Args, Workspace, Order, Epilogue>;

  static_assert(Topology<Config>::kWorld == 1, "several ranks exchange their sums");

  // A warpgroup: computes its part of each work tile, and then normalises it.
  struct Multiply {
    static constexpr Agent kAgent = Agent::kWarpgroup;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
      typename Mainloop::Stages stages{ctx, Mainloop::barriers(smem)};
      const Epilogue epilogue{args, ctx};
      Gemm::for_each_sum(
          args, ctx, smem, stages, group, [&](const WorkTile& work) { epilogue.prefetch_residual(work, group); },
          [&](const WorkTile& work, typename Shape::Accumulator& sum) {
            store(Elements{args, ctx, work, group}, sum);
            __syncwarp();  // the next product needs all lanes together
          });
      Elements::normalise_all(args, ctx, group);
    }
  };

  static MK_DEVICE void prefetch(const Args& args, const RankContext& ctx, const Smem& smem) {
    Gemm::prefetch(args, ctx, smem);
  }
  static MK_DEVICE bool begin(const Args& args, const RankContext& ctx, const Smem& smem) {
    return Gemm::begin(args, ctx, smem);
  }

  // Runs after the roles. The epoch advances when all warps of the CTA have normalised their rows.
  static MK_DEVICE void end(const Args& args, const RankContext& ctx) {
    __syncthreads();
    Gemm::end(args, ctx);
  }

 private:
  // A warpgroup: stores its elements of a work tile to C, and sends the squares of its rows.
  static MK_DEVICE void store(const Elements& own, typename Shape::Accumulator& sum) {
#pragma unroll
    for (u32 sub = 0; sub < Shape::kSubTiles; ++sub) {
      if (!Scheduler::completes(own.work, sub)) continue;
#pragma unroll
      for (u32 half = 0; half < 2; ++half) {
        const u32 row = own.first_row() + half * Fragment::kHalfRows, col = own.first_col() + sub * kSubTile;
        const bool has_row = row < Elements::Rows::all(own.ctx);
        typename Elements::Sums sums;
        if (has_row) {
          const auto addends = own.template load_addends<Elements::kQuads>(row, col);
          u8* line = own.args.c_rows + row * own.args.c_row_bytes;
#pragma unroll
          for (u32 q = 0; q < Elements::kQuads; ++q) {
            const u32 first = sub * kSubTile + q * Elements::kQuadCols;
            const float *left = sum.pair(half, first), *right = sum.pair(half, first + Fragment::kBlockCols);
            float quad[4] = {left[0], left[1], right[0], right[1]};
            Elements::store_quad(line, col, quad, addends, q, sums);
          }
        }
        Elements::Norm::keep(own.ctx, has_row, row, own.sub_tile(sub), sums);
      }
    }
  }
};

}  // namespace mk::gemm
