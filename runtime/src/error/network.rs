//! [`NetworkError`]: the reason why a transport between nodes cannot be used.

/// The reason why a transport between nodes cannot be used. A network that fails after it was set up is reported as
/// [`Error::Fabric`](crate::Error::Fabric).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// This crate was built without the transport.
    #[error(
        "this program was built without transport {name}. Build it with feature {feature:?} of mkernel, or of mkernel-gen"
    )]
    NoTransport {
        /// The name of the transport.
        name: &'static str,
        /// The feature that the transport needs.
        feature: &'static str,
    },
    /// Emulated NICs do not reach other hosts.
    #[error(
        "the ranks are on {hosts} hosts, but emulated NICs do not reach other hosts. Choose transport rc or efa"
    )]
    EmulatedHosts {
        /// The number of hosts.
        hosts: u32,
    },
    /// No usable NICs were found, or the NICs that were named cannot be used.
    #[error("the NICs of this rank cannot be chosen: {reason}")]
    Nics {
        /// The reason, and a remedy.
        reason: String,
    },
    /// The options or a load of the fabric test are invalid. All mistakes are listed.
    #[error("this fabric test cannot be run: {}", .0.join("; "))]
    FabricTest(Vec<String>),
}
