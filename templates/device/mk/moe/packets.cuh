// Routing packets between nodes. Each rank puts one packet to each peer, and forwards the packets that it receives to
// the ranks of its node.
#pragma once
#include <mk/moe/faults.cuh>
#include <mk/moe/routing_message.cuh>
#include <mk/moe/tables.cuh>

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

// Only kernels of several nodes instantiate the functions, and only the functions need the regions.
template <class Config, class Workspace, class Smem>
struct Packets {
  using Message = RoutingMessage<Config, Workspace>;
  using Experts = moe::Experts<Config, Workspace>;
  using Network = comm::Network<Config, Workspace>;

  static constexpr u32 kChannel = 0;
  static constexpr u32 kPacketPut = 0;  // the number of the packet among the puts of a call, before those of tokens

  // A warp of a communication CTA. Warps are numbered over all of these CTAs: warp 0 watches arrivals, warp 1 puts, and
  // the others forward. `has_lists` is false if this rank has found a fault.
  template <class Args>
    requires PacketConfig<Config> && PacketWorkspace<Workspace> && NodeTokenTables<Smem>
  static MK_DEVICE void exchange(const Args& args, const RankContext& ctx, const Smem& smem, bool has_lists) {
    constexpr u32 kWorkers = Config::kCommCtas * Config::kThreads / kWarp - 2;
    const u32 number = warp_index() * Config::kCommCtas + blockIdx.x;
    if (number == 0) {
      Network::begin_watch(args, ctx);
      Network::watch_arrivals(args, ctx, kPacketPut, [](u32) { return 1u; });
    } else if (number == 1) {
      if (elect_one()) put_all(args, ctx, smem, has_lists);
    } else {
      for (u32 i = number - 2; i < Experts::kPeerNodes * Experts::kLocalWorld; i += kWorkers) {
        Network::wait_put(ctx, kPush, kChannel, i / Experts::kLocalWorld, kPacketPut);  // @packets.arrival
        if (broadcast(is_aborted(ctx), 0)) return;
        forward(ctx, i / Experts::kLocalWorld, i % Experts::kLocalWorld);
      }
    }
  }

 private:
  // One thread: waits until all CTAs have written their parts of the packets, and puts the packets to all peers. A
  // packet with a fault has no lists.
  template <class Args>
  static MK_DEVICE void put_all(const Args& args, const RankContext& ctx, const Smem& smem, bool has_lists) {
    const WaitSite site{kPush, kRouting, ctx.rank, ctx.rank, ctx.epoch * gridDim.x};
    wait_flag(ctx, ctx.local_ptr(Workspace::routed(ctx.rank)), site);  // @packets.written
    if (gives_up(ctx, kPush)) return;
    for (u32 i = 0; i < Experts::kPeerNodes; ++i) {  // each node begins with another peer
      const u32 peer = (ctx.node_first_rank / Experts::kLocalWorld + i) % Experts::kPeerNodes;
      u32 words = Config::kMessageWords;
      if (has_lists) words += Message::need_words(smem, peer) + load_shared(smem.rows_at(peer));
      Network::put(args, ctx, peer, kChannel, Workspace::packets_out(ctx.parity(), peer),
                   Message::arriving(ctx, Network::own_number_at(ctx, peer)), words * 4);
    }
  }

  // A warp: copies the message of a peer's packet and the list for one rank of this node to that rank, to the places
  // where a sender on this node would have written them.
  static MK_DEVICE void forward(const RankContext& ctx, u32 peer, u32 to) {
    const u32 lane = lane_index(), source = Network::rank_of_peer(ctx, peer);
    const u32* packet = Message::packet_in(ctx, peer);
    u32* message = Message::message_of(ctx, to, source);
    for (u32 i = lane; i < Config::kMessageWords; i += kWarp) store(message + i, load(packet + i));
    const u32* rows_of_node = Message::rows(packet) + ctx.node_first_rank * Config::kLocalExperts;
    const u32* sent_to_node = Message::sent(packet) + ctx.node_first_rank * Config::kLocalExperts;
    u32 begin = 0, rows = 0;
#pragma unroll 8
    for (u32 e = 0; e < Experts::kNodeExperts; ++e) {
      const u32 expert_rows = load(rows_of_node + e), local_rank = e / Config::kLocalExperts;
      if constexpr (Experts::kLocalWorld > 1) begin += load(sent_to_node + e);
      begin += local_rank < to ? expert_rows : 0;  // @packets.list
      rows += local_rank == to ? expert_rows : 0;
    }
    if (load(packet) != 0) rows = 0;  // a packet with a fault has no lists
    u32* list = Message::list_of(ctx, to, source);
    for (u32 i = lane; i < rows; i += kWarp) store(list + i, load(Message::needs(packet) + begin + i));
    __syncwarp();
    if (lane != 0) return;
    fence_sys();  // @packets.forward-fence
    add_relaxed_sys(ctx.peer_ptr(to, Workspace::routed(source)), gridDim.x);
  }
};

}  // namespace mk::moe
