//! Asynchronous events of a device: its port is down, a queue pair failed, or the device itself failed.

use super::device::Device;
use super::errno::static_text;
use ibverbs_sys::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR,
    IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SRQ_ERR,
    ibv_async_event,
};

/// The events that matter to a transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AsyncEvent {
    /// The port is down.
    PortDown(u8),
    /// The port is active again.
    PortUp(u8),
    /// The queue pair with this number is in the error state.
    QueuePair(u32, String),
    /// The device is unusable.
    Device(String),
}

/// Returns the next event of the device, if the device has an event. Does not wait.
pub(super) fn next(device: &Device) -> Option<AsyncEvent> {
    loop {
        let mut event = ibv_async_event::default();
        // SAFETY: the context is open and its file descriptor does not block. The event's type selects the union member
        // that is read. The queue pair of an event lives until the event is acknowledged: ibv_destroy_qp discards
        // events that were not read, and waits for the acknowledgement of events that were read.
        let reported = unsafe {
            if (device.verbs.get_async_event)(device.context, &raw mut event) != 0 {
                return None;
            }
            let text = || static_text((device.verbs.event_type_str)(event.event_type));
            let reported = match event.event_type {
                IBV_EVENT_PORT_ERR => Some(AsyncEvent::PortDown(event.element.port_num as u8)),
                IBV_EVENT_PORT_ACTIVE => Some(AsyncEvent::PortUp(event.element.port_num as u8)),
                IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
                    Some(AsyncEvent::QueuePair((*event.element.qp).qp_num, text()))
                }
                IBV_EVENT_CQ_ERR | IBV_EVENT_SRQ_ERR | IBV_EVENT_DEVICE_FATAL => {
                    Some(AsyncEvent::Device(text()))
                }
                _ => None,
            };
            (device.verbs.ack_async_event)(&raw mut event);
            reported
        };
        if reported.is_some() {
            return reported;
        }
    }
}
