//! The GPUs and NICs on which jobs run.

use super::permit::Permit;
use super::simulated::Backend;
use crate::lab::Failure;
use crate::ranks::gpus_of_ranks;
use mkernel::{
    Communicator, Simulation,
    network::{Faults, NicModel, Transport},
};
use std::time::Duration;

/// The GPUs of a job.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// The number of ranks.
    pub world: u32,
    /// The number of SMs of a simulated GPU.
    pub sms: u32,
    /// The unfairness of the schedule of simulated GPUs, from 0 to 100.
    pub skew: u32,
}

impl Machine {
    /// Runs `body` on every rank and returns the values by rank. When a rank fails, the kernels of the other ranks are
    /// aborted.
    ///
    /// # Errors
    /// `body` fails on a rank. Findings of the simulator take precedence over their consequences.
    pub fn run<T: Send>(
        self,
        backend: Backend,
        body: impl Fn(&Communicator) -> Result<T, Failure> + Sync,
    ) -> Result<Vec<T>, String> {
        let results = self.run_ranks(backend, |rank, all| {
            // With the abort, the other ranks end now and not at their deadlines.
            body(rank).inspect_err(|_| all.iter().for_each(Communicator::abort))
        })?;
        // A finding of the simulator is the cause of other failures. The abort above is never a cause.
        let mut failures: Vec<String> = results
            .iter()
            .filter_map(|result| result.as_ref().err().cloned())
            .collect();
        let is_caused = |failure: &str| failure.contains("a rank has aborted it");
        failures.sort_by_key(|failure| (!failure.contains("simulator found"), is_caused(failure)));
        match failures.first() {
            None => Ok(results.into_iter().flatten().collect()),
            Some(failure) => Err(failure.clone()),
        }
    }

    /// Runs `body` as [`run`](Self::run) does, on ranks whose nodes are connected by emulated NICs with these faults.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    pub fn run_over<T: Send>(
        self,
        faults: &Faults,
        backend: Backend,
        body: impl Fn(&Communicator) -> Result<T, Failure> + Sync,
    ) -> Result<Vec<T>, String> {
        let transport = emulated(faults, backend);
        self.run(backend, |ranks| {
            ranks.set_transport(transport.clone());
            body(ranks)
        })
    }

    /// Runs `body` on every rank and returns the outcomes by rank. `body` also gets the communicators of all ranks.
    ///
    /// # Errors
    /// The communicators cannot be created.
    pub fn run_ranks<T: Send>(
        self,
        backend: Backend,
        body: impl Fn(&Communicator, &[Communicator]) -> Result<T, Failure> + Sync,
    ) -> Result<Vec<Result<T, String>>, String> {
        let world = self.world;
        let _permit = matches!(backend, Backend::Simulated { .. }).then(Permit::acquire);
        let ranks = match backend {
            Backend::Simulated { seed } => Communicator::simulated(&Simulation {
                ranks: world,
                seed,
                sms: self.sms,
                skew: self.skew,
                timeline: false,
            }),
            Backend::Gpus => gpus_of_ranks(world).and_then(|gpus| Communicator::local(&gpus)),
        };
        let ranks = ranks.map_err(|error| error.to_string())?;
        let (all, body) = (&ranks, &body);
        std::thread::scope(|scope| {
            // No communicator is dropped before the last rank has ended.
            let threads: Vec<_> = ranks
                .iter()
                .map(|rank| scope.spawn(move || body(rank, all).map_err(|e| with_causes(&*e))))
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            Ok(joined
                .map(|result| result.unwrap_or_else(|_| Err("a rank panicked".into())))
                .collect())
        })
    }
}

/// Returns the messages of an error and of its causes, on one line.
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// Returns the faults of a network that delays messages by more than the time of a kernel, and loses or repeats some
/// messages.
pub fn bad_network() -> Faults {
    Faults {
        jitter: Duration::from_micros(300),
        loss: 0.1,
        retransmission: Duration::from_micros(200),
        duplicates: 0.1,
        ..Faults::default()
    }
}

/// Returns a transport of emulated NICs with these faults. The seed of simulated GPUs is also the seed of the faults.
pub fn emulated(faults: &Faults, backend: Backend) -> Transport {
    let seed = match backend {
        Backend::Simulated { seed } => seed,
        Backend::Gpus => 0,
    };
    Transport::Emulated {
        nic: NicModel::default(),
        faults: Faults {
            seed,
            ..faults.clone()
        },
    }
}
