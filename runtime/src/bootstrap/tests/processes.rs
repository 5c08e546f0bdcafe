//! Tests with ranks that are processes.

use super::*;
use crate::bootstrap::wait::StepWait;
use std::process::{Child, Command, Stdio};

/// The body of a rank, not a test of its own. The other tests run it in a process with the variables that torchrun sets.
#[test]
#[ignore = "started by other tests, as a process of its own"]
fn child() {
    if std::env::var_os("TEST_COMMUNICATOR").is_some() {
        return println!("read {}", across_hosts());
    }
    if let Some(what) = std::env::var_os("TEST_NO_FILES") {
        return println!("read {}", without_files(&what.to_string_lossy()));
    }
    if std::env::var_os("TEST_LONE").is_some() {
        return println!("read {}", lone());
    }
    if std::env::var_os("TEST_BEATS").is_some() {
        return println!("read {}", super::beats::rank_that_is_idle());
    }
    let launched = crate::env::launched_rank().expect("variables are set");
    let timeouts = crate::env::timeouts().expect("timeouts");
    let secret = crate::env::secret().expect("no secret, or a valid one");
    let mut ranks = crate::startup::join(&launched, secret, &timeouts).expect("the ranks connect");
    if std::env::var_os("TEST_DIE").is_some() {
        ranks.barrier("before", TIMEOUT).expect("all ranks come");
        std::process::abort();
    }
    if std::env::var_os("TEST_LOST").is_some() {
        return println!("read {}", lost(ranks));
    }
    if std::env::var_os("TEST_GROUP").is_some() {
        return println!("read {}", super::groups::rank_with_a_group(ranks));
    }
    if std::env::var_os("TEST_SURVIVE").is_some() {
        return println!("read {}", super::survivors::rank_that_rebuilds(ranks));
    }
    if std::env::var_os("TEST_STOP").is_some() {
        return println!("read {}", super::survivors::rank_that_may_stop(ranks));
    }
    if std::env::var_os("TEST_LIVE").is_some() {
        return println!("read {}", super::survivors::rank_that_lives(ranks));
    }
    if std::env::var_os("TEST_FORK").is_some() {
        return println!("read {}", super::forks::rank_that_forks(ranks));
    }
    println!("read {}", work(ranks));
}

/// Returns the error of a rank on a simulated GPU whose peer does not take part.
fn lone() -> String {
    let ranks = crate::Communicator::local(&[0, 1]).expect("simulated GPUs");
    let gathered = crate::spec::GemmConfig::new(crate::spec::GemmOp::AgGemm);
    let config = crate::KernelConfig::new(2, gathered);
    let (m, n, k) = (256, 128, 64);
    let started = Instant::now();
    let error = ranks[0]
        .prepare(&config, crate::spec::GemmShape { m, n, k })
        .expect_err("rank 1 does not come");
    let took = started.elapsed();
    let is_in_time = (Duration::from_secs(3)..Duration::from_secs(15)).contains(&took);
    format!("{is_in_time}: {error}")
}

/// On simulated GPUs, the deadline comes from the variable, as on real GPUs.
#[test]
fn a_rank_alone_names_the_missing_rank_in_time() {
    let more = [
        ("TEST_LONE", "1"),
        ("MKERNEL_DEVICE", "sim"),
        ("MKERNEL_TIMEOUT_MS", "3000"),
    ];
    let expected = "true: rank 1 has not entered \"planning\" within 3s. Check that every rank makes the same calls";
    expect_read(0, start_child(0, 1, 1, &more), expected);
}

/// Returns the error in a process whose limit of open files is low and reached.
fn without_files(what: &str) -> String {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let few = Rlimit {
        current: Some(FEW / 2),
        maximum: Some(FEW),
    };
    setrlimit(Resource::Nofile, few).expect("a lower limit");
    files::raise_limit();
    assert_eq!(getrlimit(Resource::Nofile).current, Some(FEW));
    let mailbox = fds::Mailbox::open().expect("opened");
    let null = || std::fs::File::open("/dev/null");
    let file = null().expect("opened");
    fds::deliver(file.as_fd(), 1, &[5; 16], 0, mailbox.name()).expect("delivered");
    let mut open: Vec<_> = std::iter::from_fn(|| null().ok()).collect();
    let error = match what {
        "mailbox" => {
            open.pop();
            let wait = StepWait::new("step", TIMEOUT);
            mailbox.collect(&[1], 2, &[5; 16], wait).err()
        }
        rank => {
            // Rank 0 has room for its listener and for nothing else.
            open.truncate(open.len() - usize::from(rank == "0"));
            let launched = crate::env::launched_rank().expect("variables are set");
            let timeouts = crate::env::timeouts().expect("timeouts");
            crate::startup::join(&launched, None, &timeouts).err()
        }
    };
    error.expect("no file can be opened").to_string()
}

const FEW: u64 = 64;

#[test]
fn too_many_open_files_are_named_at_once() {
    let expected = |call| {
        format!(
            "{call} failed: Too many open files (os error 24). This process may have {FEW} open files. Raise that limit (ulimit -n, LimitNOFILE= of a systemd unit, --ulimit nofile= of a container), or the limit of the system (sysctl fs.file-max)"
        )
    };
    let started = Instant::now();
    for (rank, what, call) in [
        (0, "0", "accepting a rank's connection"),
        (1, "1", "connecting to rank 0"),
        (1, "mailbox", "recvmsg of a memory handle"),
    ] {
        let port = free_port();
        let child = start_child(rank, 2, port, &[("TEST_NO_FILES", what)]);
        expect_read(rank, child, &expected(call));
    }
    assert!(started.elapsed() < TIMEOUT);
}

/// Returns the rank that a rank in no step learns to be lost. One rank ends in an orderly way.
fn lost(mut ranks: Collective) -> String {
    ranks.barrier("before", TIMEOUT).expect("all ranks come");
    if ranks.rank() == ENDS {
        return "ended".into();
    }
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(2) {
        if let Some(rank) = ranks.lost() {
            return format!("lost {rank}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    "lost nobody".into()
}

const ENDS: u32 = 1;

/// Returns the errors of calls that need all ranks on one host, if there are several hosts, and the ranks of a reversed group.
fn across_hosts() -> String {
    let connected = match std::env::var("TEST_CONNECT") {
        Err(_) => crate::Communicator::from_env(),
        Ok(own) => {
            let [rank, port] =
                [0, 1].map(|i| own.split(' ').nth(i).and_then(|text| text.parse().ok()));
            let port = port.and_then(|port: u32| u16::try_from(port).ok());
            // An address of this host other than loopback addresses, since the hosts of ranks are simulated.
            let rendezvous = crate::Rendezvous {
                local_rank: Some(0),
                secret: Some(b"correct horse battery staple".to_vec()),
                ..crate::Rendezvous::new(rank.expect("a rank"), 2, "0.0.0.0", port.expect("a port"))
            };
            crate::Communicator::connect(&rendezvous)
        }
    };
    let ranks = match connected {
        Ok(ranks) => ranks,
        Err(error) => return error.to_string(),
    };
    let gathered = crate::spec::GemmConfig::new(crate::spec::GemmOp::AgGemm);
    let config = crate::KernelConfig::new(ranks.world(), gathered);
    let (m, n, k) = (256, 128, 64);
    let prepared = ranks.prepare(&config, crate::spec::GemmShape { m, n, k });
    let tested = ranks.fabric_test(&crate::network::FabricTestOptions {
        nodes: 2,
        message_bytes: 4,
        window: 1,
        transport: crate::network::Transport::Emulated {
            nic: crate::network::NicModel::default(),
            faults: crate::network::Faults::default(),
        },
    });
    let hosts = ranks.hosts();
    let operator = prepared
        .err()
        .map_or_else(String::new, |error| error.to_string());
    let test = tested
        .err()
        .map_or_else(String::new, |error| error.to_string());
    let group = ranks.split(Some(0), -(ranks.rank() as i32));
    let group = group.expect("both ranks come").expect("a group");
    group.barrier().expect("both ranks come");
    let place = (group.rank() + ranks.rank(), group.hosts());
    format!(
        "{hosts} hosts; {operator}; {test}; {place:?} {:?}",
        group.job_ranks()
    )
}

pub fn start_child(rank: u32, world: u32, port: u16, more: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("the test program"));
    command.args([
        "--exact",
        "bootstrap::tests::processes::child",
        "--ignored",
        "--nocapture",
    ]);
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", world.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MKERNEL_PORT", port.to_string())
        .env("TORCHELASTIC_RUN_ID", "test")
        .env("MKERNEL_TIMEOUT_MS", "20000")
        .env("MKERNEL_HOST_ID", "host")
        .envs(more.iter().copied());
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a process")
}

pub fn expect_read(rank: u32, child: Child, read: &str) {
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "rank {rank}: {text}");
    assert!(
        text.contains(&format!("read {read}\n")),
        "rank {rank}: {text}"
    );
}

#[test]
fn eight_processes_meet_and_work() {
    let port = free_port();
    let children: Vec<_> = (0..8).map(|rank| start_child(rank, 8, port, &[])).collect();
    for (rank, child) in (0..).zip(children) {
        expect_read(rank, child, &expected_work(rank, 8));
    }
}

/// There are two hosts of two ranks, and a secret.
#[test]
fn processes_of_two_hosts_meet_and_work() {
    let port = free_port();
    let secret = ("MKERNEL_SECRET", "correct horse battery staple");
    let hosts = ["a", "a", "b", "b"];
    let children: Vec<_> = (0..)
        .zip(hosts)
        .map(|(rank, host)| {
            let more = [("MKERNEL_HOST_ID", host), ("LOCAL_WORLD_SIZE", "2"), secret];
            start_child(rank, 4, port, &more)
        })
        .collect();
    for ((rank, child), read) in (0..).zip(children).zip(["-1--", "0---", "---3", "--2-"]) {
        expect_read(rank, child, read);
    }
}

/// All ranks connect. Calls that cannot work across hosts return an error on all ranks, which lists the ranks of each
/// host.
#[test]
fn operators_and_emulated_nics_are_of_one_host() {
    let port = free_port();
    let start = |(rank, host)| {
        let more = [
            ("MKERNEL_HOST_ID", host),
            ("TEST_COMMUNICATOR", "1"),
            ("MKERNEL_DEVICE", "sim"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "1"),
        ];
        start_child(rank, 2, port, &more)
    };
    let children: Vec<_> = (0..).zip(["a", "b"]).map(start).collect();
    expect_across_hosts(children);
}

/// The variables of the launcher are wrong, but no rank reads them.
#[test]
fn ranks_connect_without_a_launcher() {
    let port = free_port();
    let start = |(rank, host)| {
        let more = [
            ("MKERNEL_HOST_ID", host),
            ("TEST_COMMUNICATOR", "1"),
            ("TEST_CONNECT", &format!("{rank} {port}")),
            ("MKERNEL_DEVICE", "sim"),
        ];
        start_child(7, 3, 1, &more)
    };
    expect_across_hosts((0..).zip(["a", "b"]).map(start).collect());
}

fn expect_across_hosts(children: Vec<Child>) {
    let expected = "2 hosts; the ranks are on 2 hosts (rank 0 | rank 1), but the kernel is declared for one node. Declare nodes = 2, or use the GPUs of one host; the ranks are on 2 hosts, but emulated NICs do not reach other hosts. Choose transport rc or efa; (1, 2) [1, 0]";
    for (rank, child) in (0..).zip(children) {
        expect_read(rank, child, expected);
    }
}

/// Another process cannot map the memory of simulated GPUs.
#[test]
fn simulated_gpus_of_a_host_are_of_one_process() {
    let port = free_port();
    let start = |(rank, host)| {
        let more = [
            ("MKERNEL_HOST_ID", host),
            ("TEST_COMMUNICATOR", "1"),
            ("MKERNEL_DEVICE", "sim"),
            ("LOCAL_WORLD_SIZE", "2"),
        ];
        start_child(rank, 4, port, &more)
    };
    let children: Vec<_> = (0..).zip(["a", "a", "b", "b"]).map(start).collect();
    let expected = "2 processes of a host cannot share simulated GPUs. Start one process that has all ranks (Communicator::local or Communicator::simulated), or one process on each host";
    for (rank, child) in (0..).zip(children) {
        expect_read(rank, child, expected);
    }
}

/// The process is rank 0 or another rank. If it ends in an orderly way, no rank is lost.
#[test]
fn a_process_that_dies_is_named_by_ranks_in_no_step() {
    for dies in [Some(2), Some(0), None] {
        let port = free_port();
        let start = |rank| {
            let what = match dies == Some(rank) {
                true => "TEST_DIE",
                false => "TEST_LOST",
            };
            start_child(rank, 4, port, &[(what, "1")])
        };
        let children: Vec<_> = (0..4).map(start).collect();
        for (rank, mut child) in (0..).zip(children) {
            let expected = match dies {
                _ if rank == ENDS => "ended".to_owned(),
                Some(dead) if rank == dead => {
                    assert!(!child.wait().expect("it ended").success());
                    continue;
                }
                Some(dead) => format!("lost {dead}"),
                None => "lost nobody".to_owned(),
            };
            expect_read(rank, child, &expected);
        }
    }
}

/// Rank 2 reports a loss, as if its network had detected the loss.
#[test]
fn a_loss_that_one_rank_reports_is_known_to_all() {
    for expected in on_ranks(4, |mut ranks| {
        ranks.barrier("before", TIMEOUT).expect("all ranks come");
        if ranks.rank() == 2 {
            ranks.report_lost(3);
        }
        let started = Instant::now();
        let mut lost = None;
        while lost.is_none() && started.elapsed() < TIMEOUT {
            lost = ranks.lost();
        }
        (lost, ranks)
    }) {
        assert_eq!(expected.0, Some(3));
    }
}

#[test]
fn a_process_that_dies_is_named_at_once() {
    let port = free_port();
    let mut child = start_child(1, 2, port, &[("TEST_DIE", "1")]);
    let mut ranks = Collective::connect(&job(0, 2, port)).expect("the ranks connect");
    ranks.barrier("before", TIMEOUT).expect("all ranks come");
    let started = Instant::now();
    let error = ranks.barrier("after", TIMEOUT).expect_err("rank 1 is dead");
    assert!(
        matches!(
            error,
            Error::RankLeft {
                rank: 1,
                step: "after"
            }
        ),
        "{error}"
    );
    assert!(started.elapsed() < Duration::from_secs(10));
    child.wait().expect("it ended");
}
