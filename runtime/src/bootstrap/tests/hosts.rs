//! Tests of ranks on several hosts: the assignment of ranks to hosts, and the exchanges between hosts.

use super::super::rendezvous::listen;
use super::*;
use crate::error::ClusterError;

fn on_hosts(hosts: &'static [&'static str]) -> impl Fn(u32, u16) -> Job + Sync {
    let world = hosts.len() as u32;
    move |rank, port| Job {
        host_id: hosts[rank as usize].into(),
        several_hosts: true,
        ..job(rank, world, port)
    }
}

#[test]
fn every_rank_knows_the_ranks_of_its_host() {
    let hosts = &["b", "a", "b", "a", "b", "a"];
    let seen = on_jobs(6, on_hosts(hosts), |ranks| ranks.host_map().all());
    for host_map in seen {
        assert_eq!(host_map, [[0, 2, 4], [1, 3, 5]]);
    }
}

/// Bytes are exchanged between all ranks, descriptors only between ranks of one host.
#[test]
fn steps_cross_hosts_and_descriptors_do_not() {
    let hosts = &["a", "a", "b", "b"];
    let read = on_jobs(4, on_hosts(hosts), work);
    assert_eq!(read, ["-1--", "0---", "---3", "--2-"]);
}

#[test]
fn a_failure_on_one_host_is_known_on_all() {
    let hosts = &["a", "a", "b", "b"];
    let errors = on_jobs(4, on_hosts(hosts), |mut ranks| {
        let mine = match ranks.rank() {
            3 => Err(Error::Cluster(ClusterError::World(7))),
            _ => Ok(((), Vec::new())),
        };
        ranks
            .agree("step", mine, TIMEOUT)
            .expect_err("rank 3 fails")
    });
    for (rank, error) in errors.iter().enumerate() {
        let text = error.to_string();
        assert!(text.contains("7 ranks were requested"), "{rank}: {text}");
        assert_eq!(text.contains("failed on rank 3"), rank != 3, "{text}");
    }
}

/// Debian resolves a host's own name to a loopback address. Other hosts must still be able to connect to rank 0.
#[test]
fn rank_0_listens_where_other_hosts_reach_it() {
    let port = free_port();
    let job = move |rank| Job {
        // The name resolves to the loopback interface.
        host: "localhost".into(),
        several_hosts: true,
        ..job(rank, 2, port)
    };
    std::thread::scope(|scope| {
        let root = scope.spawn(move || connect_ranks(&job(0)));
        // 127.0.0.2 stands for another interface. A listener on 127.0.0.1 alone cannot be reached there.
        let elsewhere = Job {
            host: "127.0.0.2".into(),
            ..job(1)
        };
        connect_ranks(&elsewhere).expect("the ranks connect");
        root.join().expect("no panic").expect("the ranks connect");
    });
}

/// The log has a warning if programs outside the job's hosts may be able to connect.
#[test]
fn rank_0_says_when_it_listens_on_all_interfaces() {
    let listening = |host: &str, secret| {
        let job = Job {
            host: host.into(),
            several_hosts: true,
            secret,
            ..job(0, 2, free_port())
        };
        logged(|| drop(listen(&job).expect("a free port").listener))
    };
    assert_eq!(listening("127.0.0.1", None), "");
    let log = listening("localhost", None);
    assert!(
        log.contains("WARN") && log.contains("MKERNEL_SECRET"),
        "{log}"
    );
    let log = listening("localhost", Secret::new(&[7; 16]));
    assert!(
        log.contains("INFO") && log.contains("all interfaces"),
        "{log}"
    );
}
