// Tokens between nodes. A token crosses the network once for each node that needs it.
//
// A rank packs its tokens for a node in the order of sending, and puts them in chunks to the peer, which is the rank of
// the same local rank on that node. The peer forwards them to the ranks of its node that need them, and raises the same
// flags as a sender on the node. A chunk may take the place of an earlier one, which the peer has then forwarded.
#pragma once
#include <mk/moe/packets.cuh>
#include <mk/moe/tokens.cuh>

namespace mk::moe {

template <class Config>
concept NodeTokenConfig = TokenConfig<Config> && PacketConfig<Config> && SegmentConfig<Config> &&
                          Config::kChunkTokens % Config::kBlockTokens == 0;

template <class Workspace>
concept NodeTokenWorkspace = SentTokenWorkspace<Workspace> && PacketWorkspace<Workspace> &&
                             SegmentWorkspace<Workspace> && requires(u32 peer, u32 token, u32 block) {
                               Workspace::outgoing(token);            // the packed tokens for all peers
                               Workspace::packed_ready(peer, block);  // the mark of a packed block
                             };

template <NodeTokenConfig Config, class Args, NodeTokenWorkspace Workspace, NodeTokenTables Smem>
struct NodeTokens {
  using Tokens = moe::Tokens<Config, Args, Workspace, Smem>;
  using Experts = typename Tokens::Experts;
  using Message = RoutingMessage<Config, Workspace>;
  using Network = comm::Network<Config, Workspace>;

  using Chunks = TokenChunks<Config, Workspace>;
  using Segments = moe::Segments<Config, Workspace, Smem>;
  using RoutingPackets = Packets<Config, Workspace, Smem>;

  static constexpr u32 kChannel = 0;
  static constexpr bool kSendsScales = Tokens::kSendsScales;
  static constexpr u32 kFirstChunkPut = Packets<Config, Workspace, Smem>::kPacketPut + 1;

  // A warp: waits until all puts of the call have arrived.
  static MK_DEVICE void watch_arrivals(const Args& args, const RankContext& ctx, const Smem& smem) {
    using Phase = typename Network::Phase;
    const bool have_arrived = Network::watch_phase(args, ctx, [&](u32 channel, u32 peer) {
      if (channel == kChannel) return Phase{kFirstChunkPut, Chunks::count(load_shared(smem.tokens_from(peer)))};
      return Phase{0, Chunks::acknowledged(tokens_to(smem, peer))};
    });
    Network::end_watch(args, ctx, have_arrived);
  }

  // One thread: puts chunks of tokens to the peers, each chunk as soon as it is packed. After an abort it puts nothing
  // more, because receivers treat every put as valid data.
  static MK_DEVICE void put_all(const Args& args, const RankContext& ctx, const Smem& smem) {
    const u32 most = Tokens::greatest(Experts::kPeerNodes, [&](u32 peer) { return tokens_to(smem, peer); });
    for (u32 first = 0; first < most; first += Config::kChunkTokens) {
      for (u32 i = 0; i < Experts::kPeerNodes; ++i) {  // each node begins with another peer
        const u32 peer = (ctx.node_first_rank / Experts::kLocalWorld + i) % Experts::kPeerNodes;
        const u32 end = min(first + Config::kChunkTokens, tokens_to(smem, peer));
        if (first >= end) continue;
        for (u32 block = first / Config::kBlockTokens; block * Config::kBlockTokens < end; ++block) {
          wait_mark(ctx, packed_flag(ctx, peer, block), WaitSite{kPush, kChunk, ctx.rank, block, ctx.mark()});
        }
        Chunks::wait_place(ctx, kPush, peer, first);
        if (gives_up(ctx, kPush)) return;
        const auto there = Workspace::landed(Network::own_number_at(ctx, peer), Chunks::place(first));
        Network::put(args, ctx, peer, kChannel, outgoing(smem, peer, first), there, (end - first) * Tokens::kSentBytes);
      }
    }
  }

  // A warp: acknowledges chunks that have been forwarded.
  static MK_DEVICE void acknowledge(const Args& args, const RankContext& ctx, const Smem& smem) {
    const auto tokens = [&](u32 peer) { return load_shared(smem.tokens_from(peer)); };
    Chunks::acknowledge(args, ctx, tokens, [&](u32 peer, u32 first, u32 end) {
      const u32 begin = first / Config::kBlockTokens, blocks = (end - first) / Config::kBlockTokens;
      for (u32 i = lane_index(); i < blocks; i += kWarp) {
        const WaitSite site{kPush, kChunk, ctx.rank, begin + i, ctx.mark()};
        wait_mark(ctx, ctx.local_ptr(Workspace::forwarded(peer, begin + i)), site);
      }
      __syncwarp();
    });
  }

  // One thread, or a warp if scales travel, number `sender` of `senders`: sends own tokens, then forwards the tokens that
  // peers put here.
  static MK_DEVICE void push(const Args& args, const RankContext& ctx, const Smem& smem, u32 sender, u32 senders) {
    auto copy = comm::StagedCopy::of_warp(ctx, smem);
    Tokens::begin_sending();
    push_own(args, ctx, smem, copy, sender, senders);
    if (Tokens::is_leader()) forward_arrived(ctx, smem, copy, sender, senders);
  }

 private:
  static MK_DEVICE u32 tokens_to(const Smem& smem, u32 peer) {
    return load_shared(smem.tokens_to(Experts::kLocalWorld + peer));
  }
  static MK_DEVICE Symmetric<u8> outgoing(const Smem& smem, u32 peer, u32 slot) {
    return Workspace::outgoing(load_shared(smem.outgoing_begin(peer)) + slot);
  }
  static MK_DEVICE u32* packed_flag(const RankContext& ctx, u32 peer, u32 block) {
    return ctx.local_ptr(Workspace::packed_ready(peer, block));
  }

  // Copies blocks of own tokens for other nodes to the buffers from which they are put, and blocks for ranks of this
  // node to these ranks. Raises a flag after each block.
  static MK_DEVICE void push_own(const Args& args, const RankContext& ctx, const Smem& smem, comm::StagedCopy& copy,
                                 u32 sender, u32 senders) {
    constexpr u32 kOthers = Experts::kDestinations - 1;
    const u32 most = Tokens::greatest(Experts::kDestinations, [&](u32 to) { return load_shared(smem.tokens_to(to)); });
    for (u32 i = sender; i / kOthers * Config::kBlockTokens < most; i += senders) {
      const u32 turn = i % kOthers;
      const bool is_put = Experts::kLocalWorld == 1 || turn < Experts::kPeerNodes;
      const u32 to = is_put ? Experts::kLocalWorld + turn
                            : (ctx.local_rank() + 1 + turn - Experts::kPeerNodes) % Experts::kLocalWorld;
      const auto block = Tokens::block_at(i / kOthers, load_shared(smem.tokens_to(to)));
      if (block.first >= block.end) continue;
      u8* there = is_put ? ctx.local_ptr(outgoing(smem, turn, block.first))
                         : ctx.peer_ptr(to, Workspace::segments(load_shared(smem.own_segment(to)) + block.first));
      Tokens::send(args, copy, to, block, there);
      u32* flag = is_put ? packed_flag(ctx, turn, block.index) : Tokens::ready_flag(ctx, to, ctx.rank, block.index);
      if (Tokens::is_leader()) store_release_sys(flag, ctx.mark());
    }
  }

  // One thread: takes the blocks of all peers in turn as they arrive here, and forwards the tokens to the ranks of this node. If
  // this rank reads its own tokens where they arrive, raises its flag first.
  static MK_DEVICE void forward_arrived(const RankContext& ctx, const Smem& smem, comm::StagedCopy& copy, u32 sender,
                                        u32 senders) {
    const auto tokens_from = [&](u32 peer) { return load_shared(smem.tokens_from(peer)); };
    const u32 most = Tokens::greatest(Experts::kPeerNodes, tokens_from);
    for (u32 i = sender; i / Experts::kPeerNodes * Config::kBlockTokens < most; i += senders) {
      const u32 peer = i % Experts::kPeerNodes;
      const auto block = Tokens::block_at(i / Experts::kPeerNodes, tokens_from(peer));
      if (block.first >= block.end) continue;
      Network::wait_put(ctx, kPush, kChannel, peer, kFirstChunkPut + block.first / Config::kChunkTokens);
      if (is_aborted(ctx)) return;
      const u32 source = Network::rank_of_peer(ctx, peer);
      if constexpr (Segments::kReadsLanded) {
        store_release_sys(Tokens::ready_flag(ctx, ctx.local_rank(), source, block.index), ctx.mark());
      }
      if constexpr (!Segments::kReadsLanded || Experts::kLocalWorld > 1) forward(ctx, smem, copy, peer, source, block);
      if constexpr (Chunks::kAreAcknowledged) {
        store_release_sys(ctx.local_ptr(Workspace::forwarded(peer, block.index)), ctx.mark());
      }
    }
  }

  // The ranks of this node that need a token of a peer, as a bit for each local rank. All tokens are needed if the node
  // has one rank.
  static MK_DEVICE u32 needing(const RankContext& ctx, u32 peer, u32 slot) {
    if constexpr (Experts::kLocalWorld == 1) return 1;
    else return load(Message::needs(Message::packet_in(ctx, peer)) + slot);
  }

  // Waits until the tokens of a peer are numbered for all ranks of this node.
  static MK_DEVICE void wait_slots(const RankContext& ctx, u32 peer) {
    if constexpr (Experts::kLocalWorld > 1) {
      const WaitSite site{kPush, kCounted, ctx.rank, peer, ctx.epoch * Experts::kLocalWorld};
      wait_flag(ctx, ctx.local_ptr(Workspace::slots_ready(peer)), site);
    }
  }

  // Copies each token of a block to the ranks of this node that need it, and raises the block's flag on each rank that
  // needs any token of the block.
  static MK_DEVICE void forward(const RankContext& ctx, const Smem& smem, comm::StagedCopy& copy, u32 peer, u32 source,
                                const typename Tokens::Block& block) {
    u32 all_needing = 0;
    for (u32 slot = block.first; slot < block.end; ++slot) all_needing |= needing(ctx, peer, slot);
    if (all_needing == 0) return;
    wait_slots(ctx, peer);
    // A NIC has written the tokens, and this thread has acquired them. The fence lets TMA, which is another proxy, read
    // them.
    fence_proxy_async();
    const u8* from = ctx.local_ptr(Workspace::landed(peer, Chunks::place(block.first)));
    copy.template copy_rows<Config::kSlotBytes, Tokens::kSentBytes>(
        block.end - block.first, Tokens::kSentBytes, block.index,
        [&](const comm::StagedRows& staged, u32 barrier) {
          tma_load_bytes(staged.address, from + staged.first * Tokens::kSentBytes + staged.part, staged.total_bytes(),
                         barrier);
        },
        [&](const comm::StagedRows& staged) {
          for (u32 i = 0; i < staged.count; ++i) {
            const u32 slot = block.first + staged.first + i, ranks = needing(ctx, peer, slot);
            for (u32 to = 0; to < Experts::kLocalWorld; ++to) {
              if ((ranks >> to & 1) == 0) continue;
              const u32 index = RoutingPackets::index_of(ctx, peer, to, slot);
              const auto there = Workspace::segments(load_shared(smem.peer_segment(peer, to)) + index);
              tma_store_bytes(ctx.peer_ptr(to, there) + staged.part, staged.row(i), staged.bytes);
            }
          }
        });
    copy.finish();
    fence_sys();
    // A rank that needs no token of the block may have left the call already.
    for (u32 to = 0; to < Experts::kLocalWorld; ++to) {
      if ((all_needing >> to & 1) == 0) continue;
      store_relaxed_sys(Tokens::ready_flag(ctx, to, source, block.index), ctx.mark());
    }
  }
};

}  // namespace mk::moe
