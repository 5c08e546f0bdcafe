//! [`Device`]: an open NIC, and [`Port`]: one of its ports.

use super::errno::{failure, result};
use super::gid::{self, LinkLayer};
use super::library::Verbs;
use ibverbs_sys::{
    IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, IBV_TRANSPORT_IB, ibv_context, ibv_device,
    ibv_device_attr, ibv_gid_entry, ibv_pd, ibv_port_attr, ibv_port_state,
};
use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::ptr;

/// The most entries of a GID table that are read. NICs have 16 to 256.
const MAX_GIDS: usize = 1024;

/// A device with a protection domain. Every object that is created from the device keeps an `Arc` of the device.
pub(super) struct Device {
    pub(super) verbs: &'static Verbs,
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    pub(super) name: String,
    pub(super) attributes: ibv_device_attr,
    /// Whether the device has InfiniBand's transport, which includes RoCE but neither iWARP nor EFA.
    pub(super) infiniband: bool,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Device {}
// SAFETY: see above. No field changes after `open`.
unsafe impl Sync for Device {}

/// A port of a device, and the address by which peers reach the port.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) link: LinkLayer,
    /// The MTU as an `ibv_mtu`: 1 is 256 bytes, 5 is 4096 bytes.
    pub(super) mtu: u8,
    pub(super) lid: u16,
    pub(super) gid: [u8; 16],
    pub(super) gid_index: u8,
    pub(super) message_bytes: u32,
    /// The size of the table of partition keys.
    pub(super) partition_keys: u16,
}

impl Device {
    /// Opens a device by its name.
    pub(super) fn open(verbs: &'static Verbs, name: &str) -> Result<Self, String> {
        let (mut found, mut names) = (None, Vec::new());
        for_each(verbs, |device, device_name| {
            names.push(device_name.to_owned());
            if device_name == name {
                found = Some(Self::open_listed(verbs, device, name));
            }
        })?;
        names.sort();
        found.unwrap_or_else(|| {
            Err(format!(
                "the device does not exist; the devices of this host are {}",
                names.join(", ")
            ))
        })
    }

    /// Returns the names of all devices in alphabetical order.
    pub(super) fn names(verbs: &Verbs) -> Result<Vec<String>, String> {
        let mut names = Vec::new();
        for_each(verbs, |_, name| names.push(name.to_owned()))?;
        names.sort();
        Ok(names)
    }

    /// Opens a device of a list that has not been freed.
    fn open_listed(
        verbs: &'static Verbs,
        device: *mut ibv_device,
        name: &str,
    ) -> Result<Self, String> {
        // SAFETY: the list is not freed before the device is open, and an open device does not need it.
        let (context, transport) =
            unsafe { ((verbs.open_device)(device), (*device).transport_type) };
        if context.is_null() {
            return Err(format!("cannot open the device: {}", failure()));
        }
        let mut opened = Self {
            verbs,
            context,
            pd: ptr::null_mut(),
            name: name.to_owned(),
            attributes: ibv_device_attr::default(),
            infiniband: transport == IBV_TRANSPORT_IB,
        };
        // SAFETY: the context is open.
        opened.pd = unsafe { (verbs.alloc_pd)(context) };
        if opened.pd.is_null() {
            return Err(format!(
                "cannot allocate a protection domain: {}",
                failure()
            ));
        }
        // SAFETY: the context is open, and the structure has the size that the library expects.
        result(unsafe { (verbs.query_device)(context, &raw mut opened.attributes) })
            .map_err(|error| format!("cannot query the device: {error}"))?;
        opened.set_events_nonblocking().map_err(|error| {
            format!("cannot make its asynchronous events non-blocking: {error}")
        })?;
        Ok(opened)
    }

    /// Makes the file descriptor of asynchronous events non-blocking.
    fn set_events_nonblocking(&self) -> rustix::io::Result<()> {
        // SAFETY: the context owns the file descriptor and outlives this borrow.
        let events = unsafe { BorrowedFd::borrow_raw((*self.context).async_fd) };
        let flags = rustix::fs::fcntl_getfl(events)?;
        rustix::fs::fcntl_setfl(events, flags | rustix::fs::OFlags::NONBLOCK)
    }

    /// Returns the port with the given number, or the first active port, together with the address that peers are to use.
    pub(super) fn port(&self, wanted: Option<u8>, gid_index: Option<u8>) -> Result<Port, String> {
        let count = self.attributes.phys_port_cnt;
        if let Some(number) = wanted.filter(|number| !(1..=count).contains(number)) {
            return Err(format!(
                "port {number} does not exist; the ports are 1 to {count}"
            ));
        }
        for number in wanted.map_or(1..=count, |number| number..=number) {
            let attributes = self.query_port(number)?;
            if attributes.state == ibv_port_state::IBV_PORT_ACTIVE {
                return self.addressed(number, &attributes, gid_index);
            }
        }
        Err(wanted.map_or("no port is active".into(), |number| {
            format!("port {number} is not active")
        }) + "; check the cable, the switch and `ip link`")
    }

    fn query_port(&self, number: u8) -> Result<ibv_port_attr, String> {
        let mut attributes = ibv_port_attr::default();
        // SAFETY: the library writes no more than the structure holds.
        result(unsafe { (self.verbs.query_port)(self.context, number, &raw mut attributes) })
            .map_err(|error| format!("cannot query port {number}: {error}"))?;
        Ok(attributes)
    }

    fn addressed(
        &self,
        number: u8,
        attributes: &ibv_port_attr,
        gid_index: Option<u8>,
    ) -> Result<Port, String> {
        let link = match u32::from(attributes.link_layer) {
            IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            IBV_LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
            _ => LinkLayer::Other,
        };
        let (gid_index, gid) = gid::choose(&self.gids(number)?, link, gid_index)?;
        Ok(Port {
            number,
            link,
            mtu: attributes.active_mtu.clamp(1, 5) as u8,
            lid: attributes.lid,
            gid,
            gid_index,
            message_bytes: attributes.max_msg_sz,
            partition_keys: attributes.pkey_tbl_len,
        })
    }

    fn gids(&self, port: u8) -> Result<Vec<gid::Entry>, String> {
        let mut entries = vec![ibv_gid_entry::default(); MAX_GIDS];
        // SAFETY: the table has room for the number of entries that is passed, and each entry has the size that is passed.
        let count = unsafe {
            (self.verbs.query_gid_table)(
                self.context,
                entries.as_mut_ptr(),
                MAX_GIDS,
                0,
                size_of::<ibv_gid_entry>(),
            )
        };
        let count = usize::try_from(count).map_err(|_| {
            format!(
                "cannot read the GID table: {}",
                std::io::Error::from_raw_os_error(count.unsigned_abs() as i32)
            )
        })?;
        let on_port = |entry: &&ibv_gid_entry| entry.port_num == u32::from(port);
        let entry = |entry: &ibv_gid_entry| gid::Entry {
            index: entry.gid_index,
            kind: entry.gid_type,
            // SAFETY: all members of the union are 16 bytes of plain data.
            gid: unsafe { entry.gid.raw },
        };
        Ok(entries
            .iter()
            .take(count)
            .filter(on_port)
            .map(entry)
            .collect())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: all objects that were created from the device are gone, since each object kept an `Arc` of the device.
        unsafe {
            if !self.pd.is_null() {
                (self.verbs.dealloc_pd)(self.pd);
            }
            (self.verbs.close_device)(self.context);
        }
    }
}

/// Calls `see` for each device while the list lives.
fn for_each(verbs: &Verbs, mut see: impl FnMut(*mut ibv_device, &str)) -> Result<(), String> {
    let mut count = 0;
    // SAFETY: the list has `count` devices until it is freed, and their names live as long.
    unsafe {
        let list = (verbs.get_device_list)(&raw mut count);
        if list.is_null() {
            return Err(format!(
                "cannot list the RDMA devices: {}; check that the kernel module ib_uverbs is loaded",
                failure()
            ));
        }
        for index in 0..count as usize {
            let device = *list.add(index);
            see(
                device,
                &CStr::from_ptr((verbs.get_device_name)(device)).to_string_lossy(),
            );
        }
        (verbs.free_device_list)(list);
    }
    Ok(())
}
