// Writes O, and the log-sum-exp of its rows if it is an operand, from registers to memory.
#pragma once
#include <mk/attention/softmax.cuh>
#include <mk/attention/tile_scheduler.cuh>

namespace mk::attention {

// The layout of O: [batch, row, head, column] or [batch, head, row, column].
enum class Layout { kBshd, kBhsd };

template <class Config>
concept OutputConfig = AttentionConfig<Config> && requires {
  Config::kLayout;
};

// Args: o, the bytes from one of its rows to the next, and perhaps lse.
template <class Args>
concept OutputArgs = requires(const Args& args) {
  args.o;
  args.o_row_bytes;
};

template <OutputConfig Config>
struct Output {
  using Sequence = attention::Sequence<Config>;
  using Shape = TileShape<Config>;
  using Element = typename Config::Element;

  // A warp: writes its rows of a tile, which begin at `row`. `q` is the shared memory that held the queries of these
  // rows. The rows of O pass through this memory in its swizzle, so that they are stored in whole lines.
  template <OutputArgs Args>
  static MK_DEVICE void write(const Args& args, const RankContext& ctx, const QueryTile& tile, u32 row, u32 q,
                              const Softmax<Config>& softmax, Accumulator<Config::kHeadDim>& o) {
    const SequenceRows& sequence = tile.sequence;
    const u32 rows = Sequence::operand_rows(args, ctx, sequence);
    const u32 first = Sequence::rank_row(sequence, tile.rank_chunk, tile.row + row);
    const u32 chunk_end = Sequence::chunk_rows(sequence, ctx.rank, tile.rank_chunk);
    const u32 end = Sequence::rank_row(sequence, tile.rank_chunk, chunk_end);
    const u64 head = u64{tile.batch} * Config::kHeads + tile.head;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const float sum = softmax.total(half);
      const float inverse = sum == 0.0f ? 0.0f : reciprocal_approx(sum);
#pragma unroll
      for (u32 col = 0; col < Config::kHeadDim; col += Fragment::kBlockCols) {
        float* pair = o.pair(half, col);
        pair[0] *= inverse;
        pair[1] *= inverse;
      }
      const u32 at = first + half * Fragment::kHalfRows + Fragment::lane_row();
      if constexpr (requires { args.lse; }) {
        if (Fragment::is_first_of_row() && at < end) store_float(args.lse + (head * rows + at) * 4, softmax.log_sum_exp(half, sum));
      }
    }
#pragma unroll
    for (u32 vec = 0; vec < Config::kHeadDim / Element::kPerVec; vec += 2) {
      const u32 line = q + vec / 8 * Shape::kSubTileBytes + Fragment::written_row() * kLineBytes;
      o.template write_blocks<Element>(line, vec % 8, vec * Element::kPerVec);
    }
    __syncwarp();
    constexpr u32 kPerRow = Config::kHeadDim / Element::kPerVec;
    for (u32 i = lane_index(); i < Fragment::kWarpRows * kPerRow; i += kWarp) {
      const u32 r = i / kPerRow, part = i % kPerRow;
      const u32 from = q + part / 8 * Shape::kSubTileBytes + r * kLineBytes + (part % 8 ^ r % 8) * 16;
      if (first + r >= end) continue;
      store_vec16(line_of(args, tile, head, rows, first + r) + part * 16, load_shared_vec16(from));
    }
  }

 private:
  template <class Args>
  static MK_DEVICE u8* line_of(const Args& args, const QueryTile& tile, u64 head, u32 rows, u32 row) {
    if constexpr (Config::kLayout == Layout::kBshd) {
      return args.o + (u64{tile.batch} * rows + row) * args.o_row_bytes + Element::bytes(tile.head * Config::kHeadDim);
    } else {
      return args.o + (head * rows + row) * args.o_row_bytes;
    }
  }
};

}  // namespace mk::attention
