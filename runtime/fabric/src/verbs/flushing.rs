//! The flushes of a transport: arrivals are held until a read by the NIC that delivered them has completed.

use super::connect_info::RemoteAddress;
use super::errno::static_text;
use super::queue_pair_type::QueuePairType;
use super::transport::VerbsTransport;
use crate::error::FabricError;
use crate::transport::{Event, MemoryKind};
use ibverbs_sys::ibv_wc;

impl<K: QueuePairType> VerbsTransport<K> {
    /// Reports an arrival, or holds it until a flush. Without a region, there are no bytes to flush.
    pub(super) fn report(&mut self, rail: usize, arrival: Event, events: &mut Vec<Event>) {
        match self.flushers.get_mut(rail) {
            Some(flusher) if !self.regions.is_empty() => flusher.queue.hold(arrival),
            _ => events.push(arrival),
        }
    }

    /// Starts one flush on each rail with arrivals that wait, unless a flush is in progress there.
    pub(super) fn start_flushes(&mut self) -> Result<(), FabricError> {
        for rail in 0..self.flushers.len() {
            let Some(memory) = self.flushed_memory(rail) else {
                return Ok(());
            };
            let flusher = &mut self.flushers[rail];
            if flusher.queue.begin() {
                self.lanes.count_flush(rail);
                let started = flusher.start(&self.rails[rail], memory);
                started.map_err(|error| self.flush_failed(rail, &error.to_string()))?;
            }
        }
        Ok(())
    }

    /// Returns the memory that a flush reads: the first region in GPU memory, or else the first region. A read of any memory
    /// of a GPU flushes all earlier writes to this GPU.
    fn flushed_memory(&self, rail: usize) -> Option<RemoteAddress> {
        let is_on_gpu = |kind: &MemoryKind| matches!(kind, MemoryKind::Gpu { .. });
        let mut regions = self.regions.iter();
        let region = regions
            .find(|region| is_on_gpu(region.memory.kind()))
            .or(self.regions.first())?;
        Some(RemoteAddress {
            address: region.memory.address(),
            key: region.registrations[rail].remote_key(),
        })
    }

    /// Handles a completion that no lane caused.
    pub(super) fn end_flush(
        &mut self,
        rail: usize,
        completion: &ibv_wc,
        events: &mut Vec<Event>,
    ) -> Result<(), FabricError> {
        let flusher = self.flushers.get_mut(rail);
        let Some(flusher) = flusher.filter(|one| one.number() == completion.qp_num) else {
            return Ok(());
        };
        if let Some((status, vendor)) = completion.error() {
            let verbs = self.rails[rail].device.verbs;
            // SAFETY: the texts of the library are constants.
            let text = unsafe { static_text((verbs.wc_status_str)(status)) };
            let reason = format!("{text} (status {status}, vendor error {vendor:#x})");
            return Err(self.flush_failed(rail, &reason));
        }
        flusher.queue.end(events);
        Ok(())
    }

    fn flush_failed(&self, rail: usize, reason: &str) -> FabricError {
        FabricError::Nic {
            reason: format!(
                "{}: a flush failed: {reason}; set the option flush to never to run without flushes",
                self.rails[rail].device.name
            ),
        }
    }

    /// Keeps the losses among the events from `first` on while arrivals wait for a flush, since nothing arrives from a peer
    /// after its loss.
    pub(super) fn hold_losses(&mut self, events: &mut Vec<Event>, first: usize) {
        if self.flushers.iter().all(|flusher| flusher.queue.is_empty()) {
            return;
        }
        let is_loss = |event: &mut Event| matches!(event, Event::Lost { .. });
        self.lost.extend(events.extract_if(first.., is_loss));
    }
}
