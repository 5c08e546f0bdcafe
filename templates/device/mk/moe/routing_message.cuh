// The data that a rank sends to each destination before it sends tokens.
//
// A rank gets a message and a list. The message has kMessageWords words: a fault, the number of rows of each expert
// that the sender's tokens have, and the number of tokens that the sender sends for each expert. The list has an entry
// for each of these rows on the receiver, expert by expert. The entry is the slot of the row's token among the tokens
// that the sender sends, or the number of the token if the receiver is the sender.
//
// Another node gets a packet, which is one put. The packet begins with the same message. If the node has several ranks,
// a word for each token follows, which says which ranks of the node need it. Then come the lists of the node's ranks,
// one after the other. The receiver forwards the parts to the ranks of its node, to the places where a sender on the
// node would have written them.
//
// Messages and lists are double-buffered by parity of the epoch. A rank that starts call e has finished call e - 1, in
// which it received the messages and lists of every peer. So every peer has finished call e - 2.
#pragma once
#include <mk/moe/experts.cuh>

namespace mk::moe {

template <class Config>
concept MessageConfig = ExpertConfig<Config> && requires {
  Config::kFaultWords;    // room for a fault
  Config::kMessageWords;  // a fault, and two words per expert
};

template <class Workspace>
concept MessageWorkspace = requires(u32 parity, u32 source, u32 row) {
  Workspace::messages(parity, source);
  Workspace::lists(parity, source, row);
};

// Only kernels of several nodes have packets and instantiate the functions of packets.
template <MessageConfig Config, MessageWorkspace Workspace>
struct RoutingMessage {
  using Experts = moe::Experts<Config, Workspace>;

  static_assert(Config::kMessageWords == Config::kFaultWords + 2 * Config::kExperts);

  static MK_DEVICE u32* rows(u32* message) { return message + Config::kFaultWords; }
  static MK_DEVICE const u32* rows(const u32* message) { return message + Config::kFaultWords; }
  static MK_DEVICE u32* sent(u32* message) { return rows(message) + Config::kExperts; }
  static MK_DEVICE const u32* sent(const u32* message) { return rows(message) + Config::kExperts; }

  // The message from rank `source` to this rank.
  static MK_DEVICE const u32* from(const RankContext& ctx, u32 source) {
    return ctx.local_ptr(Workspace::messages(ctx.parity(), source));
  }
  // The list from rank `source` to this rank.
  static MK_DEVICE const u32* list_from(const RankContext& ctx, u32 source) {
    return ctx.local_ptr(Workspace::lists(ctx.parity(), source, 0));
  }

  // The addresses at which rank `local_rank` of this node gets the message and the list of rank `source`.
  static MK_DEVICE u32* message_of(const RankContext& ctx, u32 local_rank, u32 source) {
    return ctx.peer_ptr(local_rank, Workspace::messages(ctx.parity(), source));
  }
  static MK_DEVICE u32* list_of(const RankContext& ctx, u32 local_rank, u32 source) {
    return ctx.peer_ptr(local_rank, Workspace::lists(ctx.parity(), source, 0));
  }

  // The address to which this rank's message to a destination is written.
  static MK_DEVICE u32* to(const RankContext& ctx, u32 destination) {
    if constexpr (Experts::kNodes > 1) {
      if (!Experts::is_rank(destination)) return packet_out(ctx, destination - Experts::kLocalWorld);
    }
    return message_of(ctx, destination, ctx.rank);
  }

  // The address to which this rank's list for a destination is written.
  template <class Smem>
  static MK_DEVICE u32* list_to(const RankContext& ctx, const Smem& smem, u32 destination) {
    if constexpr (Experts::kNodes > 1) {
      if (!Experts::is_rank(destination)) {
        const u32 peer = destination - Experts::kLocalWorld;
        return needs(packet_out(ctx, peer)) + need_words(smem, peer);
      }
    }
    return list_of(ctx, destination, ctx.rank);
  }

  // The words of a packet that say which ranks of the node need each token: a bit for each local rank except the
  // receiver's.
  static MK_DEVICE u32* needs(u32* packet) { return packet + Config::kMessageWords; }
  static MK_DEVICE const u32* needs(const u32* packet) { return packet + Config::kMessageWords; }
  // The number of these words in the packet for a peer.
  template <class Smem>
  static MK_DEVICE u32 need_words(const Smem& smem, u32 peer) {
    if constexpr (Experts::kLocalWorld > 1) {
      return load_shared(smem.tokens_to(Experts::kLocalWorld + peer));
    } else {
      return 0;
    }
  }

  static MK_DEVICE u32* packet_out(const RankContext& ctx, u32 peer) {
    return ctx.local_ptr(Workspace::packets_out(ctx.parity(), peer));
  }
  static MK_DEVICE const u32* packet_in(const RankContext& ctx, u32 peer) {
    return ctx.local_ptr(arriving(ctx, peer));
  }
  // The place at which the packet of a peer arrives.
  static MK_DEVICE Symmetric<u32> arriving(const RankContext& ctx, u32 peer) {
    return Workspace::packets_in(ctx.parity(), peer);
  }
};

}  // namespace mk::moe
