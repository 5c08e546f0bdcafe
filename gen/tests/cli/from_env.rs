//! `run --from-env`: ranks in several processes, each on a host of its own.

use super::*;
use std::net::TcpListener;
use std::process::Stdio;

/// Runs two processes with one simulated GPU each, and returns their outputs by rank.
fn two_hosts(args: &[&str]) -> Vec<Output> {
    let cache = TempDir::new().expect("temporary folder");
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.expect("a free port").port();
    let start = |rank: u32| {
        let mut command = mkernel_gen(cache.path());
        command
            .args(["run", "--from-env", "--world=2", "--nodes=2", "--seed=1"])
            .args(args)
            .env("MKERNEL_DEVICE", "sim")
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", "2")
            .env("LOCAL_RANK", "0")
            .env("LOCAL_WORLD_SIZE", "1")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MKERNEL_PORT", port.to_string())
            .env("MKERNEL_HOST_ID", format!("host {rank}"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().expect("mkernel-gen starts")
    };
    let ranks: Vec<_> = (0..2).map(start).collect();
    let ended = ranks.into_iter().map(|rank| rank.wait_with_output());
    ended.map(|output| output.expect("it ends")).collect()
}

/// Products without communication need no NIC.
#[test]
fn each_process_checks_its_own_rank() {
    let sizes = ["--op=gemm", "--m=128", "--n=64", "--k=64", "--json"];
    for (rank, output) in (0..).zip(two_hosts(&sizes)) {
        assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
        let outcome = stdout(&output).lines().next().expect("an outcome");
        let outcome: Value = serde_json::from_str(outcome).expect("JSON");
        // 3 calls of one rank.
        assert_eq!(outcome["elements"], 3 * 128 * 64, "{outcome}");
        assert_eq!(outcome["ok"], true, "{outcome}");
        let device = format!("1 simulated GPU with 8 SMs, skew 20, rank {rank} of 2");
        assert_eq!(outcome["device"], device, "{outcome}");
    }
}

#[test]
fn operators_that_need_nics_say_so_on_each_rank() {
    let sizes = ["--op=all_reduce", "--m=64", "--n=64"];
    for (rank, output) in (0..).zip(two_hosts(&sizes)) {
        assert_eq!(code(&output), 1, "{}", stderr(&output));
        let text = stdout(&output);
        expect_parts(text, &[&*format!("rank {rank}: "), "rc", "run --from-env"]);
        assert!(!text.contains("--device"), "{text}");
    }
}

#[test]
fn flags_of_one_process_are_refused() {
    let output = run(&["run", "--from-env", "--ranks=2"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("--ranks"), "{}", stderr(&output));
}
