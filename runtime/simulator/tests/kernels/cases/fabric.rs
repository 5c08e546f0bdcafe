//! Commands for the proxy, and arrivals: a correct kernel, and the mistakes that must be found.

use super::*;

const SHAPE_OF_PUTS: Shape = Shape {
    ranks: 2,
    ctas: 2,
    calls: 3,
    bytes: 32,
    ..SHAPE
};

cases! {
    "commands": "commands", SHAPE_OF_PUTS, [] {
        "published without release": [
            "mk::comm::publish_command(at.ring, index, put);"
                => "{\n      const u64 phase = index / 4 % 2 == 0 ? mk::kPhaseBit : 0;\n      u64* slot = reinterpret_cast<u64*>(at.ring.slots + index % 4);\n            mk::store_relaxed_sys(slot, u64{mk::kTagValid | index / 4});\n      mk::store_relaxed_sys(slot + 1, phase | 4ull << 32);\n      mk::store_relaxed_sys(slot + 2, phase | put.source_offset);\n      mk::store_relaxed_sys(slot + 3, phase | put.target_offset);\n    }"
        ],
            "race", ["in move: if (command.words", "mk::store(at.source + lane, word)"];
        "published for this GPU alone": [
            "mk::comm::publish_command(at.ring, index, put);"
                => "{\n      const u64 phase = index / 4 % 2 == 0 ? mk::kPhaseBit : 0;\n      u64* slot = reinterpret_cast<u64*>(at.ring.slots + index % 4);\n      mk::fence_gpu();\n      mk::store_relaxed_sys(slot, u64{mk::kTagValid | index / 4});\n      mk::store_relaxed_sys(slot + 1, phase | 4ull << 32);\n      mk::store_relaxed_sys(slot + 2, phase | put.source_offset);\n      mk::store_relaxed_sys(slot + 3, phase | put.target_offset);\n    }"
        ],
            "race", ["in move: if (command.words", "mk::store(at.source + lane, word)"];
        "no wait for a slot": [
            "if (mk::comm::wait_command_slot(ctx, mk::kPush, at.ring, index)) mk::comm::publish_command" => "mk::comm::publish_command"
        ],
            "deadlock", ["in take: while"];
        "a slot released before it was read": [
            "const Command command = take"
                => "mk::store_release_sys(&at.ring.words->consumed, index + 1);\n      const Command command = take"
        ],
            "deadlock", ["in take: while"];
        "a source overwritten before it was sent": ["mk::wait_flag(ctx, &at.ring.words->sent, mk::WaitSite{mk::kPush, mk::kPutSent, args.rank, index, index + 1});" => ""],
            "race", ["mk::store(at.source + lane, 0)"];
        "an arrival raised before the data": [
            "move(at, command);" => "mk::store_release_sys(at.arrived, index + 1);\n      move(at, command);"
        ],
            "race", ["mk::load(at.target + lane)"];
        "too few puts awaited": ["0, 5, 8 * args.call}" => "0, 5, 8 * args.call - 1}"],
            "race", ["mk::load(at.target + lane)"];
        "a claimed slot left empty": ["const u32 index = mk::fetch_add" => "mk::fetch_add_relaxed_gpu(&at.ring.state->claimed, 1);\n    const u32 index = mk::fetch_add"],
            "deadlock", ["wait in role push for", "the completion of this rank's puts"];
        "a proxy that stops reading": ["index != 8 * args.call; ++index" => "index != 8 * args.call - 7; ++index"],
            "deadlock", ["wait in role push for a free slot of the command ring"];
    }
    "commands posted at once": "commands", SHAPE_OF_PUTS, [
        "const u32 index = mk::fetch_add_relaxed_gpu(&at.ring.state->claimed, 1);" => "const u32 index = mk::comm::post_command(ctx, mk::kPush, at.ring, put);",
        "if (mk::comm::wait_command_slot(ctx, mk::kPush, at.ring, index)) mk::comm::publish_command(at.ring, index, put);" => ""
    ] {}
}
