//! [`Arch`] and [`Backend`]: the instruction set of kernels, and the compiler of kernels.

pub(crate) mod registers;
mod sm90;
mod spec;

pub use registers::Registers;
pub use spec::{ArchSpec, ProducerRegisters, Tile};

use serde::{Deserialize, Serialize};
use std::fmt;

/// An architecture of GPUs. A new architecture is a variant and a file with its facts. A simulated GPU has an architecture too,
/// since simulated GPUs run the plans and kernels of real GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Arch {
    /// Hopper, with instructions that later architectures lack.
    #[default]
    Sm90a,
}

impl Arch {
    /// All architectures.
    pub const ALL: [Self; 1] = [Self::Sm90a];

    /// The facts of the architecture, from which planners, names, options and checks follow.
    #[must_use]
    pub const fn spec(self) -> &'static ArchSpec {
        match self {
            Self::Sm90a => &sm90::SM90A,
        }
    }

    /// The name in compilers' options and in messages, such as `sm_90a`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.spec().name
    }

    /// The name in identifiers of kernels, such as `sm90a`.
    #[must_use]
    pub fn id(self) -> String {
        self.name().replace('_', "")
    }

    /// The name of the virtual architecture, which is the target of the PTX, such as `compute_90a`.
    #[must_use]
    pub fn virtual_name(self) -> String {
        self.name().replacen("sm", "compute", 1)
    }

    /// The compute capability of the architecture's GPUs: major and minor.
    #[must_use]
    pub const fn capability(self) -> (i32, i32) {
        self.spec().capability
    }

    /// The GPUs to use, such as `H100 or H200`.
    #[must_use]
    pub const fn gpus(self) -> &'static str {
        self.spec().gpus
    }

    /// The architecture of GPUs with this compute capability. `None` if there are no kernels for these GPUs.
    #[must_use]
    pub fn of_capability(capability: (i32, i32)) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|arch| arch.capability() == capability)
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<Arch> for String {
    fn from(arch: Arch) -> Self {
        arch.name().to_owned()
    }
}

impl TryFrom<String> for Arch {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|arch| arch.name() == text);
        found.ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("unknown architecture `{text}`, expected one of: {known}")
        })
    }
}

/// A compiler of kernels. It also decides which headers a kernel includes, and where the machine code can run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// NVIDIA's run-time compiler, for GPUs.
    #[default]
    Nvrtc,
    /// The host's C++ compiler, for simulated GPUs.
    HostCxx,
}

impl Backend {
    /// Whether the GPUs are simulated. The simulator has no model of time, and its threads have no registers.
    #[must_use]
    pub const fn is_simulated(self) -> bool {
        matches!(self, Self::HostCxx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_derive_from_one() {
        let arch = Arch::Sm90a;
        assert_eq!(arch.to_string(), "sm_90a");
        assert_eq!(arch.id(), "sm90a");
        assert_eq!(arch.virtual_name(), "compute_90a");
        assert_eq!(Arch::try_from(String::from(arch)), Ok(arch));
        let error = Arch::try_from("sm_80".to_owned()).expect_err("unknown");
        assert!(error.contains("expected one of: sm_90a"), "{error}");
    }

    #[test]
    fn a_compute_capability_has_at_most_one_architecture() {
        for arch in Arch::ALL {
            assert_eq!(Arch::of_capability(arch.capability()), Some(arch));
        }
        assert_eq!(Arch::of_capability((8, 0)), None);
    }
}
