//! Which NICs serve which GPU of a host, and which cores are near them.
//!
//! [`Topology::read`] reads GPUs, RDMA devices and NUMA nodes from a sysfs root, as described in the kernel's
//! `Documentation/ABI/{testing/sysfs-bus-pci,stable/sysfs-class-infiniband,stable/sysfs-devices-node}`.
//! [`Topology::select_nics`] gives each GPU its rails: the nearest NICs, not shared while another one as near is free.
//! Nothing here needs a driver, so a tree copied from another machine, or built by a test, will do.
//!
//! What is odd in the tree (a file that is missing, or holds no number) is skipped and noted in
//! [`Topology::notes`]; no content of the tree makes this crate panic.

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
