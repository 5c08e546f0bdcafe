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
                => "{\n      u64* slot = reinterpret_cast<u64*>(at.ring.slots + index % 4);\n      mk::store(slot + 1, 4ull << 32);\n      mk::store(slot + 2, put.source_offset);\n      mk::store(slot + 3, put.target_offset);\n      mk::store_relaxed_sys(slot, u64{mk::kTagValid | index / 4});\n    }"
        ],
            "race", ["in move: const u32 bytes", "mk::store(slot + 1, 4ull << 32)"];
        "published for this GPU alone": [
            "mk::publish_command(at.ring, index, put);"
                => "{\n      u64* slot = reinterpret_cast<u64*>(at.ring.slots + index % 4);\n      mk::store(slot + 1, 4ull << 32);\n      mk::store(slot + 2, put.source_offset);\n      mk::store(slot + 3, put.target_offset);\n      mk::store_release_gpu(reinterpret_cast<u32*>(slot), mk::kTagValid | index / 4);\n    }"
        ],
            "race", ["in move: const u32 bytes", "mk::store(slot + 1, 4ull << 32)"];
        "no wait for a slot": [
            "if (mk::wait_command_slot(watch, mk::kPush, at.ring, index)) mk::publish_command" => "mk::publish_command"
        ],
            "race", ["is written, not ordered after an earlier", "mk::publish_command(at.ring, index, put)"];
        "a slot given back before it was read": [
            "move(at, slot);\n      mk::store_release_sys(&at.ring.words->consumed, index + 1);"
                => "mk::store_release_sys(&at.ring.words->consumed, index + 1);\n      move(at, slot);"
        ],
            "race", ["is written, not ordered after an earlier read", "mk::publish_command(at.ring, index, put)"];
        "a source overwritten before it was sent": ["mk::wait_put_sent(watch, mk::kPush, at.ring, index);" => ""],
            "race", ["mk::store(at.source + lane, 0)"];
        "an arrival raised before the data": [
            "move(at, slot);" => "mk::store_release_sys(at.arrived, index + 1);\n      move(at, slot);"
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
