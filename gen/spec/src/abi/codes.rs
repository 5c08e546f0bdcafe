//! Codes in reports and traces of kernels: roles, awaited events and activities.

use serde::Serialize;
use std::fmt::Write;

/// Declares an enum whose values and names are also declared in device code. The text of each value is used in reports.
/// `where` describes the fields of the report.
macro_rules! codes {
    (
        $(#[$attr:meta])*
        $name:ident, unknown $unknown:literal {
            $($code:ident = $value:literal, $text:literal $(where $fields:literal)?;)+
        }
    ) => {
        $(#[$attr])*
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $(
                #[doc = concat!($text, $(": ", $fields,)? ".")]
                $code = $value,
            )+
        }

        impl $name {
            /// Returns the text of the value with this number.
            #[must_use]
            pub const fn describe(value: u32) -> &'static str {
                match value {
                    $($value => $text,)+
                    _ => $unknown,
                }
            }

            /// Returns the value with this number.
            #[must_use]
            pub const fn of(value: u32) -> Option<Self> {
                match value {
                    $($value => Some(Self::$code),)+
                    _ => None,
                }
            }

            /// Appends the declaration in CUDA.
            fn declare(out: &mut String) {
                let _ = writeln!(out, "enum {} : u32 {{", stringify!($name));
                $(
                    let meaning = concat!($text, $(": ", $fields)?);
                    let _ = writeln!(out, "  k{} = {},  // {meaning}", stringify!($code), $value);
                )+
                out.push_str("};\n");
            }
        }
    };
}

codes! {
    /// The role of the warps that wait in a kernel.
    Role, unknown "unknown role" {
        Push = 1, "push" where "sends data to other ranks";
        Load = 2, "load" where "loads tiles into shared memory";
        Multiply = 3, "multiply" where "issues wgmma instructions";
        Store = 4, "store" where "writes tiles of the result";
        Collect = 5, "collect" where "copies results of other ranks to C or Y";
        Reduce = 6, "reduce" where "adds up what other ranks have sent";
    }
}

codes! {
    /// The event that a kernel waits for. The codes from [`Wait::Expert`] to [`Wait::RowIndex`] are requirements on the values of an
    /// operand.
    Wait, unknown "something unknown" {
        Chunk = 1, "a chunk of a peer's shard";
        Sent = 2, "the end of this rank's outgoing copies";
        StageFull = 3, "a full pipeline stage";
        StageEmpty = 4, "an empty pipeline stage";
        OutputFull = 5, "a full output buffer";
        OutputEmpty = 6, "an empty output buffer";
        Partial = 7, "another CTA's partial sum";
        PeerPartial = 8, "a peer's partial sum";
        Result = 9, "a tile that a peer reduces";
        Begun = 10, "a peer's start of the call";
        CommandSlot = 11, "a free slot of the command ring";
        Arrival = 12, "puts from a GPU of another node";
        PutSent = 13, "the completion of this rank's puts";
        Pace = 14, "other CTAs that keep pace";
        Room = 15, "a free K/V slot at a peer";
        Routing = 16, "a peer's token counts";
        Counted = 17, "other CTAs that count tokens";
        Expert = 18, "a valid expert id" where "`index` is the token, and `peer` is the index of the choice";
        ExpertTwice = 19, "different experts of one token"
            where "`index` is the token, and `peer` is the index of the choice";
        Tokens = 20, "a valid number of tokens";
        Rows = 21, "room for all rows" where "`peer` is the rank that gets too many rows";
        RowIndex = 22, "a valid row index" where "`index` is the token, and `peer` is the index of the choice";
        Overlap = 23, "the end of another call"
            where "call `seen` of operator `index` is running, and the refused call is call `wanted` of operator `peer`";
        Watched = 24, "the arrival of all puts of an earlier call";
        CallRows = 25, "a number of rows that the operator was prepared for";
        SameRows = 26, "the same number of rows on all ranks"
            where "`peer` is a rank with `seen` rows or this hash of lengths, and this rank has `wanted`; `index` is the operator";
        SamePlace = 27, "results at the same place of symmetric memory on all ranks"
            where "the place of rank `peer` has the low half `seen` and the high half `wanted`; `index` is the operator";
        Offset = 28, "the offset of a packed sequence that is possible"
            where "offset `index` is `seen`, and `wanted` is the previous offset, or the most rows if there are too many";
        RowTwice = 29, "a row of one token"
            where "`index` is a token of rank `wanted` with row `seen` of another token, and `peer` is the index of the choice";
        CachedRows = 30, "a number of cached rows that is possible"
            where "sequence `index` has `seen` cached rows on rank `peer`, and `wanted` is the most";
        Hidden = 31, "hidden rows of an expert";
        Returned = 32, "the results of a peer's experts";
        ExpertOffset = 33, "the offset of an expert that is possible"
            where "offset `index` is `seen`, `peer` is the previous offset, and `wanted` is the most";
        NoSuchRow = 34, "a row of an expert"
            where "`seen` is the row index of choice `peer` of token `index`, and the rank of the row has `wanted` rows";
        Placed = 35, "a peer's places for results";
    }
}

codes! {
    /// The activity of an event of a [trace](super::TraceEvent).
    Activity, unknown "unknown activity" {
        Await = 1, "wait";
        RunRole = 2, "role" where "the whole run of a role";
        LoadTile = 3, "load tile";
        MultiplyTile = 4, "multiply tile";
        FinishTile = 5, "finish tile" where "sums of other ranks and CTAs, and the epilogue";
        StoreTile = 6, "store tile" where "writes a tile to C or to another rank";
        SendData = 7, "send" where "data to other ranks";
        AddUp = 8, "add up" where "data of all ranks";
        CopyData = 9, "copy" where "data of other ranks to the result";
        RaiseFlag = 10, "raise flag" where "a rank that waits sees this flag";
        EndStep = 11, "end of step" where "in place of an awaited event, the event has the activity of the step";
        Poll = 12, "begin of wait" where "its end is another event";
    }
}

/// Returns the device header that declares the codes, `mk/codes.cuh`.
#[must_use]
pub fn codes_header() -> String {
    let mut out = String::from(
        "// Codes of roles and waits in reports, and of activities in traces. Printed from gen/spec/src/abi/codes.rs by\n\
         // `cargo run -p xtask -- headers`.\n\
         #pragma once\n#include <mk/types.cuh>\n\nnamespace mk {\n\n",
    );
    Role::declare(&mut out);
    out.push('\n');
    Wait::declare(&mut out);
    out.push('\n');
    Activity::declare(&mut out);
    out.push_str("\n}  // namespace mk\n");
    out
}
