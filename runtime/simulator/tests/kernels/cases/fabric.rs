//! Commands for the proxy, and arrivals.

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
            "mk::publish_command(at.ring, index, put);"
                => "{\n      const u64 phase = index / 4 % 2 == 0 ? mk::kPhaseBit : 0;\n      u64* slot = reinterpret_cast<u64*>(at.ring.slots + index % 4);\n            mk::store_relaxed_sys(slot, u64{mk::kTagValid | index / 4});\n      mk::store_relaxed_sys(slot + 1, phase | 4ull << 32);\n      mk::store_relaxed_sys(slot + 2, phase | put.source_offset);\n      mk::store_relaxed_sys(slot + 3, phase | put.target_offset);\n    }"
        ],
            "race", ["in move: if (command.words", "mk::store(at.source + lane, word)"];
        "published for this GPU alone": [
            "mk::publish_command(at.ring, index, put);"
                => "{\n      const u64 phase = index / 4 % 2 == 0 ? mk::kPhaseBit : 0;\n      u64* slot = reinterpret_cast<u64*>(at.ring.slots + index % 4);\n      mk::fence_gpu();\n      mk::store_relaxed_sys(slot, u64{mk::kTagValid | index / 4});\n      mk::store_relaxed_sys(slot + 1, phase | 4ull << 32);\n      mk::store_relaxed_sys(slot + 2, phase | put.source_offset);\n      mk::store_relaxed_sys(slot + 3, phase | put.target_offset);\n    }"
        ],
            "race", ["in move: if (command.words", "mk::store(at.source + lane, word)"];
        "no wait for a slot": [
            "if (mk::wait_command_slot(watch, mk::kPush, at.ring, index)) mk::publish_command" => "mk::publish_command"
        ],
            "deadlock", ["in take: while"];
        "a slot given back before it was read": [
            "const Command command = take"
                => "mk::store_release_sys(&at.ring.words->consumed, index + 1);\n      const Command command = take"
        ],
            "deadlock", ["in take: while"];
        "a source overwritten before it was sent": ["mk::wait_put_sent(watch, mk::kPush, at.ring, index);" => ""],
            "race", ["mk::store(at.source + lane, 0)"];
        "an arrival raised before the data": [
            "move(at, command);" => "mk::store_release_sys(at.arrived, index + 1);\n      move(at, command);"
        ],
            "race", ["mk::load(at.target + lane)"];
        "too few puts awaited": ["0, 5, 8 * args.call)" => "0, 5, 8 * args.call - 1)"],
            "race", ["mk::load(at.target + lane)"];
        "a claimed slot left empty": ["const u32 index = mk::claim" => "mk::claim_command(at.ring);\n    const u32 index = mk::claim"],
            "deadlock", ["in role push wait", "the end of its own puts"];
        "a proxy that reads no more": ["index != 8 * args.call; ++index" => "index != 8 * args.call - 7; ++index"],
            "deadlock", ["in role push wait for a free slot of the ring of commands"];
    }
    "commands posted at once": "commands", SHAPE_OF_PUTS, [
        "const u32 index = mk::claim_command(at.ring);" => "const u32 index = mk::post_command(watch, mk::kPush, at.ring, put);",
        "if (mk::wait_command_slot(watch, mk::kPush, at.ring, index)) mk::publish_command(at.ring, index, put);" => ""
    ] {}
}
