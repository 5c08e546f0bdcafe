// Norm of rows that warps hold in registers. The warps of a row are anywhere on the GPU. Each warp sends its sum of
// squares, or its sums of blocks, to all warps of the row in packets of this rank's own workspace, so that no fence and
// no barrier is between the sums and the result. If all elements of a row share a scale, a warp also sends the greatest
// magnitude of its part of the row.
#pragma once
#include <mk/collective/quantised_norm.cuh>
#include <mk/comm/ll.cuh>
#include <mk/deadline.cuh>

namespace mk::collective {

template <class Config>
concept LlNormConfig = ShardConfig<Config> && NormalisesRows<Config> && requires {
  Config::kRowWarps;  // warps that share a row; at most all warps of the grid
  Config::kLaneVecs;  // vectors of a row that a lane has
};

template <class Workspace>
concept SquaresWorkspace = requires(u32 parity, u32 row, u32 part) {
  Workspace::squares(parity, row, part);  // a packet with a part of the sum of squares of a row: of a warp, or of a block
};
template <class Workspace>
concept MagnitudesWorkspace = requires(u32 parity, u32 row, u32 part) {
  Workspace::magnitudes(parity, row, part);  // a packet with the greatest magnitude of a warp's part of a row
};

// Only kernels that normalise instantiate the functions.
template <class Config, class Args, class Workspace>
struct LlNorm {
  using Shards = collective::Shards<Config>;
  using Norm = RowNorm<Config, Args>;
  using Quantised = QuantisedNorm<Config, Args>;

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
    float squares = 0.0f;
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
        if constexpr (!BatchInvariant<Config>) squares += Norm::squares(vecs[v]);
      }
    }
    __syncwarp();
    if constexpr (BatchInvariant<Config>) {
      squares = sum_of_blocks(ctx, row, part, vecs);
    } else {
      squares = warp_sum(squares);
      if constexpr (Config::kRowWarps > 1) {
        send<Squares>(ctx, row, part, squares);
        squares = sum_of_row<Config::kRowWarps>(ctx, row);
      }
    }
    const float scale = Norm::scale(squares);
#pragma unroll
    for (u32 v = 0; v < kLaneVecs; ++v) {
      if (vec_of(part, v) >= Config::kRowVecs) continue;
      if constexpr (QuantisesRows<Config>) vecs[v] = Norm::scaled(vecs[v], scale, weights[v]);
      else store_vec16(Tensors<Config, Args>::output(args).at(first + vec_of(part, v)), Norm::scaled(vecs[v], scale, weights[v]));
    }
    if constexpr (QuantisesRows<Config>) quantise(args, ctx, row, part, vecs);
  }

  // A warp that has the vectors `y` of a normalised row: stores the vectors as elements of e4m3.
  static MK_DEVICE void quantise(const Args& args, const RankContext& ctx, u32 row, u32 part, const Vec16 (&y)[Config::kLaneVecs]) {
    constexpr u32 kScales = Quantised::kOfRows ? 1 : Config::kLaneVecs;  // of this lane's vectors
    float greatest[kScales];
#pragma unroll
    for (float& of_scale : greatest) of_scale = Quantise::kLeast;
#pragma unroll
    for (u32 v = 0; v < Config::kLaneVecs; ++v) {
      float& of_scale = greatest[v % kScales];
      if (vec_of(part, v) < Config::kRowVecs) of_scale = Quantised::greater(of_scale, y[v]);
    }
    Quantised::of_lanes(greatest);
    if constexpr (Quantised::kOfRows && Config::kRowWarps > 1) {
      send<Magnitudes>(ctx, row, part, greatest[0]);
      wait_greatest(ctx, row, greatest);
    }
#pragma unroll
    for (u32 v = 0; v < Config::kLaneVecs; ++v) {
      const u32 vec = vec_of(part, v);
      if (vec < Config::kRowVecs) Quantised::store(args, row * Config::kRowVecs + vec, y[v], greatest[v % kScales]);
    }
  }

  // A warp that has the vectors `vecs` of a row: the sum of squares of the whole row, as the sum of its blocks.
  static MK_DEVICE float sum_of_blocks(const RankContext& ctx, u32 row, u32 part, const Vec16 (&vecs)[Config::kLaneVecs]) {
    using Blocks = RowSquares<Config>;
    Blocks own;
#pragma unroll
    for (u32 v = 0; v < Config::kLaneVecs; ++v) {
      const u32 block = part * Config::kLaneVecs + v;
      const float squares = vec_of(part, v) < Config::kRowVecs ? Norm::squares(vecs[v]) : 0.0f;
      if constexpr (Config::kRowWarps == 1) own.add(block, squares);
      else if (block < Blocks::kBlocks) send<Squares>(ctx, row, block, warp_sum(squares));
    }
    if constexpr (Config::kRowWarps == 1) return own.of_row();
    else return sum_of_row<Blocks::kBlocks>(ctx, row);
  }

  // The packets that the warps of a row send each other.
  struct Squares {
    static MK_DEVICE Symmetric<u8> at(const RankContext& ctx, u32 row, u32 part) {
      static_assert(SquaresWorkspace<Workspace>);
      return Workspace::squares(ctx.parity(), row, part);
    }
  };
  struct Magnitudes {
    static MK_DEVICE Symmetric<u8> at(const RankContext& ctx, u32 row, u32 part) {
      static_assert(MagnitudesWorkspace<Workspace>);
      return Workspace::magnitudes(ctx.parity(), row, part);
    }
  };

  // A warp: sends a number of a part of a row to all warps of the row.
  template <class Packets>
  static MK_DEVICE void send(const RankContext& ctx, u32 row, u32 part, float number) {
    if (lane_index() == 0) comm::store_ll(ctx.local_ptr(Packets::at(ctx, row, part)), as_bits(number), 0, ctx.mark());
  }

  // A warp: adds the parts of the sum of squares of a row, in one order in all warps, on all ranks and in every call.
  template <u32 kParts>
  static MK_DEVICE float sum_of_row(const RankContext& ctx, u32 row) {
    float sum = 0.0f;
    for (u32 part = lane_index(); part < kParts; part += kWarp) sum += wait<Squares>(ctx, row, part);
    __syncwarp();
    return warp_sum(sum);
  }

  // A warp: waits for the greatest magnitude of a row.
  static MK_DEVICE void wait_greatest(const RankContext& ctx, u32 row, float (&greatest)[1]) {
    for (u32 part = lane_index(); part < Config::kRowWarps; part += kWarp) greatest[0] = max(greatest[0], wait<Magnitudes>(ctx, row, part));
    __syncwarp();
    Quantised::of_lanes(greatest);
  }

  template <class Packets>
  static MK_DEVICE float wait(const RankContext& ctx, u32 row, u32 part) {
    const u8* slot = ctx.local_ptr(Packets::at(ctx, row, part));
    Deadline deadline(ctx);
    for (;;) {
      const comm::LlPacket packet = comm::load_ll(slot);
      if (packet.has_arrived(ctx.mark())) return as_float(packet.first());
      if (deadline.expired(ctx, WaitSite{kReduce, kPartial, ctx.rank, row, ctx.mark()}, packet.words.y)) return 0.0f;
    }
  }
};

}  // namespace mk::collective
