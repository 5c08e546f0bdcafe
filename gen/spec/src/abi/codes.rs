//! Numbers that reports of kernels hold: who waited, and what for.

use serde::Serialize;
use std::fmt::Write;

/// An enum whose numbers and names device code has too. The text of each is what reports say, and `where` says what the
/// report's fields hold.
macro_rules! codes {
    (
        $(#[$attr:meta])*
        $name:ident, unknown $unknown:literal {
            $($code:ident = $value:literal, $text:literal $(where $fields:literal)?;)+
        }
    ) => {
        $(#[$attr])*
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $(
                #[doc = concat!($text, $(": ", $fields,)? ".")]
                $code = $value,
            )+
        }

        impl $name {
            /// The one with this number, in the words of a report.
            #[must_use]
            pub const fn describe(value: u32) -> &'static str {
                match value {
                    $($value => $text,)+
                    _ => $unknown,
                }
            }

            /// Its declaration in CUDA.
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
    /// Who waits in a kernel.
    Role, unknown "unknown role" {
        Push = 1, "push" where "sends to other ranks";
        Load = 2, "load" where "brings tiles to shared memory";
        Multiply = 3, "multiply" where "runs wgmma";
        Store = 4, "store" where "writes tiles of the result";
        Collect = 5, "collect" where "takes results of other ranks to C";
        Reduce = 6, "reduce" where "adds up what ranks have sent";
    }
}

codes! {
    /// What a kernel waits for; from [`Wait::Expert`] to [`Wait::Place`], what it expects of an operand's values.
    Wait, unknown "something unknown" {
        Chunk = 1, "a chunk of a peer's shard";
        Sent = 2, "the end of its own outgoing copies";
        StageFull = 3, "a pipeline stage to be filled";
        StageEmpty = 4, "a pipeline stage to be empty";
        OutputFull = 5, "an output buffer to be filled";
        OutputEmpty = 6, "an output buffer to be empty";
        Partial = 7, "another CTA's part of a sum";
        PeerPartial = 8, "a peer's part of a sum";
        Result = 9, "a tile that a peer adds up";
        Begun = 10, "a peer to begin the call";
        CommandSlot = 11, "a free slot of the ring of commands";
        Arrival = 12, "puts of a GPU of another node";
        PutSent = 13, "the end of its own puts";
        Pace = 14, "other CTAs, to load together";
        Room = 15, "room at a peer for the next keys";
        Routing = 16, "a peer's numbers of tokens for each rank";
        Counted = 17, "other CTAs, to count tokens";
        Expert = 18, "the number of an expert" where "`index` is the token, and `peer` the number of the choice";
        ExpertTwice = 19, "another expert for the same token"
            where "`index` is the token, and `peer` the number of the choice";
        Tokens = 20, "a possible number of tokens";
        Rows = 21, "room for all rows" where "`peer` is the rank that gets too many";
        Place = 22, "the place of a row" where "`index` is the token, and `peer` the number of the choice";
        Overlap = 23, "the end of another call"
            where "call `seen` of operator `index` is under way, and this is call `wanted` of operator `peer`";
    }
}

/// The device header that declares them, `mk/codes.cuh`.
#[must_use]
pub fn codes_header() -> String {
    let mut out = String::from(
        "// Who waits in a kernel, and what for: numbers in reports. Printed from gen/spec/src/abi/codes.rs by\n\
         // `cargo run -p xtask -- headers`.\n\
         #pragma once\n#include <mk/types.cuh>\n\nnamespace mk {\n\n",
    );
    Role::declare(&mut out);
    out.push('\n');
    Wait::declare(&mut out);
    out.push_str("\n}  // namespace mk\n");
    out
}
