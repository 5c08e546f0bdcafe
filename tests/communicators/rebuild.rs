//! Tests of communicators that are rebuilt after ranks have failed.

use crate::groups::{group, ranks};
use crate::{alone, threads_and_descriptors, use_emulated_nics};
use mkernel::error::CallError;
use mkernel::half::bf16;
use mkernel::network::{Failure, Faults, NicModel, Transport};
use mkernel::spec::abi::Operand;
use mkernel::testing::in_threads;
use mkernel::{Error, fused_kernel};
use mkernel_testing::jobs::share;
use mkernel_testing::survival::{AnySum, FaultKind, Faulty, Random, weights};
use std::time::{Duration, Instant};

const M: usize = 4;
const N: usize = 64;

#[fused_kernel(op = all_reduce, m = 4, n = 64)]
struct Sum;

/// The timeout of hosts. It pauses while a rank waits for simulated GPUs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns a transport over a network that loses, delays and repeats messages.
fn emulated(seed: u64, failure: Option<Failure>) -> Transport {
    let faults = Faults {
        seed,
        jitter: Duration::from_micros(20),
        loss: 0.05,
        retransmission: Duration::from_micros(50),
        duplicates: 0.02,
        failure,
    };
    let nic = NicModel::default();
    Transport::Emulated { nic, faults }
}

/// Up to two of four ranks end at random points. The other ranks go on with right results.
#[test]
fn ranks_that_are_left_compute_whenever_others_end() {
    let _alone = alone();
    for seed in share((0..200).collect(), "", (0, 5)) {
        let mut random = Random(seed);
        let nodes = 1 + random.below(2) as u32;
        let kinds = [FaultKind::Ends, FaultKind::Dies, FaultKind::DiesInCall];
        let job = Faulty::random(&mut random, (4, nodes), &kinds);
        job.run(ranks(4, seed), TIMEOUT, |failure| emulated(seed, failure));
    }
}

/// Runs jobs of 4 to 8 ranks on two nodes with all kinds of faults and with NICs that lose and delay messages, for
/// `MKERNEL_CHAOS_S` seconds.
#[test]
#[ignore = "takes ten minutes"]
fn chaos() {
    let _alone = alone();
    let seconds =
        std::env::var("MKERNEL_CHAOS_S").map_or(600, |text| text.parse().expect("seconds"));
    let (started, mut most) = (Instant::now(), (0, 0));
    for seed in 0.. {
        if started.elapsed() >= Duration::from_secs(seconds) {
            println!("{seed} jobs");
            return;
        }
        let mut random = Random(seed);
        let world = [4, 6, 8][random.below(3) as usize];
        let job = Faulty::random(&mut random, (world, 2), &FaultKind::ALL);
        println!("seed {seed}: {job:?}");
        let seconds = Duration::from_secs(4);
        job.run(ranks(world, seed), seconds, |failure| {
            emulated(seed, failure)
        });
        // Threads that all jobs share are started when they are needed.
        if seed < 10 {
            let now = threads_and_descriptors();
            most = (most.0.max(now.0), most.1.max(now.1));
        }
        // Threads of a job may end a little later than the job.
        let waited = Instant::now();
        while threads_and_descriptors() > most && waited.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let (threads, descriptors) = threads_and_descriptors();
        let is_leak = threads > most.0 || descriptors > most.1;
        assert!(
            !is_leak,
            "seed {seed}: {threads} threads, {descriptors} descriptors, {most:?}"
        );
    }
}

/// Each new communicator computes with the tensor that its rank had from the start.
#[test]
fn fifty_rebuilds_need_as_much_memory_as_one() {
    let _alone = alone();
    in_threads(ranks(4, 1), |mut ranks| {
        use_emulated_nics(&ranks);
        let weights = weights(&ranks);
        let mut after_first = None;
        for generation in 1..=50 {
            let sums = [1, 2].map(|nodes| AnySum::prepare(&ranks, nodes).expect("prepared"));
            for sum in &sums {
                sum.check(&ranks, &weights).expect("all take part");
            }
            ranks.barrier().expect("all take part");
            let used = (ranks.rank() == 0).then(|| (threads_and_descriptors(), ranks.stats().heap));
            ranks.barrier().expect("all take part");
            let left = ranks.rebuild(4).expect("all are left");
            assert_eq!((left.world(), left.generation()), (4, generation));
            drop((sums, ranks));
            assert_eq!(
                used,
                *after_first.get_or_insert(used),
                "generation {generation}"
            );
            ranks = left;
            ranks.barrier().expect("all take part");
        }
    });
}

/// A graph of the former communicator is replayed before and after calls of the new communicator.
#[test]
fn replays_of_former_graphs_do_not_reach_the_new_communicator() {
    let _alone = alone();
    in_threads(ranks(2, 3), |ranks| {
        let weights = weights(&ranks);
        let sum = Sum::prepare(&ranks).expect("prepared");
        let stream = ranks.context().new_stream().expect("a stream");
        let x = stream.clone_htod(&[bf16::from_f32(-8.0); M * N]);
        let x = x.expect("memory");
        let mut y = stream.alloc_zeros::<bf16>(M * N).expect("memory");
        stream.synchronize().expect("uploaded");
        let enqueue = || {
            let call = sum.operator().call(&stream);
            let call = call.read(Operand::X, &x).write(Operand::Y, &mut y);
            // SAFETY: the operands exist until the last replay has ended, and only replays use them.
            unsafe { call.capture() }
        };
        // SAFETY: as above.
        let graph = unsafe { ranks.capture(&stream, enqueue) }.expect("captured");
        graph.launch().expect("replayed");
        ranks.synchronize(&stream).expect("both take part");
        ranks.barrier().expect("both take part");
        let left = ranks.rebuild(2).expect("both are left");
        let again = AnySum::prepare(&left, 1).expect("prepared");
        for _ in 0..4 {
            graph.launch().expect("replayed");
            again.check(&left, &weights).expect("both take part");
        }
        ranks.synchronize(&stream).expect_err("out of use");
        assert_eq!(left.findings(), []);
        left.barrier().expect("both take part");
    });
}

#[test]
fn what_cannot_be_rebuilt_is_an_error() {
    let _alone = alone();
    in_threads(ranks(2, 5), |ranks| {
        let group = group(&ranks, 0, 0);
        let error = group.rebuild(1).expect_err("a group");
        assert!(
            matches!(error, Error::Call(CallError::NotRebuildable)),
            "{error}"
        );
        let error = ranks.rebuild(3).expect_err("two ranks");
        let text = "at least 3 ranks were required, but the communicator has 2. Require 2 or fewer";
        assert_eq!(error.to_string(), text);
        ranks.barrier().expect("the communicators are as before");
        group.barrier().expect("the communicators are as before");
        let left = ranks.rebuild(2).expect("both are left");
        let error = ranks.rebuild(2).expect_err("rebuilt before");
        assert!(
            matches!(error, Error::Call(CallError::NotRebuildable)),
            "{error}"
        );
        let inner = left
            .split(Some(0), 0)
            .expect("both take part")
            .expect("a group");
        assert_eq!(
            (inner.generation(), left.generation(), ranks.generation()),
            (1, 1, 0)
        );
        inner.barrier().expect("both take part");
        left.barrier().expect("both take part");
    });
}
