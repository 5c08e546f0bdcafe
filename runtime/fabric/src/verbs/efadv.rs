//! Declarations of `infiniband/efadv.h` of rdma-core 55 that ibverbs-sys lacks.
//!
//! `tests/efa/kernel.c` asserts the same sizes and values against that header.

use std::mem::size_of;

/// `efadv_device_attr`: the capabilities of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeviceAttributes {
    pub comp_mask: u64,
    pub max_sq_wr: u32,
    pub max_rq_wr: u32,
    pub max_sq_sge: u16,
    pub max_rq_sge: u16,
    pub inline_buf_size: u16,
    pub reserved: [u8; 2],
    pub device_caps: u32,
    pub max_rdma_size: u32,
}

/// `efadv_qp_init_attr`: the EFA-specific attributes of a new queue pair.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueuePairAttributes {
    pub comp_mask: u64,
    pub driver_qp_type: u32,
    pub flags: u16,
    pub sl: u8,
    pub reserved: [u8; 1],
}

/// `efadv_ah_attr`: the attributes of an address handle.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AddressAttributes {
    pub comp_mask: u64,
    pub ahn: u16,
    pub reserved: [u8; 6],
}

const _: () = assert!(size_of::<AddressAttributes>() == 16);
const _: () = assert!(size_of::<DeviceAttributes>() == 32);
const _: () = assert!(size_of::<QueuePairAttributes>() == 16);

/// `EFADV_DEVICE_ATTR_CAPS_RDMA_READ`
pub(super) const CAN_RDMA_READ: u32 = 1 << 0;
/// `EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE`
pub(super) const CAN_RDMA_WRITE: u32 = 1 << 3;
/// `EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV`
pub(super) const CAN_RECEIVE_UNSOLICITED: u32 = 1 << 4;
/// `EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV`
pub(super) const RECEIVE_UNSOLICITED: u16 = 1 << 0;
/// `EFADV_QP_DRIVER_TYPE_SRD`
pub(super) const TYPE_SRD: u32 = 0;
