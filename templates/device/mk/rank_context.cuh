// What a rank knows of a call: which rank it is, which call this is, and whose memory is in reach.
#pragma once
#include <mk/abi.cuh>
#include <mk/memory.cuh>
#include <mk/region.cuh>

namespace mk {

struct RankContext {
  u8* const* workspaces;  // of the ranks of this node, by local rank
  HostPage* host;
  Gate* gate;
  u64 deadline_ns;
  u32 operator_number;  // in its communicator, from 1
  u32 rank;
  u32 local_world;      // ranks of this node
  u32 epoch;            // number of this call, from 1, modulo 2^32; among those of its bucket if the operator has buckets
  u32 node_first_rank;  // the rank of this node whose local rank is 0
  NetworkState* network = nullptr;  // none if the kernel has one node
  u32 network_call = 0;             // number of this call among those across nodes, from 1, modulo 2^32

  // Of kernels whose rows each call gives, or the offsets of packed sequences: see Offsets.
  u32 rows = 0;             // of this call; 0 if too many were given. Or kOffsetsHash and a hash
  u32 max_rows = 0;         // the most that a call may have
  u32 refused_rows = 0;     // what was given, if it is too much. Or 1 + the number of the first offset that is not possible
  Symmetric<u64> begun{0};  // what ranks say of this call when they begin it, by rank: its mark, and rows in the upper half

  // Of operators with buckets: see buckets.cuh.
  u32 other_calls = 0;                  // calls before this one that ran other buckets
  u32* bucket_epoch = nullptr;          // the word of the state for this bucket
  u32 bucket_epochs[kMaxBuckets] = {};  // these words when the call began

  u64 result_place = 0;  // where this rank's result lies in symmetric memory, of kernels that store to those of peers

  MK_DEVICE u32 local_rank() const { return rank - node_first_rank; }
  MK_DEVICE u8* workspace() const { return workspaces[local_rank()]; }

  // Buffers exist twice, and calls alternate between them. A rank that starts call e + 2 has received data of call e +
  // 1 from every peer. Each peer has therefore finished call e, and nobody reads the buffers any more that e + 2
  // overwrites.
  MK_DEVICE u32 parity() const { return epoch % 2; }

  // What stands for this call in words that not every call writes. Such a word may be as old as the operator, so no
  // window distinguishes old epochs from new ones, and the word is compared for equality. Words that were never written
  // are 0, which is the mark of no call: call 2^32, whose epoch is 0, has the mark of call 2^31 instead. A mark comes
  // again after 2^31 calls at the earliest, and then misleads only a wait for a word that was last written in exactly
  // that call. 64 bits would never come again, but packets have only 32 beside their data.
  MK_DEVICE u32 mark() const { return mark_of(epoch); }
  static MK_DEVICE u32 mark_of(u32 number) { return number != 0 ? number : 0x80000000u; }

  // The number of this call among all calls of the operator, which is that of reports and announcements, and what follows
  // from it.
  MK_DEVICE u32 call() const { return epoch + other_calls; }
  MK_DEVICE u32 call_parity() const { return call() % 2; }
  MK_DEVICE u32 call_mark() const { return mark_of(call()); }

  // An address of the workspace here, and on a peer of this node (NVSHMEM: nvshmem_ptr).
  template <class T>
  MK_DEVICE T* local_ptr(Symmetric<T> address) const {
    return address.on(workspace());
  }
  template <class T>
  MK_DEVICE T* peer_ptr(u32 peer, Symmetric<T> address) const {
    return address.on(workspaces[peer]);
  }

  MK_DEVICE State* state() const { return local_ptr(Symmetric<State>{0}); }
};

// Whether each call gives the rows.
template <class Config>
concept TakesRows = requires { Config::kMaxRows; };  // the most rows of a call

// Whether these are the rows of packed sequences, whose lengths each call gives as offsets.
template <class Config>
concept IsPacked = TakesRows<Config> && requires { Config::kSequences; };  // the most sequences of a call

// How ranks are spread over nodes.
template <class Config>
concept TopologyConfig = requires {
  Config::kNodes;
  Config::kLocalWorld;  // ranks of a node
};

template <TopologyConfig Config>
struct Topology {
  static constexpr u32 kNodes = Config::kNodes;
  static constexpr u32 kLocalWorld = Config::kLocalWorld;
  static constexpr u32 kWorld = kNodes * kLocalWorld;
  static constexpr u32 kPeerNodes = kNodes - 1;
};

}  // namespace mk
