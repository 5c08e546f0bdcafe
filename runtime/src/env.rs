//! The environment variables of this crate. They are read in this module and nowhere else.
//!
//! | variable | meaning |
//! |---|---|
//! | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | The rank of this process, as torchrun sets it. The variables of other launchers are in `LAUNCHERS`. |
//! | `MASTER_ADDR` | The host of rank 0. The default is `127.0.0.1`, or the first host of the step under srun. |
//! | `MASTER_PORT` | The port of rank 0. If `TORCHELASTIC_USE_AGENT_STORE` is `True`, it is torchrun's own port, and rank 0 uses the next one. The default under srun is derived from the job's number. |
//! | `MKERNEL_PORT` | The port of rank 0. It has precedence over `MASTER_PORT`. |
//! | `MKERNEL_SECRET` | A secret of all ranks, 16 bytes or more. Without it, any process that reaches the port can join as a rank. |
//! | `MKERNEL_HOST_ID` | An id that is the same in all processes of a host and different on every other host. The default consists of the kernel's boot id, the host's name and the network namespace. |
//! | `MKERNEL_TIMEOUT_MS` | The timeout of every wait. The default is 30000. |
//! | `MKERNEL_HOST_TIMEOUT_MS` | The timeout of steps in which ranks wait for each other on the host. The default is `MKERNEL_TIMEOUT_MS` if that is set, else 30000, or 300000 on simulated GPUs. |
//! | `MKERNEL_TRANSPORT` | The transport for puts between nodes: `emulated`, `rc` or `efa`. The default is `emulated` on one host and `rc` on several. |
//! | `MKERNEL_NICS` | The NICs for traffic between hosts, `mlx5_0,mlx5_3`, or those of each GPU, `0=mlx5_0;1=mlx5_3`. The default is the nearest NICs of each GPU. |
//! | `MKERNEL_GID_INDEX` and others | The settings of NICs, which [`NIC_SETTINGS`](crate::network::NIC_SETTINGS) lists. |
//! | `MKERNEL_PROXY_CORES` | The cores of the fabric's proxies: `near` for those near the GPU's first NIC, or a list such as `8-15,24`. The default is any core. |
//! | `SYSFS_PATH` | The path of sysfs, which libibverbs reads too. The default is `/sys`. |
//! | `MKERNEL_RECORD` | A TOML file to which rank 0 adds each kernel that is prepared, for `mkernel-gen build`. The default is none. |
//! | `MKERNEL_TUNED` | A file of `mkernel-gen tune`, whose choices precede the shipped choices, or `none` to use no measured choices. The default is the shipped choices. |
//! | `MKERNEL_DEVICE` | `gpu` for real GPUs, which is the default; `sim` for simulated GPUs; `auto` for simulated GPUs if there is no real one. |
//! | `MKERNEL_SIM_SEED` | The seed for the order of events on simulated GPUs. The default is 0. |
//! | `MKERNEL_SIM_SMS` | The number of SMs of a simulated GPU. The default is 8. |
//! | `MKERNEL_SIM_SKEW` | How unfair the order of events is to ranks, CTAs and warps, 0 to 100. The default is 20. |

pub(crate) mod launcher;
pub(crate) mod rendezvous_point;
mod variable;

use crate::bootstrap::{MAX_NAME_BYTES, Secret};
use crate::error::{EnvironmentError, Error};
use crate::fabric::nic_settings::NicOptions;
use crate::fabric::transport::Transport;
use crate::simulation::Simulation;
use launcher::LaunchedRank;
use mkernel_compile::Store;
use mkernel_spec::Tuned;
use std::path::{Path, PathBuf};
use std::time::Duration;
use variable::{parse, read, wrong};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// The default timeout of collective steps on simulated GPUs. Programs on simulated GPUs are usually tests, which
/// compute the results of kernels on the host. On a busy machine this takes minutes.
const SIMULATED_HOST_TIMEOUT: Duration = Duration::from_secs(300);

/// Reads the rank of this process from the variables of its launcher.
pub(crate) fn launched_rank() -> Result<LaunchedRank, Error> {
    launcher::read(read)
}

/// Returns whether a launcher has set variables for this process.
pub(crate) fn is_launched() -> bool {
    launcher::is_any_set(read)
}

/// Opens the store of kernels that the variables of `mkernel-compile` configure.
pub(crate) fn kernel_store() -> Result<Store, Error> {
    let invalid = |variables| Error::Environment(EnvironmentError::Kernels(variables));
    Store::from_env().map_err(invalid)
}

/// Reads the secret of the job, if it has one.
pub(crate) fn secret() -> Result<Option<Secret>, Error> {
    read_secret(|name| std::env::var_os(name).map(std::os::unix::ffi::OsStringExt::into_vec))
}

fn read_secret(lookup: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Option<Secret>, Error> {
    let name = "MKERNEL_SECRET";
    match lookup(name) {
        None => Ok(None),
        Some(bytes) => Secret::new(&bytes).map(Some).ok_or_else(|| {
            // The value is not repeated, not even if it is too short.
            let value = Some(format!("{} bytes long", bytes.len()));
            wrong(
                name,
                value,
                "at least 16 random bytes, the same on all ranks",
            )
        }),
    }
}

/// The timeouts of waits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    pub device: Duration,
    /// The timeout of collective steps, if it is set.
    pub host: Option<Duration>,
}

impl Timeouts {
    /// Returns the timeout of collective steps, in which ranks wait for each other on the host.
    pub fn host(&self, is_simulated: bool) -> Duration {
        self.host.unwrap_or(match is_simulated {
            true => SIMULATED_HOST_TIMEOUT,
            false => self.device,
        })
    }
}

/// Reads the timeouts of waits.
pub(crate) fn timeouts() -> Result<Timeouts, Error> {
    read_timeouts(read)
}

/// Reads the id of this host, if it is set.
pub(crate) fn host_id() -> Result<Option<String>, Error> {
    read_host_id(read)
}

fn read_host_id(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<String>, Error> {
    let name = "MKERNEL_HOST_ID";
    match lookup(name) {
        Some(id) if id.trim().is_empty() || id.len() > MAX_NAME_BYTES => {
            let expected = "1 to 256 bytes, the same in all processes of a host and different on every other host";
            Err(wrong(name, Some(id), expected))
        }
        id => Ok(id),
    }
}

/// Reads the transport for puts between nodes, if it is set.
pub(crate) fn transport() -> Result<Option<Transport>, Error> {
    read_transport(read)
}

/// Returns `MKERNEL_NICS`, in the form that [`mkernel_topology::NicConfig`] reads. The text is empty if the variable is
/// not set.
#[must_use]
pub fn wanted_nics() -> String {
    read("MKERNEL_NICS").unwrap_or_default()
}

/// The cores on which a proxy may run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProxyCores {
    Any,
    /// The cores near the GPU's first NIC, divided among the GPUs.
    Near,
    These(Vec<usize>),
}

/// Reads the cores on which proxies run.
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

/// Returns the path of sysfs.
pub(crate) fn sysfs() -> PathBuf {
    let root = read("SYSFS_PATH").filter(|root| !root.is_empty());
    root.map_or_else(|| PathBuf::from("/sys"), PathBuf::from)
}

/// Returns the file to which prepared kernels are added, if the user wants one.
pub(crate) fn record() -> Option<PathBuf> {
    let path = std::env::var_os("MKERNEL_RECORD");
    path.filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Returns the error of a file to which kernels cannot be added.
pub(crate) fn wrong_record(path: &Path) -> Error {
    let value = Some(path.display().to_string());
    wrong(
        "MKERNEL_RECORD",
        value,
        "a text file that this process can write",
    )
}

/// Returns the measured choices of programs that set none: the choices of the file `MKERNEL_TUNED`, and those that mkernel ships.
///
/// # Errors
/// [`EnvironmentError::Tuned`] if the file cannot be read or is no such file.
pub fn tuned() -> Result<Tuned, Error> {
    read_tuned(read)
}

fn read_tuned(lookup: impl Fn(&str) -> Option<String>) -> Result<Tuned, Error> {
    let path = lookup("MKERNEL_TUNED").unwrap_or_default();
    match path.trim() {
        "" => Ok(Tuned::shipped().clone()),
        "none" => Ok(Tuned::default()),
        path => {
            let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
            let tuned = text.and_then(|text| Tuned::read(&text).map_err(|error| error.to_string()));
            let tuned = tuned.map_err(|reason| {
                let path = path.into();
                Error::Environment(EnvironmentError::Tuned { path, reason })
            })?;
            Ok(tuned.followed_by(Tuned::shipped()))
        }
    }
}

/// The kind of GPUs that the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    Gpu,
    Simulated,
    /// Simulated GPUs if the host has no real GPU.
    Auto,
}

/// Reads the kind of GPUs that this program uses.
pub(crate) fn device() -> Result<DeviceChoice, Error> {
    read_device(read)
}

/// Reads the options of simulated GPUs for `ranks` ranks.
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
        Some("rc") => Some(Transport::Rc(NicOptions::read(lookup)?)),
        Some("efa") => Some(Transport::Efa(NicOptions::read(lookup)?)),
        Some(other) => {
            let value = Some(other.to_owned());
            return Err(wrong(name, value, "emulated, rc or efa"));
        }
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
