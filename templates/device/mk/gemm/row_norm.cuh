// RMSNorm of the rows of C, by the warps that have the elements. The norm is taken of the new residual, rounded as in
// C.
//
// Each warp sends the squares of its elements to the warp that adds up the squares of a row. That warp sends the total to
// all warps of this GPU. Squares and totals travel in words that validate themselves. A fence would first wait for the
// packets that the SM has on their way to peers. If every warp added up all squares of its rows itself, all SMs would
// poll the same lines (`docs/performance.md#loads-and-stores`).
//
// If rows become elements of e4m3, the greatest |z * weight| travels with the squares.
#pragma once
#include <mk/call_rows.cuh>
#include <mk/comm/ll.cuh>
#include <mk/deadline.cuh>
#include <mk/gemm/tile_shape.cuh>
#include <mk/quantised_norm.cuh>

namespace mk::gemm {

template <class Workspace>
concept RowNormWorkspace = requires(u32 parity, u32 row) {
  // For each sub-tile of a row, the sum of the squares of its columns and the mark of the call, see comm/ll.cuh. If rows are
  // quantised, a packet with the squares and the greatest |z * weight|.
  Workspace::squares(parity, row);
  // The mark of the call, and the sum of the squares of all columns. If rows are quantised, a packet with this sum and the
  // greatest |z * weight| of the row.
  Workspace::row_squares(parity, row);
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
  static constexpr bool kQuantises = QuantisesRows<Config>;
  using Sums = NormSums<kQuantises>;

  // A converged warp, whose quads share rows: sends the sums of its rows in a sub-tile.
  static MK_DEVICE void keep(const RankContext& ctx, bool has_row, u32 row, u32 sub, Sums sums) {
    static_assert(RowNormWorkspace<Workspace>);
    __syncwarp();
    sums.squares = quad_sum(sums.squares);
    if constexpr (kQuantises) sums.greatest = quad_max(sums.greatest);
    if (!has_row || lane_index() % Fragment::kRowLanes != 0) return;
    if constexpr (kQuantises) send(packet(ctx, row, sub), sums, ctx.mark());
    else store_relaxed_sys(reinterpret_cast<u64*>(squares(ctx, row)) + sub, u64{ctx.mark()} << 32 | as_bits(sums.squares));
  }

  // A converged warp, number `warp` of its CTA, that has sent all its squares: adds up the squares of some rows, in one
  // order on all ranks, and sends the totals. All CTAs take part.
  static MK_DEVICE void sum_rows(const RankContext& ctx, u32 warp) {
    static_assert(Config::kCommCtas == 0);
    for (u32 row = warp * gridDim.x + blockIdx.x; row < CallRows<Config>::all(ctx); row += kWarps * gridDim.x) {
      Pair pairs[kLanePairs] = {};
      wait_squares(ctx, row, pairs);
      __syncwarp();
      Sums sums;
#pragma unroll
      for (u32 v = 0; v < kLanePairs; ++v) {
        sums.squares += pairs[v].squares(0) + pairs[v].squares(1);
        if constexpr (kQuantises) sums.greatest = max(sums.greatest, pairs[v].greatest());
      }
      sums = sums.of_warp();
      if (lane_index() != 0) continue;
      if constexpr (kQuantises) send(total(ctx, row), sums, ctx.mark());
      else store_relaxed_sys(reinterpret_cast<u64*>(total(ctx, row)), u64{as_bits(sums.squares)} << 32 | ctx.mark());
    }
  }

  // The factor of the elements of a row, and the greatest |z * weight| of the row if rows are quantised.
  struct Scale {
    float factor, greatest;
  };

  // A lane: waits for the sums of a row.
  static MK_DEVICE Scale wait_scale(const RankContext& ctx, u32 row) {
    Deadline deadline(ctx);
    for (;;) {
      u32 mark = 0;
      if constexpr (kQuantises) {
        const LlPacket packet = comm::load_ll(total(ctx, row));
        if (packet.has_arrived(ctx.mark())) return {factor(as_float(packet.first())), as_float(packet.second())};
        mark = packet.words.y;
      } else {
        const u64 word = load_relaxed_sys(reinterpret_cast<const u64*>(total(ctx, row)));
        mark = static_cast<u32>(word);
        const float squares = as_float(static_cast<u32>(word >> 32));
        if (mark == ctx.mark()) return {factor(squares), 0.0f};
      }
      if (deadline.expired(ctx, WaitSite{kMultiply, kPartial, ctx.rank, row, ctx.mark()}, mark)) return {0.0f, 0.0f};
    }
  }

  // A lane: waits for the greatest |z * weight| of a row in a sub-tile and its neighbour, which are a block with one scale.
  static MK_DEVICE float wait_greatest(const RankContext& ctx, u32 row, u32 sub) {
    Deadline deadline(ctx);
    for (;;) {
      const Pair pair = load_pair(ctx, row, sub / 2);
      if (pair.has_arrived(sub / 2, ctx.mark())) return pair.greatest();
      if (deadline.expired(ctx, WaitSite{kMultiply, kPartial, ctx.rank, row, ctx.mark()}, pair.packets[0].words.y)) return 0.0f;
    }
  }

 private:
  using LlPacket = comm::LlPacket;

  static constexpr u32 kWarps = kGroups * kWarpgroupWarps;       // of a CTA
  static constexpr u32 kRowPairs = kCeilDiv<kSubTiles, 2>;       // pairs of sub-tiles of a row
  static constexpr u32 kLanePairs = kCeilDiv<kRowPairs, kWarp>;  // pairs of a row that a lane adds up
  static constexpr u32 kPairPackets = kQuantises ? 2 : 1;

  // The packets of two neighbouring sub-tiles of a row. If the number of sub-tiles is odd, the last pair has one.
  struct Pair {
    LlPacket packets[kPairPackets];

    MK_DEVICE bool has_arrived(u32 pair, u32 mark) const {
      const bool has_second = 2 * pair + 1 < kSubTiles;
      if constexpr (kQuantises) return packets[0].has_arrived(mark) && (packets[1].has_arrived(mark) || !has_second);
      else return packets[0].words.y == mark && (packets[0].words.w == mark || !has_second);
    }
    MK_DEVICE float squares(u32 sub) const {
      if constexpr (kQuantises) return as_float(packets[sub].first());
      else return as_float(sub == 0 ? packets[0].first() : packets[0].second());
    }
    MK_DEVICE float greatest() const { return max(as_float(packets[0].second()), as_float(packets[kPairPackets - 1].second())); }
  };

  static MK_DEVICE float factor(float squares) { return RmsNorm<Config, ElementC>::scale(squares, Config::kN / ElementC::kPerVec); }

  static MK_DEVICE void send(u8* slot, const Sums& sums, u32 mark) {
    comm::store_ll(slot, as_bits(sums.squares), as_bits(sums.greatest), mark);
  }

  static MK_DEVICE u8* squares(const RankContext& ctx, u32 row) {
    return reinterpret_cast<u8*>(ctx.local_ptr(Workspace::squares(ctx.parity(), row)));
  }
  static MK_DEVICE u8* packet(const RankContext& ctx, u32 row, u32 sub) { return squares(ctx, row) + sub * LlPacket::kBytes; }
  static MK_DEVICE u8* total(const RankContext& ctx, u32 row) {
    return reinterpret_cast<u8*>(ctx.local_ptr(Workspace::row_squares(ctx.parity(), row)));
  }

  static MK_DEVICE Pair load_pair(const RankContext& ctx, u32 row, u32 pair) {
    Pair loaded{};
#pragma unroll
    for (u32 p = 0; p < kPairPackets; ++p) {
      // The last sub-tile of an odd number of sub-tiles has a packet of its own only if rows are quantised.
      if (kQuantises && pair * kPairPackets + p >= kSubTiles) continue;
      loaded.packets[p] = comm::load_ll(packet(ctx, row, pair * kPairPackets + p));
    }
    return loaded;
  }

  // Loads this lane's pairs of a row until no packet is missing.
  static MK_DEVICE void wait_squares(const RankContext& ctx, u32 row, Pair (&pairs)[kLanePairs]) {
    Deadline deadline(ctx);
    for (;;) {
      u32 missing = kLanePairs;
#pragma unroll
      for (u32 v = 0; v < kLanePairs; ++v) {
        const u32 pair = v * kWarp + lane_index();
        if (pair < kRowPairs) pairs[v] = load_pair(ctx, row, pair);
      }
#pragma unroll
      for (u32 v = 0; v < kLanePairs; ++v) {
        const u32 pair = v * kWarp + lane_index();
        if (pair < kRowPairs && !pairs[v].has_arrived(pair, ctx.mark())) missing = v;
      }
      if (missing == kLanePairs) return;
      if (deadline.expired(ctx, WaitSite{kMultiply, kPartial, ctx.rank, row, ctx.mark()}, 0)) return;
    }
  }
};

}  // namespace mk::gemm
