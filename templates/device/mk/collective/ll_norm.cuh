// Norm of rows that warps hold in registers. The warps of a row are anywhere on the GPU. Each warp sends its sum of
// squares, or its sums of blocks, to all warps of the row in packets of this rank's own workspace, so that no fence and
// no barrier is between the sums and the result. If all elements of a row share a scale, a packet also has the greatest
// |z * weight| of the warp's part of the row.
#pragma once
#include <mk/collective/norm.cuh>
#include <mk/comm/ll.cuh>
#include <mk/deadline.cuh>
#include <mk/quantised_norm.cuh>

namespace mk::collective {

template <class Config>
concept LlNormConfig = ShardConfig<Config> && NormalisesRows<Config> && requires {
  Config::kRowWarps;  // warps that share a row; at most all warps of the grid
  Config::kLaneVecs;  // vectors of a row that a lane has
};

template <class Workspace>
concept SquaresWorkspace = requires(u32 parity, u32 row, u32 part) {
  // A packet with a part of the sum of squares of a row, and with the greatest |z * weight| of the part, or 0. A part
  // belongs to a warp, or is a block.
  Workspace::squares(parity, row, part);
};

// Only kernels that normalise instantiate the functions.
template <class Config, class Args, class Workspace>
struct LlNorm {
  using Shards = collective::Shards<Config>;
  using Norm = RowNorm<Config, Args>;
  using Quantised = QuantisedNorm<typename Config::Element, Config, Args>;

  // All warps of the grid: calls `z(vec, load(vec))` once for each vector of the tensor, in the lane that has the
  // vector, and stores the norm of the vector to the result. Loads of several vectors come before the first `z` of
  // these vectors, which may wait.
  //
  // Parts of rows are dealt out in the order of rows, and a warp has at most one part of a row. All warps of the first
  // unfinished row therefore work on that row, and no two warps wait for each other in a circle.
  template <class Load, class Z>
  static MK_DEVICE void for_each_row(const Args& args, const RankContext& ctx, const Load& load, const Z& z) {
    for_each_part(ctx, [&](u32 row, u32 part) { normalise(args, ctx, row, part, load, z); });
  }

  // All warps of the grid: calls `send(vec, load(vec))` for the vectors of for_each_row, in the lanes of for_each_row.
  // Loads of a part of a row come before its sends.
  template <class Load, class Send>
  static MK_DEVICE void for_each_own_vec(const RankContext& ctx, const Load& load, const Send& send) {
    for_each_part(ctx, [&](u32 row, u32 part) {
      const u32 first = row * Config::kRowVecs;
      Vec16 vecs[Config::kLaneVecs];
#pragma unroll
      for (u32 v = 0; v < Config::kLaneVecs; ++v) {
        if (vec_of(part, v) < Config::kRowVecs) vecs[v] = load(first + vec_of(part, v));
      }
#pragma unroll
      for (u32 v = 0; v < Config::kLaneVecs; ++v) {
        if (vec_of(part, v) < Config::kRowVecs) send(first + vec_of(part, v), vecs[v]);
      }
    });
  }

 private:
  template <class Body>
  static MK_DEVICE void for_each_part(const RankContext& ctx, const Body& body) {
    static_assert(LlNormConfig<Config>);
    const u32 warps = Config::kThreads / kWarp * gridDim.x;
    for (u32 i = warp_index() * gridDim.x + blockIdx.x; i < Shards::rows(ctx) * Config::kRowWarps; i += warps) {
      body(i / Config::kRowWarps, i % Config::kRowWarps);
    }
  }

  // This lane's vector number `v` of a warp's part of a row.
  static MK_DEVICE u32 vec_of(u32 part, u32 v) { return (part * Config::kLaneVecs + v) * kWarp + lane_index(); }

  template <class Load, class Z>
  static MK_DEVICE void normalise(const Args& args, const RankContext& ctx, u32 row, u32 part, const Load& load,
                                  const Z& z) {
    constexpr u32 kLaneVecs = Config::kLaneVecs;
    constexpr u32 kLoads = kLaneVecs < 4 ? kLaneVecs : 4;  // loads under way at a time; more would not fit into registers
    const u32 first = row * Config::kRowVecs;
    Vec16 vecs[kLaneVecs], weights[kLaneVecs];
#pragma unroll
    for (u32 v = 0; v < kLaneVecs; ++v) {
      if (vec_of(part, v) < Config::kRowVecs) weights[v] = Norm::weight(args, vec_of(part, v));
    }
    Sums sums;
#pragma unroll
    for (u32 batch = 0; batch < kLaneVecs; batch += kLoads) {
      decltype(load(0u)) loaded[kLoads];
#pragma unroll
      for (u32 v = batch; v < kLaneVecs && v < batch + kLoads; ++v) {
        if (vec_of(part, v) < Config::kRowVecs) loaded[v - batch] = load(first + vec_of(part, v));
      }
#pragma unroll
      for (u32 v = batch; v < kLaneVecs && v < batch + kLoads; ++v) {
        if (vec_of(part, v) >= Config::kRowVecs) continue;
        vecs[v] = z(first + vec_of(part, v), loaded[v - batch]);
        if constexpr (!BatchInvariant<Config>) sums.squares += Norm::squares(vecs[v]);
        if constexpr (kSharesScale<Config>) sums.greatest = Norm::greater(sums.greatest, vecs[v], weights[v]);
      }
    }
    __syncwarp();
    if constexpr (BatchInvariant<Config>) {
      sums = sums_of_blocks(ctx, row, part, vecs, sums.greatest);
    } else {
      sums = sums.of_warp();
      if constexpr (Config::kRowWarps > 1) {
        send(ctx, row, part, sums);
        sums = sums_of_row<Config::kRowWarps>(ctx, row);
      }
    }
    const float scale = Norm::scale(sums.squares);
#pragma unroll
    for (u32 v = 0; v < kLaneVecs; ++v) {
      if (vec_of(part, v) >= Config::kRowVecs) continue;
      if constexpr (QuantisesRows<Config>) vecs[v] = Norm::scaled(vecs[v], scale, weights[v]);
      else store_vec16(Tensors<Config, Args>::output(args).at(first + vec_of(part, v)), Norm::scaled(vecs[v], scale, weights[v]));
    }
    if constexpr (QuantisesRows<Config>) {
      Quantised::store_vecs(args, row, vec_of(part, 0), vecs, Quantised::magnitude(sums.greatest, scale));
    }
  }

  using Sums = NormSums<kSharesScale<Config>>;

  // A warp that has the vectors `vecs` of a row: the sums of the whole row, whose squares are the sum of its blocks.
  static MK_DEVICE Sums sums_of_blocks(const RankContext& ctx, u32 row, u32 part, const Vec16 (&vecs)[Config::kLaneVecs], float greatest) {
    using Blocks = RowSquares<Config>;
    Blocks own;
    if constexpr (kSharesScale<Config>) greatest = warp_max(greatest);
#pragma unroll
    for (u32 v = 0; v < Config::kLaneVecs; ++v) {
      const u32 block = part * Config::kLaneVecs + v;
      const float squares = vec_of(part, v) < Config::kRowVecs ? Norm::squares(vecs[v]) : 0.0f;
      if constexpr (Config::kRowWarps == 1) own.add(block, squares);
      else if (block < Blocks::kBlocks) send(ctx, row, block, {warp_sum(squares), greatest});
    }
    if constexpr (Config::kRowWarps == 1) return {own.of_row(), greatest};
    else return sums_of_row<Blocks::kBlocks>(ctx, row);
  }

  // A warp: sends the sums of a part of a row to all warps of the row.
  static MK_DEVICE void send(const RankContext& ctx, u32 row, u32 part, const Sums& sums) {
    static_assert(SquaresWorkspace<Workspace>);
    u8* const slot = ctx.local_ptr(Workspace::squares(ctx.parity(), row, part));
    if (lane_index() == 0) comm::store_ll(slot, as_bits(sums.squares), as_bits(sums.greatest), ctx.mark());
  }

  // A warp: adds the sums of the parts of a row, in one order in all warps, on all ranks and in every call.
  template <u32 kParts>
  static MK_DEVICE Sums sums_of_row(const RankContext& ctx, u32 row) {
    Sums of_row;
    for (u32 part = lane_index(); part < kParts; part += kWarp) {
      const Sums sums = wait(ctx, row, part);
      of_row.squares += sums.squares;
      if constexpr (kSharesScale<Config>) of_row.greatest = max(of_row.greatest, sums.greatest);
    }
    __syncwarp();
    return of_row.of_warp();
  }

  static MK_DEVICE Sums wait(const RankContext& ctx, u32 row, u32 part) {
    const u8* slot = ctx.local_ptr(Workspace::squares(ctx.parity(), row, part));
    Deadline deadline(ctx);
    for (;;) {
      const comm::LlPacket packet = comm::load_ll(slot);
      if (packet.has_arrived(ctx.mark())) return {as_float(packet.first()), as_float(packet.second())};
      if (deadline.expired(ctx, WaitSite{kReduce, kPartial, ctx.rank, row, ctx.mark()}, packet.words.y)) return {};
    }
  }
};

}  // namespace mk::collective
