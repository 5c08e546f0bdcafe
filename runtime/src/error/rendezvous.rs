//! [`RendezvousError`]: the reason why the processes of a job cannot connect to rank 0.

use super::display::{Have, Refused};
use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

/// The reason why the processes of a job cannot connect to rank 0.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// Fields of a [`Rendezvous`](crate::Rendezvous) are not possible.
    #[error("the rendezvous is not possible. {}", mistakes.join(". "))]
    Invalid {
        /// The fields, each with its value and the possible values.
        mistakes: Vec<String>,
    },
    /// The name of rank 0's host has no address on this host.
    #[error(
        "the host of rank 0, {host:?}, cannot be looked up: {source}. Check the spelling of MASTER_ADDR and the name service of \
         this host, or set MASTER_ADDR to an IP address"
    )]
    LookUp {
        /// The name that was given.
        host: String,
        /// The error of the look-up.
        r#source: Arc<Error>,
    },
    /// Rank 0 cannot listen on its address.
    #[error("rank 0 cannot listen on {address}: {source}. {}", listen_hint(source.kind()))]
    Listen {
        /// The address and the port.
        address: String,
        /// The error of the system call.
        r#source: Arc<Error>,
    },
    /// Rank 0 listens, but not at the address to which the other ranks connect, and some ranks did not connect.
    #[error(
        "{} not connected within {waited:?}{}. Rank 0 runs on a host that does not have the address {address}, to which the \
         other ranks connect. Set MASTER_ADDR on all ranks to an address of rank 0's host, or start rank 0 on the host that \
         MASTER_ADDR names. If it is the address of a gateway, let the gateway forward the port to rank 0",
        Have(ranks),
        Refused(refused)
    )]
    Elsewhere {
        /// The name or address that was given, and the port.
        address: String,
        /// The ranks that are missing.
        ranks: Vec<u32>,
        /// The time that rank 0 waited.
        waited: Duration,
        /// The connections that were refused: the address and the reason of each.
        refused: Vec<String>,
    },
    /// The host of rank 0 does not accept connections.
    #[error(
        "cannot connect to rank 0 at {address} within {waited:?}: {source}. {}",
        connect_hint(source.kind())
    )]
    Connect {
        /// The name or address that was given, and the port.
        address: String,
        /// The time for which this rank tried.
        waited: Duration,
        /// The last error of each address.
        r#source: Arc<Error>,
    },
}

/// A remedy if rank 0 cannot listen.
fn listen_hint(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::AddrInUse => {
            "Another program or job uses the port. Set MKERNEL_PORT, or MASTER_PORT, to a free one on all ranks"
        }
        ErrorKind::PermissionDenied => {
            "Ports below 1024 are for the administrator. Set MKERNEL_PORT, or MASTER_PORT, to a higher one on all ranks"
        }
        _ => "Check MASTER_ADDR, MASTER_PORT and MKERNEL_PORT",
    }
}

/// A remedy if a rank cannot connect to rank 0.
fn connect_hint(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::ConnectionRefused => {
            "Nothing listens there. Check that rank 0 runs and has not failed, that it runs on the host that MASTER_ADDR names, \
             and that MASTER_PORT and MKERNEL_PORT are the same on all ranks"
        }
        ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            "No answer comes from there. Check that MASTER_ADDR is an address of rank 0's host that this host reaches, and that \
             no firewall blocks the port"
        }
        ErrorKind::ConnectionReset => {
            "The connection was closed from there. Check that rank 0 has not failed, and that no other program listens on the \
             port. If one does, set MKERNEL_PORT to a free port on all ranks"
        }
        _ => "Check that rank 0 runs, and check MASTER_ADDR, MASTER_PORT and MKERNEL_PORT",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_a_hint_of_its_own() {
        let (address, waited) = ("node1:29500".to_owned(), Duration::from_secs(30));
        let listen = |kind: ErrorKind| RendezvousError::Listen {
            address: address.clone(),
            source: Arc::new(kind.into()),
        };
        let connect = |kind: ErrorKind| RendezvousError::Connect {
            address: address.clone(),
            waited,
            source: Arc::new(kind.into()),
        };
        let look_up = RendezvousError::LookUp {
            host: "node1".into(),
            source: Arc::new(ErrorKind::NotFound.into()),
        };
        let elsewhere = RendezvousError::Elsewhere {
            address: address.clone(),
            ranks: vec![1, 3],
            waited,
            refused: vec!["10.0.0.9: another job".into()],
        };
        let expected = [
            (look_up, "Check the spelling of MASTER_ADDR"),
            (elsewhere, "Rank 0 runs on a host that does not have"),
            (listen(ErrorKind::AddrInUse), "uses the port"),
            (listen(ErrorKind::PermissionDenied), "Ports below 1024"),
            (
                listen(ErrorKind::NotFound),
                "Check MASTER_ADDR, MASTER_PORT",
            ),
            (
                connect(ErrorKind::ConnectionRefused),
                "Nothing listens there",
            ),
            (connect(ErrorKind::TimedOut), "No answer comes"),
            (connect(ErrorKind::HostUnreachable), "No answer comes"),
            (connect(ErrorKind::ConnectionReset), "was closed from there"),
            (connect(ErrorKind::NotFound), "Check that rank 0 runs, and"),
        ];
        for (error, wanted) in &expected {
            let text = error.to_string();
            assert!(text.contains(wanted), "{wanted}: {text}");
            assert!(text.contains("node1"), "{text}");
            let others = expected.iter().map(|(_, other)| other);
            let held = others.filter(|other| text.contains(**other));
            assert!(
                held.collect::<std::collections::BTreeSet<_>>().len() == 1,
                "{text}"
            );
        }
        let text = expected[1].0.to_string();
        assert!(
            text.contains("ranks 1, 3 have not connected within 30s"),
            "{text}"
        );
        assert!(
            text.contains("Rank 0 refused 10.0.0.9: another job. Rank 0"),
            "{text}"
        );
    }
}
