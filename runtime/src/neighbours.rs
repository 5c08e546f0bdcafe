//! The hosts and GPUs of a job: one host for now, each GPU of one rank, and each with access to the others.

use crate::bootstrap::Nodes;
use crate::driver;
use crate::error::Error;
use cudarc::driver::CudaContext;
use mkernel_spec::spec::WORLDS;
use std::sync::Arc;

/// The same in all processes of a host, containers included, and in those of no other: the kernel's boot id.
pub(crate) fn host_id() -> Result<String, Error> {
    // Tests have several hosts on one.
    #[cfg(test)]
    if let Some(host) = crate::env::test_host() {
        return Ok(host);
    }
    let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let id = read.map_err(|source| Error::Os {
        call: "reading the boot id",
        source: Arc::new(source),
    })?;
    Ok(id.trim().to_owned())
}

/// That all nodes have as many ranks, and that there is only one of them.
pub(crate) fn check_nodes(nodes: &Nodes) -> Result<(), Error> {
    let all = nodes.all();
    if all.iter().any(|ranks| ranks.len() != all[0].len()) {
        return Err(Error::UnequalHosts { hosts: all });
    }
    if all.len() > 1 {
        return Err(Error::SeveralHosts { hosts: all });
    }
    if !WORLDS.contains(&nodes.world()) {
        return Err(Error::World(nodes.world() as usize));
    }
    Ok(())
}

/// That each rank of a host has a GPU of its own. Returns the bus ids.
pub(crate) fn check_gpus(ids: &[Vec<u8>]) -> Result<Vec<String>, Error> {
    let ids: Vec<String> = ids
        .iter()
        .map(|id| String::from_utf8_lossy(id).into_owned())
        .collect();
    for (second, gpu) in ids.iter().enumerate() {
        if let Some(first) = ids[..second].iter().position(|other| other == gpu) {
            return Err(Error::SameDevice {
                first: first as u32,
                second: second as u32,
                bus_id: gpu.clone(),
            });
        }
    }
    Ok(ids)
}

/// Whether the GPU of `rank` can access those of its peers.
pub(crate) fn check_access(ctx: &CudaContext, rank: u32, bus_ids: &[String]) -> Result<(), Error> {
    for (peer, bus_id) in (0..).zip(bus_ids).filter(|(peer, _)| *peer != rank) {
        // A GPU that this process does not see shows when its memory is mapped.
        if driver::can_access_peer(ctx, bus_id)? == Some(false) {
            return Err(Error::NoPeerAccess { rank, peer });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(texts: &[&str]) -> Vec<Vec<u8>> {
        texts.iter().map(|text| text.as_bytes().to_vec()).collect()
    }

    #[test]
    fn neighbours_share_no_gpu() {
        let found = check_gpus(&ids(&["0000:18:00.0", "0000:2A:00.0"])).expect("two GPUs");
        assert_eq!(found, ["0000:18:00.0", "0000:2A:00.0"]);
        let error = check_gpus(&ids(&["1", "2", "2"])).expect_err("one GPU twice");
        assert!(
            matches!(
                &error,
                Error::SameDevice {
                    first: 1,
                    second: 2,
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn one_host_has_a_world_that_kernels_have() {
        let check = |hosts: &[&str]| {
            let hosts: Vec<&[u8]> = hosts.iter().map(|host| host.as_bytes()).collect();
            check_nodes(&Nodes::from_hosts(&hosts))
        };
        check(&["a", "a"]).expect("one host");
        assert!(matches!(check(&["a", "a", "a"]), Err(Error::World(3))));
        let error = check(&["a", "b", "a", "b"]).expect_err("two hosts");
        let text = error.to_string();
        assert!(text.contains("ranks 0, 2 | ranks 1, 3"), "{text}");
        assert!(matches!(error, Error::SeveralHosts { .. }), "{text}");
        let error = check(&["a", "b", "a"]).expect_err("two hosts, one with fewer ranks");
        assert!(matches!(error, Error::UnequalHosts { .. }), "{error}");
    }
}
