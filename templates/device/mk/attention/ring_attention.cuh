// Ring attention: exact attention over a sequence whose rows are spread over ranks, O = softmax(Q Kᵀ scale) V.
//
// A CTA takes a tile of queries of one head and walks over the keys of all ranks, beginning with the keys of its own
// rank. The CTA keeps the state of the softmax and O in registers. K and V of each rank travel to the ranks that need
// them during the computation.
#pragma once
#include <mk/attention/kv_forward.cuh>
#include <mk/attention/mainloop.cuh>
#include <mk/attention/output.cuh>
#include <mk/roles.cuh>

namespace mk::attention {

template <MainloopConfig Config, MainloopArgs Args, schedule::TileCounterWorkspace Workspace, MainloopSmem Smem,
          MaskPolicy Mask>
  requires OutputConfig<Config> && TileSchedulerConfig<Config> && OutputArgs<Args>
struct RingAttention {
  using Ranks = Topology<Config>;
  using Shape = TileShape<Config>;
  using Scheduler = TileScheduler<Config, Workspace, Smem>;
  using Table = SequenceTable<Config, Smem>;
  using Mainloop = attention::Mainloop<Config, Smem>;
  using Output = attention::Output<Config>;
  using Begin = comm::Begin<Config, Workspace>;

  // One thread: loads tiles of queries, and for each tile the blocks of K and V that the tile meets.
  struct Load {
    static constexpr Agent kAgent = Agent::kThread;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32) {
      typename Mainloop::Queries queries{ctx, Mainloop::query_barriers(smem)};
      typename Mainloop::Stages k{ctx, Mainloop::k_barriers(smem)}, v{ctx, Mainloop::v_barriers(smem)};
      for (;;) {
        const u32 index = Scheduler::next(ctx, smem);
        queries.producer_acquire();
        store_shared(smem.query_tile(queries.stage()), index);
        if (index >= Scheduler::tiles(ctx, smem)) {
          queries.producer_commit();
          // This waits until the consumers have finished the last tile. It is the only wait for the consumers that has
          // a deadline.
          queries.producer_acquire();
          return;
        }
        const QueryTile tile = Scheduler::tile(ctx, smem, index);
        const u32 full = queries.producer_expect(Shape::kTileBytes);
        const RankRows rows = query_rows<Config>(tile.sequence, tile.rank_chunk, tile.row);
        Mainloop::load_tile(ctx, args.q, smem.q(queries.stage()), full, rows, tile.head, tile.batch);
        queries.advance();

        KvIterator<Config, Mask> blocks(ctx, tile);
        KvBlock block{};
        blocks.next(block);
        load_k(args, ctx, smem, k, tile, block);
        KvBlock before = block;
#pragma unroll 1
        while (blocks.next(block)) {
          load_k(args, ctx, smem, k, tile, block);
          load_v(args, ctx, smem, v, tile, before);
          before = block;
        }
        load_v(args, ctx, smem, v, tile, before);
      }
    }
  };

  // A warpgroup: computes 64 rows of each tile of queries.
  struct Multiply {
    static constexpr Agent kAgent = Agent::kWarpgroup;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 group) {
      typename Mainloop::Queries queries{ctx, Mainloop::query_barriers(smem)};
      typename Mainloop::Stages k{ctx, Mainloop::k_barriers(smem)}, v{ctx, Mainloop::v_barriers(smem)};
      const u32 row = group * kGroupRows + Fragment::warp_row();  // this warp's first row in the tile
      if (group == 1) Mainloop::pass_turn(group);
      for (;;) {
        queries.consumer_wait_watched();
        const u32 index = broadcast(load_shared(smem.query_tile(queries.stage())), 0);
        if (index >= Scheduler::tiles(ctx, smem)) break;
        const QueryTile tile = Scheduler::tile(ctx, smem, index);
        const u32 q = smem.q(queries.stage());
        Softmax<Config> softmax;
        typename Mainloop::Sums o = {};
        Mainloop::template attend<Mask>(ctx, smem, k, v, tile, group, row, q + group * kGroupRows * kLineBytes, softmax, o);
        if constexpr (Ranks::kWorld > 1) {
          using Slots = KvSlots<Config, Workspace, Mask>;
          if constexpr (Slots::kHasCredits) {
            if (row == 0) Slots::release_slots(ctx, tile);
          }
        }
        sync_named(kQueriesRead + group, kWarpgroup);  // O takes the place of the group's queries
        Output::write(args, ctx, tile, row, q + row * kLineBytes, softmax, o);
        fence_proxy_async_shared();
        __syncwarp();
        queries.consumer_release_warp();
      }
      if (group == 0) Mainloop::take_turn(group);
    }
  };

  // A warp: pushes own K and V to the ranks of this node that need them. On several nodes the warp also forwards K and
  // V of other nodes to these ranks.
  struct PushKv {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 warp) {
      if constexpr (Ranks::kNodes == 1) {
        KvPush<Config, Args, Workspace, Smem, Mask>::push(args, ctx, smem, warp);
      } else {
        KvForward<Config, Args, Workspace, Smem, Mask>::push(args, ctx, smem, warp);
      }
    }
  };

  // A warp: puts own K and V to other nodes.
  struct PutKv {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32) {
      KvForward<Config, Args, Workspace, Smem, Mask>::put_all(args, ctx, smem);
    }
  };

  // A warp: watches the arrivals of puts.
  struct Puts {
    static MK_DEVICE u32 of_call(const RankContext& ctx) {
      return KvForward<Config, Args, Workspace, Smem, Mask>::puts(ctx);
    }
  };
  using WatchArrivals = comm::WatchArrivals<Config, Workspace, Puts>;

  // Runs before the roles. Returns false if the CTA must end at once.
  static MK_DEVICE bool begin(const Args& args, const RankContext& ctx, const Smem& smem) {
    if (threadIdx.x == 0) {
      Mainloop::init_barriers(smem);
      if constexpr (Ranks::kWorld > 1) KvPush<Config, Args, Workspace, Smem, Mask>::init_barriers(smem);
      fence_barrier_init();
    }
    prefetch_tensor_maps(args.q, args.k, args.v);
    if constexpr (IsPacked<Config> || HasCache<Config>) {
      if (threadIdx.x / kWarp == kTableWarp) Table::build(args, ctx, smem);
    }
    if (!enter(ctx)) return false;
    if constexpr (IsPacked<Config>) {
      if (blockIdx.x == 0 && threadIdx.x == 0) Offsets<Config>::of(args).report_wrong(ctx);
    } else if constexpr (HasCache<Config>) {
      if (blockIdx.x == 0 && threadIdx.x == 0) CachedRows<Config>::of(args).report_wrong(ctx);
    }
    Begin::announce(ctx);
    return true;
  }

  // Runs after the roles. Thread 0 belongs to the warp of the load thread, which comes here before the CTA has
  // finished.
  static MK_DEVICE void end(const Args&, const RankContext& ctx) {
    if (threadIdx.x == 0) Scheduler::Counter::advance_epoch(ctx);
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    Begin::report_refused_rows(ctx);
    Begin::template wait_for_peers<false>(ctx);
  }

 private:
  // The first warp prepares barriers, and the second warp enters the call.
  static constexpr u32 kTableWarp = 2;

  static MK_DEVICE void load_k(const Args& args, const RankContext& ctx, const Smem& smem, typename Mainloop::Stages& k,
                               const QueryTile& tile, const KvBlock& block) {
    if constexpr (Ranks::kWorld > 1) {
      // The wait for the block comes while the stage is still in use.
      if (block.source != ctx.rank) KvSlots<Config, Workspace, Mask>::wait_block(ctx, tile, block);
    }
    const u32 full = k.producer_acquire_tma(Shape::kTileBytes);
    load_block(args.k, ctx, tile, block, 0, smem.k(k.stage()), full);
    k.advance();
  }

  // V of a block has arrived when K of the block has arrived.
  static MK_DEVICE void load_v(const Args& args, const RankContext& ctx, const Smem& smem, typename Mainloop::Stages& v,
                               const QueryTile& tile, const KvBlock& block) {
    const u32 full = v.producer_acquire_tma(Shape::kTileBytes);
    load_block(args.v, ctx, tile, block, Shape::kSubTiles, smem.v(v.stage()), full);
    v.advance();
  }

  static MK_DEVICE void load_block(const CUtensorMap& map, const RankContext& ctx, const QueryTile& tile,
                                   const KvBlock& block, u32 first_part, u32 to, u32 full) {
    if constexpr (Ranks::kWorld > 1) {
      if (block.source != ctx.rank) {
        return KvSlots<Config, Workspace, Mask>::load_block(ctx, tile, block, first_part, to, full);
      }
    }
    const RankRows rows = key_rows<Config>(ctx, tile.sequence, block.rank_chunk, block.row);
    Mainloop::load_tile(ctx, map, to, full, rows, tile.head / Shape::kHeadsPerKv, tile.batch);
  }
};

}  // namespace mk::attention
