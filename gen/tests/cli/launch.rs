//! Ranks that `mkernel-gen launch` starts: their environment, output, failures and ends.

use super::*;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

fn launch(script: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mkernel-gen"));
    command
        .arg("launch")
        .args(flags)
        .args(["sh", "-c", script])
        .env_remove("MKERNEL_DEVICE")
        .stdin(Stdio::null());
    command
}

fn output(script: &str, flags: &[&str]) -> Output {
    launch(script, flags).output().expect("mkernel-gen starts")
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn ranks_have_the_variables_of_a_launcher_and_of_no_other() {
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR ${PMIX_RANK-} ${SLURM_PROCID-} \
                  ${TORCHELASTIC_USE_AGENT_STORE-}; echo $MASTER_PORT ${#MKERNEL_SECRET} >&2";
    let outer = ["PMIX_RANK", "SLURM_PROCID", "TORCHELASTIC_USE_AGENT_STORE"];
    let mut command = launch(script, &["--nproc=3"]);
    let output = command.envs(outer.map(|name| (name, "True"))).output();
    let output = output.expect("mkernel-gen starts");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let wanted = [
        "[0] 0/3 0/3 127.0.0.1",
        "[1] 1/3 1/3 127.0.0.1",
        "[2] 2/3 2/3 127.0.0.1",
    ];
    assert_eq!(sorted(stdout(&output)), wanted);
    let places: Vec<_> = sorted(stderr(&output))
        .iter()
        .map(|line| &line[4..])
        .collect();
    assert!(places[0].ends_with(" 32") && places.iter().all(|place| *place == places[0]));

    let mut command = launch("echo $RANK $MKERNEL_SECRET", &["--nproc=1", "--port=29511"]);
    let output = command.env("MKERNEL_SECRET", "of the user").output();
    assert_eq!(stdout(&output.expect("starts")), "[0] 0 of the user\n");
}

#[test]
fn lines_of_ranks_are_json_objects_too() {
    let output = output("printf 'a\\nb'; echo c >&2", &["--nproc=1", "--json"]);
    let mut lines: Vec<_> = stdout(&output).lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            r#"{"kind":"output","schema":1,"rank":0,"stream":"stderr","text":"c"}"#,
            r#"{"kind":"output","schema":1,"rank":0,"stream":"stdout","text":"a"}"#,
            r#"{"kind":"output","schema":1,"rank":0,"stream":"stdout","text":"b"}"#
        ]
    );
}

/// The other ranks are asked to end, and killed if they do not.
#[test]
fn the_first_failure_ends_all_ranks_and_gives_the_exit_code() {
    let script = "trap 'echo asked; exit 0' TERM
                  case $RANK in 0) sleep 60 & wait;; 1) sleep 0.3; exit 7;; 2) trap '' TERM; while :; do sleep 1; done;; esac";
    let started = Instant::now();
    let output = output(script, &["--nproc=3", "--grace-s=1"]);
    assert_eq!(code(&output), 7, "{}", stderr(&output));
    assert_eq!(stdout(&output), "[0] asked\n");
    assert_eq!(
        stderr(&output),
        "error: rank 1 has ended with exit code 7\n"
    );
    assert!(started.elapsed() < Duration::from_secs(30));

    let output = self::output("kill -9 $$", &["--nproc=2"]);
    assert_eq!(code(&output), 137, "{}", stderr(&output));
    expect_parts(stderr(&output), &["was ended by signal 9"]);
}

#[test]
fn programs_that_cannot_start_are_named() {
    let output = run(&["launch", "--nproc=2", "/nowhere/program"]);
    assert_eq!(code(&output), 4);
    expect_parts(stderr(&output), &["cannot start /nowhere/program"]);
}

/// Starts ranks that write their process ids into a folder, and returns these ids.
fn started(script: &str, folder: &TempDir) -> (Child, Vec<Pid>) {
    let path = folder.path().display();
    let script = format!("echo $$ > {path}/$RANK.new; mv {path}/$RANK.new {path}/$RANK; {script}");
    let mut command = launch(&script, &["--nproc=2"]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let child = child.expect("mkernel-gen starts");
    let started = Instant::now();
    let id = |rank: u32| loop {
        if let Ok(text) = fs::read_to_string(folder.path().join(rank.to_string())) {
            let id = text.trim().parse().ok().and_then(Pid::from_raw);
            break id.expect("a process id");
        }
        assert!(started.elapsed() < Duration::from_secs(30));
        thread::sleep(Duration::from_millis(5));
    };
    let ids = vec![id(0), id(1)];
    (child, ids)
}

fn assert_ended(pids: &[Pid]) {
    let started = Instant::now();
    for pid in pids {
        let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
        // A process that nobody has waited for has state Z.
        while fs::read_to_string(&stat).is_ok_and(|text| !text.contains(") Z ")) {
            assert!(started.elapsed() < Duration::from_secs(10), "{stat}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn signals_reach_the_ranks_and_end_the_launcher() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = TempDir::new().expect("temporary folder");
        let script = "trap 'echo asked; exit 0' INT TERM; while :; do sleep 0.05; done";
        let (child, ids) = started(script, &folder);
        // The traps are set after the ids are written.
        thread::sleep(Duration::from_millis(300));
        kill_process(Pid::from_child(&child), signal).expect("a child");
        let output = child.wait_with_output().expect("ends");
        assert_eq!(output.status.signal(), Some(signal.as_raw()));
        assert_eq!(sorted(stdout(&output)), ["[0] asked", "[1] asked"]);
        assert_ended(&ids);
    }
}

#[test]
fn no_rank_outlives_a_launcher_that_was_killed() {
    let folder = TempDir::new().expect("temporary folder");
    let (mut child, ids) = started(
        "trap '' TERM INT HUP; while :; do sleep 0.05; done",
        &folder,
    );
    child.kill().expect("a child");
    child.wait().expect("ends");
    assert_ended(&ids);
}

#[test]
fn processes_that_a_rank_has_left_are_ended() {
    let folder = TempDir::new().expect("temporary folder");
    let path = folder.path().join("left").display().to_string();
    let script = format!("sleep 1000 & echo $! > {path}");
    let started = Instant::now();
    let output = output(&script, &["--nproc=1"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(started.elapsed() < Duration::from_secs(30));
    let id = fs::read_to_string(path).expect("an id");
    assert_ended(&[id
        .trim()
        .parse()
        .ok()
        .and_then(Pid::from_raw)
        .expect("an id")]);
}

#[test]
fn processes_cannot_share_simulated_gpus() {
    let mut command = launch("true", &["--nproc=2"]);
    let output = command.env("MKERNEL_DEVICE", "sim").output();
    let output = output.expect("mkernel-gen starts");
    assert_eq!(code(&output), 2);
    expect_parts(
        stderr(&output),
        &["2 processes of one host", "a thread per rank", "--as-hosts"],
    );
}

/// Ranks of real processes meet by the variables of the launcher. Each pretends to be a host, since processes cannot share
/// simulated GPUs.
#[test]
fn ranks_meet_from_their_environment() {
    let own = std::env::current_exe().expect("this program");
    let test = ["--exact", "launch::a_rank", "--ignored", "--nocapture"];
    let cache = TempDir::new().expect("temporary folder");
    let mut command = mkernel_gen(cache.path());
    command
        .args(["launch", "--nproc=3", "--as-hosts"])
        .arg(own)
        .args(test);
    let output = command.env("MKERNEL_DEVICE", "sim").output();
    let output = output.expect("mkernel-gen starts");
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    for rank in 0..3 {
        let line = format!("[{rank}] rank {rank} of 3 has met [0, 1, 2]");
        assert!(
            stdout(&output).lines().any(|found| found == line),
            "{}",
            stdout(&output)
        );
    }
}

#[test]
#[ignore = "a rank of ranks_meet_from_their_environment"]
fn a_rank() {
    let ranks = mkernel::Communicator::from_env().expect("a communicator");
    let all = ranks.all_gather(&[ranks.rank() as u8]).expect("all ranks");
    let all: Vec<_> = all.iter().map(|bytes| bytes[0]).collect();
    println!(
        "\nrank {} of {} has met {all:?}",
        ranks.rank(),
        ranks.world()
    );
}
