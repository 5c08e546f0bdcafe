//! The order of accesses to global memory, and accesses that are wrong by themselves.

use super::super::harness::HostAction;
use super::*;

const TWO_CTAS: Shape = Shape { ctas: 2, ..SHAPE };
const TWO_RANKS: Shape = Shape { ranks: 2, ..SHAPE };

cases! {
    "a message between CTAs": "message", TWO_CTAS, [] {
        "stored without release": ["mk::store_release_gpu(flag, 1)" => "mk::store_relaxed_sys(flag, 1)"],
            "race", ["mk::store(words(args.output) + lane, mk::load(data + lane))", "mk::store(data + lane,"];
        "loaded without acquire": ["mk::load_acquire_gpu(flag)" => "mk::load_relaxed_sys(flag)"],
            "race", ["not ordered after an earlier write", "mk::store(data + lane,"];
        "one lane publishes before the others have stored": ["__syncwarp();  // one lane publishes for all" => ""],
            "race", ["mk::store(data + lane,"];
        "one lane acquires and the others do not wait for it": ["__syncwarp();  // one lane has seen for all" => ""],
            "race", ["mk::load(data + lane)"];
        "never sent": ["if (lane == 0) mk::store_release_gpu(flag, 1);" => ""],
            "deadlock", ["CTA 1 wait", "already ended: CTA 0 of rank 0", "mk::load_acquire_gpu(flag) != 1"];
    }
    "slots between ranks": "ranks", Shape { calls: 3, ..TWO_RANKS }, [] {
        "released at the scope of the GPU": ["mk::store_release_sys(sent" => "mk::store_release_gpu(sent"],
            "race", ["rank 1", "rank 0"];
        "acquired at the scope of the GPU": ["mk::load_acquire_sys(sent)" => "mk::load_acquire_gpu(sent)"],
            "race", ["rank 1", "rank 0"];
        "reused before it was read": ["while (mk::load_acquire_sys(taken) != args.call - 1) __nanosleep(32);" => ""],
            "race", ["is written, not ordered after an earlier read", "mk::store(slot + lane,", "mk::load(slot + lane)"];
        "released before it was read": [
            "mk::store(words(args.output) + lane, mk::load(slot + lane));\n    __syncwarp();\n    if (lane == 0) mk::store_release_sys(taken, args.call);"
                => "if (lane == 0) mk::store_release_sys(taken, args.call);\n    mk::store(words(args.output) + lane, mk::load(slot + lane));"
        ],
            "race", ["mk::store(slot + lane,", "mk::load(slot + lane)"];
    }
    "relaxed accesses and fences": "fences", TWO_RANKS, [] {
        "no fence of the writer": ["mk::fence_sys();  // of the writer" => ""],
            "race", ["mk::load(data + lane)", "mk::store(data + lane,"];
        "no fence of the reader": ["mk::fence_sys();  // of the reader" => ""],
            "race", ["mk::load(data + lane)", "mk::store(data + lane,"];
        "a fence that reaches the GPU alone": ["mk::fence_sys();  // of the writer" => "mk::fence_gpu();"],
            "race", ["mk::load(data + lane)", "mk::store(data + lane,"];
    }
    "counters": "counters", Shape { bytes: 256, ..TWO_CTAS }, [] {
        "a shuffle instead of __syncwarp": ["__syncwarp();  // a shuffle orders no memory" => ""],
            "race", ["mk::load(data + is_last * 32 + lane)", "mk::store(data + blockIdx.x * 32 + lane,"];
        "counted without order": [
            "is_last = mk::fetch_add_acq_rel_gpu(done, 1ull) == 1"
                => "mk::add_relaxed_sys(done, 1ull), is_last = mk::load_relaxed_sys(done) == 2"
        ],
            "race", ["mk::load(data + is_last * 32 + lane)", "mk::store(data + blockIdx.x * 32 + lane,"];
    }
    "words": "words", Shape { bytes: 4096, ..TWO_CTAS }, [] {
        "two writers of one word": ["args.output) + half * 256" => "args.output)"],
            "race", ["is written, not ordered after an earlier write", "CTA 0", "CTA 1", "mk::store(to + i"];
        "a read of unwritten memory": ["u64*>(args.input)" => "u64*>(args.output)"],
            "uninitialised read", ["mk::load(from + i)"];
        "a read out of bounds": ["mk::load(from + i)" => "mk::load(from + i + 1000)"],
            "failure", ["load out of bounds", "8192 bytes"];
        "a write out of bounds": ["mk::store(to + i," => "mk::store(to - 1 + i,"],
            "failure", ["store out of bounds"];
        "a plain access": ["mk::load(from + i)" => "from[i]"],
            "plain access", ["without a primitive", "from[i]", "rank 0, CTA"];
        "a division by zero": ["mk::load(from + i)" => "mk::load(from + i) / args.rank"],
            "arithmetic", ["divided by zero", "/ args.rank"];
    }
    "an answer in the place of what was sent": "echo", Shape { bytes: 512, ..TWO_CTAS }, [] {
        "stored before it has arrived": ["mk::Vec16 packet = {};" => "mk::Vec16 packet = {};\n    mk::store_vec16(source, packet);"],
            "race", ["is read, not ordered after an earlier write", "mk::load_sent_vec16(source)", "mk::store_vec16(source, packet)"];
        "loaded as what is not sent": ["mk::load_sent_vec16" => "mk::load_vec16"],
            "race", ["is written, not ordered after an earlier read", "mk::load_vec16(source)", "mk::store_vec16(source, data)"];
    }
    "a copy by the host": "host", Shape { host: HostAction::CopyThenFlag, ..SHAPE }, [] {}
    "waits with a deadline": "watch", TWO_RANKS, [] {
        "too little is sent": ["mk::store_release_sys(flag, 8)" => "mk::store_release_sys(flag, 7)"],
            "deadlock", ["wait in role load for", "index 24, from rank 0: wanted 8, seen 7", "mk::wait_flag(ctx, flag"];
        "nothing is sent": ["mk::store_release_sys(flag, 8)" => ""],
            "deadlock", ["index 24, from rank 0: wanted 8, seen 0", "mk::wait_flag(ctx, flag"];
    }
    "a barrier deadline beyond those of waits for peers": "late", Shape { threads: 64, late: true, ..TWO_RANKS }, [] {
        "the deadline of the barrier is not longer": [
            "barrier_deadline_ns = deadline_ns;" => "barrier_deadline_ns = deadline_ns / mk::kBarrierDeadlines;"
        ],
            "trap", ["mk::wait_barrier(ctx, barrier"];
    }
}
