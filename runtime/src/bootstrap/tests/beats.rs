//! Tests of heartbeats: a process that is stopped is named by ranks that wait for nothing.

use super::processes::start_child;
use super::*;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::Child;

const DEADLINE: Duration = Duration::from_secs(6);

/// The test of a rank that makes no call. Returns the error of its communicator.
pub fn rank_that_is_idle() -> String {
    let ranks = crate::Communicator::from_env().expect("the ranks connect");
    ranks.barrier().expect("all ranks come");
    println!("idle");
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        if let Err(error) = ranks.check() {
            // Rank 0 may be lost itself, so nobody waits for others here.
            std::mem::forget(ranks);
            return error.to_string();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    "no error".to_owned()
}

/// Starts three ranks, each a host of its own, and waits until they are idle.
fn idle_ranks() -> Vec<(Child, impl Iterator<Item = String>)> {
    let (port, deadline) = (free_port(), DEADLINE.as_millis().to_string());
    let start = |rank: u32| {
        let host = format!("host {rank}");
        let more = [
            ("TEST_BEATS", "1"),
            ("MKERNEL_DEVICE", "sim"),
            ("MKERNEL_HOST_ID", &host),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "1"),
            ("MKERNEL_TIMEOUT_MS", &deadline),
        ];
        start_child(rank, 3, port, &more)
    };
    let started: Vec<Child> = (0..3).map(start).collect();
    let lines = |mut child: Child| {
        let output = child.stdout.take().expect("a pipe");
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "idle"), "the ranks connect");
        (child, lines)
    };
    started.into_iter().map(lines).collect()
}

#[test]
fn a_stopped_process_is_named_by_idle_ranks_within_the_deadline() {
    std::thread::scope(|scope| {
        for stopped in [1, 0] {
            scope.spawn(move || is_named(stopped));
        }
    });
}

fn is_named(stopped: usize) {
    let mut ranks = idle_ranks();
    let pid = Pid::from_child(&ranks[stopped].0);
    kill_process(pid, Signal::STOP).expect("it runs");
    let start = Instant::now();
    let (mut child, _) = ranks.remove(stopped);
    for (_, lines) in &mut ranks {
        let named = format!("read rank {stopped} is lost");
        let line = lines.find(|line| line.starts_with("read "));
        let took = start.elapsed();
        assert!(
            line.as_ref().is_some_and(|line| line.starts_with(&named)) && took < DEADLINE,
            "{line:?} after {took:?}"
        );
    }
    child.kill().expect("it exists");
    child.wait().expect("it ended");
    for (mut child, _) in ranks {
        assert!(child.wait().expect("it ended").success());
    }
}

/// Heartbeats of ranks that wait for nothing keep them together for longer than the deadline.
#[test]
fn idle_ranks_are_not_lost() {
    let mut ranks = idle_ranks();
    std::thread::sleep(DEADLINE + DEADLINE / 2);
    for (child, _) in &mut ranks {
        assert_eq!(child.try_wait().expect("a child"), None);
        child.kill().expect("it runs");
    }
    for (mut child, _) in ranks {
        child.wait().expect("it ended");
    }
}
