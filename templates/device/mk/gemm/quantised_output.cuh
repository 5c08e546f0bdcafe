// The way of sums to C of e4m3. A block of kScaleBlock columns of a row shares a scale, which is stored beside C. See Quantise.
#pragma once
#include <mk/gemm/quantised_rows.cuh>
#include <mk/gemm/store.cuh>
#include <mk/named_barriers.cuh>

namespace mk::gemm {

// A warpgroup has all columns of a block, or half of them: then the tile is one block, and the warpgroups pass on the greatest
// magnitudes of their halves.
template <OutputConfig Config, class Args, class Smem, class Order>
struct QuantisedOutput {
  using Shape = TileShape<Config>;
  using Output = gemm::Output<Config, Smem>;

  static constexpr u32 kCols = kMin<Shape::kGroupCols, kScaleBlock>;
  static constexpr bool kIsHalf = kCols < kScaleBlock;
  using Rows = QuantisedRows<kCols>;

  // A warpgroup that has acquired a buffer: writes its columns of a block of C, from sub-tile `sub` on, and stores their scales.
  static MK_DEVICE void write(const Args& args, const RankContext& ctx, const Smem& smem, typename Output::Buffers& out,
                              const Tile& tile, u32 group, u32 sub, typename Shape::Accumulator& sum) {
    static_assert(!kIsHalf || Shape::kTileCols == kScaleBlock, "a block is a tile, or all columns of a block are in one warpgroup");
    const u32 first_row = Fragment::warp_row(), col = Output::col_of(tile, group, sub * Output::kPiecesPerSubTile);
    const auto block = sum.template part<kCols>(sub * kSubTile / kCols);
    float greatest[2] = {Rows::greatest(block, 0), Rows::greatest(block, 1)};
    if constexpr (kIsHalf) exchange_halves(smem, out.stage(), group, greatest);
    const float scales[2] = {Quantise::scale(greatest[0]), Quantise::scale(greatest[1])};
    Rows::write(smem.out(group, out.stage()) + first_row * kLineBytes, block, scales);
    Output::commit(out);
    const bool has_scales = col < Config::kN && (!kIsHalf || group == 0);
    const u32 rows = has_scales ? rows_of_group<Config, Order>(tile, group, ctx) : 0;
    u8* const to = args.c_scales + col / kScaleBlock * Fp32::kBytes;
    const u32 first_in_c = Output::template row_of<Order>(tile, group) + first_row;
    Rows::store_scales(scales, max(rows, first_row) - first_row, [&](u32 row) { return to + (first_in_c + row) * args.c_scales_row_bytes; });
  }

 private:
  // A warpgroup: replaces the greatest magnitudes of its half of a block by those of the block. Magnitudes lie in the first free
  // vector of their row's line. A warpgroup writes to these vectors again two tiles later: behind the barrier of the next tile,
  // where the other warpgroup arrives after it has read them.
  static MK_DEVICE void exchange_halves(const Smem& smem, u32 stage, u32 group, float (&greatest)[2]) {
    const auto place = [&](u32 of_group, u32 half) {
      const u32 row = Fragment::row() + half * Fragment::kHalfRows;
      return smem.out(of_group, stage) + row * kLineBytes + (Rows::kVecs ^ row % 8) * kVecBytes;
    };
    if (Fragment::is_first_of_row()) {
      store_shared(place(group, 0), as_bits(greatest[0]));
      store_shared(place(group, 1), as_bits(greatest[1]));
    }
    sync_named(kHalvesQuantised, kGroups * kWarpgroup);
#pragma unroll
    for (u32 half = 0; half < 2; ++half) greatest[half] = max(greatest[half], as_float(load_shared(place(1 - group, half))));
  }
};

}  // namespace mk::gemm
