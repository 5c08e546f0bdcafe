//! [`Transport`]: what carries puts between nodes, for people to choose.

use mkernel_fabric::emulated::{Faults, MAX_WRITE_BYTES, NicModel};

/// The most bytes of a write that NICs are asked for; each has a limit of its own, which its proxy knows.
const NIC_WRITE_BYTES: u32 = 1 << 30;

/// What carries puts between nodes; of one kind on all ranks.
#[derive(Clone, Debug)]
pub enum Transport {
    /// NICs in software, for nodes that are parts of one host.
    Emulated {
        /// The network.
        nic: NicModel,
        /// What goes wrong in it.
        faults: Faults,
    },
    /// Reliable connections of InfiniBand or RoCE. Feature `verbs`.
    Rc(NicOptions),
    /// SRD of Amazon's EFA. Feature `efa`.
    Efa(NicOptions),
}

/// Which NICs a rank uses, and how; may differ from rank to rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicOptions {
    /// NICs, as `MKERNEL_NICS` has them: `mlx5_0,mlx5_3`, or those of each GPU, `0=mlx5_0;1=mlx5_3`. None: what that
    /// variable says, else the nearest of each GPU.
    pub nics: Option<String>,
    /// An index in the port's table of GIDs. None: on Ethernet one of RoCE v2 and of the farthest reach, else the first.
    pub gid_index: Option<u8>,
    /// InfiniBand's service level or the priority of Ethernet, 0 to 15. RC only.
    pub service_level: u8,
    /// DSCP and ECN of IP packets of RoCE v2. RC only.
    pub traffic_class: u8,
}

impl Default for Transport {
    /// Emulated NICs without faults.
    fn default() -> Self {
        Self::Emulated {
            nic: NicModel::default(),
            faults: Faults::default(),
        }
    }
}

impl Transport {
    /// `emulated`, `rc` or `efa`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Emulated { .. } => "emulated",
            Self::Rc(_) => "rc",
            Self::Efa(_) => "efa",
        }
    }

    /// What must be the same on all ranks, in words.
    pub(crate) fn identity(&self) -> String {
        match self {
            Self::Emulated { nic, faults } => format!("emulated by {nic:?} with {faults:?}"),
            Self::Rc(_) | Self::Efa(_) => self.name().to_owned(),
        }
    }

    /// The longest write, as far as it is known before NICs are opened.
    pub(crate) fn write_bytes(&self) -> u32 {
        match self {
            Self::Emulated { nic, .. } => nic.write_bytes.min(MAX_WRITE_BYTES),
            Self::Rc(_) | Self::Efa(_) => NIC_WRITE_BYTES,
        }
    }
}
