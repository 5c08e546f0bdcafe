//! The parts of child processes, and checks of limits, which need processes of their own.

use super::args::{NicCheck, Part};
use super::job::Job;
use super::load::Load;
use super::outcome::Outcome;
use super::traffic;
use crate::cli::failure::Failure;
use crate::cli::format::bytes;
use mkernel::network::{NicProbeOptions, Transport};
use mkernel::{Communicator, Error, Simulation};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;

/// The limits of a child.
const LOCKED_BYTES: u64 = 8 << 20;
const OPEN_FILES: u64 = 1024;

/// The memory that a child registers, beyond the limit of locked memory.
const REGION_BYTES: u64 = 32 << 20;

/// The line that a child prints when it is connected.
pub const CONNECTED: &str = "connected";

/// Memory beyond the limit of locked memory is registered. The error has to name the limit.
pub fn memlock(job: &Job<'_>) -> Result<Option<Outcome>, Error> {
    if let Transport::Emulated { .. } = job.transport {
        return Ok(Some(Outcome::not_checked("emulated NICs lock no memory")));
    }
    let limit = format!("a limit of {} of locked memory", bytes(LOCKED_BYTES));
    Ok(limited(job, Part::Memlock).map(|(code, text)| match code {
        Some(0) => Outcome::not_checked(format!(
            "{} were registered in spite of {limit}: this process may lock any amount (CAP_IPC_LOCK)",
            bytes(REGION_BYTES)
        )),
        _ if text.contains("ulimit -l") => {
            Outcome::pass(format!("{limit} is named by the error"))
        }
        _ => Outcome::fail(
            format!("{limit} is not named by the error: {text}"),
            "raise the limit (`ulimit -l unlimited`) for your jobs, and report this error",
        ),
    }))
}

/// Ranks connect with few open files, or the error names the limit.
pub fn nofile(job: &Job<'_>) -> Result<Option<Outcome>, Error> {
    let limit = format!("a limit of {OPEN_FILES} open files");
    Ok(limited(job, Part::Nofile).map(|(code, text)| match code {
        Some(0) => Outcome::pass(format!("two ranks connect with {limit}")),
        _ if text.contains("ulimit -n") => Outcome::pass(format!("{limit} is named by the error")),
        _ => Outcome::fail(
            format!("two ranks do not connect with {limit}: {text}"),
            "raise the limit (`ulimit -n 65536`) for your jobs, and report this error",
        ),
    }))
}

/// Runs a child with a limit. Returns its exit code and its errors. Ranks that are threads of rank 0's process do not take part.
fn limited(job: &Job<'_>, part: Part) -> Option<(Option<i32>, String)> {
    if !job.args.from_env && job.ranks.rank() > 0 {
        return None;
    }
    let child = child(job, part).env("MKERNEL_DEVICE", "sim").output();
    Some(match child {
        Ok(output) => (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        ),
        Err(error) => (None, format!("the process cannot be started: {error}")),
    })
}

/// This program as a child over the same transport.
pub fn child(job: &Job<'_>, part: Part) -> Command {
    let name = clap::ValueEnum::to_possible_value(&part);
    let name = name
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default();
    let mut child = Command::new("/proc/self/exe");
    child.args(["nic-check", "--part", &name]);
    child.env("MKERNEL_TRANSPORT", job.transport.name());
    child.envs(job.args.network.variables());
    if let Some(nics) = job.args.network.nics() {
        child.env("MKERNEL_NICS", nics);
    }
    child.stdin(Stdio::null());
    child
}

/// Runs the part of a child.
pub fn run(part: Part, args: &NicCheck, transport: &Transport) -> Result<(), Failure> {
    let connect = match part {
        Part::Killed => return put_until_killed(args, transport),
        Part::Memlock => set_limit(Resource::Memlock, LOCKED_BYTES),
        Part::Nofile => set_limit(Resource::Nofile, OPEN_FILES),
    };
    connect.map_err(|error| Failure::Signals(error.into()))?;
    let ranks = Communicator::simulated(&Simulation {
        ranks: 2,
        ..Simulation::default()
    })
    .map_err(Failure::Connect)?;
    let results = thread::scope(|scope| {
        let connect = |ranks: Communicator| {
            let options = NicProbeOptions {
                nodes: 2,
                bytes: REGION_BYTES,
                transport: transport.clone(),
            };
            ranks.nic_probe(&options).map(drop)
        };
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|ranks| scope.spawn(move || connect(ranks)))
            .collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined
            .map(|result| result.unwrap_or(Err(Error::Aborted { cause: None })))
            .collect::<Vec<_>>()
    });
    let result: Result<Vec<()>, Error> = results.into_iter().collect();
    result.map(drop).map_err(Failure::Connect)
}

fn set_limit(resource: Resource, most: u64) -> rustix::io::Result<()> {
    let known = getrlimit(resource).maximum;
    let most = Some(known.map_or(most, |known| known.min(most)));
    setrlimit(
        resource,
        Rlimit {
            current: most,
            maximum: most,
        },
    )
}

/// Puts until an error ends the traffic. The error names the rank that was killed.
fn put_until_killed(args: &NicCheck, transport: &Transport) -> Result<(), Failure> {
    let ranks = Communicator::from_env().map_err(Failure::Connect)?;
    let job = Job::new(&ranks, args, transport);
    let load = Load {
        puts: 16,
        most_bytes: 4096,
        seed: 1,
    };
    let probe = job.probe(transport, &load).map_err(Failure::Fabric)?;
    let mut output = std::io::stdout();
    // The parent reads this line.
    let written = writeln!(output, "{CONNECTED}").and_then(|()| output.flush());
    written.map_err(Failure::Output)?;
    loop {
        traffic::run(&job, &probe, load).map_err(Failure::Fabric)?;
    }
}
