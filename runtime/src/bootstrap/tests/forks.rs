//! Tests of children that a rank forks.

use super::processes::{expect_read, start_child};
use super::*;
use crate::health::{Ancestors, Health};
use crate::watchdog::Watchdog;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Returns the exit status of a forked child that runs `body`. The child is killed if it takes too long.
fn in_fork(body: impl FnOnce()) -> String {
    // SAFETY: the child drops its copies and ends. The allocator is the allocator of the C library, which supports
    // forks.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        body();
        // SAFETY: no destructor of the parent may run in the child.
        unsafe { libc::_exit(7) };
    }
    let child = Pid::from_raw(pid).expect("a child");
    let started = Instant::now();
    while started.elapsed() < TIMEOUT {
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).expect("it is ours") {
            return format!("exit status {:?}", status.exit_status());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(child, Signal::KILL).expect("killed");
    waitpid(Some(child), WaitOptions::empty()).expect("it is ours");
    "it hung".to_owned()
}

/// The test of rank 1, in a process of its own: children drop their copies of its connections, then of its watchdog.
pub fn rank_that_forks(ranks: Collective) -> String {
    let mut ranks = Some(ranks);
    let first = in_fork(|| drop(ranks.take()));
    let mut ranks = ranks.expect("the child took its own");
    ranks
        .barrier("first", TIMEOUT)
        .expect("rank 0 still counts this rank");
    let heartbeats = ranks.heartbeats();
    let health = Arc::new(Health::new(ranks, &[], Ancestors::default()));
    let mut watchdog = Some(Watchdog::start(&health, heartbeats));
    let second = in_fork(|| drop(watchdog.take()));
    let mut ranks = health.ranks();
    ranks
        .barrier("second", TIMEOUT)
        .expect("rank 0 still counts this rank");
    format!("{first}, {second}")
}

#[test]
fn a_forked_child_leaves_the_ranks_alone() {
    let port = free_port();
    let child = start_child(1, 2, port, &[("TEST_FORK", "1")]);
    let mut ranks = Collective::connect(&job(0, 2, port)).expect("the ranks connect");
    for step in ["first", "second"] {
        ranks.barrier(step, 2 * TIMEOUT).expect("rank 1 is there");
    }
    expect_read(1, child, "exit status Some(7), exit status Some(7)");
}

#[test]
fn children_that_execute_another_program_inherit_no_connection() {
    let met = connect_all(2, |rank, port| job(rank, 2, port));
    for group in met
        .into_iter()
        .map(|group| group.expect("the ranks connect"))
    {
        for link in group.links() {
            let flags = rustix::io::fcntl_getfd(link.stream()).expect("flags");
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
    }
}
