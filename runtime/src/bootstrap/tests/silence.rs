//! Tests of hosts that disappear without closing their connections.

use super::super::wire::detect_silence;
use super::*;
use crate::bootstrap::group::Group;
use crate::bootstrap::wait::StepWait;
use rustix::net::sockopt;
use std::os::fd::AsRawFd;

/// Returns two ranks that are connected.
fn met() -> [tcp::TcpGroup; 2] {
    let met = connect_all(2, |rank, port| job(rank, 2, port)).into_iter();
    let met: Vec<_> = met.map(|group| group.expect("the ranks connect")).collect();
    met.try_into().ok().expect("two ranks")
}

/// Drops all packets that arrive for the connections of `group` without an answer, as if its host had lost power.
fn switch_off(group: &tcp::TcpGroup) {
    // The filter "return 0" keeps no byte of a packet.
    let mut nothing = libc::sock_filter {
        code: 6,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: &raw mut nothing,
    };
    for link in group.links() {
        // SAFETY: the socket is open. The kernel copies the program during the call, and its size is right.
        let attached = unsafe {
            libc::setsockopt(
                link.stream().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of::<libc::sock_fprog>() as u32,
            )
        };
        assert_eq!(attached, 0, "{}", std::io::Error::last_os_error());
    }
}

#[test]
fn both_ends_of_a_connection_notice_silence() {
    for group in &met() {
        for link in group.links() {
            let stream = link.stream();
            assert!(sockopt::socket_keepalive(stream).expect("an option"));
            let second = Duration::from_secs(1);
            assert_eq!(sockopt::tcp_keepidle(stream).expect("an option"), second);
            assert_eq!(sockopt::tcp_keepintvl(stream).expect("an option"), second);
            assert_eq!(
                sockopt::tcp_user_timeout(stream).expect("an option"),
                13_333
            );
        }
    }
}

/// Returns [`met`] with the shortest timeout of TCP, which results from a deadline of 3 s.
fn impatient() -> [tcp::TcpGroup; 2] {
    let met = met();
    for link in met.iter().flat_map(tcp::TcpGroup::links) {
        detect_silence(link.stream(), Duration::from_secs(3)).expect("set");
    }
    met
}

/// The loss is detected by a rank that is in no step, and by a rank that waits in a step.
#[test]
fn a_host_without_power_is_noticed() {
    std::thread::scope(|scope| {
        for is_off in [0, 1] {
            scope.spawn(move || is_noticed_between_steps(is_off));
            scope.spawn(move || is_noticed_in_a_step(is_off));
        }
    });
}

fn is_noticed_between_steps(is_off: usize) {
    let mut met = impatient();
    switch_off(&met[is_off]);
    let other = &mut met[1 - is_off];
    let started = Instant::now();
    let mut lost = None;
    while lost.is_none() && started.elapsed() < TIMEOUT {
        lost = other.lost();
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(lost, Some(is_off as u32));
}

fn is_noticed_in_a_step(is_off: usize) {
    let mut met = impatient();
    switch_off(&met[is_off]);
    let started = Instant::now();
    let error = met[1 - is_off].all_gather(&[], StepWait::new("step", TIMEOUT));
    let error = error.expect_err("nobody answers");
    let rank = is_off as u32;
    assert!(
        matches!(&error, Error::RankLeft { rank: left, .. } if *left == rank),
        "{error}"
    );
    assert!(started.elapsed() < TIMEOUT, "{:?}", started.elapsed());
}
