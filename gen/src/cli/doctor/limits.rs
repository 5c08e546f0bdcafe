//! The limits of this process.

use super::finding::Finding;
use crate::cli::format::bytes;
use mkernel_topology::Topology;
use rustix::process::{Resource, getrlimit};

/// Descriptors that ranks of one host use for each other's memory, for connections and for NICs, with a margin.
const OPEN_FILES: u64 = 4096;

/// The memory that this process may lock, as NICs require.
pub fn memlock(topology: &Topology) -> Finding {
    let check = "memlock";
    match getrlimit(Resource::Memlock).current {
        None => Finding::ok(check, "unlimited"),
        Some(limit) if topology.nics.is_empty() => {
            Finding::ok(check, format!("{}; only NICs need more", bytes(limit)))
        }
        Some(limit) => Finding::fault(
            check,
            format!("{}, but NICs need locked memory", bytes(limit)),
            "ulimit -l unlimited; to keep it, add `* - memlock unlimited` to /etc/security/limits.conf, or LimitMEMLOCK=infinity to the unit of systemd; in a container, --ulimit memlock=-1",
        ),
    }
}

/// The hard limit of open files, to which each process raises its soft limit.
pub fn open_files() -> Finding {
    let check = "open files";
    match getrlimit(Resource::Nofile).maximum {
        None => Finding::ok(check, "unlimited"),
        Some(most) if most >= OPEN_FILES => Finding::ok(check, format!("at most {most}")),
        Some(most) => Finding::note(
            check,
            format!("at most {most}; large jobs need {OPEN_FILES} or more"),
            "ulimit -n 65536; to keep it, add `* - nofile 65536` to /etc/security/limits.conf, or LimitNOFILE=65536 to the unit of systemd; in a container, --ulimit nofile=65536",
        ),
    }
}
