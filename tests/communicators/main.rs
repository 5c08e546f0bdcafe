//! Tests of resources that operators of a communicator share, but communicators do not. The first test counts threads and
//! descriptors of the process, so the tests of this program run one after another.

mod group_failures;
mod groups;
mod rebuild;

use mkernel::testing::in_threads;
use mkernel::{
    Communicator, Error, KernelConfig, Operator, Simulation, Stats,
    network::{Faults, NicModel, Transport},
    spec::{BLayout, Dim, GemmConfig, GemmOp, GemmShape, Problem, Tuning},
};
use mkernel_testing::block_on::block_on;
use mkernel_testing::jobs::Turns;
use mkernel_testing::kinds::ten_kinds;
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn prepare(ranks: &Communicator, config: &KernelConfig) -> Operator {
    let shape = config.problem.shape().expect("static dimensions");
    ranks.prepare(config, shape).expect("prepared")
}

/// Creates the communicators of four simulated GPUs in two nodes.
fn communicators(seed: u64) -> Vec<Communicator> {
    let simulation = Simulation {
        ranks: 4,
        seed,
        sms: 4,
        ..Simulation::default()
    };
    let all = Communicator::simulated(&simulation).expect("simulated GPUs");
    all.iter().for_each(use_emulated_nics);
    all
}

fn use_emulated_nics(ranks: &Communicator) {
    let (nic, faults) = (NicModel::default(), Faults::default());
    ranks.set_transport(Transport::Emulated { nic, faults });
}

/// Returns the number of threads of this process, and the number of its open descriptors without the descriptors of memory and
/// kernels of simulated GPUs.
fn threads_and_descriptors() -> (usize, usize) {
    let threads = fs::read_dir("/proc/self/task").expect("a folder").count();
    let descriptors = fs::read_dir("/proc/self/fd").expect("a folder");
    let is_of_runtime = |entry: &std::io::Result<fs::DirEntry>| {
        let path = entry.as_ref().expect("an entry").path();
        // Another thread may have closed the descriptor meanwhile.
        fs::read_link(path).is_ok_and(|target| {
            !target.starts_with("/memfd:mkernel-kernel (deleted)")
                && !target.starts_with("/memfd:mkernel-simulated-memory (deleted)")
        })
    };
    (threads, descriptors.filter(is_of_runtime).count())
}

#[test]
fn a_hundred_operators_need_as_many_threads_and_descriptors_as_one() {
    let _alone = alone();
    let kinds = ten_kinds(4, 2);
    assert_eq!(kinds.len(), 10);
    in_threads(communicators(1), |ranks| {
        // Only one rank counts, since counting opens descriptors. The other ranks wait meanwhile.
        let count = || {
            ranks.barrier().expect("all ranks take part");
            let counts = (ranks.rank() == 0).then(threads_and_descriptors);
            ranks.barrier().expect("all ranks take part");
            counts
        };
        let mut operators = vec![prepare(&ranks, &kinds[0])];
        assert_eq!(ranks.stats().fabrics.len(), 1);
        let of_one = count();
        for number in 1..100 {
            operators.push(prepare(&ranks, &kinds[number % kinds.len()]));
        }
        assert_eq!(count(), of_one);
        let stats = ranks.stats();
        // Equal operators share a workspace.
        assert_eq!((stats.fabrics.len(), stats.heap.workspaces), (1, 10));
        // Each workspace is registered once with each NIC.
        assert!(stats.heap.extents <= 20, "{stats:?}");
        drop(operators);
        ranks.barrier().expect("all ranks take part");
    });
}

/// Returns a small GEMM on two nodes.
fn small(ranks: &Communicator) -> (KernelConfig, GemmShape) {
    let shape = GemmShape {
        m: 128,
        n: 64,
        k: 64,
    };
    let config = GemmConfig {
        m: Dim::Static(shape.m),
        n: Dim::Static(shape.n),
        k: Dim::Static(shape.k),
        b_layout: BLayout::Nk,
        tuning: Tuning {
            comm_ctas: Some(1),
            ..Tuning::default()
        },
        ..GemmConfig::new(GemmOp::AgGemm)
    };
    let config = KernelConfig {
        nodes: 2,
        ..KernelConfig::new(ranks.world(), config)
    };
    (config, shape)
}

/// Makes a call of an operator with zeros, and waits for it.
fn call(ranks: &Communicator, operator: &Operator, shape: GemmShape) -> Result<(), Error> {
    let stream = ranks.context().new_stream().expect("a stream");
    let zeros = |elems: u64| {
        let memory = stream.alloc_zeros::<mkernel::half::bf16>(elems as usize);
        memory.expect("allocated")
    };
    let a = zeros(shape.m / u64::from(ranks.world()) * shape.k);
    let (b, mut c) = (zeros(shape.n * shape.k), zeros(shape.m * shape.n));
    operator.launch(&stream, &a, &b, &mut c)?;
    ranks.synchronize(&stream)
}

#[test]
fn a_communicator_survives_the_loss_of_a_rank_of_another_one() {
    let _alone = alone();
    let pairs: Vec<_> = communicators(2).into_iter().zip(communicators(3)).collect();
    let failed = in_threads(pairs, |(doomed, healthy)| {
        let (config, shape) = small(&doomed);
        let lost = doomed.prepare(&config, shape).expect("prepared");
        let kept = healthy.prepare(&config, shape).expect("prepared");
        call(&doomed, &lost, shape).expect("all take part");
        call(&healthy, &kept, shape).expect("all take part");
        healthy.barrier().expect("all ranks take part");
        let outcome = match doomed.rank() {
            3 => {
                drop((lost, doomed));
                Ok(())
            }
            _ => {
                doomed.set_timeout(Duration::from_secs(5));
                call(&doomed, &lost, shape)
            }
        };
        for _ in 0..3 {
            call(&healthy, &kept, shape).expect("nobody has left");
        }
        healthy.barrier().expect("all ranks take part");
        outcome.is_err()
    });
    assert_eq!(failed, [true, true, true, false]);
}

/// A future is ready when the calls of its rank are done. Polls of the future advance simulated GPUs.
#[test]
fn completions_can_be_awaited_instead_of_synchronize() {
    let _alone = alone();
    in_threads(communicators(4), |ranks| {
        let kinds = &ten_kinds(4, 2)[3..6];
        let mut turns = Turns::new(&ranks, kinds, &[0, 1, 2, 0]).expect("prepared");
        for _ in 0..4 {
            turns.call().expect("enqueued");
        }
        let completion = ranks.completion(turns.stream()).expect("created");
        block_on(completion).0.expect("all ranks make the calls");
        turns.check().expect("the same bits");
    });
}

/// Each of the two ranks of a node puts its rows to one rank of the other node.
#[test]
fn stats_count_what_ranks_have_sent() {
    let _alone = alone();
    let all = in_threads(communicators(5), |ranks| {
        let (config, shape) = small(&ranks);
        assert_eq!(ranks.stats(), Stats::default());
        let operator = ranks.prepare(&config, shape).expect("prepared");
        let stats = ranks.stats();
        assert_eq!(stats.heap.workspaces, 1);
        assert_eq!(stats.heap.used_bytes, operator.plan().workspace_bytes());
        assert_eq!(stats.fabrics[0].endpoint.puts, 0);
        for _ in 0..3 {
            call(&ranks, &operator, shape).expect("all take part");
        }
        // The proxies have counted all puts when the kernels of all ranks have ended.
        ranks.barrier().expect("all ranks take part");
        let stats = ranks.stats();
        drop(operator);
        ranks.barrier().expect("all ranks take part");
        (stats, shape)
    });
    for (stats, shape) in all {
        let [fabric] = &stats.fabrics[..] else {
            panic!("{stats:?}")
        };
        assert_eq!((fabric.transport, fabric.peers), ("emulated", 1));
        let counts = &fabric.endpoint;
        let shard_bytes = shape.m / 4 * shape.k * 2;
        assert_eq!(counts.put_bytes, 3 * shard_bytes, "{fabric}");
        assert!(counts.puts >= 3 && counts.puts == counts.arrivals);
        assert!(counts.commands > 0 && counts.commands <= counts.puts);
        let rails: u64 = counts.rails.iter().map(|rail| rail.bytes).sum();
        assert_eq!(rails, counts.put_bytes);
        assert_eq!((counts.credit_stalls, counts.dropped_writes), (0, 0));
    }
}

#[test]
fn memory_of_dropped_operators_is_used_again() {
    let _alone = alone();
    in_threads(communicators(4), |ranks| {
        let (config, shape) = small(&ranks);
        let first = ranks.prepare(&config, shape).expect("prepared");
        call(&ranks, &first, shape).expect("all take part");
        let wide = KernelConfig {
            max_sms: Some(3),
            ..config
        };
        // The first operator stays, and the other operators take turns in the space behind it.
        for _ in 0..20 {
            let operator = ranks.prepare(&wide, shape).expect("prepared");
            assert!(ranks.stats().heap.workspaces <= 3);
            call(&ranks, &operator, shape).expect("all take part");
            call(&ranks, &first, shape).expect("all take part");
        }
        assert_eq!(ranks.findings(), []);
    });
}

#[test]
fn equal_operators_share_their_memory() {
    let _alone = alone();
    in_threads(communicators(6), |ranks| {
        let (config, shape) = small(&ranks);
        let first = ranks.prepare(&config, shape).expect("prepared");
        let second = ranks.prepare(&config, shape).expect("prepared");
        assert_eq!(ranks.stats().heap.workspaces, 1);
        for operator in [&first, &second, &second, &first] {
            call(&ranks, operator, shape).expect("all take part");
        }
        drop(first);
        call(&ranks, &second, shape).expect("all take part");
        let third = ranks.prepare(&config, shape).expect("prepared");
        assert_eq!(ranks.stats().heap.workspaces, 1);
        call(&ranks, &third, shape).expect("all take part");
        // Each of equal operators has its own operands.
        for kind in ten_kinds(4, 2) {
            // `combine` reads rows of a `dispatch_gemm`.
            if matches!(kind.problem, Problem::Combine(_)) {
                continue;
            }
            let equal = vec![kind; 3];
            let order = [0, 1, 2, 2, 0, 1, 1, 0];
            let mut turns = Turns::new(&ranks, &equal, &order).expect("prepared");
            for _ in order {
                turns.call().expect("enqueued");
            }
            turns.check().expect("the same bits");
        }
        assert_eq!(ranks.findings(), []);
    });
}

/// Ranks drop operators at different times. An operator that only some ranks still have must not be shared, since calls of it would
/// wait for ranks without it.
#[test]
fn an_operator_that_some_ranks_have_dropped_is_not_shared() {
    let _alone = alone();
    in_threads(communicators(7), |ranks| {
        let (config, shape) = small(&ranks);
        let mut kept = Vec::new();
        for round in 0..4 {
            let operator = ranks.prepare(&config, shape).expect("prepared");
            // The workspaces that some rank still holds, and the workspace of the new operator.
            assert_eq!(ranks.stats().heap.workspaces, round + 1);
            call(&ranks, &operator, shape).expect("all take part");
            if ranks.rank() as usize != round {
                kept.push(operator);
            }
        }
        for operator in [(); 2].map(|()| ranks.prepare(&config, shape).expect("prepared")) {
            assert_eq!(ranks.stats().heap.workspaces, 5);
            call(&ranks, &operator, shape).expect("all take part");
        }
        assert_eq!(ranks.findings(), []);
    });
}
