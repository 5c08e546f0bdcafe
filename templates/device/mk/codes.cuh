// Who waits in a kernel, and what for: numbers in reports. Printed from gen/spec/src/abi/codes.rs by
// `cargo run -p xtask -- headers`.
#pragma once
#include <mk/types.cuh>

namespace mk {

enum Role : u32 {
  kPush = 1,  // push: sends to other ranks
  kLoad = 2,  // load: brings tiles to shared memory
  kMultiply = 3,  // multiply: runs wgmma
  kStore = 4,  // store: writes tiles of the result
  kCollect = 5,  // collect: takes results of other ranks to C
  kReduce = 6,  // reduce: adds up what ranks have sent
};

enum Wait : u32 {
  kChunk = 1,  // a chunk of a peer's shard
  kSent = 2,  // the end of its own outgoing copies
  kStageFull = 3,  // a pipeline stage to be filled
  kStageEmpty = 4,  // a pipeline stage to be empty
  kOutputFull = 5,  // an output buffer to be filled
  kOutputEmpty = 6,  // an output buffer to be empty
  kPartial = 7,  // another CTA's part of a sum
  kPeerPartial = 8,  // a peer's part of a sum
  kResult = 9,  // a tile that a peer adds up
  kBegun = 10,  // a peer to begin the call
  kCommandSlot = 11,  // a free slot of the ring of commands
  kArrival = 12,  // puts of a GPU of another node
  kPutSent = 13,  // the end of its own puts
  kPace = 14,  // other CTAs, to load together
  kRoom = 15,  // room at a peer for the next keys
  kRouting = 16,  // a peer's numbers of tokens for each rank
  kCounted = 17,  // other CTAs, to count tokens
  kExpert = 18,  // the number of an expert: `index` is the token, and `peer` the number of the choice
  kExpertTwice = 19,  // another expert for the same token: `index` is the token, and `peer` the number of the choice
  kTokens = 20,  // a possible number of tokens
  kRows = 21,  // room for all rows: `peer` is the rank that gets too many
  kPlace = 22,  // the place of a row: `index` is the token, and `peer` the number of the choice
  kOverlap = 23,  // the end of another call: call `seen` of operator `index` is under way, and this is call `wanted` of operator `peer`
};

}  // namespace mk
