//! Memory that a NIC may reach.

use super::device::Device;
use super::errno::last_error;
use crate::transport::{MemoryKind, MemoryRange};
use ibverbs_sys::{ibv_access_flags, ibv_mr};
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// What a NIC may do with a region. Never `IBV_ACCESS_RELAXED_ORDERING`: an arrival may not be seen before its bytes.
const ACCESS: i32 = (ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0) as i32;

/// A registration of memory with one device; ends when it is dropped.
pub(super) struct Registration {
    device: Arc<Device>,
    mr: *mut ibv_mr,
}

// SAFETY: a registration is only a handle; verbs may be called from any thread.
unsafe impl Send for Registration {}

impl Registration {
    /// Registers memory, with its address as the address that the NIC uses.
    pub(super) fn new(device: &Arc<Device>, memory: &MemoryRange) -> Result<Self, String> {
        let (verbs, pd) = (device.verbs, device.pd);
        let bytes = usize::try_from(memory.bytes()).map_err(|error| error.to_string())?;
        let (mr, way) = match memory.kind() {
            MemoryKind::Gpu {
                dma_buf: Some(buffer),
                ..
            } => {
                let (offset, fd) = (buffer.offset_bytes, buffer.fd.as_raw_fd());
                // SAFETY: the caller of `MemoryRange::new` promised that the range is mapped, and stays so until the transport
                // is dropped, which drops this registration before the memory's owner. The file is open for the call;
                // the kernel keeps what it needs of it.
                let mr = unsafe {
                    (verbs.reg_dmabuf_mr)(pd, offset, bytes, memory.address(), fd, ACCESS)
                };
                (mr, RegistrationPath::DmaBuf)
            }
            kind => {
                // SAFETY: as above.
                let mr = unsafe { (verbs.reg_mr)(pd, memory.address() as *mut _, bytes, ACCESS) };
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
            return Err(format!("{}: {}; {}", device.name, last_error(), way.help()));
        }
        Ok(Self {
            device: Arc::clone(device),
            mr,
        })
    }

    /// What this endpoint's own work requests name it by.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: it lives until it is dropped.
        unsafe { (*self.mr).lkey }
    }

    /// What peers name it by.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.mr).rkey }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: the queue pairs of its protection domain that could use it are gone: a transport drops them first.
        unsafe { (self.device.verbs.dereg_mr)(self.mr) };
    }
}

/// How memory is registered.
enum RegistrationPath {
    Host,
    DmaBuf,
    RemoteMemory,
}

impl RegistrationPath {
    /// What to do when it does not work.
    fn help(&self) -> &'static str {
        match self {
            RegistrationPath::Host => {
                "is the limit of locked memory too low (`ulimit -l`, LimitMEMLOCK in systemd)?"
            }
            RegistrationPath::DmaBuf => {
                "the NIC's driver must take dma-bufs (Linux 5.12 or newer; mlx5 and efa do, rxe does not), and the \
                 GPU's be its open kernel module; without, load nvidia-peermem and give no dma-buf"
            }
            RegistrationPath::RemoteMemory => {
                "is the module nvidia-peermem loaded? Else give a dma-buf of the memory"
            }
        }
    }
}
