// The main loop of attention. TMA loads a tile of queries and then K and V block by block, and two warpgroups multiply.
//
// Queries, K and V have a pipeline each. K is loaded one block ahead of V, since the warpgroups multiply the queries
// with the next block of K before they multiply the weights of the current block with V.
#pragma once
#include <mk/arch.cuh>
#include <mk/attention/kv_iterator.cuh>
#include <mk/attention/softmax.cuh>
#include <mk/attention/tile_load.cuh>
#include <mk/named_barriers.cuh>
#include <mk/pipeline.cuh>

namespace mk::attention {

template <class Config>
concept MainloopConfig = AttentionConfig<Config> && requires {
  Config::kStages;     // stages of K, and of V
  Config::kScaleLog2;  // the scale of scores times log2(e)
};

template <class Smem>
concept MainloopSmem = requires(const Smem smem, u32 stage) {
  smem.q(stage);
  smem.k(stage);
  smem.v(stage);
  smem.query_tile(stage);  // the index of the tile whose queries a buffer holds
  smem.q_full(stage);
  smem.q_empty(stage);
  smem.k_full(stage);
  smem.k_empty(stage);
  smem.v_full(stage);
  smem.v_empty(stage);
};

// Args: the tensor maps q, k and v, as load_sub_tile takes them.
template <class Args>
concept MainloopArgs = requires(const Args& args) {
  args.q;
  args.k;
  args.v;
};

constexpr u32 kQueryBuffers = 2;  // one buffer is loaded while the other buffer is used
constexpr u32 kGroupRows = Fragment::kRows;

template <MainloopConfig Config, MainloopSmem Smem>
struct Mainloop {
  using Shape = TileShape<Config>;
  using Sequence = attention::Sequence<Config>;
  using Element = typename Config::Element;

  // A buffer is full when the load thread has arrived and all bytes have been loaded. A buffer is empty when all
  // consumer warps have arrived.
  template <u32 kCount>
  using Barriers = PipelineBarriers<kCount, 1, kGroups * kWarpgroupWarps>;
  using Queries = Pipeline<Barriers<kQueryBuffers>, StageSites>;
  using Stages = Pipeline<Barriers<Config::kStages>, StageSites>;

  static MK_DEVICE Barriers<kQueryBuffers> query_barriers(const Smem& smem) { return {smem.q_full(0), smem.q_empty(0)}; }
  static MK_DEVICE Barriers<Config::kStages> k_barriers(const Smem& smem) { return {smem.k_full(0), smem.k_empty(0)}; }
  static MK_DEVICE Barriers<Config::kStages> v_barriers(const Smem& smem) { return {smem.v_full(0), smem.v_empty(0)}; }

  // One thread, before the first barrier of the CTA.
  static MK_DEVICE void init_barriers(const Smem& smem) {
    query_barriers(smem).init();
    k_barriers(smem).init();
    v_barriers(smem).init();
  }

  // One thread: loads a tile of rows of a head of this rank, sub-tile by sub-tile.
  static MK_DEVICE void load_tile(const RankContext& ctx, const CUtensorMap& map, u32 to, u32 full, const RankRows& rows,
                                  u32 head, u32 batch) {
#pragma unroll
    for (u32 sub = 0; sub < Shape::kSubTiles; ++sub) {
      load_sub_tile<Config>(ctx, map, to + sub * Shape::kSubTileBytes, full, sub, rows, head, batch);
    }
  }

  // ---- the two warpgroups

  using Scores = Accumulator<Config::kTileKeys>;
  using Weights = u32[Config::kTileKeys / kMmaK<Element>][4];  // as the registers of an operand of MMAs
  using Sums = Accumulator<Config::kHeadDim>;

  // A warpgroup: computes O of its 64 queries over all blocks of keys that the tile meets. The queries are at `q` in
  // shared memory. `row` is the first query of this warp in the tile.
  //
  // The warpgroups take turns at the tensor cores: while one warpgroup multiplies, the other warpgroup computes its
  // softmax. A warpgroup issues the product for the next scores before it multiplies the current weights with V. The
  // softmax of the next scores then overlaps with the multiplication with V.
  template <MaskPolicy Mask>
  static MK_DEVICE void attend(const RankContext& ctx, const Smem& smem, Stages& k, Stages& v, const QueryTile& tile,
                               u32 group, u32 row, u32 q, Softmax<Config>& softmax, Sums& o) {
    KvIterator<Config, Mask> blocks(ctx, tile);
    KvBlock block{};
    Scores s;
    float rescale[2];
    Weights p;

    blocks.next(block);
    k.consumer_wait_watched();
    multiply_keys(s, q, smem.k(k.stage()));
    mma_wait<0>();
    mma_hold(s);
    k.consumer_release_warp();
    mask<Mask>(tile.sequence, s, block, row);
    softmax.apply(s, rescale);
    pack(p, s);
#pragma unroll 1
    while (blocks.next(block)) {
      k.consumer_wait_watched();
      take_turn(group);
      multiply_keys(s, q, smem.k(k.stage()));
      v.consumer_wait_watched();
      multiply_values(o, p, smem.v(v.stage()));
      pass_turn(group);
      mma_wait<1>();
      mma_hold(s);
      k.consumer_release_warp();
      mask<Mask>(tile.sequence, s, block, row);
      softmax.apply(s, rescale);
      mma_wait_after<0>(softmax.row_sum[0] + softmax.row_sum[1]);
      mma_hold(o);
      v.consumer_release_warp();
      o.for_each([&](u32 half, u32, float& sum) { sum *= rescale[half]; });
      pack(p, s);
    }
    v.consumer_wait_watched();
    multiply_values(o, p, smem.v(v.stage()));
    mma_wait<0>();
    mma_hold(o);
    v.consumer_release_warp();
  }

  // A warpgroup waits for its turn at the tensor cores, and passes the turn to the other warpgroup. The second
  // warpgroup passes the turn before the first tile. The first warpgroup takes the turn that is left after the last
  // tile.
  static MK_DEVICE void take_turn(u32 group) { sync_named(kMmaTurn + group, kGroups * kWarpgroup); }
  static MK_DEVICE void pass_turn(u32 group) { arrive_named(kMmaTurn + (group ^ 1), kGroups * kWarpgroup); }

 private:
  // S = Q Kᵀ
  static MK_DEVICE void multiply_keys(Scores& s, u32 q, u32 k) {
    const u64 a = mma_descriptor<false>(q), b = mma_descriptor<false>(k);
    mma_fence();
#pragma unroll
    for (u32 i = 0; i < Config::kHeadDim / kMmaK<Element>; ++i) {
      constexpr u32 kPerLine = Element::kPerLine / kMmaK<Element>;
      const u32 at = (i / kPerLine * Shape::kSubTileBytes >> 4) + i % kPerLine * kDescriptorStep<Element, false>;
      Mma<Element, Config::kTileKeys, false>::issue(s, a + at, b + at, i != 0);
    }
    mma_commit();
  }

  // O += P V, with P from registers
  static MK_DEVICE void multiply_values(Sums& o, const Weights& p, u32 v) {
    const u64 b = mma_descriptor<true, Shape::kSubTileBytes>(v);
    mma_fence();
#pragma unroll
    for (u32 i = 0; i < Config::kTileKeys / kMmaK<Element>; ++i) {
      Mma<Element, Config::kHeadDim, true>::issue(o, p[i], b + i * kDescriptorStep<Element, true>, true);
    }
    mma_commit();
  }

  // Masks the scores of keys that lie beyond the chunk or, under a causal mask, come later than the query.
  template <MaskPolicy Mask>
  static MK_DEVICE void mask(const SequenceRows& sequence, Scores& s, const KvBlock& block, u32 row) {
    u32 keys = Config::kTileKeys;
    if constexpr (TakesRows<Config>) keys = block.keys;
    else if constexpr (Sequence::kRagged) keys = Sequence::chunk_rows(sequence, block.source, block.rank_chunk) - block.row;
    if (Mask::kIsCausal && block.is_diagonal) {
      const u32 upper_end = row + Fragment::lane_row() + 1;
      mask_scores(s, min(keys, upper_end), min(keys, upper_end + Fragment::kHalfRows));
    } else if (keys < Config::kTileKeys) {
      mask_scores(s, keys, keys);
    }
  }

  static MK_DEVICE void pack(Weights& p, Scores& s) {
    s.for_each_pair([&](u32 half, u32 col, float x, float y) {
      p[col / kMmaK<Element>][col % kMmaK<Element> / Fragment::kBlockCols * 2 + half] = Element::pack(x, y);
    });
  }
};

}  // namespace mk::attention
