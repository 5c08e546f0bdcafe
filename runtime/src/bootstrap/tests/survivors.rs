//! Tests of the ranks that are left after other ranks have failed.

use super::processes::{expect_read, start_child};
use super::*;
use crate::error::CallError;
use mkernel_sim::world::Random;

/// Runs `body` on `world` threads that are connected over TCP and know each other's addresses.
fn on_jobs_with_doors<T: Send>(
    world: u32,
    job: impl Fn(u32, u16) -> Job + Sync,
    body: impl Fn(Collective) -> T + Sync,
) -> Vec<T> {
    in_threads(connect_all(world, job), |group| {
        let group = group.expect("the ranks connect");
        body(Collective::with_doors(group, TIMEOUT).expect("all ranks come"))
    })
}

fn with_doors<T: Send>(world: u32, body: impl Fn(Collective) -> T + Sync) -> Vec<T> {
    on_jobs_with_doors(world, |rank, port| job(rank, world, port), body)
}

/// Closes the connections of a rank without a `Goodbye` frame, like a process that is killed.
fn dies(ranks: Collective) {
    let panic = std::panic::AssertUnwindSafe(move || {
        let _ranks = ranks;
        std::panic::resume_unwind(Box::new("dies"));
    });
    std::panic::catch_unwind(panic).expect_err("it panics");
}

/// Connects the ranks that are left and lets them work. Returns their former ranks and the result of the work.
fn rebuild(ranks: &mut Collective, at_least: u32) -> Result<(Vec<u32>, String), Error> {
    let (left, former) = ranks.connect_survivors(at_least, TIMEOUT)?;
    assert_eq!(former.len() as u32, left.world());
    Ok((former, work(left)))
}

fn expected(gone: &[u32], world: u32) -> Vec<Option<(Vec<u32>, String)>> {
    let left: Vec<u32> = (0..world).filter(|rank| !gone.contains(rank)).collect();
    let of_rank = |rank: u32| {
        let place = left.iter().position(|other| *other == rank)? as u32;
        Some((left.clone(), expected_work(place, left.len() as u32)))
    };
    (0..world).map(of_rank).collect()
}

#[test]
fn the_ranks_that_are_left_connect_whichever_have_died() {
    for gone in [&[0][..], &[3], &[1, 2], &[0, 1], &[0, 1, 2], &[]] {
        let started = Instant::now();
        let found = with_doors(4, |mut ranks| {
            if gone.contains(&ranks.rank()) {
                dies(ranks);
                return None;
            }
            Some(rebuild(&mut ranks, 1).expect("ranks are left"))
        });
        assert_eq!(found, expected(gone, 4), "without {gone:?}");
        let took = started.elapsed();
        assert!(took < TIMEOUT / 4, "without {gone:?}: {took:?}");
    }
}

/// The ranks of each host know their host, and the first rank that is left is on another host than rank 0.
#[test]
fn ranks_of_several_hosts_connect_with_and_without_a_secret() {
    for secret in [None, Secret::new(b"a secret of the whole job")] {
        let on_hosts = |rank, port| Job {
            host_id: ["a", "a", "b", "b"][rank as usize].into(),
            several_hosts: true,
            secret: secret.clone(),
            ..job(rank, 4, port)
        };
        let found = on_jobs_with_doors(4, on_hosts, |mut ranks| {
            if ranks.rank() < 2 {
                dies(ranks);
                return None;
            }
            let rank = ranks.rank();
            let (left, former) = ranks.connect_survivors(2, TIMEOUT).expect("two are left");
            let hosts = left.host_map().all();
            Some((rank, former, hosts, work(left)))
        });
        let of = |rank, work: &str| Some((rank, vec![2, 3], vec![vec![0, 1]], work.to_owned()));
        assert_eq!(found[2..], [of(2, "-1"), of(3, "0-")]);
    }
}

/// Takes part in steps until `is_over`, and connects again after each failure. Returns whether `is_over` ended this.
fn lives(mut ranks: Collective, former: &mut Vec<u32>, is_over: impl Fn(usize) -> bool) -> bool {
    loop {
        if is_over(former.len()) {
            dies(ranks);
            return true;
        }
        let text = format!("{former:?}");
        match ranks.all_gather("round", text.as_bytes(), TIMEOUT) {
            Ok(all) => assert_eq!(all, vec![text.into_bytes(); former.len()]),
            Err(_) => {
                let (left, places) = ranks.connect_survivors(2, TIMEOUT).expect("two are left");
                *former = places.iter().map(|place| former[*place as usize]).collect();
                ranks = left;
            }
        }
        if former.len() == 2 {
            return false;
        }
    }
}

/// Two of four ranks die at random times, the second one before or after the others have connected again.
#[test]
fn ranks_may_die_at_any_time() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let first = random.below(4) as u32;
        let second = (first + 1 + random.below(3) as u32) % 4;
        let after = [(); 2].map(|()| Duration::from_micros(random.below(8000) as u64));
        let found = with_doors(4, |ranks| {
            let (rank, started) = (ranks.rank(), Instant::now());
            let dead = [first, second].iter().position(|dead| *dead == rank);
            let mut former = vec![0, 1, 2, 3];
            let died = lives(ranks, &mut former, |_| {
                dead.is_some_and(|i| started.elapsed() >= after[i])
            });
            (!died).then_some(former)
        });
        let left: Vec<u32> = (0..4).filter(|r| ![first, second].contains(r)).collect();
        for rank in 0..4 {
            let expected = left.contains(&rank).then(|| left.clone());
            assert_eq!(found[rank as usize], expected, "seed {seed}, rank {rank}");
        }
    }
}

/// The test of a process that lives until two ranks are left.
pub fn rank_that_lives(ranks: Collective) -> String {
    let mut former = vec![0, 1, 2, 3];
    lives(ranks, &mut former, |_| false);
    format!("{former:?}")
}

/// The second process is killed while the others connect again, or shortly before or after.
#[test]
fn processes_may_be_killed_at_any_time() {
    for seed in 0..8 {
        let mut random = Random(seed);
        let first = random.below(4);
        let second = (first + 1 + random.below(3)) % 4;
        let port = free_port();
        let start = |rank| start_child(rank, 4, port, &[("TEST_LIVE", "1")]);
        let mut children: Vec<_> = (0..4).map(start).collect();
        std::thread::sleep(Duration::from_millis(400 + random.below(100) as u64));
        for (dead, pause) in [(first, random.below(12)), (second, 0)] {
            children[dead].kill().expect("it runs");
            std::thread::sleep(Duration::from_millis(pause as u64));
        }
        let left: Vec<usize> = (0..4).filter(|r| ![first, second].contains(r)).collect();
        for (rank, mut child) in children.into_iter().enumerate() {
            match left.contains(&rank) {
                true => expect_read(rank as u32, child, &format!("{left:?}")),
                false => assert!(!child.wait().expect("it ended").success(), "seed {seed}"),
            }
        }
    }
}

/// A rank that is connected but silent is left out, and finds out that the others went on.
#[test]
fn a_silent_rank_is_left_out_after_the_timeout() {
    const WAIT: Duration = Duration::from_secs(2);
    for silent in [0, 2] {
        let (left, late) = (std::sync::Barrier::new(3), std::sync::Barrier::new(4));
        let found = with_doors(4, |mut ranks| {
            if ranks.rank() == silent {
                late.wait();
                let error = ranks.connect_survivors(2, WAIT).err().expect("it is late");
                let Error::RanksMissing { step, ranks, .. } = &error else {
                    panic!("{error}");
                };
                assert_eq!((*step, ranks.len()), ("rebuild", 3));
                return Vec::new();
            }
            left.wait();
            let (connected, former) = ranks.connect_survivors(3, WAIT).expect("three are left");
            late.wait();
            let again = ranks.connect_survivors(1, WAIT).err();
            assert!(matches!(
                again,
                Some(Error::Call(CallError::NotRebuildable))
            ));
            work(connected);
            former
        });
        let three: Vec<u32> = (0..4).filter(|rank| *rank != silent).collect();
        let expected = |rank| {
            if rank == silent {
                Vec::new()
            } else {
                three.clone()
            }
        };
        assert_eq!(found, (0..4).map(expected).collect::<Vec<_>>());
    }
}

/// Fewer ranks than required are left. They can connect after that with a lower requirement.
#[test]
fn too_few_ranks_are_an_error_on_all_and_can_try_again() {
    let found = with_doors(4, |mut ranks| {
        if ranks.rank() < 2 {
            dies(ranks);
            return None;
        }
        let error = rebuild(&mut ranks, 3).expect_err("two are left");
        let Error::RanksMissing {
            step,
            ranks: missing,
            ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!((*step, &missing[..]), ("rebuild", &[0, 1][..]));
        Some(rebuild(&mut ranks, 2).expect("two are left"))
    });
    assert_eq!(found, expected(&[0, 1], 4));
}

#[test]
fn a_stop_ends_the_wait_for_other_ranks() {
    with_doors(2, |mut ranks| {
        let (stop, rank) = (ranks.stop(), ranks.rank());
        if rank == 1 {
            std::thread::sleep(4 * SHORT);
            return;
        }
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(SHORT);
                stop.set();
            });
            ranks.begin();
            let started = Instant::now();
            let error = ranks.connect_survivors(2, TIMEOUT).err().expect("stopped");
            assert!(matches!(error, Error::Aborted { .. }), "{error}");
            assert!(started.elapsed() < TIMEOUT / 4);
        });
    });
}

#[test]
fn a_group_of_a_split_is_not_rebuilt() {
    with_doors(2, |mut ranks| {
        let group = ranks.connect_group(&[0, 1], TIMEOUT).expect("both come");
        let error = group.expect("a group").connect_survivors(1, TIMEOUT).err();
        assert!(matches!(
            error,
            Some(Error::Call(CallError::NotRebuildable))
        ));
    });
}

/// The test of a process: ranks 0 and 2 are killed. Returns the former ranks and the result of the work of the others.
pub fn rank_that_rebuilds(mut ranks: Collective) -> String {
    ranks.barrier("before", TIMEOUT).expect("all ranks come");
    if ranks.rank().is_multiple_of(2) {
        std::process::abort();
    }
    ranks.barrier("after", TIMEOUT).expect_err("ranks are lost");
    let (former, work) = rebuild(&mut ranks, 2).expect("two are left");
    format!("{former:?} {work}")
}

#[test]
fn processes_that_are_left_connect() {
    let port = free_port();
    let start = |rank| start_child(rank, 4, port, &[("TEST_SURVIVE", "1")]);
    let children: Vec<_> = (0..4).map(start).collect();
    for (rank, mut child) in (0..).zip(children) {
        match rank {
            0 | 2 => assert!(!child.wait().expect("it ended").success()),
            1 => expect_read(rank, child, "[1, 3] -1"),
            _ => expect_read(rank, child, "[1, 3] 0-"),
        }
    }
}

/// The test of a process that may be stopped. Returns the ranks that a step missed, and the ranks that are left.
pub fn rank_that_may_stop(mut ranks: Collective) -> String {
    const WAIT: Duration = Duration::from_secs(3);
    let error = loop {
        if let Err(error) = ranks.barrier("round", WAIT) {
            break error;
        }
    };
    match (ranks.connect_survivors(3, WAIT), error) {
        (Ok((_, left)), Error::RanksMissing { ranks, .. }) => format!("{ranks:?} late, {left:?}"),
        (Err(Error::RanksMissing { .. }), _) => "left out".to_owned(),
        (result, error) => format!("{error}; {:?}", result.map(|(_, left)| left)),
    }
}

/// All other ranks name the process in time and go on. When it continues, it finds out that it was left out.
#[test]
fn a_stopped_process_is_named_and_left_out() {
    use rustix::process::{Pid, Signal, kill_process};
    for stopped in [1, 0] {
        let port = free_port();
        let start = |rank| start_child(rank, 4, port, &[("TEST_STOP", "1")]);
        let mut children: Vec<_> = (0..4).map(start).collect();
        std::thread::sleep(Duration::from_secs(1));
        let pid = Pid::from_child(&children[stopped as usize]);
        kill_process(pid, Signal::STOP).expect("it runs");
        let child = children.remove(stopped as usize);
        let left: Vec<u32> = (0..4).filter(|rank| *rank != stopped).collect();
        for (rank, child) in left.iter().zip(children) {
            expect_read(*rank, child, &format!("[{stopped}] late, {left:?}"));
        }
        kill_process(pid, Signal::CONT).expect("it exists");
        expect_read(stopped, child, "left out");
    }
}
