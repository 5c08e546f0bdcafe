//! Tests of groups whose ranks are absent, fail or are lost.

use crate::alone;
use crate::groups::{group, ranks};
use mkernel::cudarc::driver::CudaStream;
use mkernel::half::bf16;
use mkernel::testing::in_threads;
use mkernel::{Communicator, Error, fused_kernel};
use mkernel_testing::survival::dies;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[fused_kernel(op = all_reduce, m = 4, n = 64)]
struct Sum;

const DEADLINE: Duration = Duration::from_millis(500);

/// Makes a call with ones, and checks the sums.
fn sum(ranks: &Communicator, operator: &Sum) -> Result<(), Error> {
    let stream: Arc<CudaStream> = ranks.default_stream();
    let x = stream.clone_htod(&[bf16::ONE; 4 * 64]).expect("memory");
    let mut y = stream.alloc_zeros::<bf16>(4 * 64).expect("memory");
    operator.launch(&stream, SumOperands { x: &x, y: &mut y })?;
    ranks.synchronize(&stream)?;
    let y = stream.clone_dtoh(&y).expect("a copy");
    assert!(y.iter().all(|sum| sum.to_f32() == ranks.world() as f32));
    Ok(())
}

#[test]
fn a_rank_that_does_not_split_is_named_by_all() {
    let _alone = alone();
    in_threads(ranks(4, 7), |ranks| {
        if ranks.rank() == 3 {
            // This rank stays connected until the other ranks have given up.
            std::thread::sleep(8 * DEADLINE);
            return;
        }
        ranks.set_host_timeout(DEADLINE);
        let error = ranks.split(Some(ranks.rank() / 2), 0).expect_err("rank 3");
        let Error::RanksMissing { step, ranks, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((*step, &ranks[..]), ("split", &[3][..]));
    });
}

/// Rank 3 of the job does not make a call of its group. The other group and the communicator of all ranks continue.
#[test]
fn a_failed_call_ends_its_group_only() {
    let _alone = alone();
    in_threads(ranks(4, 8), |ranks| {
        let own = ranks.rank();
        let half = group(&ranks, own / 2, 0);
        let (of_all, of_half) = (
            Sum::prepare(&ranks).expect("prepared"),
            Sum::prepare(&half).expect("prepared"),
        );
        sum(&half, &of_half).expect("all take part");
        ranks.barrier().expect("all ranks");
        half.set_timeout(DEADLINE);
        match own {
            3 => {}
            2 => {
                let error = sum(&half, &of_half).expect_err("a rank is away");
                let Error::Timeout {
                    rank: 0,
                    peer: 1,
                    operator,
                    ..
                } = &error
                else {
                    panic!("{error}");
                };
                assert_eq!(operator.name(), "all_reduce Sum in group [2, 3]");
                let next = half.split(Some(0), 0).expect_err("out of use");
                assert!(
                    matches!(next, Error::Aborted { .. } | Error::RanksFailed { .. }),
                    "{next}"
                );
            }
            _ => sum(&half, &of_half).expect("both take part"),
        }
        if own == 3 {
            let error = half.split(Some(0), 0).expect_err("rank 2 has failed");
            assert!(matches!(error, Error::RanksFailed { .. }), "{error}");
        }
        ranks.barrier().expect("all ranks");
        sum(&ranks, &of_all).expect("all take part");
        assert_eq!(ranks.findings(), []);
        ranks.barrier().expect("all ranks");
    });
}

/// In a grid of 2x2 ranks, two ranks first call the operator of their row, and two ranks the operator of their column.
#[test]
fn deadlocked_calls_of_groups_end_at_the_deadline() {
    let _alone = alone();
    in_threads(ranks(4, 11), |ranks| {
        let own = ranks.rank();
        let groups = [group(&ranks, own / 2, 0), group(&ranks, own % 2, 0)];
        let sums = groups
            .each_ref()
            .map(|group| Sum::prepare(group).expect("prepared"));
        let stream = ranks.default_stream();
        let x = stream.clone_htod(&[bf16::ONE; 4 * 64]).expect("memory");
        let mut y = stream.alloc_zeros::<bf16>(4 * 64).expect("memory");
        ranks.barrier().expect("all ranks");
        groups.iter().for_each(|group| group.set_timeout(DEADLINE));
        let first = usize::from(matches!(own, 1 | 2));
        for sum in [&sums[first], &sums[1 - first]] {
            let operands = SumOperands { x: &x, y: &mut y };
            sum.launch(&stream, operands).expect("enqueued");
        }
        let error = groups[first].synchronize(&stream).expect_err("a deadlock");
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert_eq!(ranks.findings(), []);
        ranks.barrier().expect("all ranks");
    });
}

/// Calls an operator of a group until a call fails.
fn until_error(group: &Communicator, operator: &Sum) -> Error {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(60) {
        if let Err(error) = sum(group, operator) {
            return error;
        }
    }
    panic!("no error")
}

/// The group of the lost rank names it by its rank in the group, and the other group by its rank in the job.
#[test]
fn a_lost_rank_ends_its_group_and_the_other_groups() {
    let _alone = alone();
    in_threads(ranks(4, 9), |ranks| {
        let own = ranks.rank();
        let half = group(&ranks, own / 2, 0);
        let of_half = Sum::prepare(&half).expect("prepared");
        sum(&half, &of_half).expect("all take part");
        ranks.barrier().expect("all ranks");
        match own {
            3 => dies((of_half, half, ranks)),
            2 => {
                let error = until_error(&half, &of_half);
                let is_named = match &error {
                    Error::RankLost { rank, .. } | Error::LeftWithoutCall { rank, .. } => {
                        *rank == 1
                    }
                    Error::Timeout { lost, .. } => *lost == Some(1),
                    _ => false,
                };
                assert!(is_named, "{error}");
            }
            _ => {
                let error = until_error(&half, &of_half);
                assert!(error.to_string().contains("rank 3 is lost"), "{error}");
                let again = half.barrier().and_then(|()| half.check());
                again.expect_err("out of use");
            }
        }
    });
}

/// After the communicator of all ranks was dropped, groups do not learn of a lost rank of another group.
#[test]
fn groups_go_on_alone_when_their_communicator_was_dropped() {
    let _alone = alone();
    in_threads(ranks(4, 10), |ranks| {
        let own = ranks.rank();
        let half = group(&ranks, own / 2, 0);
        let of_half = Sum::prepare(&half).expect("prepared");
        ranks.barrier().expect("all ranks");
        drop(ranks);
        sum(&half, &of_half).expect("all take part");
        match own {
            3 => dies((of_half, half)),
            2 => drop(until_error(&half, &of_half)),
            _ => {
                for _ in 0..20 {
                    sum(&half, &of_half).expect("both take part");
                    std::thread::sleep(Duration::from_millis(10));
                }
                half.barrier().expect("both take part");
            }
        }
    });
}
