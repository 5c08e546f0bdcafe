//! The check that a killed rank is named: each rank starts a child, and the children are the ranks of another job.

use super::args::Part;
use super::children::{CONNECTED, child};
use super::job::Job;
use super::outcome::Outcome;
use mkernel::Error;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A child that is killed if it is still running when it is dropped.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A rank of another job over the same network is killed. All other ranks of that job have to name the rank.
pub fn killed(job: &Job<'_>) -> Result<Option<Outcome>, Error> {
    if !job.args.from_env {
        return Ok(Some(Outcome::not_checked(
            "the ranks are threads of one process; start a process for each rank, with --from-env",
        )));
    }
    let victim = job.ranks.world() - 1;
    let limit = Duration::from_secs(job.args.killed_limit_s.into());
    let started = start(job, agreed_port(job)?, limit);
    // Afterwards the children of all ranks are connected, or some child has ended.
    let own = started.as_ref().err().cloned().unwrap_or_default();
    let problems = job.ranks.all_gather(own.as_bytes())?;
    if let Some(rank) = problems.iter().position(|problem| !problem.is_empty()) {
        let text = String::from_utf8_lossy(&problems[rank]);
        return Ok(Some(Outcome::fail(
            format!("the child of rank {rank} did not connect: {text}"),
            "look at the error of the child; all ports of rank 0's host must be open to all hosts",
        )));
    }
    let Ok(child) = started else {
        return Ok(None);
    };
    if job.ranks.rank() == victim {
        drop(child);
        job.ranks.barrier()?;
        return Ok(None);
    }
    let start = Instant::now();
    let (has_ended, text) = ended(child, limit * 3 / 2);
    let passed = start.elapsed();
    job.ranks.barrier()?;
    let errors = has_ended.then_some(&*text);
    Ok(Some(judged(victim, errors, passed)))
}

/// `errors` is the text of a child that ended.
fn judged(victim: u32, errors: Option<&str>, passed: Duration) -> Outcome {
    let seconds = passed.as_secs_f64();
    let Some(errors) = errors else {
        return Outcome::fail(
            format!("a killed rank was not noticed within {seconds:.0} s"),
            "check that no firewall drops the TCP connections of ranks to rank 0; --killed-limit-s sets the limit",
        );
    };
    match errors.contains(&format!("rank {victim}")) {
        true => Outcome::pass(format!(
            "the killed rank {victim} was named after {seconds:.1} s"
        )),
        false => Outcome::fail(
            format!("the error does not name the killed rank {victim}: {errors}"),
            "report this error",
        ),
    }
}

/// Starts the child of this rank, and waits until it is connected. An error is a text.
fn start(job: &Job<'_>, port: u16, limit: Duration) -> Result<Guarded, String> {
    let mut command = child(job, Part::Killed);
    command
        .arg("--from-env")
        .env("MKERNEL_PORT", port.to_string())
        .env("MKERNEL_TIMEOUT_MS", limit.as_millis().to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut started = Guarded(command.spawn().map_err(|error| error.to_string())?);
    match is_connected(&mut started.0) {
        true => Ok(started),
        false => Err(ended(started, limit).1),
    }
}

/// Returns a port of rank 0's host that is free now.
fn agreed_port(job: &Job<'_>) -> Result<u16, Error> {
    let free = TcpListener::bind(("0.0.0.0", 0)).and_then(|listener| listener.local_addr());
    let own = free.map_or(0, |address| address.port());
    let all = job.ranks.all_gather(&own.to_le_bytes())?;
    Ok(all[0]
        .first_chunk()
        .map_or(0, |bytes| u16::from_le_bytes(*bytes)))
}

/// Waits until a child prints that it is connected. Returns false if it ends first.
fn is_connected(child: &mut Child) -> bool {
    let Some(output) = child.stdout.take() else {
        return false;
    };
    let mut lines = BufReader::new(output).lines();
    lines.any(|line| line.is_ok_and(|line| line == CONNECTED))
}

/// Waits for the end of a child, and kills it if it takes longer. Returns whether it ended, and its errors.
fn ended(mut child: Guarded, limit: Duration) -> (bool, String) {
    let end = Instant::now() + limit;
    let mut has_ended = false;
    while !has_ended && Instant::now() < end {
        has_ended = matches!(child.0.try_wait(), Ok(Some(_)) | Err(_));
        thread::sleep(Duration::from_millis(5));
    }
    let _ = child.0.kill();
    let mut text = String::new();
    if let Some(errors) = &mut child.0.stderr {
        let _ = errors.read_to_string(&mut text);
    }
    (has_ended, text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::nic_check::outcome::State;

    #[test]
    fn the_error_has_to_name_the_killed_rank() {
        let state = |errors| judged(3, errors, Duration::from_secs(1)).state;
        assert_eq!(state(Some("error: rank 3 is lost")), State::Pass);
        assert_eq!(state(Some("error: timed out")), State::Fail);
        assert_eq!(state(None), State::Fail);
    }
}
