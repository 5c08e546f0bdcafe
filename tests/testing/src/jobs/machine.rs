//! GPUs and NICs that jobs run on.

use super::simulated::Where;
use super::turns::Turn;
use mkernel::{Communicator, Faults, NicModel, Simulation, Transport};

/// GPUs of a job.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub world: u32,
    pub sms: u32,
    pub skew: u32,
}

impl Machine {
    /// Runs `body` on every rank; the first failure ends the others' kernels.
    pub fn run<T: Send>(
        self,
        place: Where,
        body: impl Fn(&Communicator) -> Result<T, Box<dyn std::error::Error>> + Sync,
    ) -> Result<Vec<T>, String> {
        let results = self.each(place, |rank, all| {
            // The others end at once then, not at their deadlines.
            body(rank).inspect_err(|_| all.iter().for_each(Communicator::abort))
        })?;
        // What the simulator found says more than what came of it.
        let mut failures: Vec<String> = results
            .iter()
            .filter_map(|result| result.as_ref().err().cloned())
            .collect();
        failures.sort_by_key(|failure| !failure.contains("simulator found"));
        match failures.first() {
            None => Ok(results.into_iter().flatten().collect()),
            Some(failure) => Err(failure.clone()),
        }
    }

    /// Runs `body` on every rank, of all ranks; what each says.
    pub fn each<T: Send>(
        self,
        place: Where,
        body: impl Fn(&Communicator, &[Communicator]) -> Result<T, Box<dyn std::error::Error>> + Sync,
    ) -> Result<Vec<Result<T, String>>, String> {
        let world = self.world;
        let _turn = matches!(place, Where::Simulated { .. }).then(Turn::wait);
        let ranks = match place {
            Where::Simulated { seed } => Communicator::simulated(&Simulation {
                ranks: world,
                seed,
                sms: self.sms,
                skew: self.skew,
                timeline: false,
            }),
            Where::Gpus => Communicator::local(&(0..world as usize).collect::<Vec<_>>()),
        };
        let ranks = ranks.map_err(|error| error.to_string())?;
        let (all, body) = (&ranks, &body);
        std::thread::scope(|scope| {
            // Ranks stay until the last is done.
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

/// An error and its causes, on one line.
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// Emulated NICs whose faults depend on the seed.
pub fn emulated(faults: &Faults, place: Where) -> Transport {
    let seed = match place {
        Where::Simulated { seed } => seed,
        Where::Gpus => 0,
    };
    Transport::Emulated {
        nic: NicModel::default(),
        faults: Faults {
            seed,
            ..faults.clone()
        },
    }
}
