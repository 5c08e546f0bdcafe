//! Tests of groups of ranks that are processes.

use super::processes::{expect_read, start_child};
use super::*;
use crate::health::{Ancestors, Health};

/// Connects the group of `of_rank` for each rank. Returns the results of the group's work, or `none` of ranks without a group.
fn works(
    world: u32,
    job: impl Fn(u32, u16) -> Job + Sync,
    of_rank: impl Fn(u32) -> &'static [u32] + Sync,
) -> Vec<String> {
    on_jobs(world, job, |mut ranks| {
        let group = ranks.connect_group(of_rank(ranks.rank()), TIMEOUT);
        let worked = group.expect("all ranks come").map(work);
        ranks
            .barrier("end of the groups", TIMEOUT)
            .expect("the ranks stay connected");
        worked.unwrap_or_else(|| "none".to_owned())
    })
}

#[test]
fn groups_of_a_host_work_beside_each_other() {
    let groups = |rank| -> &'static [u32] {
        match rank {
            0 | 3 | 5 => &[5, 3, 0],
            1 => &[1],
            2 | 4 => &[2, 4],
            _ => &[],
        }
    };
    let expected = ["01-", "-", "-1", "0-2", "0-", "-12", "none"];
    assert_eq!(works(7, |rank, port| job(rank, 7, port), groups), expected);
}

/// The first rank of each group connects to ranks of another host.
#[test]
fn groups_cross_hosts_with_and_without_a_secret() {
    for secret in [None, Secret::new(b"a secret of the whole job")] {
        let on_hosts = |rank, port| Job {
            host_id: ["a", "a", "b", "b"][rank as usize].into(),
            several_hosts: true,
            secret: secret.clone(),
            ..job(rank, 4, port)
        };
        let crossed = |rank| -> &'static [u32] { [&[2, 0][..], &[1, 3]][rank as usize % 2] };
        assert_eq!(works(4, on_hosts, crossed), ["--"; 4]);
        let reversed = |_| -> &'static [u32] { &[3, 2, 1, 0] };
        assert_eq!(
            works(4, on_hosts, reversed),
            ["--2-", "---3", "0---", "-1--"]
        );
    }
}

#[test]
fn a_group_of_a_group_is_connected() {
    let worked = on_ranks(4, |mut ranks| {
        let halves = [&[0, 1][..], &[2, 3]][ranks.rank() as usize / 2];
        let half = ranks.connect_group(halves, TIMEOUT).expect("all come");
        let mut half = half.expect("a group");
        let reversed = half.connect_group(&[1, 0], TIMEOUT).expect("both come");
        work(reversed.expect("a group"))
    });
    assert_eq!(worked, ["0-", "-1", "0-", "-1"]);
}

/// The ranks in the group of rank 2 wait for rank 2, and all other ranks wait for this group.
#[test]
fn a_rank_that_leaves_before_its_group_is_connected_is_named_by_all() {
    let started = Instant::now();
    let errors = on_ranks(4, |mut ranks| {
        let rank = ranks.rank();
        (rank != 2).then(|| {
            let members = [&[0, 2][..], &[1, 3]][rank as usize % 2];
            ranks.connect_group(members, TIMEOUT).err()
        })
    });
    assert!(started.elapsed() < TIMEOUT / 2);
    for error in errors.into_iter().flatten() {
        let error = error.expect("rank 2 is gone");
        assert!(matches!(error, Error::RankLeft { rank: 2, .. }), "{error}");
    }
}

/// The test of a process: rank 3 dies after all groups are connected. Returns the errors of the group and of all ranks.
pub fn rank_with_a_group(mut ranks: Collective) -> String {
    let members = [[0, 1], [3, 2]][ranks.rank() as usize / 2];
    let group = ranks.connect_group(&members, TIMEOUT).expect("all come");
    if ranks.rank() == 3 {
        std::process::abort();
    }
    let all = Health::new(ranks, &[0, 1, 2, 3], Ancestors::default());
    let group = Health::new(group.expect("a group"), &members, all.for_groups());
    let started = Instant::now();
    while started.elapsed() < TIMEOUT / 2 && !(all.has_failed() && group.has_failed()) {
        all.poll();
        group.poll();
        std::thread::sleep(Duration::from_millis(5));
    }
    let errors = [group, all].map(|health| {
        health
            .check()
            .map_or_else(|e| e.to_string(), |()| "none".into())
    });
    errors.join("; ")
}

#[test]
fn a_process_that_dies_ends_its_group_and_the_groups_without_it() {
    let port = free_port();
    let start = |rank| start_child(rank, 4, port, &[("TEST_GROUP", "1")]);
    let mut children: Vec<_> = (0..4).map(start).collect();
    let mut dies = children.pop().expect("rank 3");
    assert!(!dies.wait().expect("it ended").success());
    let lost = |rank| {
        format!(
            "rank {rank} is lost: its process has ended or is stopped, or its network has failed; the output of that rank has the cause"
        )
    };
    let without = format!(
        "the communicator cannot be used any more: an earlier failure on this rank ({}). Rebuild it with the ranks that are left, or drop it and its operators and create a new one on every rank",
        lost(3)
    );
    for ((rank, child), group) in (0..).zip(children).zip([&without, &without, &lost(0)]) {
        expect_read(rank, child, &format!("{group}; {}", lost(3)));
    }
}
