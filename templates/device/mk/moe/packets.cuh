// Routing packets between nodes. Each rank puts one packet to each peer, and forwards the packets that it receives to
// the ranks of its node.
#pragma once
#include <mk/moe/faults.cuh>
#include <mk/moe/segments.cuh>

namespace mk::moe {

template <class Config>
concept PacketConfig = MessageConfig<Config> && comm::NetworkConfig<Config> && requires {
  Config::kCommCtas;  // the first CTAs, which communicate before they compute
  Config::kThreads;
};

template <class Workspace>
concept PacketWorkspace = MessageWorkspace<Workspace> && comm::NetworkWorkspace<Workspace> &&
                          requires(u32 parity, u32 peer, u32 source) {
                            Workspace::packets_out(parity, peer);
                            Workspace::packets_in(parity, peer);
                            Workspace::routed(source);
                          };

// The workspace of a rank that forwards tokens to other ranks of its node.
template <class Workspace>
concept ForwardWorkspace = requires(u32 peer, u32 local_rank, u32 slot) {
  Workspace::forward_slots(peer, local_rank, slot);  // the index of a peer's token among the tokens that the rank needs
  Workspace::slots_ready(peer);                      // the ranks whose forward_slots are written, over all calls
};

// Only kernels of several nodes instantiate the functions, and only the functions need the regions.
template <class Config, class Workspace, class Smem>
struct Packets {
  using Message = RoutingMessage<Config, Workspace>;
  using Experts = moe::Experts<Config, Workspace>;
  using Network = comm::Network<Config, Workspace>;
  using Segments = moe::Segments<Config, Workspace, Smem>;

  static constexpr u32 kChannel = 0;
  static constexpr u32 kPacketPut = 0;  // the number of the packet among the puts of a call, before the puts of tokens

  // A warp of a communication CTA. Warps are numbered over all of these CTAs: warp 0 watches arrivals, warp 1 puts, and
  // the other warps forward. `has_lists` is false if this rank has found a fault.
  template <class Args>
    requires PacketConfig<Config> && PacketWorkspace<Workspace> && NodeTokenTables<Smem>
  static MK_DEVICE void exchange(const Args& args, const RankContext& ctx, const Smem& smem, bool has_lists) {
    constexpr u32 kWorkers = Config::kCommCtas * Config::kThreads / kWarp - 2;
    const u32 number = warp_index() * Config::kCommCtas + blockIdx.x;
    if (number == 0) {
      Network::begin_watch(args, ctx);
      using Phase = typename Network::Phase;
      Network::watch_phase(args, ctx, [](u32 channel, u32) { return Phase{0, channel == kChannel ? 1u : 0u}; });
    } else if (number == 1) {
      if (elect_one()) put_all(args, ctx, smem, has_lists);
    } else {
      for (u32 i = number - 2; i < Experts::kPeerNodes * Experts::kLocalWorld; i += kWorkers) {
        Network::wait_put(ctx, kPush, kChannel, i / Experts::kLocalWorld, kPacketPut);
        if (broadcast(is_aborted(ctx), 0)) return;
        forward(ctx, i / Experts::kLocalWorld, i % Experts::kLocalWorld);
      }
    }
  }

  // The index of a peer's token among the tokens that a rank of this node needs.
  static MK_DEVICE u32 index_of(const RankContext& ctx, u32 peer, u32 local_rank, u32 slot) {
    if constexpr (Experts::kLocalWorld == 1) return slot;
    else if (Segments::kReadsLanded && local_rank == ctx.local_rank()) return 0;  // its list has slots
    else return load(ctx.local_ptr(Workspace::forward_slots(peer, local_rank, slot)));
  }

 private:
  // One thread: waits until all CTAs have written their parts of the packets, and puts the packets to all peers. A
  // packet with a fault has no lists.
  template <class Args>
  static MK_DEVICE void put_all(const Args& args, const RankContext& ctx, const Smem& smem, bool has_lists) {
    const WaitSite site{kPush, kRouting, ctx.rank, ctx.rank, ctx.epoch * gridDim.x};
    wait_flag(ctx, ctx.local_ptr(Workspace::routed(ctx.rank)), site);
    if (gives_up(ctx, kPush)) return;
    for (u32 i = 0; i < Experts::kPeerNodes; ++i) {  // each node begins with another peer
      const u32 peer = (ctx.node_first_rank / Experts::kLocalWorld + i) % Experts::kPeerNodes;
      u32 words = Config::kMessageWords;
      if (has_lists) words += Message::need_words(smem, peer) + load_shared(smem.rows_at(peer));
      Network::put(args, ctx, peer, kChannel, Workspace::packets_out(ctx.parity(), peer),
                   Message::arriving(ctx, Network::own_number_at(ctx, peer)), words * 4);
    }
  }

  // A warp: copies the message of a peer's packet and the list for one rank of this node to that rank, to the places to
  // which a sender on this node would have written them. Numbers the tokens that the rank needs.
  static MK_DEVICE void forward(const RankContext& ctx, u32 peer, u32 to) {
    const u32 lane = lane_index(), source = Network::rank_of_peer(ctx, peer);
    const u32* packet = Message::packet_in(ctx, peer);
    u32* message = Message::message_of(ctx, to, source);
    for (u32 i = lane; i < Config::kMessageWords; i += kWarp) store(message + i, load(packet + i));
    const u32* rows_of_node = Message::rows(packet) + ctx.node_first_rank * Config::kLocalExperts;
    const u32* sent_to_node = Message::sent(packet) + ctx.node_first_rank * Config::kLocalExperts;
    u32 begin = 0, rows = 0, tokens = 0;
#pragma unroll 8
    for (u32 e = 0; e < Experts::kNodeExperts; ++e) {
      const u32 expert_rows = load(rows_of_node + e), local_rank = e / Config::kLocalExperts;
      if constexpr (Experts::kLocalWorld > 1) tokens += load(sent_to_node + e);
      begin += local_rank < to ? expert_rows : 0;
      rows += local_rank == to ? expert_rows : 0;
    }
    if (load(packet) != 0) rows = tokens = 0;  // a packet with a fault has no lists
    if constexpr (Experts::kLocalWorld > 1) number_tokens(ctx, peer, to, tokens);
    const u32* from = Message::needs(packet) + tokens + begin;
    u32* list = Message::list_of(ctx, to, source);
    for (u32 i = lane; i < rows; i += kWarp) {
      const u32 slot = load(from + i);
      store(list + i, Segments::entry(to, source, slot, index_of(ctx, peer, to, slot)));
    }
    __syncwarp();
    if (lane != 0) return;
    fence_sys();
    add_relaxed_sys(ctx.peer_ptr(to, Workspace::routed(source)), gridDim.x);
    if constexpr (Experts::kLocalWorld > 1) add_relaxed_sys(ctx.local_ptr(Workspace::slots_ready(peer)), 1);
  }

  // A warp: numbers the tokens that a rank of this node needs, among all tokens that the peer sends to this node.
  static MK_DEVICE void number_tokens(const RankContext& ctx, u32 peer, u32 to, u32 tokens) {
    static_assert(ForwardWorkspace<Workspace>);
    const u32* needs = Message::needs(Message::packet_in(ctx, peer));
    u32 before = 0;
    for (u32 first = 0; first < tokens; first += kWarp) {
      const u32 slot = first + lane_index();
      const u32 is_needed = slot < tokens ? load(needs + slot) >> to & 1 : 0;
      u32 index = before;
      for (u32 i = 0; i < kWarp; ++i) {
        const u32 other = broadcast(is_needed, i);
        index += i < lane_index() ? other : 0;
        before += other;
      }
      if (is_needed) store(ctx.local_ptr(Workspace::forward_slots(peer, to, slot)), index);
    }
    __syncwarp();
  }
};

}  // namespace mk::moe
