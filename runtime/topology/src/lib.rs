//! Selection of the NICs that serve each GPU of a host, and of the CPU cores near them.
//!
//! [`Topology::read`] reads GPUs, RDMA devices and NUMA nodes from a sysfs root, as described in the kernel's
//! `Documentation/ABI/{testing/sysfs-bus-pci,stable/sysfs-class-infiniband,stable/sysfs-devices-node}`.
//! [`Topology::select_nics`] assigns each GPU its rails: the nearest NICs, not shared while an equally near one is
//! free. No driver is needed, so a tree that was copied from another machine or built by a test works too.
//!
//! Unusual content of the tree, such as a missing file or a file that holds no number, is skipped and noted in
//! [`Topology::notes`]. No content of the tree makes this crate panic.

mod distance;
mod gpu;
mod nic;
mod nic_config;
mod nic_selection;
mod numa;
mod pci;
mod report;
mod sysfs;
mod topology;

pub use distance::Distance;
pub use gpu::Gpu;
pub use nic::{Nic, NicKind};
pub use nic_config::{NicConfig, NicConfigError, NicConfigIssue};
pub use nic_selection::{GpuNics, NicSelection, Rail};
pub use numa::{NumaNode, cpu_list};
pub use pci::{BusId, InvalidBusId, PciLocation};
pub use report::{GpuLink, GpuLinks, describe};
pub use topology::Topology;
