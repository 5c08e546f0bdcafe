//! `dispatch_gemm` on several nodes: each token's rows where they belong, whatever the routing, the schedule and the network.

use crate::bad_network;
use crate::simulated::experts::Experts;
use crate::simulated::{Simulated, all_are_found, all_are_right, planted};
use std::time::Duration;

/// Seeds per job.
const SEEDS: u64 = 2;

fn job(ranks: (u32, u32), sizes: (u64, u64, u64)) -> Experts {
    let mut job = Experts::new(ranks, sizes);
    job.faults = bad_network();
    job
}

/// Choices that differ from token to token, and never have an expert twice.
fn mixed(job: &Experts, salt: usize) -> impl Fn(usize, usize) -> Vec<i32> + use<> {
    let (experts, top_k) = (job.shape.experts as usize, job.shape.top_k as usize);
    move |rank, token| {
        let first = (rank * 5 + token * 3 + salt) % experts;
        (0..top_k)
            .map(|j| ((first + j * (1 + token % 2)) % experts) as i32)
            .collect()
    }
}

/// Calls with other numbers of tokens each, so that each buffer is used again.
fn calls(job: Experts, counts: [&[usize]; 3]) -> Experts {
    counts
        .into_iter()
        .enumerate()
        .fold(job, |job, (salt, counts)| {
            let choose = mixed(&job, salt);
            job.call(counts, choose)
        })
}

#[test]
fn topologies() {
    let mut alone = calls(job((2, 1), (6, 3, 20)), [&[20, 20], &[0, 20], &[20, 7]]);
    alone.comm_ctas = Some(1);
    let two = calls(
        job((2, 2), (12, 3, 12)),
        [&[12, 0, 5, 12], &[0, 0, 12, 1], &[12; 4]],
    );
    let three = calls(
        job((3, 2), (12, 4, 6)),
        [&[6; 6], &[0, 0, 0, 0, 0, 2], &[6, 1, 6, 0, 3, 6]],
    );
    let odd = calls(
        job((2, 3), (6, 2, 7)),
        [&[7; 6], &[0; 6], &[7, 0, 7, 0, 7, 0]],
    );
    all_are_right(
        &[
            ("2 nodes of 1", alone),
            ("2 nodes of 2", two),
            ("3 nodes of 2", three),
            ("2 nodes of 3", odd),
        ],
        SEEDS,
    );
}

/// One expert has all, nobody sends anything, every token goes everywhere, no token leaves its node.
#[test]
fn skewed_choices() {
    let one = job((2, 2), (8, 2, 16))
        .call(&[16; 4], |_, _| vec![5, 4])
        .call(&[0; 4], |_, _| Vec::new())
        .call(&[16; 4], |rank, _| {
            vec![rank as i32 * 2, 7 - rank as i32 * 2]
        });
    let everywhere = job((2, 2), (4, 4, 9)).call(&[9, 2, 0, 9], |rank, token| {
        (0..4).map(|j| ((rank + token + j) % 4) as i32).collect()
    });
    let near = job((2, 2), (8, 2, 10))
        .call(&[10; 4], |rank, token| {
            let first = rank as i32 / 2 * 4;
            vec![first + (token % 4) as i32, first + (token as i32 + 1) % 4]
        })
        .call(&[10; 4], |rank, token| {
            vec![
                4 - rank as i32 / 2 * 4 + (token % 4) as i32,
                rank as i32 * 2,
            ]
        });
    all_are_right(
        &[
            ("one pair", one),
            ("all experts", everywhere),
            ("near, then far", near),
        ],
        SEEDS,
    );
}

/// Tokens longer than a slot of shared memory, more than one put has.
#[test]
fn several_puts() {
    let mut long = job((2, 2), (4, 2, 140));
    long.shape.hidden = 8200;
    long.shape.intermediate = 8;
    long.comm_ctas = Some(2);
    let choose = mixed(&long, 0);
    let long = long
        .call(&[140, 3, 0, 66], &choose)
        .call(&[1, 140, 70, 0], &choose);
    all_are_right(&[("long tokens", long)], SEEDS);
}

fn fails(job: &Experts, parts: &[&str]) {
    for seed in 0..2 {
        let failures = job.failures(seed).expect("simulated ranks");
        for (rank, failure) in failures.into_iter().enumerate() {
            let failure = failure.expect("a fault");
            assert!(!failure.contains("simulator found"), "{failure}");
            for part in parts {
                assert!(
                    failure.contains(part),
                    "rank {rank}: {part:?} in {failure:?}"
                );
            }
        }
    }
}

/// Every rank of every node names the rank and the token; calls that are already under way behind do no harm.
#[test]
fn wrong_choices_are_named_on_every_node() {
    let wrong = |expert: i32| {
        let right = |_, token: usize| vec![(token % 4) as i32, 4 + (token % 4) as i32];
        job((2, 2), (8, 2, 9))
            .call(&[9; 4], move |rank, token| match (rank, token) {
                (1, 6) => vec![3, expert],
                _ => right(rank, token),
            })
            .call(&[9, 0, 9, 9], right)
            .call(&[9; 4], right)
    };
    fails(&wrong(8), &["rank 1, call 1", "token 6", "expert 8"]);
    fails(&wrong(-1), &["rank 1, call 1", "token 6", "expert -1"]);
    fails(
        &wrong(3),
        &["rank 1, call 1", "token 6", "expert 3 twice", "choice 1"],
    );
}

#[test]
fn more_rows_than_room() {
    let mut full = job((2, 2), (8, 1, 10)).call(&[10; 4], |_, _| vec![5]);
    full.max_rows = Some(37);
    fails(&full, &["rank 2, call 1", "40 rows", "3 more", "(37)"]);
}

/// Ranks of both nodes give up at their deadlines: whoever is missing is needed before the first token leaves.
#[test]
fn an_absent_rank_ends_the_calls_of_all() {
    let job = job((2, 2), (8, 2, 9));
    let choose = mixed(&job, 0);
    let job = job.call(&[9; 4], choose);
    for absent in [0, 3] {
        let told = job.failures_without(absent, Duration::from_millis(500), 1);
        for (rank, told) in (0..).zip(told.expect("no findings")) {
            let is_right = match &told {
                None => rank == absent,
                Some(told) => told.contains("waited") && told.contains("call 2"),
            };
            assert!(is_right, "rank {rank} without {absent}: {told:?}");
        }
    }
}

/// What is wrong, and what is replaced by what.
type Mistake = (&'static str, &'static str, &'static str);

#[rustfmt::skip]
const MISTAKES: &[Mistake] = &[
    ("a packet put before it is written", "mk::Awaited{mk::kPush, mk::kRouting, watch.rank, watch.rank, watch.epoch * gridDim.x}", "mk::Awaited{mk::kPush, mk::kRouting, watch.rank, watch.rank, (watch.epoch - 1) * gridDim.x}"),
    ("a packet relayed before it has come", "      wait_put(watch, mk::kPush, 0, i / cfg::kLocalWorld, 0);\n", ""),
    ("numbers relayed without a fence", "  if (lane != 0) return;\n  mk::fence_sys();\n", "  if (lane != 0) return;\n"),
    ("one buffer of packets for all calls", "cfg::kPacketsIn + u64{epoch % 2 * cfg::kPeers", "cfg::kPacketsIn + u64{0 * cfg::kPeers"),
    ("the list of another rank", "e / cfg::kLocalExperts < to ? of_rows : 0", "0"),
    ("puts of the call before counted again", "mk::store(puts_at(watch, watch.epoch + 1, peer), wanted_of(peer));", "mk::store(puts_at(watch, watch.epoch + 1, peer), wanted_of(peer) - 1);"),
    ("a chunk put before it is packed", "mk::Awaited{mk::kPush, mk::kChunk, watch.rank, block, watch.epoch}", "mk::Awaited{mk::kPush, mk::kChunk, watch.rank, block, watch.epoch - 1}"),
    ("a chunk relayed before it has come", "    wait_put(watch, mk::kPush, 0, peer, 1 + first / cfg::kChunkTokens);\n", ""),
    ("a chunk put to the place of another source", "received_at(rank_of_peer(watch.rank, peer), watch.rank, first)", "received_at(rank_of_peer(watch.rank, peer), watch.rank ^ 1, first)"),
    ("tokens relayed to nobody", "if (destination_of(watch, e) == to && local != watch.local()) ranks |= 1u << local;", "if (destination_of(watch, e) != to && local != watch.local()) ranks |= 1u << local;"),
    ("a token told to be needed by the first rank only", "for (u32 i = first; i < first + cfg::kTopK; ++i) {\n    const u32 e", "for (u32 i = first; i < first + 1; ++i) {\n    const u32 e"),
    ("flags before relayed tokens have come", "  mk::tma_wait<0>();\n  mk::fence_proxy_async();\n  mk::fence_sys();\n", "  mk::fence_proxy_async();\n  mk::fence_sys();\n"),
    ("relayed without a fence for what NICs wrote", "  mk::fence_proxy_async();  // NICs wrote what TMA reads\n", ""),
    ("arrivals not told to all", "        mk::store_release_gpu(here, now);\n", "        mk::store(here, now);\n"),
];

/// Some seed finds each, and none finds anything in the kernel as it is.
#[test]
fn every_mistake_is_found() {
    const SEEDS: u64 = 20;
    let job = calls(
        job((2, 2), (8, 3, 12)),
        [&[12; 4], &[12, 0, 12, 5], &[12; 4]],
    );
    let alarm = (0..SEEDS / 4).find_map(|seed| job.run(seed).err());
    assert_eq!(alarm, None);
    let plant = |(name, from, to): &Mistake| (*name, planted(job.clone(), &[(*from, *to)]));
    all_are_found(&MISTAKES.iter().map(plant).collect::<Vec<_>>(), SEEDS);
}
