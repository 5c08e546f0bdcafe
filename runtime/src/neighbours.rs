//! The GPUs of a job: all on one host, each of one rank, and each with access to the others.

use crate::driver;
use crate::error::Error;
use cudarc::driver::CudaContext;
use std::sync::Arc;

/// The same in all processes of a host, containers included.
pub(crate) fn boot_id() -> Result<String, Error> {
    let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let id = read.map_err(|source| Error::Os {
        call: "reading the boot id",
        source: Arc::new(source),
    })?;
    Ok(id.trim().to_owned())
}

/// From each rank's boot id and bus id: all on one host, each with its own GPU. Returns the bus ids.
pub(crate) fn check(ids: &[Vec<u8>]) -> Result<Vec<String>, Error> {
    let ids: Vec<(String, String)> = ids
        .iter()
        .map(|id| {
            let text = String::from_utf8_lossy(id);
            let (host, gpu) = text.split_once('\n').unwrap_or((&text, ""));
            (host.to_owned(), gpu.to_owned())
        })
        .collect();
    let elsewhere: Vec<u32> = (0..)
        .zip(&ids)
        .filter(|(_, (host, _))| *host != ids[0].0)
        .map(|(rank, _)| rank)
        .collect();
    if !elsewhere.is_empty() {
        return Err(Error::SeveralHosts { ranks: elsewhere });
    }
    for (second, (_, gpu)) in ids.iter().enumerate() {
        if let Some(first) = ids[..second].iter().position(|(_, other)| other == gpu) {
            return Err(Error::SameDevice {
                first: first as u32,
                second: second as u32,
                bus_id: gpu.clone(),
            });
        }
    }
    Ok(ids.into_iter().map(|(_, gpu)| gpu).collect())
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
    fn neighbours_share_a_host_and_no_gpu() {
        let found = check(&ids(&["host\n0000:18:00.0", "host\n0000:2A:00.0"])).expect("neighbours");
        assert_eq!(found, ["0000:18:00.0", "0000:2A:00.0"]);
        let error = check(&ids(&["a\n1", "b\n1", "a\n2", "c\n3"])).expect_err("three hosts");
        assert!(
            matches!(&error, Error::SeveralHosts { ranks } if *ranks == [1, 3]),
            "{error}"
        );
        let error = check(&ids(&["a\n1", "a\n2", "a\n2"])).expect_err("one GPU twice");
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
}
