//! Hosts that are gone without closing their connections.

use super::super::wire::notice_silence;
use super::*;
use rustix::net::sockopt;
use std::os::fd::AsRawFd;

/// Two ranks that have met.
fn met() -> [tcp::TcpGroup; 2] {
    let met = meet_all(2, |rank, port| job(rank, 2, port)).into_iter();
    let met: Vec<_> = met.map(|group| group.expect("the ranks meet")).collect();
    met.try_into().ok().expect("two ranks")
}

/// Drops all packets that come for the connections of `group`, unanswered: as when its host has no power.
fn switch_off(group: &tcp::TcpGroup) {
    // "Return 0": keep no byte of a packet.
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
        // SAFETY: the socket is open, and the kernel copies the program, whose size is right, during the call.
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

/// [`met`], with as little patience as a deadline of 3 s leaves TCP.
fn impatient() -> [tcp::TcpGroup; 2] {
    let met = met();
    for link in met.iter().flat_map(tcp::TcpGroup::links) {
        notice_silence(link.stream(), Duration::from_secs(3)).expect("set");
    }
    met
}

/// By who is in no step, and by who waits in one.
#[test]
fn a_host_without_power_is_noticed() {
    for is_off in [0, 1] {
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

        let mut met = impatient();
        switch_off(&met[is_off]);
        let error = met[1 - is_off].all_gather(&[], Wait::new("step", TIMEOUT));
        let error = error.expect_err("nobody answers");
        let rank = is_off as u32;
        assert!(
            matches!(&error, Error::RankLeft { rank: left, .. } if *left == rank),
            "{error}"
        );
        assert!(started.elapsed() < TIMEOUT, "{:?}", started.elapsed());
    }
}
