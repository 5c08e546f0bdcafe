//! Connects the ranks that are left of a job after ranks have failed. The connections of the job are not used, since every
//! connection may lead to a rank that has ended.
//!
//! Each rank listens at an address that all ranks know from the start. After a failure, a rank connects to the lowest rank that has
//! not ended. If all lower ranks have ended, it accepts the higher ranks itself. The accepting rank goes on as soon as every higher
//! rank is connected or has ended. Nothing listens any more at the address of a process that has ended, and a host that is down does
//! not answer. A rank that has not ended and does not take part, such as a stopped process, costs time: it is left out after a
//! timeout. Reports of lost ranks are not used, since the network of a rank may fail and the rank take part all the same.

use super::group::{Group, Network, Survivors, agree};
use super::rendezvous::client::{Answer, PER_ADDRESS, UNANSWERED, join_survivors};
use super::rendezvous::job::Job;
use super::rendezvous::secret::Secret;
use super::rendezvous::server::accept_survivors;
use super::tcp::TcpGroup;
use super::tcp_groups::{Door, address_of, listen, read};
use super::wait::StepWait;
use crate::error::{CallError, Error};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

pub(super) const STEP: &str = "rebuild";

/// The time to connect to a rank in order to find out whether it has ended. A host that is alive answers sooner.
const ANSWER: Duration = Duration::from_millis(100);

/// The means by which the ranks of a job find each other after a failure.
pub(super) struct Doors {
    /// The socket on which this rank listens.
    listener: TcpListener,
    network: Network,
    /// The door of each rank.
    all: Vec<Door>,
}

/// Lets all ranks of `group`, which are processes, exchange their doors. All ranks must call this.
pub(super) fn open(group: &mut dyn Group, wait: StepWait) -> Result<Doors, Error> {
    let step = wait.step;
    let network = group
        .network()
        .ok_or(Error::Call(CallError::NotRebuildable))?;
    let opened = listen(group.host_map().count() == 1).and_then(|listener| {
        let door = Door::new(network.address, Some(&listener))?;
        Ok((listener, door.to_bytes()))
    });
    let (listener, doors) = agree(group, opened, wait)??;
    Ok(Doors {
        listener,
        network,
        all: read(&doors, step)?,
    })
}

/// Connects the ranks that are left of a job. Returns the connections, and the doors of these ranks.
pub(super) fn connect(
    job: &dyn Group,
    doors: &Doors,
    at_least: u32,
    wait: &StepWait,
) -> Result<(Survivors, Doors), Error> {
    // In each attempt that fails, a rank has ended.
    for _ in 1..job.world() {
        match attempt(job, doors, at_least, wait) {
            Err(Error::RankLeft { .. }) => {}
            result => return result,
        }
    }
    attempt(job, doors, at_least, wait)
}

fn attempt(
    job: &dyn Group,
    doors: &Doors,
    at_least: u32,
    wait: &StepWait,
) -> Result<(Survivors, Doors), Error> {
    let connected = doors.connect(job, at_least, wait);
    let (mut group, ranks) = connected.map_err(|mut error| {
        if let Error::RanksMissing { step, .. } = &mut error {
            *step = STEP;
        }
        error
    })?;
    // All ranks learn whether all of them are still connected.
    let doors = open(&mut group, wait.again(STEP))?;
    let group = Box::new(group);
    Ok((Survivors { group, ranks }, doors))
}

impl Doors {
    fn connect(
        &self,
        job: &dyn Group,
        at_least: u32,
        wait: &StepWait,
    ) -> Result<(TcpGroup, Vec<u32>), Error> {
        let mut absent = job.left();
        for lower in 0..job.rank() {
            if absent.contains(&lower) {
                continue;
            }
            // A higher rank that waits for the same silent rank still comes in time to this rank.
            let half = wait.timeout / 2;
            match join_survivors(&self.job(job, lower, (wait, half)), wait.timeout)? {
                Answer::Joined(group, ranks) => return Ok((*group, ranks)),
                Answer::Absent => {}
                Answer::HostDown => absent.extend(job.host_map().local_ranks(lower)),
            }
        }
        let own = self.job(job, job.rank(), (wait, wait.timeout));
        let mut unanswered = vec![0; job.world() as usize];
        accept_survivors(&own, &self.listener, at_least, |rank| {
            absent.contains(&rank) || self.has_ended(job, rank, &mut unanswered[rank as usize])
        })
    }

    /// Returns the address of a rank.
    fn address(&self, job: &dyn Group, rank: u32) -> SocketAddr {
        let both = [rank, job.rank()];
        let address = address_of(&both, job.host_map(), &self.all);
        (address, self.all[rank as usize].port).into()
    }

    /// Returns whether nothing listens at the address of a rank, or its host is down. `unanswered` is the number of connections
    /// without an answer so far.
    fn has_ended(&self, job: &dyn Group, rank: u32, unanswered: &mut u32) -> bool {
        let connected = TcpStream::connect_timeout(&self.address(job, rank), ANSWER);
        match connected.map_err(|error| error.kind()) {
            Ok(_) => *unanswered = 0,
            Err(ErrorKind::ConnectionRefused) => return true,
            Err(_) => *unanswered += 1,
        }
        ANSWER * *unanswered >= UNANSWERED * PER_ADDRESS
    }

    /// Returns the rendezvous at the door of rank `at`.
    fn job(&self, job: &dyn Group, at: u32, (wait, timeout): (&StepWait, Duration)) -> Job {
        let (rank, hosts) = (job.rank(), job.host_map());
        let address = self.address(job, at);
        let key = [&self.network.key[..], &self.all[0].key].concat();
        Job {
            rank,
            world: job.world(),
            host: address.ip().to_string(),
            port: address.port(),
            name: STEP.to_owned(),
            several_hosts: hosts.count() > 1,
            // The first rank of a host identifies the host.
            host_id: format!("{:?}", hosts.local_ranks(rank).first()),
            secret: Secret::new(&key),
            timeout,
            silence: self.network.silence,
            stop: wait.stop.clone(),
        }
    }
}
