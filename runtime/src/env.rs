//! The environment variables of this crate, read here and nowhere else.
//!
//! | variable | meaning |
//! |---|---|
//! | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | this process's place, as torchrun sets it; those of other launchers are in [`LAUNCHERS`] |
//! | `MASTER_ADDR` | host of rank 0; if absent `127.0.0.1`, or, under srun, the step's first host |
//! | `MASTER_PORT` | a port there: ours, or, if `TORCHELASTIC_USE_AGENT_STORE` is `True`, torchrun's own, and ours is the next; if absent under srun, one made of the job's number |
//! | `MKERNEL_PORT` | our port, whatever the others say |
//! | `MKERNEL_SECRET` | what all ranks must know, 16 bytes or more; without it, whoever reaches the port can be a rank |
//! | `MKERNEL_HOST_ID` | what tells hosts apart: the same in all processes of a host, and different on every other; if absent, the kernel's boot id, the host's name and the network namespace |
//! | `MKERNEL_TIMEOUT_MS` | deadline of every wait; 30000 if absent |
//! | `MKERNEL_HOST_TIMEOUT_MS` | deadline of steps in which ranks wait for each other on the host; if absent, `MKERNEL_TIMEOUT_MS` if that is set, else 30000, or 300000 on simulated GPUs |
//! | `MKERNEL_TRANSPORT` | what carries puts of operators between nodes: `emulated`, `rc` or `efa`; if absent, the first on one host, the second on several |
//! | `MKERNEL_NICS` | NICs for traffic between hosts, `mlx5_0,mlx5_3`, or those of each GPU, `0=mlx5_0;1=mlx5_3`; the nearest if absent |
//! | `MKERNEL_GID_INDEX` | an index in the NICs' tables of GIDs, 0 to 255; the farthest-reaching of RoCE v2 if absent |
//! | `MKERNEL_SERVICE_LEVEL` | InfiniBand's service level, or the priority of Ethernet, 0 to 15; 0 if absent |
//! | `MKERNEL_TRAFFIC_CLASS` | DSCP and ECN of RoCE v2's packets, 0 to 255; 0 if absent |
//! | `MKERNEL_PROXY_CORES` | where the fabric's proxies run: `near` the GPU's first NIC, or `8-15,24`; any core if absent |
//! | `SYSFS_PATH` | where sysfs is; libibverbs reads it too; `/sys` if absent |
//! | `MKERNEL_DEVICE` | `gpu`, if absent; `sim`: simulated GPUs; `auto`: simulated ones where there is no GPU |
//! | `MKERNEL_SIM_SEED` | what the order of events on simulated GPUs depends on; 0 if absent |
//! | `MKERNEL_SIM_SMS` | SMs of a simulated GPU; 8 if absent |
//! | `MKERNEL_SIM_SKEW` | how unfair that order is to ranks, CTAs and warps, 0 to 100; 20 if absent |

pub(crate) mod launcher;
mod variable;

use crate::bootstrap::{MAX_NAME_BYTES, Secret};
use crate::error::Error;
use crate::fabric::transport::{NicOptions, Transport};
use crate::simulation::Simulation;
use launcher::LaunchedRank;
use std::path::PathBuf;
use std::time::Duration;
use variable::{parse, read, wrong};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Programs on simulated GPUs are tests, which compute on the host what kernels should; for minutes on a busy machine.
const SIMULATED_HOST_TIMEOUT: Duration = Duration::from_secs(300);

/// The rank of this process, from the variables of its launcher.
pub(crate) fn launched_rank() -> Result<LaunchedRank, Error> {
    launcher::read(read)
}

/// What all ranks of the job must know, if it has a secret.
pub(crate) fn secret() -> Result<Option<Secret>, Error> {
    read_secret(|name| std::env::var_os(name).map(std::os::unix::ffi::OsStringExt::into_vec))
}

fn read_secret(lookup: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Option<Secret>, Error> {
    let name = "MKERNEL_SECRET";
    match lookup(name) {
        None => Ok(None),
        Some(bytes) => Secret::new(&bytes).map(Some).ok_or_else(|| {
            // Not even a short secret is repeated.
            let value = Some(format!("{} bytes long", bytes.len()));
            wrong(
                name,
                value,
                "at least 16 random bytes, the same on all ranks",
            )
        }),
    }
}

/// The deadlines of waits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    pub device: Duration,
    /// As it is set.
    host: Option<Duration>,
}

impl Timeouts {
    /// Of steps in which ranks wait for each other on the host.
    pub fn host(&self, is_simulated: bool) -> Duration {
        self.host.unwrap_or(match is_simulated {
            true => SIMULATED_HOST_TIMEOUT,
            false => self.device,
        })
    }
}

/// The deadlines of waits.
pub(crate) fn timeouts() -> Result<Timeouts, Error> {
    read_timeouts(read)
}

/// What this host is called among those of the job, if that is set.
pub(crate) fn host_id() -> Result<Option<String>, Error> {
    read_host_id(read)
}

fn read_host_id(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<String>, Error> {
    let name = "MKERNEL_HOST_ID";
    match lookup(name) {
        Some(id) if id.trim().is_empty() || id.len() > MAX_NAME_BYTES => {
            let expected =
                "1 to 256 bytes, the same in all processes of a host and different on every other";
            Err(wrong(name, Some(id), expected))
        }
        id => Ok(id),
    }
}

/// What carries puts of operators between nodes.
pub(crate) fn transport() -> Result<Option<Transport>, Error> {
    read_transport(read)
}

/// How NICs are used, where the program does not say.
pub(crate) fn nic_options() -> Result<NicOptions, Error> {
    read_nic_options(read)
}

/// `MKERNEL_NICS`, as [`mkernel_topology::Wanted`] reads it; empty if it is not set.
#[must_use]
pub fn wanted_nics() -> String {
    read("MKERNEL_NICS").unwrap_or_default()
}

/// The cores on which a proxy may run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProxyCores {
    Any,
    /// Those near the GPU's first NIC, of which every GPU has its own.
    Near,
    These(Vec<usize>),
}

/// Where proxies are to run.
pub(crate) fn proxy_cores() -> Result<ProxyCores, Error> {
    read_proxy_cores(read)
}

fn read_proxy_cores(lookup: impl Fn(&str) -> Option<String>) -> Result<ProxyCores, Error> {
    let name = "MKERNEL_PROXY_CORES";
    let value = lookup(name).unwrap_or_default();
    match value.trim() {
        "" => Ok(ProxyCores::Any),
        "near" => Ok(ProxyCores::Near),
        list => match mkernel_topology::cpu_list(list) {
            Some(cores) if !cores.is_empty() => Ok(ProxyCores::These(
                cores.into_iter().map(|core| core as usize).collect(),
            )),
            _ => Err(wrong(name, Some(value), "near, or cores such as 8-15,24")),
        },
    }
}

/// Where sysfs is.
pub(crate) fn sysfs() -> PathBuf {
    let root = read("SYSFS_PATH").filter(|root| !root.is_empty());
    root.map_or_else(|| PathBuf::from("/sys"), PathBuf::from)
}

/// Which GPUs a program wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    Gpu,
    Simulated,
    /// Simulated ones where there is no GPU.
    Auto,
}

/// Which GPUs this program is to use.
pub(crate) fn device() -> Result<DeviceChoice, Error> {
    read_device(read)
}

/// What simulated GPUs of `ranks` ranks are like.
pub(crate) fn simulation(ranks: usize) -> Result<Simulation, Error> {
    read_simulation(read, ranks)
}

fn read_device(lookup: impl Fn(&str) -> Option<String>) -> Result<DeviceChoice, Error> {
    let name = "MKERNEL_DEVICE";
    match lookup(name).as_deref().map(str::trim) {
        None | Some("" | "gpu") => Ok(DeviceChoice::Gpu),
        Some("sim") => Ok(DeviceChoice::Simulated),
        Some("auto") => Ok(DeviceChoice::Auto),
        Some(other) => Err(wrong(name, Some(other.to_owned()), "gpu, sim or auto")),
    }
}

fn read_transport(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Transport>, Error> {
    let name = "MKERNEL_TRANSPORT";
    Ok(match lookup(name).as_deref().map(str::trim) {
        None | Some("") => None,
        Some("emulated") => Some(Transport::default()),
        Some("rc") => Some(Transport::Rc(read_nic_options(lookup)?)),
        Some("efa") => Some(Transport::Efa(read_nic_options(lookup)?)),
        Some(other) => {
            let value = Some(other.to_owned());
            return Err(wrong(name, value, "emulated, rc or efa"));
        }
    })
}

fn read_nic_options(lookup: impl Fn(&str) -> Option<String>) -> Result<NicOptions, Error> {
    let number = |name, most: u8, range| match lookup(name).as_deref().map(str::trim) {
        None | Some("") => Ok(None),
        Some(text) => match text.parse::<u8>() {
            Ok(number) if number <= most => Ok(Some(number)),
            _ => Err(wrong(name, Some(text.to_owned()), range)),
        },
    };
    let to_255 = "a number from 0 to 255";
    Ok(NicOptions {
        nics: None,
        gid_index: number("MKERNEL_GID_INDEX", 255, to_255)?,
        service_level: number("MKERNEL_SERVICE_LEVEL", 15, "a number from 0 to 15")?.unwrap_or(0),
        traffic_class: number("MKERNEL_TRAFFIC_CLASS", 255, to_255)?.unwrap_or(0),
    })
}

fn read_simulation(
    lookup: impl Fn(&str) -> Option<String>,
    ranks: usize,
) -> Result<Simulation, Error> {
    let usual = Simulation::default();
    Ok(Simulation {
        ranks: u32::try_from(ranks).unwrap_or(u32::MAX),
        seed: parse(&lookup, "MKERNEL_SIM_SEED", "a whole number")?.unwrap_or(usual.seed),
        sms: parse(&lookup, "MKERNEL_SIM_SMS", "a number of SMs")?.unwrap_or(usual.sms),
        skew: parse(&lookup, "MKERNEL_SIM_SKEW", "0 to 100")?.unwrap_or(usual.skew),
        timeline: false,
    })
}

fn read_timeouts(lookup: impl Fn(&str) -> Option<String>) -> Result<Timeouts, Error> {
    let milliseconds = |name| {
        let expected = "a number of milliseconds, 1 or more";
        match parse::<u64>(&lookup, name, expected)? {
            Some(0) => Err(wrong(name, Some("0".into()), expected)),
            ms => Ok(ms.map(Duration::from_millis)),
        }
    };
    let every = milliseconds("MKERNEL_TIMEOUT_MS")?;
    Ok(Timeouts {
        device: every.unwrap_or(DEFAULT_TIMEOUT),
        host: milliseconds("MKERNEL_HOST_TIMEOUT_MS")?.or(every),
    })
}

#[cfg(test)]
mod tests;
