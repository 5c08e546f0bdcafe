// Routing: the destinations of this rank's tokens, and the sources of the rows of its experts. All CTAs of a rank
// compute this together before any token is sent.
//
// A choice is one of the top-k experts of a token. Each CTA counts the choices of a slice of the tokens. Once all CTAs
// have counted, each CTA adds up the counts of all slices, and writes its part of the messages and lists for all
// destinations. Once the messages and lists of all ranks have arrived, each CTA fills the tables that it needs for the
// rest of the call.
//
// All threads of a CTA call these functions together, unless a function says otherwise.
#pragma once
#include <mk/moe/choices.cuh>
#include <mk/moe/packets.cuh>
#include <mk/moe/router.cuh>
#include <mk/moe/row_index.cuh>
#include <mk/moe/tables.cuh>
#include <mk/moe/tile_shape.cuh>

namespace mk::moe {

template <class Workspace>
concept RoutingWorkspace = FaultWorkspace<Workspace> && MessageWorkspace<Workspace> &&
                           requires(u32 cta, u32 expert, u32 source) {
                             Workspace::counted();                  // the CTAs that have counted, over all calls
                             Workspace::slice_counts(cta, expert);  // counts of a CTA's slice: rows << 16 | tokens to send
                             Workspace::routed(source);             // the CTAs whose part has arrived, over all calls
                           };

// Tables in shared memory that are needed only while tokens are routed. `i` is a choice of the slice.
template <class Smem>
concept RoutingSmem = ChoiceSmem<Smem> && SourceTables<Smem> && requires(const Smem smem, u32 i, u32 expert, u32 rank) {
  smem.choice_row(i);   // its index among this rank's rows of the same expert
  smem.choice_slot(i);  // if the token is sent for the choice: the index among tokens for the destination
  // This rank's rows of the expert, and the tokens that it sends for the expert: in earlier slices, and in all slices.
  smem.slice_rows_before(expert);
  smem.slice_sent_before(expert);
  smem.own_rows(expert);
  smem.own_sent(expert);
  // The index of the expert's first row in the list for its destination, and of its first token among the tokens sent
  // there.
  smem.own_list_begin(expert);
  smem.own_slot_begin(expert);
  // The expert's rows from all ranks, its rows from lower ranks than this one, and the index of its first row on its
  // rank.
  smem.expert_rows(expert);
  smem.expert_rows_before(expert);
  smem.expert_row_begin(expert);
  smem.rank_rows(rank);     // all rows of the rank's experts
  smem.is_routed();         // whether no wait has failed so far
};

// Args: the operands to which routing writes, for the caller, the row index of each choice and the first row of each of
// this rank's experts, if the caller gets the rows.
template <class Args>
concept WritesPlaces = requires(const Args& args) {
  args.row_indices;
  args.expert_offsets;
};

// If results return, the choice whose row a source has listed: token · kTopK + k.
template <class Workspace>
concept ListsChoices = requires(u32 parity, u32 source, u32 row) { Workspace::choices(parity, source, row); };

template <MessageConfig Config, ChoiceArgs Args, RoutingWorkspace Workspace, RoutingSmem Smem, class Shape>
struct Routing {
  using Experts = moe::Experts<Config, Workspace>;
  using Choices = moe::Choices<Config, Workspace, Smem>;
  using Faults = moe::Faults<Workspace>;
  using Message = RoutingMessage<Config, Workspace>;
  using Segments = moe::Segments<Config, Workspace, Smem>;

  // Runs before the first barrier of the CTA. Choices from logits come later: a call that does not take place writes no operand.
  static MK_DEVICE void load_choices(const Args& args, const Smem& smem) {
    if constexpr (!RouterArgs<Args>) Choices::load(args, smem, Choices::slice_of(args));
  }

  // Returns false if a wait was aborted, if operands of any rank are wrong, or if a rank has no room for its rows. This
  // rank's host then gets a report.
  static MK_DEVICE bool route(const Args& args, const RankContext& ctx, const Smem& smem) {
    // load_choices has computed the slice too. The slice would take registers if kept until here.
    const Slice slice = Choices::slice_of(args);
    if (blockIdx.x == 0 && threadIdx.x == 0) Choices::check_count(args, ctx);
    if constexpr (RouterArgs<Args>) Router<Config, Args, Workspace, Smem>::choose(args, smem, slice);
    Choices::read(ctx, smem, slice);
    count(ctx, smem, slice);
    if (!meet(ctx, smem)) return false;
    add_slices(ctx, smem, slice);
    const bool is_right = !Faults::is_kept(ctx);
    if (is_right) list_rows(ctx, smem, slice);
    if (!exchange(args, ctx, smem, is_right) || has_fault(ctx)) return false;
    place_experts(ctx, smem);
    if (is_full(ctx, smem)) return false;
    if constexpr (WritesPlaces<Args>) write_places(args, smem, slice);
    fence_proxy_async_shared();
    __syncthreads();             // TMA writes over the slice's tables next
    return true;
  }

 private:
  // Counts the rows of each expert in the slice, and the tokens that are sent for the expert. All CTAs of the rank read
  // the counts.
  static MK_DEVICE void count(const RankContext& ctx, const Smem& smem, const Slice& slice) {
    for (u32 e = threadIdx.x; e < Config::kExperts; e += blockDim.x) {
      u32 rows = 0, sent = 0;
      Choices::for_each(smem, slice, e, [&](u32 i) {
        ++rows;
        if (Choices::is_sender(smem, i)) ++sent;
      });
      store(ctx.local_ptr(Workspace::slice_counts(blockIdx.x, e)), rows << 16 | sent);
    }
  }

  // Waits until all CTAs of the rank have counted. Returns false after an abort.
  static MK_DEVICE bool meet(const RankContext& ctx, const Smem& smem) {
    __syncthreads();
    if (threadIdx.x == 0) {
      u32* counted = ctx.local_ptr(Workspace::counted());
      add_release_gpu(counted, 1);
      const u32 wanted = ctx.epoch * gridDim.x;
      const u32 seen = wait_flag(ctx, counted, WaitSite{kPush, kCounted, ctx.rank, 0, wanted});
      store_shared(smem.is_routed(), has_reached(seen, wanted));
    }
    __syncthreads();
    return load_shared(smem.is_routed()) != 0;
  }

  // Adds up the counts of all slices. For each destination, one CTA writes the sums into the message. It also writes
  // the fault that this rank has found, if there is one.
  static MK_DEVICE void add_slices(const RankContext& ctx, const Smem& smem, const Slice& slice) {
    const u32* slices = ctx.local_ptr(Workspace::slice_counts(0, 0));
    for (u32 e = threadIdx.x; e < Config::kExperts; e += blockDim.x) {
      u32 rows = 0, sent = 0, rows_before = 0, sent_before = 0;
#pragma unroll 8
      for (u32 i = 0; i < slice.slices; ++i) {
        const u32 both = load(slices + i * Config::kExperts + e);
        if (i < blockIdx.x) rows_before += both >> 16, sent_before += both & 0xffff;
        rows += both >> 16, sent += both & 0xffff;
      }
      store_shared(smem.slice_rows_before(e), rows_before);
      store_shared(smem.slice_sent_before(e), sent_before);
      store_shared(smem.own_rows(e), rows);
      store_shared(smem.own_sent(e), sent);
      for (u32 to = blockIdx.x; to < Experts::kDestinations; to += gridDim.x) {
        u32* message = Message::to(ctx, to);
        store(Message::rows(message) + e, rows);
        store(Message::sent(message) + e, sent);
      }
    }
    for (u32 to = blockIdx.x; to < Experts::kDestinations && threadIdx.x == 0; to += gridDim.x) {
      Faults::write(ctx, Message::to(ctx, to));
    }
    __syncthreads();
  }

  // A thread: finds where the rows of each expert of a destination begin in its list, and where the tokens that are
  // sent for the expert begin.
  static MK_DEVICE void add_experts(const RankContext& ctx, const Smem& smem, u32 to) {
    const auto range = Experts::range_of(ctx, to);
    u32 rows = 0, sent = 0;
    for (u32 i = 0; i < range.count(); ++i) {
      const u32 e = range.first + i, sent_for = range.in_order(i);
      const u32 expert_rows = load_shared(smem.own_rows(e)), expert_sent = load_shared(smem.own_sent(sent_for));
      store_shared(smem.own_list_begin(e), rows);
      store_shared(smem.own_slot_begin(sent_for), sent);
      rows += expert_rows, sent += expert_sent;
    }
    if constexpr (Experts::kWorld > 1) store_shared(smem.tokens_to(to), to == ctx.local_rank() ? 0 : sent);
    if constexpr (Experts::kNodes > 1) {
      if (!Experts::is_rank(to)) store_shared(smem.rows_at(to - Experts::kLocalWorld), rows);
    }
  }

  // Writes the slice's part of the lists for all destinations, and of the lists of tokens to send.
  static MK_DEVICE void list_rows(const RankContext& ctx, const Smem& smem, const Slice& slice) {
    for (u32 to = threadIdx.x; to < Experts::kDestinations; to += blockDim.x) add_experts(ctx, smem, to);
    __syncthreads();
    for (u32 e = threadIdx.x; e < Config::kExperts; e += blockDim.x) {
      u32 row = load_shared(smem.slice_rows_before(e));
      u32 slot = load_shared(smem.own_slot_begin(e)) + load_shared(smem.slice_sent_before(e));
      Choices::for_each(smem, slice, e, [&](u32 i) {
        store_shared(smem.choice_row(i), row++);
        if (Choices::is_sender(smem, i)) store_shared(smem.choice_slot(i), slot++);
      });
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < Choices::count(slice); i += blockDim.x) list_row(ctx, smem, slice, i);
    __syncthreads();
  }

  // A thread: writes the list entry of a choice, if it has an expert.
  static MK_DEVICE void list_row(const RankContext& ctx, const Smem& smem, const Slice& slice, u32 i) {
    const u32 e = load_shared(smem.choice_expert(i)), to = Experts::destination_of(ctx, e);
    if (e == kNoExpert) return;
    const u32 token = Choices::token_of(slice, i);
    const u32 row = load_shared(smem.own_list_begin(e)) + load_shared(smem.choice_row(i));
    u32* list = Message::list_to(ctx, smem, to);
    if constexpr (ListsChoices<Workspace>) {
      store(ctx.peer_ptr(to, Workspace::choices(ctx.parity(), ctx.rank, row)), slice.first * Config::kTopK + i);
    }
    if constexpr (Experts::kWorld == 1) {
      store(list + row, token);
    } else {
      const u32 sender = load_shared(smem.choice_sender(i)), slot = load_shared(smem.choice_slot(sender));
      store(list + row, to == ctx.local_rank() ? token : slot);
      if (sender != i) return;
      store(ctx.local_ptr(Workspace::send_list(to, slot)), token);
      if constexpr (Experts::kNodes > 1 && Experts::kLocalWorld > 1) {
        if (!Experts::is_rank(to)) store(Message::needs(Message::to(ctx, to)) + slot, needing_ranks(ctx, smem, i));
      }
    }
  }

  // Returns which ranks of the destination node need the token of a choice, as a bit for each local rank. The rank that
  // forwards the token has no bit if it reads the token where it arrives.
  static MK_DEVICE u32 needing_ranks(const RankContext& ctx, const Smem& smem, u32 choice) {
    const u32 to = Experts::destination_of(ctx, load_shared(smem.choice_expert(choice)));
    const u32 first = choice - choice % Config::kTopK;
    u32 ranks = 0;
    for (u32 i = first; i < first + Config::kTopK; ++i) {
      const u32 e = load_shared(smem.choice_expert(i)), local_rank = e / Config::kLocalExperts % Experts::kLocalWorld;
      const bool is_forwarded = local_rank != ctx.local_rank() || !Segments::kReadsLanded;
      if (Experts::destination_of(ctx, e) == to && is_forwarded) ranks |= 1u << local_rank;
    }
    return ranks;
  }

  // Signals to the ranks of this node that this CTA's part of their messages and lists is written, and waits for the
  // parts of all CTAs of all ranks. Messages and lists cross nodes in packets. Returns false after an abort.
  static MK_DEVICE bool exchange(const Args& args, const RankContext& ctx, const Smem& smem, bool has_lists) {
    const u32 warp = warp_index(), lane = lane_index(), wanted = ctx.epoch * gridDim.x;
    if (warp == 0 && lane < Experts::kLocalWorld) {
      fence_sys();
      add_relaxed_sys(ctx.peer_ptr(lane, Workspace::routed(ctx.rank)), 1);
    }
    __syncwarp();
    if constexpr (Experts::kNodes > 1) {
      if (blockIdx.x < Config::kCommCtas) {
        Packets<Config, Workspace, Smem>::exchange(args, ctx, smem, has_lists);
      }
      __syncwarp();
    }
    if (warp == 0) {
      u32 is_here = 1;
      for (u32 source = lane; source < Experts::kWorld; source += kWarp) {
        const WaitSite site{kPush, kRouting, source, source, wanted};
        is_here &= has_reached(wait_flag(ctx, ctx.local_ptr(Workspace::routed(source)), site), wanted);
      }
      __syncwarp();
      u32 are_here = 1;
      for (u32 i = 0; i < min(Experts::kWorld, kWarp); ++i) are_here &= broadcast(is_here, i);
      if (lane == 0) store_shared(smem.is_routed(), are_here);
    }
    __syncthreads();
    return load_shared(smem.is_routed()) != 0;
  }

  // Returns whether a rank has found a fault. All ranks have the same messages as each other, so all ranks report the
  // same fault. Each thread looks at one message, since one thread would load the messages from L2 one after the other.
  static MK_DEVICE bool has_fault(const RankContext& ctx) {
    static_assert(Experts::kWorld <= Config::kThreads);
    const u32 thread = threadIdx.x;
    const bool has_one = thread < Experts::kWorld && Faults::is_in(Message::from(ctx, thread));
    if (__syncthreads_or(has_one) == 0) return false;
    if (blockIdx.x == 0 && thread == 0) {
      u32 source = 0;
      while (!Faults::is_in(Message::from(ctx, source))) ++source;
      Faults::report_from(ctx, Message::from(ctx, source), source);
    }
    return true;
  }

  // From the messages of all ranks, computes where the rows of all experts lie, and fills the tables of this rank's
  // experts.
  static MK_DEVICE void place_experts(const RankContext& ctx, const Smem& smem) {
    const u32 own = ctx.rank * Config::kLocalExperts;
    for (u32 e = threadIdx.x; e < Config::kExperts; e += blockDim.x) {
      u32 rows = 0, rows_before = 0;
      for (u32 source = 0; source < Experts::kWorld; ++source) {
        if (source == ctx.rank) rows_before = rows;
        if (e - own < Config::kLocalExperts) store_shared(smem.source_row_begin(e - own, source), rows);
        rows += load(Message::rows(Message::from(ctx, source)) + e);
      }
      store_shared(smem.expert_rows(e), rows);
      store_shared(smem.expert_rows_before(e), rows_before);
    }
    __syncthreads();
    const u32 warp = threadIdx.x / kWarp;
    for (u32 rank = lane_index(); warp == 0 && rank < Experts::kWorld; rank += kWarp) place_rows(ctx, smem, rank);
    for (u32 source = lane_index(); warp == 1 && source < Experts::kWorld; source += kWarp) {
      place_lists(ctx, smem, source);
    }
    if (warp == 2 && lane_index() == 0) place_tiles(ctx, smem);
    if constexpr (Experts::kNodes > 1) {
      for (u32 peer = lane_index(); warp == 3 && peer < Experts::kPeerNodes; peer += kWarp) {
        count_tokens_from(ctx, smem, peer);
      }
      if (warp == 4 && lane_index() == 0) place_outgoing(smem);
    }
    __syncthreads();
    if constexpr (Experts::kNodes > 1) Segments::place(ctx, smem);
  }

  // A thread: computes where the rows of the experts of one rank begin.
  static MK_DEVICE void place_rows(const RankContext& ctx, const Smem& smem, u32 rank) {
    u32 row = 0;
    for (u32 i = 0; i < Config::kLocalExperts; ++i) {
      const u32 e = rank * Config::kLocalExperts + i, rows = load_shared(smem.expert_rows(e));
      store_shared(smem.expert_row_begin(e), row);
      if (rank == ctx.rank) store_shared(smem.row_begin(i), row);
      row += rows;
    }
    if (rank == ctx.rank) store_shared(smem.row_begin(Config::kLocalExperts), row);
    store_shared(smem.rank_rows(rank), row);
  }

  // A thread: computes where the rows of each of this rank's experts begin in the list of one source.
  static MK_DEVICE void place_lists(const RankContext& ctx, const Smem& smem, u32 source) {
    const u32* rows = Message::rows(Message::from(ctx, source)) + ctx.rank * Config::kLocalExperts;
    u32 begin = 0;
    for (u32 i = 0; i < Config::kLocalExperts; ++i) {
      store_shared(smem.list_begin(i, source), begin);
      begin += load(rows + i);
    }
  }

  // A thread: computes where the tiles of each of this rank's experts begin.
  static MK_DEVICE void place_tiles(const RankContext& ctx, const Smem& smem) {
    u32 tiles = 0;
    for (u32 i = 0; i < Config::kLocalExperts; ++i) {
      store_shared(smem.tile_begin(i), tiles);
      const u32 rows = load_shared(smem.expert_rows(ctx.rank * Config::kLocalExperts + i));
      tiles += (rows + Config::kTileM - 1) / Config::kTileM * Shape::kColTiles;
    }
    store_shared(smem.tile_begin(Config::kLocalExperts), tiles);
  }

  // A thread: counts the tokens that one peer sends to this rank.
  static MK_DEVICE void count_tokens_from(const RankContext& ctx, const Smem& smem, u32 peer) {
    const u32* sent = Message::sent(Message::from(ctx, Experts::Network::rank_of_peer(ctx, peer)));
    u32 tokens = 0;
    sent += ctx.node_first_rank * Config::kLocalExperts;
    for (u32 e = 0; e < Experts::kNodeExperts; ++e) tokens += load(sent + e);
    store_shared(smem.tokens_from(peer), tokens);
  }

  // A thread: computes where the tokens for each peer begin among all tokens that are put.
  static MK_DEVICE void place_outgoing(const Smem& smem) {
    u32 begin = 0;
    for (u32 peer = 0; peer < Experts::kPeerNodes; ++peer) {
      store_shared(smem.outgoing_begin(peer), begin);
      begin += load_shared(smem.tokens_to(Experts::kLocalWorld + peer));
    }
  }

  // Returns whether a rank has no room for its rows. Then no rank gets any rows, and every rank reports this fault.
  static MK_DEVICE bool is_full(const RankContext& ctx, const Smem& smem) {
    for (u32 rank = 0; rank < Experts::kWorld; ++rank) {
      const u32 rows = load_shared(smem.rank_rows(rank));
      if (rows <= Config::kMaxRows) continue;
      if (blockIdx.x == 0 && threadIdx.x == 0) {
        report_fault(ctx, WaitSite{kPush, kRows, rank, 0, Config::kMaxRows}, rows, rank);
      }
      return true;
    }
    return false;
  }

  // Writes for the caller the row index of each choice of the slice, which is kNoRow if the choice has no expert, and the
  // first row of each of this rank's experts.
  static MK_DEVICE void write_places(const Args& args, const Smem& smem, const Slice& slice) {
    for (u32 i = threadIdx.x; i < Choices::count(slice); i += blockDim.x) {
      const u32 e = load_shared(smem.choice_expert(i));
      u32 row_index = kNoRow;
      if (e != kNoExpert) {
        const u32 row = load_shared(smem.expert_row_begin(e)) + load_shared(smem.expert_rows_before(e)) +
                        load_shared(smem.choice_row(i));
        row_index = e / Config::kLocalExperts * Config::kMaxRows + row;
      }
      store_word(args.row_indices + (u64{slice.first} * Config::kTopK + i) * 4, row_index);
    }
    for (u32 i = threadIdx.x; i <= Config::kLocalExperts && blockIdx.x == 0; i += blockDim.x) {
      store_word(args.expert_offsets + i * 4, load_shared(smem.row_begin(i)));
    }
  }
};

}  // namespace mk::moe
