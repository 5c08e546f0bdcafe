//! [`Transport`]: the transport for puts between nodes, which the user chooses.

use super::nic_settings::{Flush, NicOptions};
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

    /// Returns the options of NICs, if NICs are not emulated.
    pub(crate) fn nic_options(&self) -> Option<&NicOptions> {
        match self {
            Self::Emulated { .. } => None,
            Self::Rc(options) | Self::Efa(options) => Some(options),
        }
    }

    /// Returns the arrivals that wait for flushes.
    pub(crate) fn flush(&self) -> Flush {
        self.nic_options()
            .map_or(Flush::Never, |options| options.flush)
    }

    /// Returns the most bytes to one peer in flight.
    pub(crate) fn byte_window(&self) -> u64 {
        let window = self.nic_options().and_then(|options| options.byte_window);
        window.map_or(u64::MAX, std::num::NonZeroU64::get)
    }

    /// Returns the longest write, as far as it is known before NICs are opened.
    pub(crate) fn write_bytes(&self) -> u32 {
        match self {
            Self::Emulated { nic, .. } => nic.write_bytes.min(MAX_WRITE_BYTES),
            Self::Rc(_) | Self::Efa(_) => NIC_WRITE_BYTES,
        }
    }
}
