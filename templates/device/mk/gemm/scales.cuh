// The scales of A and B. A product of scaled matrices is the product of their elements times both scales.
//
// Scales of blocks differ along K, so they multiply the products of each stage, before the products are added to the
// sum. Other scales multiply the whole sum of a rank, before ranks add their sums.
#pragma once
#include <mk/comm/shards.cuh>
#include <mk/gemm/tile_scheduler.cuh>
#include <mk/memory.cuh>

namespace mk::gemm {

// The elements that share a scale.
enum class Scales {
  kNone,
  kTensor,  // all of A, and all of B
  kRow,     // a row of A, and a column of B
  kBlock,   // a row of A in 128 of K, and 128 columns of B in 128 of K
};

template <class Config>
constexpr Scales kScales = Scales::kNone;
template <class Config>
  requires requires { Config::kScales; }
constexpr Scales kScales<Config> = Config::kScales;

// Whether each row of A has scales of its own.
template <class Config>
constexpr bool kHasRowScales = kScales<Config> == Scales::kRow || kScales<Config> == Scales::kBlock;

// Whether scales multiply whole sums.
template <class Config>
constexpr bool kScalesSums = kScales<Config> == Scales::kTensor || kScales<Config> == Scales::kRow;

constexpr u32 kScaleBlock = 128;  // the elements of K, and the columns of B, that share a scale of a block

// Args: the scales, in fp32. With scales of blocks, the rows of both matrices of scales lie along K.
template <class Args>
concept ScaleArgs = requires(const Args& args) {
  args.a_scales;
  args.b_scales;
};
template <class Args>
concept BlockScaleArgs = ScaleArgs<Args> && requires(const Args& args) {
  args.a_scales_row_bytes;
  args.b_scales_row_bytes;
};

// A policy: the places of the scales of a warpgroup's elements in a tile. kArrive: whether the scales of A come with the
// rows, so that they have arrived only when the first stage is full.
template <class Places>
concept ScalePlaces = ScaleArgs<typename Places::Args> && requires(const Places& places, u32 half) {
  typename Places::Shape;
  Places::kArrive;
  Places::kCols;           // columns of C
  Places::kKSteps;         // stages of K
  Places::kHeldScales;     // with scales of blocks, the scales of a row that a lane holds: 1 or 2
  places.args;
  typename Places::OfRows; // the scales of a lane's rows of A
  places.of_rows().at(half);
  places.of_b();           // the scales of B
  places.b_row_bytes();    // with scales of blocks, the distance of their rows
  places.first_col();      // the first of the warpgroup's columns of C
};

// The policy of a work tile of a GEMM. Source gives the place of the scales of a row of A.
template <class Config, class ArgsOfKernel, TileOrder Order, class Source>
struct TileScales {
  using Args = ArgsOfKernel;
  using Shape = TileShape<Config>;
  static constexpr bool kArrive = Source::kScalesArrive;
  static constexpr u32 kCols = Config::kN, kKSteps = Config::kKSteps, kHeldScales = 2;

  const Args& args;
  const RankContext& ctx;
  const WorkTile& work;
  u32 group;

  // Rows beyond A have the scale of its last row.
  struct OfRows {
    const u8* rows[2];

    MK_DEVICE const u8* at(u32 half) const { return rows[half]; }
  };
  MK_DEVICE OfRows of_rows() const { return {{of_row(0), of_row(1)}}; }
  MK_DEVICE const u8* of_row(u32 half) const {
    const u32 row = Order::row_in_a(work, ctx) + Shape::group_row(group) + Fragment::row() + half * Fragment::kHalfRows;
    return Source::scales(args, ctx, work, min(row, CallRows<Config>::all(ctx) - 1));
  }
  MK_DEVICE const u8* of_b() const { return args.b_scales; }
  MK_DEVICE u64 b_row_bytes() const { return args.b_scales_row_bytes; }
  MK_DEVICE u32 first_col() const { return Shape::first_col(work.col, group); }
};

// The policy of products that a thread does not multiply by scales.
struct NoStageScales {
  static constexpr bool kArrive = false;

  MK_DEVICE void begin(u32) {}
  MK_DEVICE void advance(u32) {}
  MK_DEVICE float of(u32, u32) const { return 1; }
};

// The scales of blocks of a warpgroup's tile. A window of several stages is loaded at a time: a quad holds the scales of A
// for its two rows, and a warp holds the scales of B. The scales of a stage leave the window while the products of the
// previous stage run, and the next window is loaded a stage before its first scales are needed. No product therefore waits
// for scales.
template <class Config, ScalePlaces Places>
  requires BlockScaleArgs<typename Places::Args>
struct BlockScales {
  using Shape = typename Places::Shape;

  static constexpr bool kArrive = Places::kArrive;

  static constexpr u32 kHeld = Places::kHeldScales, kWindow = kHeld * Fragment::kRowLanes;  // stages
  static constexpr u32 kBlocks = Places::kKSteps;
  static constexpr u32 kColBlocks = kCeilDiv<Places::kCols, kScaleBlock>;  // of columns of C

  explicit MK_DEVICE BlockScales(const Places& places) : of_rows(places.of_rows()) {
    // The second part of the columns is the next block, or the block of up behind the blocks of the gate.
    u32 block = places.first_col() / kScaleBlock;
    if constexpr (Shape::kWeightCols == 1) block = min(block + lane_index() / kWindow % 2, kColBlocks - 1);
    else block = min(block, kColBlocks - 1) + lane_index() / kWindow % 2 * kColBlocks;
    of_cols = places.of_b() + block * places.b_row_bytes();
  }

  // Prepares for stage `step`, the first stage.
  MK_DEVICE void begin(u32 step) {
    first = step;
    load(step);
    take(step);
  }

  // Prepares for the stage behind `step`, if any.
  MK_DEVICE void advance(u32 step) { take(step + 1); }

  // The scale of a lane's row in a part of the stage's columns.
  MK_DEVICE float of(u32 half, u32 part) const { return rows[half] * cols[part]; }

 private:
  typename Places::OfRows of_rows;
  const u8* of_cols;            // the scales of a lane's columns
  u32 first;                    // the first stage of the tile
  float window_rows[kHeld][2];  // a lane's scales of A in the window
  float window_cols;            // a lane's scale of B in the window
  float rows[2], cols[Shape::kParts];  // the scales of a stage

  static MK_DEVICE u32 block(u32 step) { return min(step, kBlocks - 1); }

  // Loads a window that begins with stage `step`.
  MK_DEVICE void load(u32 step) {
#pragma unroll
    for (u32 i = 0; i < kHeld; ++i) {
      const u32 k = block(step + i * Fragment::kRowLanes + lane_index() % Fragment::kRowLanes);
#pragma unroll
      for (u32 half = 0; half < 2; ++half) window_rows[i][half] = as_float(load_word(of_rows.at(half) + Fp32::bytes(k)));
    }
    window_cols = as_float(load_word(of_cols + Fp32::bytes(block(step + lane_index() % kWindow))));
  }

  // Takes the scales of stage `step` from the window. Behind the last stage of a window, loads the next window.
  MK_DEVICE void take(u32 step) {
    const u32 at = (step - first) % kWindow;
    const u32 holder = lane_index() / Fragment::kRowLanes * Fragment::kRowLanes + at % Fragment::kRowLanes;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const float held = at < Fragment::kRowLanes ? window_rows[0][half] : window_rows[kHeld - 1][half];
      rows[half] = as_float(broadcast(as_bits(held), holder));
    }
#pragma unroll
    for (u32 part = 0; part < Shape::kParts; ++part) {
      cols[part] = as_float(broadcast(as_bits(window_cols), part * kWindow + at));
    }
    if (at == kWindow - 1) load(step + 1);
  }

  static_assert(Config::kTileK == kScaleBlock, "a stage has a scale for each row");
};

// The scales of tensors, or of rows and columns, by which a thread of a warpgroup multiplies its sums of a tile.
template <class Config, ScalePlaces Places>
struct SumScales {
  using Shape = typename Places::Shape;
  static constexpr u32 kCols = Places::kCols;
  static constexpr bool kRaggedCols = kCols % Shape::kTileCols != 0;

  Places places;

  // A warpgroup: brings the scales to L1, long before they are needed, except scales that may not have arrived. A lane loads
  // a word of each 32 bytes.
  MK_DEVICE void prefetch() const {
    if constexpr (kScales<Config> == Scales::kRow) {
      if constexpr (!Places::kArrive) row_scale(0), row_scale(1);
      const u32 first = places.first_col(), at = lane_index() * 8;
      if constexpr (Shape::kWeightCols == 1) {
        load_word(places.of_b() + Fp32::bytes(min(first + at, kCols - 1)));
      } else {
        const u32 up = at / Shape::kGroupCols % Shape::kWeightCols * kCols;
        load_word(places.of_b() + Fp32::bytes(min(first + at % Shape::kGroupCols, kCols - 1) + up));
      }
    }
  }

  // A thread: multiplies its sums of part `index` of kPart columns of B.
  template <u32 kPart>
  MK_DEVICE void apply(u32 index, typename Shape::Accumulator& sum) const {
    auto own = sum.template part<kPart>(index);
    if constexpr (kScales<Config> == Scales::kTensor) {
      const float scale = as_float(load_word(places.args.a_scales)) * as_float(load_word(places.of_b()));
      own.for_each([&](u32, u32, float& value) { value *= scale; });
    } else if constexpr (kScales<Config> == Scales::kRow) {
      const float a[2] = {row_scale(0), row_scale(1)};
      const u32 first_col = places.first_col() + Fragment::col();
      const u8* of_first = places.of_b() + Fp32::bytes(first_col);
      float2 b[kPart / Fragment::kBlockCols];
#pragma unroll
      for (u32 at = 0; at < kPart; at += Fragment::kBlockCols) {
        const u32 col = index * kPart + at, offset = col % Shape::kGroupCols;
        const u32 up = col / Shape::kGroupCols * kCols;
        float2& of_cols = b[at / Fragment::kBlockCols];
        if (kRaggedCols && first_col + offset >= kCols) of_cols = {};
        else of_cols = load_float2(of_first + Fp32::bytes(offset + up));
      }
      own.for_each_pair([&](u32 half, u32 col, float& x, float& y) {
        const float2 of_cols = b[col / Fragment::kBlockCols];
        x *= a[half] * of_cols.x, y *= a[half] * of_cols.y;
      });
    }
  }

 private:
  MK_DEVICE float row_scale(u32 half) const {
    return as_float(load_word(places.of_row(half)));
  }
};

}  // namespace mk::gemm
