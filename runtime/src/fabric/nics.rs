//! Transports over NICs: the NICs that a rank uses, its region on them, and the cores near them.

use super::nic_settings::{Flush, NicOptions};
use super::region::MemoryPath;
use super::transport::Transport;
use crate::driver;
use crate::env::{self, ProxyCores};
use crate::error::{Error, NetworkError};
use crate::shared::Shared;
use mkernel_fabric::FabricError;
use mkernel_topology::{Gpu, NicKind, PciLocation, Topology};
use std::time::Duration;

/// The NICs of a rank.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RankNics {
    /// The device names, as verbs use them.
    devices: Vec<String>,
    /// The port number, which is the same on all NICs.
    port: Option<u8>,
}

/// Opens the NICs of this rank's GPU.
pub(super) fn open(
    shared: &Shared,
    transport: &Transport,
    peers: usize,
) -> Result<Box<dyn mkernel_fabric::Transport>, Error> {
    let (options, is_built, feature) = match transport {
        Transport::Efa(options) => (options, cfg!(feature = "efa"), "efa"),
        Transport::Rc(options) => (options, cfg!(feature = "verbs"), "verbs"),
        Transport::Emulated { .. } => return Err(no_nics()),
    };
    let name = transport.name();
    if !is_built {
        return Err(Error::Network(NetworkError::NoTransport { name, feature }));
    }
    let (topology, gpu) = topology(shared)?;
    let mut nics = choose(&topology, gpu, &wanted(transport), name)?;
    if let Some(rails) = options.rails {
        nics.devices.truncate(rails.into());
    }
    let (rank, devices) = (shared.rank, nics.devices.join(", "));
    tracing::info!(
        rank,
        transport = name,
        nics = devices,
        "puts use these NICs"
    );
    let flush = match options.flush {
        Flush::Always => true,
        Flush::Never => false,
        Flush::Auto => shared.simulated.is_none() && !driver::nic_access(&shared.ctx)?.keeps_order,
    };
    open_devices((transport, options), &nics, peers, shared.timeout(), flush)
}

/// The error for a transport without NICs.
fn no_nics() -> Error {
    Error::Fabric(FabricError::Config(vec![
        "emulated NICs are not opened by verbs".to_owned(),
    ]))
}

/// The error for memory that no path reaches.
pub(super) fn no_path(refused: &[String]) -> Error {
    Error::Network(NetworkError::Nics {
        reason: format!(
            "operators need NICs that can access GPU memory, but these cannot ({}). Load nvidia-peermem, or use the open kernel \
             module of NVIDIA's driver and Linux 5.12 or newer for dma-bufs",
            refused.join("; ")
        ),
    })
}

/// Logs the path to a region. A path through host memory is logged as a warning: puts are then only as fast as kernels can read
/// and write over PCIe.
pub(super) fn log_path(
    shared: &Shared,
    path: MemoryPath,
    refused: &[String],
    transport: &Transport,
) {
    let (rank, transport, refused) = (shared.rank, transport.name(), refused.join("; "));
    if path == MemoryPath::Pinned && shared.simulated.is_none() {
        tracing::warn!(
            rank,
            transport,
            refused,
            "the NICs cannot access GPU memory, so puts use {path}; load nvidia-peermem, or use the open kernel module of \
             NVIDIA's driver and Linux 5.12 or newer for dma-bufs"
        );
    } else {
        tracing::info!(rank, transport, refused, "puts use {path}");
    }
}

/// Returns the topology of this host, and the index of this rank's GPU in the topology. The index of a simulated GPU is its
/// local rank.
fn topology(shared: &Shared) -> Result<(Topology, usize), Error> {
    let mut topology = Topology::read(&env::sysfs());
    if shared.simulated.is_some() {
        let local_ranks = shared.cluster.hosts.local_ranks(shared.rank).len();
        topology.gpus = (0..local_ranks)
            .map(simulated_gpu)
            .collect::<Option<_>>()
            .unwrap_or_default();
        return Ok((topology, shared.cluster.hosts.local_rank(shared.rank)));
    }
    let bus_id = driver::bus_id(shared.ctx.cu_device())?;
    let gpu = bus_id.parse().ok().and_then(|id| topology.gpu_at(id));
    let gpu = gpu.ok_or_else(|| {
        Error::Network(NetworkError::Nics {
            reason: format!(
                "the GPU at {bus_id} is not in sysfs. Check that sysfs is mounted in this container"
            ),
        })
    })?;
    Ok((topology, gpu))
}

/// Returns a GPU that is equally distant from every NIC.
fn simulated_gpu(number: usize) -> Option<Gpu> {
    let bus_id = format!("0000:{number:02x}:00.0").parse().ok()?;
    Some(Gpu {
        location: PciLocation {
            bus_id,
            host_bridge: None,
            bridges: Vec::new(),
            numa_node: None,
        },
        pci_id: String::new(),
    })
}

/// Returns the cores on which this rank's proxy may run. An empty list means any core.
pub(super) fn cores(shared: &Shared, transport: &Transport) -> Result<Vec<usize>, Error> {
    let cores = match env::proxy_cores()? {
        ProxyCores::Any => return Ok(Vec::new()),
        ProxyCores::These(cores) => cores,
        ProxyCores::Near => {
            let (topology, gpu) = topology(shared)?;
            near(&topology, gpu, &wanted(transport))?
        }
    };
    tracing::info!(rank = shared.rank, ?cores, "the proxy runs on these cores");
    Ok(cores)
}

/// Returns the NICs that the user wants for a transport.
fn wanted(transport: &Transport) -> String {
    let nics = transport.nic_options();
    let nics = nics.and_then(|options| options.nics.clone());
    nics.unwrap_or_else(env::wanted_nics)
}

/// Returns the rate in GB/s of the NICs that the GPU at `bus_id` would use, if sysfs has it.
pub(crate) fn nic_gb_s(bus_id: &str) -> Result<Option<f64>, Error> {
    let topology = Topology::read(&env::sysfs());
    let choices = topology.select_nics(&env::wanted_nics());
    let choices = choices.map_err(|error| {
        Error::Network(NetworkError::Nics {
            reason: error.to_string(),
        })
    })?;
    let gpu = bus_id.parse().ok().and_then(|id| topology.gpu_at(id));
    let choice = gpu.and_then(|gpu| choices.gpus.get(gpu));
    Ok(choice.and_then(|choice| choice.gb_per_s(&topology)))
}

/// Returns the cores near a GPU's first NIC that no other GPU's proxy uses.
fn near(topology: &Topology, gpu: usize, wanted: &str) -> Result<Vec<usize>, Error> {
    let wrong = |reason| Error::Network(NetworkError::Nics { reason });
    let choices = topology
        .select_nics(wanted)
        .map_err(|error| wrong(error.to_string()))?;
    let cores = choices.gpus.get(gpu).map_or(&[][..], |gpu| &gpu.cores);
    if cores.is_empty() {
        return Err(wrong(format!(
            "GPU {gpu} has no NIC, so there are no cores near its NIC. List cores in MKERNEL_PROXY_CORES, or unset it"
        )));
    }
    Ok(cores.iter().map(|core| *core as usize).collect())
}

/// Chooses the NICs of a GPU for a transport.
fn choose(
    topology: &Topology,
    gpu: usize,
    wanted: &str,
    transport: &str,
) -> Result<RankNics, Error> {
    let wrong = |reason| Error::Network(NetworkError::Nics { reason });
    let choices = topology
        .select_nics(wanted)
        .map_err(|error| wrong(error.to_string()))?;
    let rails = choices
        .gpus
        .get(gpu)
        .map_or(&[][..], |choice| &choice.rails);
    let nics: Vec<_> = rails.iter().map(|rail| &topology.nics[rail.nic]).collect();
    if nics.is_empty() {
        let notes = [topology.notes.as_slice(), &choices.notes].concat();
        let notes: String = notes.iter().map(|note| format!("; {note}")).collect();
        return Err(wrong(format!("there is no NIC for GPU {gpu}{notes}")));
    }
    let fits = |link| (link == NicKind::Efa) == (transport == "efa");
    if let Some(nic) = nics.iter().find(|nic| !fits(nic.kind)) {
        return Err(wrong(format!(
            "{} is {}, which transport {transport} does not support. Use transport {}, or name other NICs by MKERNEL_NICS",
            nic.name,
            nic.kind,
            if nic.kind == NicKind::Efa {
                "efa"
            } else {
                "rc"
            },
        )));
    }
    let port = nics[0].port;
    if let Some(other) = nics.iter().find(|nic| nic.port != port) {
        return Err(wrong(format!(
            "{} and {} are different ports. All NICs of a GPU must use the same port number",
            nics[0].name, other.name
        )));
    }
    Ok(RankNics {
        devices: nics.iter().map(|nic| nic.device.clone()).collect(),
        port: u8::try_from(port).ok(),
    })
}

#[cfg(feature = "verbs")]
fn open_devices(
    (transport, options): (&Transport, &NicOptions),
    nics: &RankNics,
    peers: usize,
    timeout: Duration,
    flush: bool,
) -> Result<Box<dyn mkernel_fabric::Transport>, Error> {
    use mkernel_fabric::verbs;
    // NICs must not give up a peer before the kernels do. The margin covers the rounding of RC, whose attempts then take 30.06
    // s with the default.
    let usual = timeout + Duration::from_secs(1);
    let peer_timeout = options.nic_timeout.unwrap_or(usual);
    let options = verbs::Options {
        devices: nics.devices.clone(),
        port: nics.port,
        gid_index: options.gid_index,
        service_level: options.service_level,
        traffic_class: options.traffic_class,
        partition_key: options.partition_key,
        queue_pairs: options.queue_pairs,
        relaxed_ordering: options.relaxed_ordering,
        flush,
        peer_timeout: peer_timeout.min(verbs::MAX_PEER_TIMEOUT),
        ..verbs::Options::new(u16::try_from(peers).unwrap_or(u16::MAX))
    };
    let opened = match transport {
        #[cfg(feature = "efa")]
        Transport::Efa(_) => verbs::efa(options).map(|efa| Box::new(efa) as _),
        _ => verbs::rc(options).map(|rc| Box::new(rc) as _),
    };
    opened.map_err(Error::Fabric)
}

/// Never reached, since transports without support in this build are refused earlier.
#[cfg(not(feature = "verbs"))]
fn open_devices(
    (transport, _): (&Transport, &NicOptions),
    _: &RankNics,
    _: usize,
    _: Duration,
    _: bool,
) -> Result<Box<dyn mkernel_fabric::Transport>, Error> {
    Err(Error::Network(NetworkError::NoTransport {
        name: transport.name(),
        feature: "verbs",
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel_topology::{Nic, NumaNode};

    fn nic(device: &str, port: u32, kind: NicKind) -> Nic {
        Nic {
            name: format!("{device}:{port}"),
            device: device.to_owned(),
            port,
            kind,
            is_up: true,
            rate_mbps: Some(100_000),
            location: None,
            part_of: None,
            local_cpus: Vec::new(),
        }
    }

    fn host(gpus: usize, nics: Vec<Nic>) -> Topology {
        Topology {
            gpus: (0..gpus).filter_map(simulated_gpu).collect(),
            nics,
            ..Topology::default()
        }
    }

    #[test]
    fn gpus_share_nics_out_or_have_those_that_are_named() {
        let roce = |device| nic(device, 1, NicKind::RoCE);
        let host = host(2, vec![roce("a"), roce("b"), roce("c"), roce("d")]);
        let devices = |gpu, wanted| choose(&host, gpu, wanted, "rc").map(|r| r.devices);
        let (first, second) = (devices(0, "").expect("two"), devices(1, "").expect("two"));
        assert_eq!((first.len(), second.len()), (2, 2));
        assert!(first.iter().all(|nic| !second.contains(nic)));
        assert_eq!(
            devices(1, "0=a;1=d,c").expect("as they are named"),
            ["d", "c"]
        );
        let error = devices(0, "x").expect_err("no such NIC").to_string();
        assert!(error.contains("\"x\"") && error.contains("a:1"), "{error}");
    }

    #[test]
    fn proxies_share_the_cores_near_their_nics() {
        let near_cores = |device, local_cpus: &[u32]| Nic {
            local_cpus: local_cpus.to_vec(),
            ..nic(device, 1, NicKind::RoCE)
        };
        let cpus: Vec<u32> = (0..8).collect();
        let nics = vec![near_cores("a", &[0, 1, 2, 3]), near_cores("b", &[4, 5])];
        let host = Topology {
            numa_nodes: vec![NumaNode {
                number: 0,
                cpus: cpus.clone(),
                first_threads: cpus,
            }],
            ..host(2, nics)
        };
        let cores = |gpu, wanted| near(&host, gpu, wanted).expect("there are NICs");
        assert_eq!(
            (cores(0, "0=a;1=b"), cores(1, "0=a;1=b")),
            (vec![0, 1, 2, 3], vec![4, 5])
        );
        assert_eq!((cores(0, "a"), cores(1, "a")), (vec![0, 1], vec![2, 3]));
        let error = near(&super::tests::host(1, Vec::new()), 0, "").expect_err("no NIC");
        assert!(error.to_string().contains("MKERNEL_PROXY_CORES"), "{error}");
    }

    #[test]
    fn nics_that_do_not_fit_are_named() {
        let wrong = |nics, transport| {
            let error = choose(&host(1, nics), 0, "", transport);
            error.expect_err("they do not fit").to_string()
        };
        let text = wrong(vec![nic("rdmap0s6", 1, NicKind::Efa)], "rc");
        assert!(
            text.contains("rdmap0s6:1 is EFA") && text.contains("transport efa"),
            "{text}"
        );
        let text = wrong(vec![nic("mlx5_0", 1, NicKind::InfiniBand)], "efa");
        assert!(text.contains("transport rc"), "{text}");
        let ports = vec![nic("a", 1, NicKind::RoCE), nic("b", 2, NicKind::RoCE)];
        let text = wrong(ports, "rc");
        assert!(text.contains("a:1 and b:2 are different ports"), "{text}");
        let text = wrong(Vec::new(), "rc");
        assert!(text.contains("there is no NIC for GPU 0"), "{text}");
    }
}
