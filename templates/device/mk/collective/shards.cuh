// The tensor of a collective. Its rows, with their scales if there are any, consist of 16-byte vectors. The shard of a rank is
// a range of vectors.
#pragma once
#include <mk/collective/scaled_rows.cuh>
#include <mk/comm/begin.cuh>
#include <mk/norm.cuh>

namespace mk::collective {

template <class Config>
concept ShardConfig = TopologyConfig<Config> && requires {
  Config::kVecs;       // vectors of the tensor
  Config::kRowVecs;    // vectors of a row
  Config::kShardVecs;  // vectors of the shard of every rank except perhaps the last ranks
};

// If each call gives the rows, kVecs and kShardVecs are the values for the most rows. Config then also has
// kShardsOfRows, which is true if a shard has whole rows, unless the tensor belongs to a root.

// The tensor of one rank, kRoot, which the other ranks get. Only some ranks of the root's node have shards: kOwners ranks
// from kFirstOwner on, where local rank 0 follows the last local rank.
template <class Config>
concept HasRoot = requires {
  Config::kRoot;
  Config::kFirstOwner;
  Config::kOwners;
};

// Whether a rank sends shard r of its tensor to rank r, for every r. Otherwise, a rank sends its own shard to all ranks.
template <class Config>
concept SendsToOwners = requires { Config::kSendsToOwners; };

template <ShardConfig Config>
struct Shards {
  using Ranks = Topology<Config>;

  // The number of vectors of this call's tensor.
  static MK_DEVICE u32 vecs(const RankContext& ctx) {
    if constexpr (TakesRows<Config>) return ctx.rows * Config::kRowVecs;
    else return Config::kVecs;
  }

  static MK_DEVICE u32 rows(const RankContext& ctx) {
    if constexpr (TakesRows<Config>) return ctx.rows;
    else return Config::kVecs / Config::kRowVecs;
  }

  // The number of vectors of the shard of every rank except perhaps the last ranks.
  static MK_DEVICE u32 shard_vecs(const RankContext& ctx) {
    if constexpr (!TakesRows<Config>) return Config::kShardVecs;
    else if constexpr (HasRoot<Config>) return (vecs(ctx) + Config::kOwners - 1) / Config::kOwners;
    else if constexpr (Config::kShardsOfRows) return (ctx.rows + Ranks::kWorld - 1) / Ranks::kWorld * Config::kRowVecs;
    else return (vecs(ctx) + Ranks::kWorld - 1) / Ranks::kWorld;
  }

  // The number of a rank's shard among all shards.
  static MK_DEVICE u32 number(u32 rank) {
    if constexpr (HasRoot<Config>) return (rank + Ranks::kLocalWorld - Config::kFirstOwner % Ranks::kLocalWorld) % Ranks::kLocalWorld;
    else return rank;
  }
  // The rank with shard `number` of a root's tensor.
  static MK_DEVICE u32 owner(u32 number) {
    constexpr u32 kFirst = Config::kFirstOwner % Ranks::kLocalWorld, kNode = Config::kFirstOwner - kFirst;
    return kNode + (kFirst + number) % Ranks::kLocalWorld;
  }

  // The first vector of a rank's shard, and the number of its vectors.
  static MK_DEVICE u32 first(const RankContext& ctx, u32 rank) { return number(rank) * shard_vecs(ctx); }
  static MK_DEVICE u32 vecs_of(const RankContext& ctx, u32 rank) {
    if constexpr (HasRoot<Config> && Ranks::kNodes > 1) {
      if (rank / Ranks::kLocalWorld != Config::kRoot / Ranks::kLocalWorld) return 0;
    }
    const u32 start = first(ctx, rank);
    return start < vecs(ctx) ? min(shard_vecs(ctx), vecs(ctx) - start) : 0;
  }

  // The vectors that rank `source` sends to rank `to`: a shard, and its first vector in the result of `to`.
  static MK_DEVICE u32 sent_shard(u32 source, u32 to) { return SendsToOwners<Config> ? to : source; }
  static MK_DEVICE u32 first_in_result(const RankContext& ctx, u32 source, u32 to) {
    if constexpr (SendsToOwners<Config>) return source * vecs_of(ctx, to);
    else return first(ctx, source);
  }
};

// The place of a tensor or of a shard of a tensor, which gives the address of a vector.
template <ShardConfig Config, class Byte>
struct Rows {
  Byte* base;
  u64 row_bytes;

  MK_DEVICE Byte* at(u32 vec) const { return base + vec / Config::kRowVecs * row_bytes + vec % Config::kRowVecs * 16; }
};

// Args: the tensor that this rank passes, and the tensor for its result. If rows have scales, also x_scales and y_scales, and
// if a row has several scales, which lie one behind the other, x_scales_row_bytes and y_scales_row_bytes.
template <class Args>
concept TensorArgs = requires(const Args& args) {
  args.x;
  args.x_row_bytes;
  args.y;
  args.y_row_bytes;
};

template <ShardConfig Config, TensorArgs Args>
struct Tensors {
  static MK_DEVICE auto input(const Args& args) {
    if constexpr (HasScales<Config>) return ScaledRows<Config, const u8>{args.x, args.x_row_bytes, args.x_scales, x_scales_row_bytes(args)};
    else return Rows<Config, const u8>{args.x, args.x_row_bytes};
  }
  static MK_DEVICE auto output(const Args& args) {
    if constexpr (HasScales<Config>) return ScaledRows<Config, u8>{args.y, args.y_row_bytes, args.y_scales, y_scales_row_bytes(args)};
    else return Rows<Config, u8>{args.y, args.y_row_bytes};
  }

 private:
  static MK_DEVICE u64 x_scales_row_bytes(const Args& args) {
    if constexpr (requires { args.x_scales_row_bytes; }) return args.x_scales_row_bytes;
    else return Fp32::bytes(1);
  }
  static MK_DEVICE u64 y_scales_row_bytes(const Args& args) {
    if constexpr (requires { args.y_scales_row_bytes; }) return args.y_scales_row_bytes;
    else return Fp32::bytes(1);
  }
};

// The operands of a vector, for a kernel that takes none beside the vector itself.
struct NoOperands {};

}  // namespace mk::collective
