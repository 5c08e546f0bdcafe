// The elements of a work tile that a lane has, and their way to C, for kernels that store C from registers.
//
// A lane has elements of two rows of a sub-tile. Its elements of a row are quads: its two neighbours in a block of columns, and
// its two neighbours in the next block.
#pragma once
#include <mk/gemm/epilogue.cuh>
#include <mk/gemm/quantised_rows.cuh>
#include <mk/gemm/row_norm.cuh>

namespace mk::gemm {

// Args: C by address.
template <class Args>
concept RowArgs = requires(const Args& args) {
  args.c_rows;
  args.c_row_bytes;
};

// The elements of a lane of a warpgroup. Lanes have different rows, so they diverge.
template <class Config, RowArgs Args, class Workspace, TileOrder Order, class Epilogue>
struct LaneElements {
  using Shape = TileShape<Config>;
  using Scheduler = TileScheduler<Config, Order>;
  using Rows = CallRows<Config>;
  using Norm = RowNorm<Config, Workspace>;
  using Sums = typename Norm::Sums;
  using ElementC = typename Config::ElementC;

  static constexpr u32 kQuadCols = 2 * Fragment::kBlockCols;
  static constexpr u32 kQuads = kSubTile / kQuadCols;  // of a row of a sub-tile

  const Args& args;
  const RankContext& ctx;
  const WorkTile& work;
  u32 group;

  // The first row and the first column of a lane's elements.
  MK_DEVICE u32 first_row() const {
    return Order::row_in_a(work, ctx) + Shape::group_row(group) + Fragment::row();
  }
  MK_DEVICE u32 first_col() const {
    return Shape::first_col(work.col, group) + Fragment::col();
  }

  // The number of a sub-tile in the rows of C.
  MK_DEVICE u32 sub_tile(u32 sub) const {
    return Shape::first_col(work.col, group) / kSubTile + sub;
  }

  // The addends of the epilogue for kCount quads of a row of this rank's C, from column `col` on, and the weights of the quads if rows
  // are quantised.
  template <u32 kCount>
  struct Addends {
    u32 bias[kCount][2], residual[kCount][2], weights[kCount][2];
  };
  template <u32 kCount>
  MK_DEVICE Addends<kCount> load_addends(u32 row, u32 col) const {
    const Epilogue epilogue{args, ctx};
    Addends<kCount> all;
#pragma unroll
    for (u32 q = 0; q < kCount; ++q) {
#pragma unroll
      for (u32 pair = 0; pair < 2; ++pair) {
        all.bias[q][pair] = epilogue.bias_at(col + q * kQuadCols + pair * Fragment::kBlockCols);
        all.residual[q][pair] = epilogue.residual_at(row, col + q * kQuadCols + pair * Fragment::kBlockCols);
      }
    }
    if constexpr (QuantisesRows<Config>) load_weights(col, all.weights);
    return all;
  }

  // The weights of kCount quads of a row, from column `col` on.
  template <u32 kCount>
  MK_DEVICE void load_weights(u32 col, u32 (&weights)[kCount][2]) const {
#pragma unroll
    for (u32 q = 0; q < kCount; ++q) {
#pragma unroll
      for (u32 pair = 0; pair < 2; ++pair) {
        // Elements beyond the columns are 0, and any weights will do there.
        const u32 of_pair = min(col + q * kQuadCols + pair * Fragment::kBlockCols, Config::kN - ElementC::kPerWord);
        weights[q][pair] = load_word(args.weight + ElementC::bytes(of_pair));
      }
    }
  }

  // Turns the sums of quad `q` into elements of C, and stores them to `line`, the row of C. If rows are normalised, adds
  // the elements to `sums`.
  template <u32 kCount>
  static MK_DEVICE void store_quad(u8* line, u32 col, float (&d)[4], const Addends<kCount>& addends, u32 q, Sums& sums) {
    Epilogue::apply(d[0], d[1], addends.bias[q][0], addends.residual[q][0]);
    Epilogue::apply(d[2], d[3], addends.bias[q][1], addends.residual[q][1]);
    store_pair<Config>(line, col + q * kQuadCols, d[0], d[1]);
    store_pair<Config>(line, col + q * kQuadCols + Fragment::kBlockCols, d[2], d[3]);
    if constexpr (NormalisesRows<Config>) {
      sums.template add<ElementC>(ElementC::pack(d[0], d[1]), ElementC::pack(d[2], d[3]), addends.weights[q]);
    }
  }

  // A warpgroup that has stored its elements of all work tiles to C, and has kept their squares: normalises the
  // elements.
  static MK_DEVICE void normalise_all(const Args& args, const RankContext& ctx, u32 group) {
    Norm::sum_rows(ctx, group * kWarpgroupWarps + Fragment::warp());
    for (u32 i = Scheduler::first(); i < Scheduler::end(ctx); i += Scheduler::kStride) {
      const WorkTile work = Scheduler::work_tile(i, ctx);
      LaneElements{args, ctx, work, group}.normalise();
    }
  }

 private:
  // A word for each pair of neighbours that a lane has of a row.
  struct Pairs {
    u32 at[Shape::kSubTiles][kQuads][2];
  };

  // Residual and weights are loaded before the wait for the squares of their rows.
  MK_DEVICE void normalise() const {
    static_assert(RowNormArgs<Args>);
    if (!Scheduler::completes_any(work)) return;
    const u32 row = first_row();
    Pairs z[2], weights;
    if constexpr (QuantisesRows<Config>) z[0] = z[1] = weights = Pairs{};  // lanes without a row take part in exchanges
    for_each_pair(row, [&](u32 sub, u32 q, u32 pair, u32 col) {
      weights.at[sub][q][pair] = load_word(args.weight + ElementC::bytes(col));
    });
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const u8* line = args.c_rows + (row + half * Fragment::kHalfRows) * args.c_row_bytes;
      for_each_pair(row + half * Fragment::kHalfRows, [&](u32 sub, u32 q, u32 pair, u32 col) {
        z[half].at[sub][q][pair] = load_written_word(line + ElementC::bytes(col));
      });
    }
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      if constexpr (QuantisesRows<Config>) {
        quantise(row + half * Fragment::kHalfRows, z[half], weights);
        continue;
      }
      if (row + half * Fragment::kHalfRows >= Rows::all(ctx)) continue;
      const float scale = Norm::wait_scale(ctx, row + half * Fragment::kHalfRows).factor;
      u8* line = args.y + (row + half * Fragment::kHalfRows) * args.y_row_bytes;
      for_each_pair(row + half * Fragment::kHalfRows, [&](u32 sub, u32 q, u32 pair, u32 col) {
        store_word(line + ElementC::bytes(col), scaled_pair<ElementC>(z[half].at[sub][q][pair], scale, weights.at[sub][q][pair]));
      });
    }
  }

  // A warp: stores its elements of a row, from the new residual and the weights, as elements of e4m3.
  MK_DEVICE void quantise(u32 row, const Pairs& z, const Pairs& weights) const {
    using Quantised = QuantisedNorm<ElementC, Config, Args>;
    if (row - Fragment::lane_row() >= Rows::all(ctx)) return;  // no lane of the warp has a row
    const bool has_row = row < Rows::all(ctx);
    float greatest[Shape::kSubTiles];  // |z * weight| of the elements that share a scale
    typename Norm::Scale scale{};
    if (has_row) {
      // The sum of the row arrives last, since it includes the sums of blocks.
#pragma unroll
      for (u32 sub = 0; sub < Shape::kSubTiles; ++sub) {
        if (!kSharesScale<Config> && Scheduler::completes(work, sub)) greatest[sub] = Norm::wait_greatest(ctx, row, sub_tile(sub));
      }
      scale = Norm::wait_scale(ctx, row);
    }
    __syncwarp();
#pragma unroll
    for (u32 sub = 0; sub < Shape::kSubTiles; ++sub) {
      if (!Scheduler::completes(work, sub)) continue;
      const u32 first = first_col() - Fragment::col() + sub * kSubTile;
      const float of_elements =
          Quantise::scale(Quantised::magnitude(kSharesScale<Config> ? scale.greatest : greatest[sub], scale.factor));
      const float to_elements = Quantise::reciprocal(of_elements);
#pragma unroll
      for (u32 q = 0; q < kQuads; ++q) {
        float y[4];
#pragma unroll
        for (u32 pair = 0; pair < 2; ++pair) {
          const u32 of_pair = scaled_pair<ElementC>(z.at[sub][q][pair], scale.factor, weights.at[sub][q][pair]);
          y[2 * pair] = ElementC::low(of_pair) * to_elements, y[2 * pair + 1] = ElementC::high(of_pair) * to_elements;
        }
        const u32 word = InterleavedWords::of(E4m3::pack(y));
        const u32 col = first + q * kQuadCols;
        if (!has_row || col >= Config::kN) continue;
        store_word(Quantised::elements_at(args, row, 0) + col + InterleavedWords::col(), word);
        if (q == 0 && Fragment::is_first_of_row()) Quantised::store_scale(args, row, col / ElementC::kPerVec, of_elements);
      }
    }
  }

  // Calls `body(sub, quad, pair, column)` for each pair of neighbours of a lane in a row that exists.
  template <class Body>
  MK_DEVICE void for_each_pair(u32 row, const Body& body) const {
#pragma unroll
    for (u32 sub = 0; sub < Shape::kSubTiles; ++sub) {
      if (row >= Rows::all(ctx) || !Scheduler::completes(work, sub)) continue;
#pragma unroll
      for (u32 q = 0; q < kQuads; ++q) {
#pragma unroll
        for (u32 pair = 0; pair < 2; ++pair) {
          const u32 col = first_col() + sub * kSubTile + q * kQuadCols + pair * Fragment::kBlockCols;
          if (col < Config::kN) body(sub, q, pair, col);
        }
      }
    }
  }
};

}  // namespace mk::gemm
