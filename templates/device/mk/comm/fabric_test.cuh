// The fabric test: messages to the corresponding GPU of every other node, and an acknowledgement for every batch of
// messages. The test shows the performance of a cluster's network for kernels, without any other work.
//
// The numbers of nodes and messages are arguments, so one kernel serves every cluster.
#pragma once
#include <mk/comm/command_ring.cuh>
#include <mk/roles.cuh>

namespace mk::comm {

template <class Config>
concept FabricTestConfig = requires {
  Config::kThreads;
  Config::kMaxNodes;
  Config::kMessages;  // the channel of messages
  Config::kAcks;      // the channel of acknowledgements
  Config::kChannels;
  Config::kArrivalStride;  // the distance of arrival words, in bytes
  Config::kPickUps;        // timed commands whose times are kept
};

// Mixes every bit of a word into all other bits (Wellons, "Prospecting for Hash Functions", lowbias32).
MK_DEVICE u32 mix(u32 x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

// The content of a message of a node. Every word of every message is different.
struct MessageContent {
  u32 first;

  MK_DEVICE MessageContent(u64 seed, u32 node, u32 message)
      : first(mix(mix(mix(static_cast<u32>(seed)) + static_cast<u32>(seed >> 32) + node) + message)) {}
  MK_DEVICE u32 word(u32 index) const { return mix(first + index); }
};

// Args: `region` has slots for messages that are sent. Slots for messages that arrive follow, by peer.
template <FabricTestConfig Config, class Args>
struct FabricTest {
  static MK_DEVICE u32* words_at(const Args& args, u64 offset) { return reinterpret_cast<u32*>(args.region + offset); }

  static MK_DEVICE u64 source_slot(const Args& args, u32 message) {
    return u64{message % args.window} * args.slot_bytes;
  }

  // The offset of the slot at which a message arrives from peer number `peer` of the receiver, in bytes.
  static MK_DEVICE u64 arrival_slot(const Args& args, u32 peer, u32 message) {
    return (u64{args.window} * (1 + peer) + message % args.window) * args.slot_bytes;
  }

  // The node of a peer, and this node's number among the peers of that node. Peers are the other nodes in their order.
  static MK_DEVICE u32 node_of(const Args& args, u32 peer) { return peer < args.node ? peer : peer + 1; }
  static MK_DEVICE u32 own_number_at(const Args& args, u32 peer) {
    return args.node < node_of(args, peer) ? args.node : args.node - 1;
  }

  // The last arrivals of a channel that its only reader has seen, by peer. A load of an arrival word crosses PCIe, and
  // finds all messages that have arrived since the previous load.
  struct Arrivals {
    Role role;
    u32 channel;
    u32 counts[Config::kMaxNodes];

    MK_DEVICE Arrivals(Role role, u32 channel, u32 before) : role(role), channel(channel) {
      for (u32& count : counts) count = before;
    }

    MK_DEVICE void wait(const Args& args, const RankContext& ctx, u32 peer, u32 count) {
      if (has_reached(counts[peer], count)) return;
      const u8* word = args.arrivals + (peer * Config::kChannels + channel) * Config::kArrivalStride;
      counts[peer] = wait_flag(ctx, reinterpret_cast<const u32*>(word), WaitSite{role, kArrival, peer, channel, count});
    }
  };

  // A CTA: sends messages to every peer. A slot is filled again when all peers have acknowledged the slot's previous
  // message.
  struct Send {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, u32) {
      const u32 peers = args.nodes - 1;
      Arrivals acks(kPush, Config::kAcks, args.acks_before);
      u64 start_ns = 0;
      u32 probed = 0;
      for (u32 i = 0; i < args.messages; ++i) {
        const u32 message = args.messages_before + i;
        if (threadIdx.x == 0) {
          for (u32 peer = 0; peer < peers && i >= args.window; ++peer) {
            acks.wait(args, ctx, peer, args.acks_before + (i - args.window) / args.batch + 1);
          }
          if (i == args.untimed) start_ns = global_time_ns();
        }
        if (args.checks) fill_slot(args, message);
        for (u32 peer = 0; peer < peers && threadIdx.x == 0; ++peer) {
          const u64 to = arrival_slot(args, own_number_at(args, peer), message);
          const Put put{kCommandPut, peer, Config::kMessages, 0, 0, args.message_bytes, source_slot(args, message), to};
          const u32 index = post_command(ctx, kPush, args.ring, put);
          const u64 posted_ns = global_time_ns();
          if (args.probes && i >= args.untimed) {
            store(&args.results->pick_up_ns[probed++ % Config::kPickUps], pick_up_ns(args, ctx, index, posted_ns));
          }
        }
      }
      if (threadIdx.x != 0) return;
      for (u32 peer = 0; peer < peers; ++peer) {
        acks.wait(args, ctx, peer, args.acks_before + args.messages / args.batch);
      }
      store(&args.results->elapsed_ns, global_time_ns() - start_ns);
    }

   private:
    static MK_DEVICE void fill_slot(const Args& args, u32 message) {
      __syncthreads();  // the slot is free
      const MessageContent content(args.seed, args.node, message);
      u32* words = words_at(args, source_slot(args, message));
      for (u32 word = threadIdx.x; word < args.message_bytes / 4; word += Config::kThreads) {
        store(words + word, content.word(word));
      }
      __syncthreads();  // the slot is full
    }

    // The time from the store of a command until the GPU sees that the proxy has read it. This time includes the
    // proxy's answer, which also crosses PCIe.
    static MK_DEVICE u32 pick_up_ns(const Args& args, const RankContext& ctx, u32 index, u64 posted_ns) {
      wait_flag(ctx, &args.ring.words->consumed, WaitSite{kPush, kCommandSlot, args.rank, index, index + 1});
      return static_cast<u32>(global_time_ns() - posted_ns);
    }
  };

  // A CTA: receives the messages of every peer in turn, and acknowledges each batch.
  struct Receive {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, u32) {
      Arrivals messages(kLoad, Config::kMessages, args.messages_before);
      for (u32 i = 0; i < args.messages; ++i) {
        const u32 message = args.messages_before + i;
        for (u32 peer = 0; peer < args.nodes - 1; ++peer) {
          if (threadIdx.x == 0) messages.wait(args, ctx, peer, message + 1);
          if (args.checks) {
            __syncthreads();  // the message is there
            check_message(args, peer, message);
            __syncthreads();  // the slot has been read
          }
          if (threadIdx.x == 0 && (i + 1) % args.batch == 0) {
            post_command(ctx, kLoad, args.ring, Put{kCommandPut, peer, Config::kAcks, 0, 0, 0, 0, 0});
          }
        }
      }
    }

   private:
    // Counts the words of a message that differ from the sender's words.
    static MK_DEVICE void check_message(const Args& args, u32 peer, u32 message) {
      const MessageContent content(args.seed, node_of(args, peer), message);
      const u32* words = words_at(args, arrival_slot(args, peer, message));
      u32 wrong = 0;
      for (u32 word = threadIdx.x; word < args.message_bytes / 4; word += Config::kThreads) {
        wrong += load(words + word) != content.word(word);
      }
      if (wrong != 0) add_relaxed_sys(&args.results->wrong_words[peer], wrong);
    }
  };
};

}  // namespace mk::comm
