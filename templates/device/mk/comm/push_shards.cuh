// SMs push this rank's shard to the ranks of its node, piece by piece, and count each piece on the flags there.
//
// In CTAs that only communicate, threads push through shared memory by TMA. A CTA that also computes has no shared
// memory left for that, so its warps push through registers. Across nodes, the CTAs that only communicate also put the
// shard to the peers on other nodes, and forward the shards that peers have put here.
#pragma once
#include <mk/comm/begin.cuh>
#include <mk/comm/put.cuh>
#include <mk/comm/shards.cuh>
#include <mk/comm/staged_copy.cuh>
#include <mk/roles.cuh>

namespace mk::comm {

template <class Config>
concept PushConfig = ShardConfig<Config> && requires {
  Config::kPanelChunks;  // chunks that are sent slice by slice, because the peers' tiles advance along K together
};

template <class Workspace>
concept PushWorkspace = ShardWorkspace<Workspace> && requires(u32 parity, u32 row) {
  Workspace::gathered(parity, row);  // a row of kK columns
};

// Args: this rank's rows by address.
template <class Args>
concept PushArgs = requires(const Args& args) {
  args.shard;
  args.shard_row_bytes;
};

// For NICs that send this rank's rows from their place in symmetric memory. Otherwise NICs send the rows from
// `gathered`.
template <class Args>
concept SendsInPlace = requires(const Args& args) { args.shard_place; };

// Order says which of this rank's rows are read from `gathered`, where the rows of other ranks are.
template <PushConfig Config, PushWorkspace Workspace, class Order>
struct PushShards {
  using Ranks = Topology<Config>;
  using CallRows = mk::CallRows<Config>;
  using Begin = comm::Begin<Config, Workspace>;
  using Shards = comm::Shards<Config, Workspace>;
  using Network = comm::Network<Config, Workspace>;

  static constexpr u32 kRowBytes = Config::ElementA::bytes(Config::kK);
  static constexpr u32 kSliceBytes = Config::ElementA::bytes(Config::kSliceCols);
  static constexpr u32 kSentBytes = kSentRowBytes<Config, kRowBytes>;  // from a row of `gathered` to the next row

  // Whether scales travel with the rows. All lanes of a warp then push the scales, and the elected lane pushes the rows.
  static constexpr bool kSendsScales = kSentScales<Config> > 0;
  static constexpr Agent kPushAgent = kSendsScales ? Agent::kWarp : Agent::kThread;
  static MK_DEVICE bool is_leader() { return !kSendsScales || elect_one(); }

  // The number of pieces of a shard.
  static MK_DEVICE u32 pieces(const RankContext& ctx) {
    return Shards::chunks(ctx) * Shards::kSlices * Shards::kArrivals;
  }

  // Rows of a slice of a chunk, which are stored and counted together.
  struct Piece {
    u32 chunk, slice, row;
  };

  // The order of pieces: panels of kPanelChunks chunks come one after the other, and the pieces of a panel slice by
  // slice.
  static MK_DEVICE Piece piece_at(const RankContext& ctx, u32 index) {
    constexpr u32 kPerPanel = Config::kPanelChunks * Shards::kSlices * Shards::kArrivals;
    const u32 first_chunk = index / kPerPanel * Config::kPanelChunks;
    const u32 per_slice = min(Config::kPanelChunks, Shards::chunks(ctx) - first_chunk) * Shards::kArrivals;
    const u32 within = index % kPerPanel;
    const u32 chunk = first_chunk + within % per_slice / Shards::kArrivals;
    const u32 row = chunk * Config::kChunkRows + within % Shards::kArrivals * Config::kPieceRows;
    return {chunk, within / per_slice, row};
  }

  // The agent, number `worker` of `workers`: pushes pieces of this rank's shard through a slot of shared memory.
  template <u32 kSlotBytes, PushArgs Args>
  static MK_DEVICE void push(const Args& args, const RankContext& ctx, StagedCopy& copy, u32 worker, u32 workers) {
    const u32 own_rows = CallRows::of_rank(ctx, ctx.rank);
    const Rows own{ctx.rank, args.shard, args.shard_row_bytes};
    for (u32 i = worker; i < pieces(ctx); i += workers) {
      const TraceStep traced(ctx.trace, kSendData, kPush, i);
      const Piece piece = piece_at(ctx, i);
      if (piece.row < own_rows) {
        const u32 rows = min(Config::kPieceRows, own_rows - piece.row);
        const u32 first = nearest<Args>(ctx, piece, rows);
        if constexpr (kSendsScales) store_scales(args, ctx, piece, rows, first);
        if (first < Ranks::kLocalWorld && is_leader()) copy_piece<kSlotBytes>(ctx, copy, own, piece, bytes_of_row(piece), rows, first);
      }
      if constexpr (kSendsScales) __syncwarp();
      // The fence of the count also orders the scales that the other lanes have stored.
      if (is_leader()) count(ctx, ctx.rank, piece, nearest_counted<Args>(ctx));
    }
  }

  // The thread that has pushed rows, afterwards: forwards pieces that peers on other nodes have put here to the other
  // ranks of this node.
  template <u32 kSlotBytes>
  static MK_DEVICE void relay(const RankContext& ctx, StagedCopy& copy, u32 worker, u32 workers) {
    constexpr u32 kArrivals = Shards::kArrivals;
    for (u32 i = worker; i < pieces(ctx) * Ranks::kPeerNodes; i += workers) {  // a chunk of each peer in turn
      const u32 peer = i / kArrivals % Ranks::kPeerNodes;
      const Piece piece = piece_at(ctx, i / (kArrivals * Ranks::kPeerNodes) * kArrivals + i % kArrivals);
      Network::wait_put(ctx, kPush, kChannel, peer, Begin::kPuts + piece.chunk);
      if (is_aborted(ctx)) return;
      const u32 source = Network::rank_of_peer(ctx, peer);
      fence_sys();
      add_relaxed_sys(ctx.local_ptr(Workspace::chunk_ready(source, piece.chunk, piece.slice)), 1);
      if constexpr (Ranks::kLocalWorld > 1) {
        const u32 rows = CallRows::of_rank(ctx, source);
        if (piece.row < rows) {
          const Rows put{source, ctx.local_ptr(Workspace::gathered(ctx.parity(), source * CallRows::of_shard(ctx))), kSentBytes};
          fence_proxy_async();  // a NIC has written what TMA reads
          copy_piece<kSlotBytes>(ctx, copy, put, piece, kSentBytes, min(Config::kPieceRows, rows - piece.row), 1);
        }
        count(ctx, source, piece, 1);
      }
    }
  }

  // One thread: puts chunks of this rank's shard to all peers. A chunk is put as soon as it is in this rank's
  // `gathered`, or at once if the shard is sent from its place in symmetric memory. A chunk without rows is also put,
  // since every peer waits for the put.
  template <class Args>
  static MK_DEVICE void put_all(const Args& args, const RankContext& ctx) {
    const u32 own_rows = CallRows::of_rank(ctx, ctx.rank);
    Begin::template put<Network>(args, ctx, kChannel);
    [[maybe_unused]] u32 last = 0;
    for (u32 chunk = 0; chunk < Shards::chunks(ctx); ++chunk) {
      if constexpr (!SendsInPlace<Args>) Shards::wait(ctx, kPush, ctx.rank, chunk, 0);
      if (gives_up(ctx, kPush)) return;
      const u32 first = chunk * Config::kChunkRows;
      const u32 rows = first < own_rows ? min(Config::kChunkRows, own_rows - first) : 0;
      // Without rows, the slot does not matter.
      const u32 row = rows > 0 ? ctx.rank * CallRows::of_shard(ctx) + first : 0;
      const Symmetric<u8> slot = Workspace::gathered(ctx.parity(), row);
      if constexpr (SendsInPlace<Args>) {
        const u64 place = args.shard_place + (rows > 0 ? u64{first} * kRowBytes : 0);
        last = Network::put_to_all_from(args, ctx, kChannel, place, slot, rows * kRowBytes);
      } else {
        Network::put_to_all(args, ctx, kChannel, slot, rows * kSentBytes);
      }
    }
    // The caller may write the shard when the kernel has ended.
    if constexpr (SendsInPlace<Args>) {
      if (Shards::chunks(ctx) > 0) Network::wait_sent(args, ctx, last);
    }
  }

  // A warp, number `worker` of `workers`: pushes pieces of this rank's shard through registers, with kUnroll loads at a
  // time.
  template <u32 kUnroll, PushArgs Args>
  static MK_DEVICE void push_by_registers(const Args& args, const RankContext& ctx, u32 worker, u32 workers) {
    const u32 own_rows = CallRows::of_rank(ctx, ctx.rank);
    for (u32 i = worker; i < pieces(ctx); i += workers) {
      const TraceStep traced(ctx.trace, kSendData, kPush, i);
      const Piece piece = piece_at(ctx, i);
      if (piece.row < own_rows) {
        store_piece<kUnroll>(args, ctx, piece, min(Config::kPieceRows, own_rows - piece.row));
        if constexpr (kSendsScales) {
          const u32 rows = min(Config::kPieceRows, own_rows - piece.row);
          store_scales(args, ctx, piece, rows, nearest<Args>(ctx, piece, rows));
        }
      }
      __syncwarp();
      const u32 peer = lane_index();
      if (peer < Ranks::kWorld && (nearest_counted<Args>(ctx) == 0 || peer != ctx.rank)) {
        // This fence orders the stores of the whole warp before the counts.
        fence_sys();
        add_relaxed_sys(ctx.peer_ptr(peer, Workspace::chunk_ready(ctx.rank, piece.chunk, piece.slice)), 1);
        trace_flag(ctx.trace, kChunk, ctx.node_first_rank + peer, Shards::number(ctx.rank, piece.chunk, piece.slice));
      }
    }
  }

  // All threads of the grid: count the chunks that the call does not have. All calls must advance a counter by equal
  // numbers. The missing chunks are this rank's own chunks, and across nodes also the chunks that this rank would
  // forward.
  static MK_DEVICE void count_unused(const RankContext& ctx) {
    constexpr u32 kFlags = Shards::kChunks * Shards::kSlices;
    for_each_in_grid<Config::kThreads>(Ranks::kNodes * kFlags, [&](u32 i) {
      const u32 chunk = i % kFlags / Shards::kSlices, slice = i % Shards::kSlices;
      if (chunk < Shards::chunks(ctx)) return;
      const u32 source = i / kFlags * Ranks::kLocalWorld + ctx.local_rank();
      for (u32 distance = 0; distance < Ranks::kLocalWorld; ++distance) {
        u32* ready = ctx.peer_ptr(peer_at(ctx, distance), Workspace::chunk_ready(source, chunk, slice));
        add_relaxed_sys(ready, Shards::kArrivals);
      }
    });
  }

 private:
  static constexpr u32 kChannel = 0;

  // Whether puts take the rows from this rank's `gathered`.
  template <class Args>
  static constexpr bool kPutsGathered = Ranks::kNodes > 1 && !SendsInPlace<Args>;

  // Returns the distance of the first rank to which the rows of a piece go: 0 if this rank also needs these rows in
  // `gathered`, otherwise 1.
  template <class Args>
  static MK_DEVICE u32 nearest(const RankContext& ctx, const Piece& piece, u32 rows) {
    if (kPutsGathered<Args>) return 0;
    // Only the first and the last tile with own rows may also have rows of other ranks.
    return Order::gathers_own(ctx, piece.row) || Order::gathers_own(ctx, piece.row + rows - 1) ? 0 : 1;
  }
  // Returns the distance of the first rank on whose flags pieces count: 0 if this rank may read any of its own rows in
  // `gathered`, otherwise 1.
  template <class Args>
  static MK_DEVICE u32 nearest_counted(const RankContext& ctx) {
    if (TakesRows<Config> || kPutsGathered<Args>) return 0;
    return Order::gathers_own(ctx, 0) ? 0 : 1;
  }

  static_assert(Ranks::kNodes == 1 || Shards::kSlices == 1, "a put takes whole rows");
  static_assert(!kSendsScales || (kSentBytes % 16 == 0 && kRowBytes + Fp32::bytes(kSentScales<Config>) <= kSentBytes));

  // The rows of a shard, and the address from which they are copied.
  struct Rows {
    u32 source;
    const u8* first;
    u64 row_bytes;
  };

  static MK_DEVICE u32 slice_offset(const Piece& piece) {
    return Shards::kSlices == 1 ? 0 : piece.slice * kSliceBytes;
  }
  static MK_DEVICE u32 bytes_of_row(const Piece& piece) { return min(kSliceBytes, kRowBytes - slice_offset(piece)); }

  // The place of a piece in `gathered`.
  static MK_DEVICE Symmetric<u8> gathered(const RankContext& ctx, u32 source, const Piece& piece) {
    const Symmetric<u8> row = Workspace::gathered(ctx.parity(), source * CallRows::of_shard(ctx) + piece.row);
    return {row.offset + slice_offset(piece)};
  }

  // The local rank at a distance. Ranks are in the order in which they need this rank's rows. The rank before this one
  // comes first, since its order of tiles has this rank's rows directly after the rank's own rows.
  static MK_DEVICE u32 peer_at(const RankContext& ctx, u32 distance) {
    return (ctx.rank + Ranks::kLocalWorld - distance) % Ranks::kLocalWorld;
  }

  // The most bytes of a row of a piece. Relayed rows have their scales behind them.
  static constexpr u32 kMostBytes = kSliceBytes + (kSentBytes - kRowBytes);

  // One thread: copies `bytes` bytes of each of `rows` rows of a piece to the ranks of this node, from distance `nearest` on.
  template <u32 kSlotBytes>
  static MK_DEVICE void copy_piece(const RankContext& ctx, StagedCopy& copy, const Rows& shard, const Piece& piece,
                                   u32 bytes, u32 rows, u32 nearest) {
    const Symmetric<u8> to = gathered(ctx, shard.source, piece);
    const u8* from = shard.first + piece.row * shard.row_bytes + slice_offset(piece);
    copy.copy_rows<kSlotBytes, kMostBytes>(
        rows, bytes, piece.chunk,
        [&](const StagedRows& staged, u32 barrier) {
#pragma unroll 1
          for (u32 row = 0; row < staged.count; ++row) {
            const u8* source = from + (staged.first + row) * shard.row_bytes + staged.part;
            tma_load_bytes(staged.row(row), source, staged.bytes, barrier);
          }
        },
        [&](const StagedRows& staged) {
          for (u32 distance = nearest; distance < Ranks::kLocalWorld; ++distance) {
            u8* there = ctx.peer_ptr(peer_at(ctx, distance), to) + staged.part;
#pragma unroll 1
            for (u32 row = 0; row < staged.count; ++row) {
              tma_store_bytes(there + u64{staged.first + row} * kSentBytes, staged.row(row), staged.bytes);
            }
          }
        });
    copy.finish();
  }

  // One thread, after it has copied a piece: counts the piece on the flags of the ranks that have received the copy.
  static MK_DEVICE void count(const RankContext& ctx, u32 source, const Piece& piece, u32 nearest) {
    fence_sys();
    for (u32 distance = nearest; distance < Ranks::kLocalWorld; ++distance) {
      const auto ready = Workspace::chunk_ready(source, piece.chunk, piece.slice);
      add_relaxed_sys(ctx.peer_ptr(peer_at(ctx, distance), ready), 1);
      const u32 receiver = ctx.node_first_rank + peer_at(ctx, distance);
      trace_flag(ctx.trace, kChunk, receiver, Shards::number(source, piece.chunk, piece.slice));
    }
  }

  // A warp: stores the scales of the rows of a piece to the ranks of this node, from distance `nearest` on. Only pieces of
  // the first slice have scales.
  template <class Args>
  static MK_DEVICE void store_scales(const Args& args, const RankContext& ctx, const Piece& piece, u32 rows, u32 nearest) {
    if (piece.slice != 0) return;
    comm::store_scales<kSentScales<Config>, kSentBytes>(
        args, rows, [&](u32 i) { return piece.row + i; }, nearest, Ranks::kLocalWorld, [&](u32 distance) {
          return ctx.peer_ptr(peer_at(ctx, distance), gathered(ctx, ctx.rank, piece)) + kRowBytes;
        });
  }

  // A warp: loads rows of a piece once and stores the rows to the ranks of this node. Each access of a thread is 16
  // bytes.
  template <u32 kUnroll, class Args>
  static MK_DEVICE void store_piece(const Args& args, const RankContext& ctx, const Piece& piece, u32 rows) {
    const u32 nearest_rank = nearest<Args>(ctx, piece, rows);
    const u32 vecs = bytes_of_row(piece) / 16;  // vectors of a row
    const u8* from = args.shard + piece.row * args.shard_row_bytes + slice_offset(piece);
    Symmetric<u8> to = gathered(ctx, ctx.rank, piece);
    for (u32 row = 0; row < rows; ++row, from += args.shard_row_bytes, to.offset += kSentBytes) {
      for (u32 first = lane_index(); first < vecs; first += kWarp * kUnroll) {
        Vec16 data[kUnroll];
#pragma unroll
        for (u32 u = 0; u < kUnroll; ++u) {
          const u32 vec = first + u * kWarp;
          if (vec < vecs) data[u] = load_vec16(from + vec * 16);
        }
        for (u32 distance = nearest_rank; distance < Ranks::kLocalWorld; ++distance) {
          // The rank is read from the arguments each time. Otherwise the compiler would keep the addresses of all ranks
          // in registers, and a warp that moves data has too few registers.
          u8* there = ctx.peer_ptr((args.rank + Ranks::kLocalWorld - distance) % Ranks::kLocalWorld, to);
#pragma unroll
          for (u32 u = 0; u < kUnroll; ++u) {
            const u32 vec = first + u * kWarp;
            if (vec < vecs) store_vec16(there + vec * 16, data[u]);
          }
        }
      }
    }
  }
};

}  // namespace mk::comm
