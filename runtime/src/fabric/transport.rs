//! [`Transport`]: the transport for puts between nodes, which the user chooses.

use mkernel_fabric::emulated::{Faults, MAX_WRITE_BYTES, NicModel};

/// The longest write for which NICs are asked, in bytes. Each NIC has a limit of its own, which its proxy takes into
/// account.
const NIC_WRITE_BYTES: u32 = 1 << 30;

/// The transport for puts between nodes. All ranks must choose transports of one kind.
#[derive(Clone, Debug)]
pub enum Transport {
    /// Emulated NICs, between nodes that are parts of one host.
    Emulated {
        /// The properties of the emulated network.
        nic: NicModel,
        /// The faults that the emulated network injects.
        faults: Faults,
    },
    /// Reliable connections of InfiniBand or RoCE. This needs feature `verbs`.
    Rc(NicOptions),
    /// SRD of Amazon's EFA. This needs feature `efa`.
    Efa(NicOptions),
}

/// The choice of a rank's NICs and their settings. The options may differ between ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicOptions {
    /// The NICs in the form of `MKERNEL_NICS`: `mlx5_0,mlx5_3` for all GPUs, or `0=mlx5_0;1=mlx5_3` per GPU. If this is
    /// `None`, that variable applies, or else the NICs nearest to each GPU.
    pub nics: Option<String>,
    /// An index in the port's table of GIDs. If this is `None`, the default on Ethernet is the RoCE v2 GID with the
    /// farthest reach, and the first GID otherwise.
    pub gid_index: Option<u8>,
    /// The service level of InfiniBand or the priority of Ethernet, 0 to 15. It applies to RC only.
    pub service_level: u8,
    /// The DSCP and ECN bits of the IP packets of RoCE v2. They apply to RC only.
    pub traffic_class: u8,
}

impl Default for Transport {
    /// Returns emulated NICs without faults.
    fn default() -> Self {
        Self::Emulated {
            nic: NicModel::default(),
            faults: Faults::default(),
        }
    }
}

impl Transport {
    /// Returns the name of the transport: `emulated`, `rc` or `efa`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Emulated { .. } => "emulated",
            Self::Rc(_) => "rc",
            Self::Efa(_) => "efa",
        }
    }

    /// Returns a description of everything that must be equal on all ranks.
    pub(crate) fn identity(&self) -> String {
        match self {
            Self::Emulated { nic, faults } => format!("emulated by {nic:?} with {faults:?}"),
            Self::Rc(_) | Self::Efa(_) => self.name().to_owned(),
        }
    }

    /// Returns the longest write, as far as it is known before NICs are opened.
    pub(crate) fn write_bytes(&self) -> u32 {
        match self {
            Self::Emulated { nic, .. } => nic.write_bytes.min(MAX_WRITE_BYTES),
            Self::Rc(_) | Self::Efa(_) => NIC_WRITE_BYTES,
        }
    }
}
