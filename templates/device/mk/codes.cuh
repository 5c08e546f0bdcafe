// Codes of roles and waits in reports, and of activities in traces. Printed from gen/spec/src/abi/codes.rs by
// `cargo run -p xtask -- headers`.
#pragma once
#include <mk/types.cuh>

namespace mk {

enum Role : u32 {
  kPush = 1,  // push: sends data to other ranks
  kLoad = 2,  // load: loads tiles into shared memory
  kMultiply = 3,  // multiply: issues wgmma instructions
  kStore = 4,  // store: writes tiles of the result
  kCollect = 5,  // collect: copies results of other ranks to C or Y
  kReduce = 6,  // reduce: adds up what other ranks have sent
};

enum Wait : u32 {
  kChunk = 1,  // a chunk of a peer's shard
  kSent = 2,  // the end of this rank's outgoing copies
  kStageFull = 3,  // a full pipeline stage
  kStageEmpty = 4,  // an empty pipeline stage
  kOutputFull = 5,  // a full output buffer
  kOutputEmpty = 6,  // an empty output buffer
  kPartial = 7,  // another CTA's partial sum
  kPeerPartial = 8,  // a peer's partial sum
  kResult = 9,  // a tile that a peer reduces
  kBegun = 10,  // a peer's start of the call
  kCommandSlot = 11,  // a free slot of the command ring
  kArrival = 12,  // puts from a GPU of another node
  kPutSent = 13,  // the completion of this rank's puts
  kPace = 14,  // other CTAs that keep pace
  kRoom = 15,  // a free K/V slot at a peer
  kRouting = 16,  // a peer's token counts
  kCounted = 17,  // other CTAs that count tokens
  kExpert = 18,  // a valid expert id: `index` is the token, and `peer` is the index of the choice
  kExpertTwice = 19,  // different experts of one token: `index` is the token, and `peer` is the index of the choice
  kTokens = 20,  // a valid number of tokens
  kRows = 21,  // room for all rows: `peer` is the rank that gets too many rows
  kRowIndex = 22,  // a valid row index: `index` is the token, and `peer` is the index of the choice
  kOverlap = 23,  // the end of another call: call `seen` of operator `index` is running, and the refused call is call `wanted` of operator `peer`
  kWatched = 24,  // the arrival of all puts of an earlier call
  kCallRows = 25,  // a number of rows that the operator was prepared for
  kSameRows = 26,  // the same number of rows on all ranks: `peer` is a rank with `seen` rows or this hash of lengths, and this rank has `wanted`; `index` is the operator
  kSamePlace = 27,  // results at the same place of symmetric memory on all ranks: the place of rank `peer` has the low half `seen` and the high half `wanted`; `index` is the operator
  kOffset = 28,  // the offset of a packed sequence that is possible: offset `index` is `seen`, and `wanted` is the previous offset, or the most rows if there are too many
  kRowTwice = 29,  // a row of one token: `index` is a token of rank `wanted` with row `seen` of another token, and `peer` is the index of the choice
  kCachedRows = 30,  // a number of cached rows that is possible: sequence `index` has `seen` cached rows on rank `peer`, and `wanted` is the most
  kHidden = 31,  // hidden rows of an expert
  kReturned = 32,  // the results of a peer's experts
  kExpertOffset = 33,  // the offset of an expert that is possible: offset `index` is `seen`, `peer` is the previous offset, and `wanted` is the most
  kNoSuchRow = 34,  // a row of an expert: `seen` is the row index of choice `peer` of token `index`, and the rank of the row has `wanted` rows
  kPlaced = 35,  // a peer's places for results
};

enum Activity : u32 {
  kAwait = 1,  // wait
  kRunRole = 2,  // role: the whole run of a role
  kLoadTile = 3,  // load tile
  kMultiplyTile = 4,  // multiply tile
  kFinishTile = 5,  // finish tile: sums of other ranks and CTAs, and the epilogue
  kStoreTile = 6,  // store tile: writes a tile to C or to another rank
  kSendData = 7,  // send: data to other ranks
  kAddUp = 8,  // add up: data of all ranks
  kCopyData = 9,  // copy: data of other ranks to the result
  kRaiseFlag = 10,  // raise flag: a rank that waits sees this flag
  kEndStep = 11,  // end of step: in place of an awaited event, the event has the activity of the step
  kPoll = 12,  // begin of wait: its end is another event
};

}  // namespace mk
