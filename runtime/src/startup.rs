//! The creation of communicators: for a rank of several processes, for GPUs of one process, or on simulated GPUs.

use crate::bootstrap::{Collective, Job, Secret, Stop, local};
use crate::cluster::{self, Cluster, RankInfo, RankTable};
use crate::communicator::Communicator;
use crate::driver::{self, Backend};
use crate::env::launcher::LaunchedRank;
use crate::env::{self, Timeouts};
use crate::error::{ClusterError, DeviceError, Error, SimulatorError};
use crate::fabric::nics::nic_gb_s;
use crate::gpu::Gpu;
use crate::part::Part;
use crate::rendezvous::Rendezvous;
use crate::simulation::{self, SimulatedJob, Simulation};
use mkernel_spec::Device;
use mkernel_spec::abi::MAX_RANKS;
use std::sync::Arc;

impl Communicator {
    /// Creates the communicator of this process from the variables of its launcher: torchrun (`RANK`, `WORLD_SIZE`,
    /// `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT`), srun, or mpirun of Open MPI, MPICH and Intel MPI. This is a
    /// collective call. A job of one rank uses no network.
    ///
    /// The ranks connect to rank 0 at port `MKERNEL_PORT` if it is set. The default is `MASTER_PORT`, or the port after
    /// it if torchrun itself listens on `MASTER_PORT`. If `MKERNEL_SECRET` is set, the ends of each connection prove to
    /// each other that they know the secret. Otherwise, any process that reaches the port before a rank can take the
    /// place of that rank.
    ///
    /// The ranks may be on several hosts, with equal numbers of ranks, numbered host by host. Kernels for several hosts
    /// are declared with one node for each host. On simulated GPUs each host has one rank.
    ///
    /// # Errors
    /// [`Error::Environment`], [`Error::Device`], [`Error::Cluster`], [`Error::Rendezvous`], or a failure of a
    /// collective step.
    pub fn from_env() -> Result<Self, Error> {
        Self::of_rank(&env::launched_rank()?, env::secret()?)
    }

    /// Creates the communicators of this process: if a launcher has started the process, one communicator by
    /// [`from_env`](Self::from_env), and otherwise communicators by [`local`](Self::local), for the largest of 8, 4, 2 and
    /// 1 GPUs that the host has. [`run`](crate::run) calls a function for each communicator.
    ///
    /// # Errors
    /// The errors of [`from_env`](Self::from_env) and [`local`](Self::local).
    pub fn of_process() -> Result<Vec<Self>, Error> {
        if env::is_launched() {
            return Ok(vec![Self::from_env()?]);
        }
        let count = driver::device_count()?;
        let worlds = [8, 4, 2];
        let world = worlds.into_iter().find(|world| *world <= count);
        Self::local(&Vec::from_iter(0..world.unwrap_or(1)))
    }

    /// Creates the communicator of this process from a [`Rendezvous`], for programs that start their ranks without a launcher. This
    /// is a collective call. `world`, `host`, `port` and `secret` must be equal on all ranks.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if a field is not possible, and the errors of [`from_env`](Self::from_env) except
    /// [`Error::Environment`] for the variables of launchers.
    pub fn connect(rendezvous: &Rendezvous) -> Result<Self, Error> {
        let (launched, secret) = rendezvous.check()?;
        Self::of_rank(&launched, secret)
    }

    fn of_rank(launched: &LaunchedRank, secret: Option<Secret>) -> Result<Self, Error> {
        let timeouts = env::timeouts()?;
        let is_simulated = driver::wants_simulated()?;
        let on_one_host = launched
            .rendezvous
            .as_ref()
            .is_some_and(|m| !m.several_hosts);
        if is_simulated && on_one_host {
            return Err(Error::Simulator(SimulatorError::Processes {
                world: launched.world,
            }));
        }
        // Before the ranks are connected, no work of simulated GPUs can pause the deadline.
        let timeout = timeouts.host(false);
        let mut ranks = join(launched, secret, &timeouts)?;
        // All ranks have equal maps, so no rank waits for another rank after an error.
        let host_map = ranks.host_map().clone();
        cluster::check_hosts(&host_map)?;
        let local_world = host_map.local_ranks(launched.rank).len() as u32;
        if is_simulated && local_world > 1 {
            return Err(Error::Simulator(SimulatorError::Processes {
                world: local_world,
            }));
        }
        let by_host = || host_map.local_rank(launched.rank);
        let local_rank = launched
            .local_rank
            .map_or_else(by_host, |local| local as usize);
        let opened = open_local(local_rank).and_then(|(gpu, simulated)| {
            let id = driver::bus_id(gpu.ctx.cu_device())?;
            let mut device = gpu.device.clone();
            if host_map.count() > 1 {
                device.nic_gb_s = nic_gb_s(&id)?.unwrap_or(device.nic_gb_s);
            }
            let rank_info = RankInfo::new(id, device).to_bytes()?;
            Ok(((gpu, simulated), rank_info))
        });
        let step = "opening of the GPUs";
        let ((mut gpu, simulated), rank_infos) = ranks.agree(step, opened, timeout)?;
        let RankTable {
            bus_ids,
            cluster,
            device,
        } = cluster::rank_table(&host_map, &rank_infos, step)?;
        gpu.device = device;
        cluster::check_gpus(&host_map, &bus_ids)?;
        let access = cluster::check_access(&gpu.ctx, &host_map, launched.rank, &bus_ids);
        ranks.agree(
            "access between the GPUs",
            access.map(|()| ((), Vec::new())),
            timeout,
        )?;
        Ok(Self::new(gpu, ranks, cluster, &timeouts, simulated))
    }

    /// Creates a communicator for each GPU of `devices`, all in this process. Move each communicator to a thread of its
    /// own.
    ///
    /// For tests on a host with few GPUs, a GPU can be listed several times, as in `&[0, 0, 0, 0]`. The ranks of the GPU
    /// then share it: each rank has an equal part of the SMs and the memory, and ranks exchange data through the GPU's
    /// memory. Make calls on [`default_stream`](Self::default_stream), or on streams that do not wait for the GPU's
    /// default stream, and wait for calls by [`synchronize`](Self::synchronize): a call of the driver that waits for the
    /// GPU can keep other ranks from launching. Communicators that exist at the same time must divide a GPU in the same
    /// way. Simulated GPUs cannot be shared.
    ///
    /// With `MKERNEL_DEVICE=sim`, or `auto` if there is no GPU, the devices are GPUs 0 to 7 of a new simulated host.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::Cluster`] and [`Error::Simulator`].
    pub fn local(devices: &[usize]) -> Result<Vec<Self>, Error> {
        let timeouts = env::timeouts()?;
        if !(1..=MAX_RANKS).contains(&devices.len()) {
            return Err(Error::Cluster(ClusterError::World(devices.len())));
        }
        if driver::choose_backend()? == Backend::Gpu {
            return Self::on_gpus(devices, &timeouts, None);
        }
        let most = devices.iter().copied().max().unwrap_or(0);
        if most >= simulation::MAX_RANKS {
            return Err(Error::Device(DeviceError::NoDevice {
                ordinal: most,
                count: simulation::MAX_RANKS,
            }));
        }
        let host = SimulatedJob::claim(&env::simulation(1 + most)?)?;
        let ordinals: Vec<usize> = devices
            .iter()
            .map(|device| host.first_ordinal() + device)
            .collect();
        Self::on_gpus(&ordinals, &timeouts, Some(Arc::new(host)))
    }

    /// Creates the communicators of a job on simulated GPUs, which work on any machine with a C++ compiler. Move each
    /// communicator to a thread of its own. Simulated GPUs run the kernels of real GPUs, only slower. The simulator
    /// finds mistakes of kernels, and [`synchronize`](Self::synchronize) then returns [`Error::Simulation`].
    ///
    /// A process has either simulated or real GPUs for all of its life. Up to 8 jobs can be simulated at once.
    ///
    /// # Errors
    /// [`Error::Device`] if the process has used real GPUs, [`Error::Simulator`] if there is no compiler or an option
    /// is invalid, and [`Error::Cluster`] if the number of ranks is not supported.
    pub fn simulated(simulation: &Simulation) -> Result<Vec<Self>, Error> {
        let timeouts = env::timeouts()?;
        let world = simulation.ranks as usize;
        if !(1..=MAX_RANKS).contains(&world) {
            return Err(Error::Cluster(ClusterError::World(world)));
        }
        driver::use_simulated()?;
        let host = SimulatedJob::claim(simulation)?;
        let first = host.first_ordinal();
        let ordinals: Vec<usize> = (first..first + simulation.ranks as usize).collect();
        Self::on_gpus(&ordinals, &timeouts, Some(Arc::new(host)))
    }

    fn on_gpus(
        ordinals: &[usize],
        timeouts: &Timeouts,
        simulated: Option<Arc<SimulatedJob>>,
    ) -> Result<Vec<Self>, Error> {
        let kind = simulated
            .as_ref()
            .map_or(Backend::Gpu, |_| Backend::Simulated);
        let parts = match kind {
            Backend::Gpu => Part::of_ranks(ordinals),
            // Simulated GPUs cannot be shared, which is an error below.
            Backend::Simulated => vec![Part::WHOLE; ordinals.len()],
        };
        let mut gpus = ordinals
            .iter()
            .zip(parts)
            .map(|(&ordinal, part)| Gpu::open(ordinal, part, kind))
            .collect::<Result<Vec<_>, _>>()?;
        let devices: Vec<_> = gpus.iter().map(|gpu| gpu.device.clone()).collect();
        if let Some(slowest) = Device::slowest(&devices) {
            for gpu in &mut gpus {
                gpu.device = slowest.clone();
            }
        }
        let ids = gpus
            .iter()
            .map(|gpu| driver::bus_id(gpu.ctx.cu_device()))
            .collect::<Result<Vec<_>, _>>()?;
        let world = ordinals.len() as u32;
        let host_map = Cluster::one(world).hosts;
        if kind == Backend::Simulated {
            cluster::check_gpus(&host_map, &ids)?;
        }
        for (rank, gpu) in (0..).zip(&gpus) {
            cluster::check_access(&gpu.ctx, &host_map, rank, &ids)?;
        }
        let communicator = |(gpu, group)| {
            let (ranks, cluster) = (Collective::new(group), Cluster::one(world));
            Self::new(gpu, ranks, cluster, timeouts, simulated.clone())
        };
        let groups = local::groups(world);
        Ok(gpus.into_iter().zip(groups).map(communicator).collect())
    }
}

/// Connects this rank to the other ranks.
pub(crate) fn join(
    launched: &LaunchedRank,
    secret: Option<Secret>,
    timeouts: &Timeouts,
) -> Result<Collective, Error> {
    let Some(point) = &launched.rendezvous else {
        return Ok(Collective::new(local::groups(1).remove(0)));
    };
    Collective::connect(&Job {
        rank: launched.rank,
        world: launched.world,
        host: point.host.clone(),
        port: point.port,
        name: point.job.clone(),
        several_hosts: point.several_hosts,
        host_id: cluster::host_id()?,
        secret,
        timeout: timeouts.host(false),
        silence: timeouts.host(false).min(timeouts.device),
        stop: Stop::default(),
    })
}

fn open_local(local_rank: usize) -> Result<(Gpu, Option<Arc<SimulatedJob>>), Error> {
    if driver::choose_backend()? == Backend::Simulated {
        let host = SimulatedJob::claim(&env::simulation(1)?)?;
        let gpu = Gpu::open(host.first_ordinal(), Part::WHOLE, Backend::Simulated)?;
        return Ok((gpu, Some(Arc::new(host))));
    }
    // Some launchers make only one GPU visible to each process.
    let ordinal = if driver::device_count()? == 1 {
        0
    } else {
        local_rank
    };
    Ok((Gpu::open(ordinal, Part::WHOLE, Backend::Gpu)?, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_world_is_checked_before_the_driver_is_touched() {
        for count in [0, 9] {
            let error = Communicator::local(&vec![0; count]).expect_err("not a world");
            assert!(
                matches!(error, Error::Cluster(ClusterError::World(found)) if found == count),
                "{error}"
            );
        }
    }
}
