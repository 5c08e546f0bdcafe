//! Tests of absent ranks and of aborts on one node. All ranks must get an error in time, and new communicators in the
//! same process must work.

use crate::ranks::{
    GemmProblem, Operands, compute, launch, on_ranks, prepare, seed, worlds_of_whole_gpus,
};
use mkernel::{
    Communicator, Error, Operator,
    spec::{BLayout, GemmOp, GemmShape, Transfer, Tuning},
};
use mkernel_testing::lab::{Failure, Lab, TimeLimit};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_millis(500);
/// The time that a failure may take after its deadline.
const MARGIN: Duration = Duration::from_secs(2);
/// The time within which waiting ranks notice that a rank has left.
const LEAVING: Duration = Duration::from_secs(1);
/// A shape with so short a K that CTAs share no tiles. So all waits are for data of a peer.
const SHAPE: GemmShape = GemmShape {
    m: 2048,
    n: 512,
    k: 256,
};
/// The rank that makes no call.
const ABSENT: u32 = 1;

#[test]
#[ignore = "needs GPUs"]
fn an_absent_rank_is_named_in_pushes() {
    in_all_worlds(with_transfer(Transfer::SmPush), absent);
}

#[test]
#[ignore = "needs GPUs"]
fn an_absent_rank_is_named_in_copies() {
    in_all_worlds(with_transfer(Transfer::CopyEngine), absent);
}

#[test]
#[ignore = "needs GPUs"]
fn an_absent_rank_is_named_in_reductions() {
    for problem in reductions() {
        in_all_worlds(problem, absent);
    }
}

#[test]
#[ignore = "needs GPUs"]
fn an_abort_ends_the_waits_of_all_ranks() {
    in_all_worlds(with_transfer(Transfer::SmPush), aborted);
    in_all_worlds(with_transfer(Transfer::CopyEngine), aborted);
    for problem in reductions() {
        in_all_worlds(problem, aborted);
    }
}

/// A rank returns before the last call, and so drops its operator and its communicator. The other ranks do not wait until
/// their deadlines.
#[test]
#[ignore = "needs GPUs"]
fn a_rank_that_leaves_ends_the_waits_of_its_peers() {
    let _limit = TimeLimit::start("a rank that leaves", Duration::from_secs(120));
    let seed = seed();
    for world in worlds_of_whole_gpus(2) {
        on_ranks(world, |ranks| {
            let lab = Lab::new(&ranks.default_stream())?;
            let problem = with_transfer(Transfer::SmPush);
            let (operator, operands) = prepare(ranks, &lab, problem, 0)?;
            compute(ranks, &lab, &operator, &operands, (3, seed))?;
            ranks.barrier()?;
            if ranks.rank() == ABSENT {
                return Ok(());
            }
            let started = Instant::now();
            launch(&operator, &lab.stream, &operands.raw())?;
            let error = ranks.synchronize(&lab.stream);
            let took = started.elapsed();
            match error {
                Err(Error::LeftWithoutCall {
                    rank: ABSENT,
                    call: 4,
                    ..
                }) if took < LEAVING => Ok(()),
                error => Err(format!("after {took:?}: {error:?}").into()),
            }
        });
    }
}

/// A rank calls two operators in a different order. The error of each rank names the call that it has begun and the other rank has
/// not. Only the other rank knows which call runs there: the memory that ranks share counts calls that are about to end.
#[test]
#[ignore = "needs GPUs"]
fn a_different_order_of_calls_is_reported_at_the_deadline() {
    let _limit = TimeLimit::start("another order of calls", Duration::from_secs(120));
    for world in worlds_of_whole_gpus(2) {
        on_ranks(world, |ranks| {
            let lab = Lab::new(&ranks.default_stream())?;
            let mut prepared = Vec::new();
            for m in [SHAPE.m, 2 * SHAPE.m] {
                let problem = GemmProblem {
                    shape: GemmShape { m, ..SHAPE },
                    ..with_transfer(Transfer::SmPush)
                };
                prepared.push(prepare(ranks, &lab, problem, 0)?);
            }
            if ranks.rank() == ABSENT {
                prepared.reverse();
            }
            ranks.set_timeout(DEADLINE);
            for (operator, operands) in &prepared {
                launch(operator, &lab.stream, &operands.raw())?;
            }
            let error = ranks.synchronize(&lab.stream);
            // No rank leaves before all ranks have compared their calls.
            ranks.barrier()?;
            let Err(error @ Error::Timeout { .. }) = error else {
                return Err(format!("{error:?}").into());
            };
            let text = error.to_string();
            let parts = match ranks.rank() {
                ABSENT => [
                    "The ranks have begun different calls. Operator 2 (",
                    ": none on rank 0; call 1 on rank 1. ",
                ],
                _ => [
                    "The ranks have begun different calls. Operator 1 (",
                    ": call 1 on rank 0; none on rank 1. ",
                ],
            };
            match parts.iter().find(|part| !text.contains(**part)) {
                None => Ok(()),
                Some(part) => Err(format!("no {part:?} in {text}").into()),
            }
        });
    }
}

/// Returns a problem of `ag_gemm` with this way of transfer.
fn with_transfer(transfer: Transfer) -> GemmProblem {
    let tuning = Tuning {
        transfer: Some(transfer),
        split_k: Some(1),
        ..Tuning::default()
    };
    (SHAPE, BLayout::Kn, tuning).into()
}

/// Returns problems of the operators that reduce. In their plans, no rank waits for a rank that itself waits.
fn reductions() -> [GemmProblem; 2] {
    let summed = |op, round_tiles, shots| GemmProblem {
        op,
        tuning: Tuning {
            round_tiles,
            shots,
            split_k: Some(1),
            ..Tuning::default()
        },
        ..with_transfer(Transfer::SmPush)
    };
    [
        summed(GemmOp::GemmRs, Some(1 << 20), None),
        summed(GemmOp::GemmAr, None, Some(1)),
    ]
}

/// A rank whose calls will fail.
struct Rank<'a> {
    ranks: &'a Communicator,
    lab: &'a Lab,
    operator: &'a Operator,
    operands: &'a Operands,
}

impl Rank<'_> {
    fn launch(&self) -> Result<(), Error> {
        launch(self.operator, &self.lab.stream, &self.operands.raw())
    }

    fn synchronize(&self) -> Result<(), Error> {
        self.ranks.synchronize(&self.lab.stream)
    }
}

/// Runs `fail` on every rank after right calls. Then creates new communicators, on which calls must be right again.
fn in_all_worlds(problem: GemmProblem, fail: fn(&Rank<'_>) -> Result<(), Failure>) {
    let _limit = TimeLimit::start("ranks that fail", Duration::from_secs(120));
    let seed = seed();
    for world in worlds_of_whole_gpus(2) {
        for then in [Some(fail), None] {
            on_ranks(world, |ranks| {
                let lab = Lab::new(&ranks.default_stream())?;
                let (operator, operands) = prepare(ranks, &lab, problem, 0)?;
                let gemm = operator.plan().gemm();
                if gemm.is_none_or(|gemm| gemm.order.tail_splits > 1) {
                    return Err("the plan has tiles that CTAs share".into());
                }
                compute(ranks, &lab, &operator, &operands, (3, seed))?;
                ranks.barrier()?;
                let rank = Rank {
                    ranks,
                    lab: &lab,
                    operator: &operator,
                    operands: &operands,
                };
                then.map_or(Ok(()), |fail| fail(&rank))?;
                Ok(ranks.barrier()?)
            });
        }
    }
}

/// Makes a call on all ranks except one. The call must time out.
fn absent(rank: &Rank<'_>) -> Result<(), Failure> {
    let ranks = rank.ranks;
    if ranks.rank() == ABSENT {
        return Ok(());
    }
    let usual = ranks.timeout();
    ranks.set_timeout(DEADLINE);
    let started = Instant::now();
    rank.launch()?;
    let error = rank.synchronize();
    let took = started.elapsed();
    ranks.set_timeout(usual);

    let Err(error) = error else {
        return Err("a call without a rank went well".into());
    };
    let Error::Timeout {
        rank: reporter,
        role,
        awaited,
        peer,
        wanted,
        seen,
        epoch,
        aborted_by,
        waited,
        ..
    } = &error
    else {
        return Err(error.into());
    };
    // The deadlines of the ranks pass almost together. A rank aborts by itself, or because another rank aborted first.
    let in_time = took < DEADLINE + MARGIN && *waited < DEADLINE + MARGIN;
    let by_itself = aborted_by.is_none() && *waited >= DEADLINE;
    let by_another = aborted_by.is_some_and(|by| by != ABSENT && by != ranks.rank());
    let right = *reporter == ranks.rank()
        && ["load", "multiply"].contains(role)
        && ["a chunk of a peer's shard", "a peer's partial sum"].contains(awaited)
        && *peer == ABSENT
        && *epoch == 4
        && wanted != seen
        && in_time
        && (by_itself || by_another);
    if !right {
        return Err(format!("after {took:?}: {error:?}").into());
    }
    check_unusable(rank)
}

/// Makes a call on all ranks except one, and aborts it on rank 0.
fn aborted(rank: &Rank<'_>) -> Result<(), Failure> {
    let ranks = rank.ranks;
    if ranks.rank() == ABSENT {
        return Ok(());
    }
    rank.launch()?;
    let started = Instant::now();
    let error = std::thread::scope(|scope| {
        if ranks.rank() == 0 {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                ranks.abort();
            });
        }
        rank.synchronize()
    });
    let took = started.elapsed();
    let right = match &error {
        Err(Error::Aborted { .. }) => ranks.rank() == 0,
        Err(Error::Timeout { aborted_by, .. }) => *aborted_by == Some(0) && ranks.rank() != 0,
        _ => false,
    };
    if !right || took > MARGIN {
        return Err(format!("after {took:?}: {error:?}").into());
    }
    check_unusable(rank)
}

/// After a failure, no call can be launched.
fn check_unusable(rank: &Rank<'_>) -> Result<(), Failure> {
    let refused = rank.launch();
    let checked = rank.ranks.check();
    if matches!(refused, Err(Error::Aborted { .. })) && checked.is_err() {
        return Ok(());
    }
    Err(format!("launch: {refused:?}, check: {checked:?}").into())
}
