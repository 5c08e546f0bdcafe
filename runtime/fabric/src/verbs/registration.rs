//! [`Registration`]: memory that a NIC may access.

use super::device::Device;
use super::errno::failure;
use crate::transport::{MemoryKind, MemoryRange};
use ibverbs_sys::{ibv_access_flags, ibv_mr};
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// The use that NICs make of registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Access {
    /// Whether flushes read the memory.
    pub(super) flush: bool,
    /// Whether writes of the NIC may pass each other on PCIe. Completions, which report arrivals, never pass a write. So memory
    /// that kernels poll must not be registered with this option, and no such memory is.
    pub(super) relaxed_ordering: bool,
}

impl Access {
    fn flags(self) -> i32 {
        let mut flags =
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        if self.flush {
            flags |= ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        }
        if self.relaxed_ordering {
            flags |= ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING;
        }
        flags.0 as i32
    }
}

/// A registration of memory with one device. Dropping the registration ends it.
pub(super) struct Registration {
    device: Arc<Device>,
    mr: *mut ibv_mr,
}

// SAFETY: a registration is only a handle, and verbs may be called from any thread.
unsafe impl Send for Registration {}

impl Registration {
    /// Registers memory. The NIC uses the same addresses as the process.
    pub(super) fn new(
        device: &Arc<Device>,
        memory: &MemoryRange,
        access: Access,
    ) -> Result<Self, String> {
        let access = access.flags();
        let (verbs, pd) = (device.verbs, device.pd);
        let bytes = usize::try_from(memory.bytes()).map_err(|error| error.to_string())?;
        let (mr, way) = match memory.kind() {
            MemoryKind::Gpu {
                dma_buf: Some(buffer),
                ..
            } => {
                let (offset, fd) = (buffer.offset_bytes, buffer.fd.as_raw_fd());
                // SAFETY: the caller of `MemoryRange::new` guarantees that the range is mapped until the transport is
                // dropped, and the transport drops this registration before the memory's owner. The file is open
                // during the call, and the kernel takes its own reference to the file.
                let mr = unsafe {
                    (verbs.reg_dmabuf_mr)(pd, offset, bytes, memory.address(), fd, access)
                };
                (mr, RegistrationPath::DmaBuf)
            }
            kind => {
                // Unlike `ibv_reg_mr`, this function drops optional flags on kernels that do not know them.
                // SAFETY: see above.
                let mr = unsafe {
                    (verbs.reg_mr)(
                        pd,
                        memory.address() as *mut _,
                        bytes,
                        memory.address(),
                        access as u32,
                    )
                };
                (
                    mr,
                    if matches!(kind, MemoryKind::Host) {
                        RegistrationPath::Host
                    } else {
                        RegistrationPath::RemoteMemory
                    },
                )
            }
        };
        if mr.is_null() {
            return Err(format!("{}: {}; {}", device.name, failure(), way.help()));
        }
        Ok(Self {
            device: Arc::clone(device),
            mr,
        })
    }

    /// Returns the key that this endpoint's own work requests use.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the registration lives until it is dropped.
        unsafe { (*self.mr).lkey }
    }

    /// Returns the key that peers use.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: see above.
        unsafe { (*self.mr).rkey }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: the queue pairs that could use it are gone, because a transport drops them first.
        unsafe { (self.device.verbs.dereg_mr)(self.mr) };
    }
}

/// The form in which memory is registered.
enum RegistrationPath {
    Host,
    DmaBuf,
    RemoteMemory,
}

impl RegistrationPath {
    /// Returns advice for a registration that failed.
    fn help(&self) -> &'static str {
        match self {
            RegistrationPath::Host => "raise the limit of locked memory (`ulimit -l`) if it is low",
            RegistrationPath::DmaBuf => {
                "a dma-buf requires Linux 5.12 or newer, a NIC driver that supports it (mlx5 and efa do, rxe does not), and \
                 the open kernel module of the GPU driver; otherwise load nvidia-peermem and pass no dma-buf"
            }
            RegistrationPath::RemoteMemory => {
                "load the module nvidia-peermem, or pass a dma-buf of the memory"
            }
        }
    }
}
