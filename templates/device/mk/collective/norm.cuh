// RMSNorm of the rows of a sum: z = sum + bias + residual, rounded to the type of the elements, is the new residual, and the
// result is z * weight / sqrt(mean of squares of z + eps).
//
// The norm is taken of the rounded z, as a kernel behind the all-reduce would read it. The result therefore depends
// only on the new residual, and threads may keep the new residual in registers or load it again from memory.
#pragma once
#include <mk/batch_invariant.cuh>
#include <mk/collective/shards.cuh>

namespace mk::collective {

template <class Args>
concept NormArgs = TensorArgs<Args> && requires(const Args& args) {
  args.weight;
  args.residual_out;
  args.residual_out_row_bytes;
};

// The addends of the sum depend on the arguments: a bias if `Args` has one, and a residual if `Args` has one.
template <ShardConfig Config, class Args>
struct RowNorm {
  static MK_DEVICE Rows<Config, u8> residual_out(const Args& args) {
    static_assert(NormArgs<Args>);
    return {args.residual_out, args.residual_out_row_bytes};
  }

  // The weights of a vector of a row.
  static MK_DEVICE Vec16 weight(const Args& args, u32 vec) { return load_vec16(args.weight + vec * 16); }

  // The bias and the residual of a vector of the tensor. Each is used only if `Args` has it.
  struct Addends {
    Vec16 bias, residual;

    template <class Sum>
    MK_DEVICE void add_to(Sum& sum) const {
      if constexpr (requires(const Args& args) { args.bias; }) sum.add(bias);
      if constexpr (requires(const Args& args) { args.residual; }) sum.add(residual);
    }
  };

  // Loads the addends of a vector. The new residual may go to the place of the residual: a thread stores the new
  // residual after this load.
  static MK_DEVICE Addends addends(const Args& args, u32 vec) {
    Addends addends{};
    if constexpr (requires { args.bias; }) addends.bias = load_vec16(args.bias + vec % Config::kRowVecs * 16);
    if constexpr (requires { args.residual; }) {
      const Rows<Config, const u8> residual{args.residual, args.residual_row_bytes};
      addends.residual = load_vec16(residual.at(vec));
    }
    return addends;
  }

  // The sum of squares of a vector, and the scale of a row: see RmsNorm.
  static MK_DEVICE float squares(const Vec16& vec) { return Rms::squares(vec); }
  static MK_DEVICE float scale(float squares) { return Rms::scale(squares, Config::kRowVecs); }

  // See RmsNorm.
  static MK_DEVICE float greater(float greatest, const Vec16& vec, const Vec16& weight) { return Rms::greater(greatest, vec, weight); }
  static MK_DEVICE Vec16 scaled(const Vec16& vec, float scale, const Vec16& weight) {
    return Rms::scaled(vec, scale, weight);
  }

 private:
  using Rms = RmsNorm<Config, typename Config::Element>;
};

// A warp: the sum of squares of a row, whose vectors the lanes take in turn. A block is a vector for each lane.
//
// The number of warps that share a row depends on the number of rows. If the result must not depend on that number, each block
// has a sum of its own, and lane (block mod 32) adds it to the sums of earlier blocks, for any warp that has computed the sum.
template <ShardConfig Config>
struct RowSquares {
  static constexpr bool kInBlocks = BatchInvariant<Config>;
  static constexpr u32 kBlocks = kCeilDiv<Config::kRowVecs, kWarp>;  // of a row

  float sum = 0.0f;

  // Adds the squares of this lane's vector of a block. If blocks have sums of their own, all lanes call this together.
  MK_DEVICE void add(u32 block, float squares) {
    if constexpr (!kInBlocks) {
      sum += squares;
    } else {
      squares = warp_sum(squares);
      if (block % kWarp == lane_index()) sum += squares;
    }
  }

  // All lanes: the sum of the row.
  MK_DEVICE float of_row() const { return warp_sum(sum); }
};

}  // namespace mk::collective
