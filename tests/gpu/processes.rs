//! Tests with one process per GPU, started as by torchrun. In one test a process is killed.

use crate::ranks::{Operands, compute, launch, prepare, seed, worlds_of_whole_gpus};
use mkernel::{
    Communicator, Error, Operator,
    error::FabricError,
    spec::{BLayout, GemmShape, Transfer, Tuning},
};
use mkernel_testing::lab::{Failure, Lab, TimeLimit};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The environment variable that makes a process of this test program a rank. With the value `stop` the rank ends after
/// some calls, and otherwise it makes calls until one fails.
const TASK: &str = "MKERNEL_TEST_TASK";
const DEADLINE: Duration = Duration::from_secs(2);
/// The time after the deadline within which processes must end.
const MARGIN: Duration = Duration::from_secs(8);
/// The time that a host may take to start processes with GPUs.
const START: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs GPUs"]
fn each_gpu_has_a_process() {
    let _limit = TimeLimit::start("a process per GPU", Duration::from_secs(120));
    if let Ok(task) = std::env::var(TASK) {
        return rank(&task);
    }
    for world in worlds_of_whole_gpus(2) {
        let mut processes =
            RankProcesses::start(world, "processes::each_gpu_has_a_process", "stop");
        processes.expect_line("right", 0..world, START);
        processes.expect_ends(0..world, MARGIN);
    }
}

#[test]
#[ignore = "needs GPUs"]
fn a_killed_process_ends_the_others_in_time() {
    let _limit = TimeLimit::start("a killed process", Duration::from_secs(120));
    if let Ok(task) = std::env::var(TASK) {
        return rank(&task);
    }
    let worlds = worlds_of_whole_gpus(2);
    let world = *worlds.last().expect("a world");
    for victim in [1, 0] {
        let mut processes = RankProcesses::start(
            world,
            "processes::a_killed_process_ends_the_others_in_time",
            "go on",
        );
        processes.expect_line("calling", 0..world, START);
        processes.children[victim as usize].kill().expect("killed");
        let others = (0..world).filter(|rank| *rank != victim);
        let named = format!("gave up: rank {victim}: ");
        processes.expect_line(&named, others.clone(), DEADLINE + MARGIN);
        processes.expect_ends(others, MARGIN);
    }
}

/// Runs one rank.
fn rank(task: &str) {
    work(task).unwrap_or_else(|error| panic!("{error}"));
}

fn work(task: &str) -> Result<(), Failure> {
    let ranks = Communicator::from_env()?;
    let lab = Lab::new(&ranks.default_stream())?;
    let shape = GemmShape {
        m: 2048,
        n: 264,
        k: 520,
    };
    let mut prepared = Vec::new();
    for transfer in [Transfer::SmPush, Transfer::CopyEngine] {
        let tuning = Tuning {
            transfer: Some(transfer),
            ..Tuning::default()
        };
        let (operator, operands) = prepare(&ranks, &lab, (shape, BLayout::Nk, tuning), 0)?;
        // All ranks use the seed of rank 0.
        let seeds = ranks.all_gather(&seed().to_le_bytes())?;
        let seed = seeds[0].as_slice().try_into().map(u64::from_le_bytes)?;
        compute(&ranks, &lab, &operator, &operands, (10, seed))?;
        prepared.push((operator, operands));
    }
    let reversed = ranks.split(Some(0), -(ranks.rank() as i32))?;
    let reversed = reversed.ok_or("no group")?;
    let (operator, operands) =
        prepare(&reversed, &lab, (shape, BLayout::Nk, Tuning::default()), 0)?;
    compute(&reversed, &lab, &operator, &operands, (3, 0))?;
    drop((operator, operands));
    reversed.barrier()?;
    drop(reversed);
    println!("right");
    if task == "stop" {
        return Ok(ranks.barrier()?);
    }

    ranks.set_timeout(DEADLINE);
    call_until_a_rank_is_lost(&ranks, &lab, &prepared)
}

/// Calls operators until a rank is lost. Prints a line when it begins, and then the lost rank.
pub fn call_until_a_rank_is_lost(
    ranks: &Communicator,
    lab: &Lab,
    prepared: &[(Operator, Operands)],
) -> Result<(), Failure> {
    for call in 0u64.. {
        let failure = prepared
            .iter()
            .try_for_each(|(operator, operands)| launch(operator, &lab.stream, &operands.raw()))
            .and_then(|()| ranks.synchronize(&lab.stream));
        match failure {
            Ok(()) if call == 50 => println!("calling"),
            Ok(()) => {}
            Err(error) => {
                println!("gave up: {}: {error}", lost(&error)?);
                break;
            }
        }
    }
    Ok(())
}

/// Returns the name of the rank that is lost according to an error.
fn lost(error: &Error) -> Result<String, Failure> {
    match error {
        Error::RankLost { rank, .. }
        | Error::Timeout {
            lost: Some(rank), ..
        }
        | Error::Fabric(FabricError::PeerAborted {
            lost_rank: rank, ..
        }) => Ok(format!("rank {rank}")),
        Error::Fabric(FabricError::Lost { peer, .. }) => Ok(peer.name.to_string()),
        Error::Aborted { cause: Some(cause) } => lost(cause),
        error => Err(error.clone().into()),
    }
}

/// Processes of this test program, one for each rank. They are killed on drop.
pub struct RankProcesses {
    pub children: Vec<Child>,
    /// The lines that each process prints.
    lines: Vec<Receiver<String>>,
}

impl RankProcesses {
    /// Starts processes that run `test` with `task` in their environment.
    pub fn start(world: u32, test: &str, task: &str) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        // Another program may take the port before rank 0 binds it. Then rank 0 fails with an error that says so.
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let (mut children, mut lines) = (Vec::new(), Vec::new());
        for rank in 0..world {
            let mut child = Command::new(std::env::current_exe().expect("the test program"))
                .args(["--exact", test, "--ignored", "--nocapture"])
                .env(TASK, task)
                .env("RANK", rank.to_string())
                .env("LOCAL_RANK", rank.to_string())
                .env("WORLD_SIZE", world.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", port.to_string())
                .env_remove("MKERNEL_PORT")
                .env_remove("TORCHELASTIC_USE_AGENT_STORE")
                .stdout(Stdio::piped())
                .spawn()
                .expect("a process");
            let output = BufReader::new(child.stdout.take().expect("its output"));
            let (sender, receiver) = channel();
            std::thread::spawn(move || {
                for line in output.lines().map_while(Result::ok) {
                    // The test drops the receiver when it needs no more lines.
                    let _ = sender.send(line);
                }
            });
            children.push(child);
            lines.push(receiver);
        }
        Self { children, lines }
    }

    /// Waits for a line with `text` from each of `ranks`.
    pub fn expect_line(&self, text: &str, ranks: impl Iterator<Item = u32>, limit: Duration) {
        let started = Instant::now();
        for rank in ranks {
            loop {
                let left = limit.saturating_sub(started.elapsed());
                let line = self.lines[rank as usize].recv_timeout(left);
                let line =
                    line.unwrap_or_else(|end| panic!("rank {rank} did not print {text:?}: {end}"));
                if line.contains(text) {
                    println!("rank {rank}: {line}");
                    break;
                }
            }
        }
    }

    /// Waits until the processes of `ranks` have ended, which must be with success.
    pub fn expect_ends(&mut self, ranks: impl Iterator<Item = u32>, limit: Duration) {
        let started = Instant::now();
        for rank in ranks {
            let status = loop {
                if let Some(status) = self.children[rank as usize].try_wait().expect("a child") {
                    break status;
                }
                assert!(
                    started.elapsed() < limit,
                    "rank {rank} did not end within {limit:?}"
                );
                std::thread::sleep(Duration::from_millis(10));
            };
            assert!(status.success(), "rank {rank}: {status}");
        }
    }
}

impl Drop for RankProcesses {
    fn drop(&mut self) {
        for child in &mut self.children {
            // The call fails if the process has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
