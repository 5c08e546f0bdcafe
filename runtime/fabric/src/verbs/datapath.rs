//! The data path of a connected transport: writes are assigned to lanes, completions become events, and failures
//! become the loss of a peer.

use super::async_event::{self, AsyncEvent};
use super::connect_info::RemoteAddress;
use super::errno::static_text;
use super::queue_pair_type::{QueuePairType, WorkRequest};
use super::rail::{LaneId, Rail, Sender};
use super::receives::RECEIVE_ID;
use super::transport::{LocalRegion, RemoteMemory, VerbsTransport};
use crate::error::FabricError;
use crate::peer_id::PeerId;
use crate::transport::{Event, MemoryKind, RegionOffset, Write};
use ibverbs_sys::{ibv_wc, ibv_wc_opcode, ibv_wc_status};
use std::time::{Duration, Instant};

/// The interval between two checks for asynchronous events. Each check costs a system call.
const ASYNC_EVENT_INTERVAL: Duration = Duration::from_millis(10);

/// The most batches of completions that one `poll` takes from a rail.
const POLL_BATCHES: usize = 4;

impl<K: QueuePairType> VerbsTransport<K> {
    /// Adds a write to the batch of a lane that has room. Returns false if no lane has room.
    pub(super) fn accept(&mut self, write: &Write) -> Result<bool, FabricError> {
        let nic = |what| FabricError::Nic {
            reason: format!("write {}: {what}", write.id),
        };
        let number = usize::from(write.peer.0);
        let peer = self
            .peers
            .get(number)
            .ok_or_else(|| nic("the peer does not exist"))?;
        if peer.lost {
            return Ok(true);
        }
        let (rails, regions) = (&self.rails, &self.regions);
        let accepted = self.lanes.accept(write.peer.0, |rail| {
            work_request(peer, (&rails[rail], rail), regions, write)
        });
        accepted.ok_or_else(|| nic("its source or its target is not in a region"))
    }

    /// Posts all batches.
    pub(super) fn flush(&mut self) -> Result<(), FabricError> {
        for (lane, error) in self.lanes.flush() {
            let reason = format!("the queue pair refuses writes: {error}");
            match self.lanes.lane(lane).peer {
                Some(peer) => {
                    let lost = self.disconnect(peer, self.lanes.lane(lane).rail, &reason);
                    self.lost.extend(lost);
                }
                None => return Err(self.nic_failed(lane, &reason)),
            }
        }
        Ok(())
    }

    /// Polls the completions of a rail.
    pub(super) fn drain(
        &mut self,
        rail: usize,
        events: &mut Vec<Event>,
    ) -> Result<(), FabricError> {
        let mut completions = std::mem::take(&mut self.completions);
        for _ in 0..POLL_BATCHES {
            let count = self.rails[rail]
                .queue
                .poll(&mut completions)
                .map_err(|error| FabricError::Nic {
                    reason: format!(
                        "cannot poll the completions of {}: {error}",
                        self.rails[rail].device.name
                    ),
                })?;
            for completion in &completions[..count] {
                self.complete(rail, completion, events)?;
            }
            if count < completions.len() {
                break;
            }
        }
        self.completions = completions;
        Ok(())
    }

    fn complete(
        &mut self,
        rail: usize,
        completion: &ibv_wc,
        events: &mut Vec<Event>,
    ) -> Result<(), FabricError> {
        let Some(&lane) = self.rails[rail].lanes.get(&completion.qp_num) else {
            return self.end_flush(rail, completion, events);
        };
        if let Some((status, vendor)) = completion.error() {
            return self.on_error(lane, completion.wr_id(), (status, vendor), events);
        }
        let opcode = completion.opcode();
        if opcode == ibv_wc_opcode::IBV_WC_RDMA_WRITE {
            let peers = &self.peers;
            self.lanes.complete(lane, completion.wr_id(), |write| {
                if !peers[usize::from(write.peer)].lost {
                    events.push(Event::Sent { id: write.id });
                }
            });
            return Ok(());
        }
        self.lanes.consume_receive(lane);
        let sender = Sender {
            address_handle: completion.slid,
            queue_pair: completion.src_qp,
        };
        let peer = self.lanes.lane(lane).peer;
        let Some(peer) = peer.or_else(|| self.rails[rail].senders.get(&sender).copied()) else {
            events.push(Event::Dropped {
                reason: self.unknown_sender(rail, sender),
            });
            return Ok(());
        };
        match completion.imm_data() {
            _ if self.peers[usize::from(peer)].lost => {}
            Some(immediate) if opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => {
                let arrival = Event::Arrived {
                    peer: PeerId(peer),
                    immediate: u32::from_be(immediate),
                };
                self.report(rail, arrival, events);
            }
            _ => {
                let reason = format!("it sent a request that is not a write (opcode {opcode})");
                events.extend(self.disconnect(peer, rail, &reason));
            }
        }
        Ok(())
    }

    /// Describes a sender that is not a peer. Such a sender knows the random key of this endpoint's queue pair, so it may
    /// be left over from an earlier job.
    fn unknown_sender(&self, rail: usize, sender: Sender) -> String {
        format!(
            "{}: a write came from queue pair {} behind address handle {}, which is not that of a peer",
            self.rails[rail].device.name, sender.queue_pair, sender.address_handle
        )
    }

    /// Handles the completion of a request that failed. Only the id of such a request is defined.
    fn on_error(
        &mut self,
        id: LaneId,
        request: u64,
        (status, vendor): (ibv_wc_status::Type, u32),
        events: &mut Vec<Event>,
    ) -> Result<(), FabricError> {
        let lane = self.lanes.lane(id);
        let (rail, peer) = (lane.rail, lane.peer_of(request));
        if request == RECEIVE_ID {
            self.lanes.consume_receive(id);
        } else if K::SERVES_ALL_PEERS {
            self.lanes.complete(id, request, |_| ());
        }
        // All requests that were posted to the queue pairs of a lost peer complete with an error.
        if peer.is_some_and(|peer| self.peers[usize::from(peer)].lost) {
            return Ok(());
        }
        let is_flushed = status == ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        if is_flushed {
            // The queue pair failed earlier, and only the device's event gives the reason.
            self.check_async_events(events)?;
        }
        // SAFETY: the texts of the library are constants.
        let text = unsafe { static_text((self.rails[rail].device.verbs.wc_status_str)(status)) };
        let reason = format!("{text} (status {status}, vendor error {vendor:#x})");
        match peer {
            Some(peer) if !(K::SERVES_ALL_PEERS && is_flushed) => {
                events.extend(self.disconnect(peer, rail, &reason));
                Ok(())
            }
            _ => Err(self.nic_failed(id, &reason)),
        }
    }

    /// Replaces the receives that completions have consumed.
    pub(super) fn replace_receives(&mut self) -> Result<(), FabricError> {
        let rails = &self.rails;
        let replaced = (self.lanes)
            .replace_receives(|lane, count| lane.pair.receive(&rails[lane.rail], count));
        replaced.map_err(|(lane, error)| {
            self.nic_failed(lane, &format!("its queue refuses receives: {error}"))
        })
    }

    /// Returns the error of a NIC whose queues can no longer reach any peer.
    fn nic_failed(&self, lane: LaneId, reason: &str) -> FabricError {
        let rail = &self.rails[self.lanes.lane(lane).rail];
        FabricError::Nic {
            reason: format!("{}: {reason}", rail.device.name),
        }
    }

    /// Handles the asynchronous events of all devices.
    pub(super) fn check_async_events(
        &mut self,
        events: &mut Vec<Event>,
    ) -> Result<(), FabricError> {
        let now = Instant::now();
        self.next_event_check = now + ASYNC_EVENT_INTERVAL;
        for index in 0..self.rails.len() {
            while let Some(event) = async_event::next(&self.rails[index].device) {
                let rail = &mut self.rails[index];
                match event {
                    AsyncEvent::PortDown(port) if port == rail.port.number => {
                        rail.down_since.get_or_insert(now);
                        self.lanes.set_down(index, true);
                    }
                    AsyncEvent::PortUp(port) if port == rail.port.number => {
                        rail.down_since = None;
                        self.lanes.set_down(index, false);
                    }
                    AsyncEvent::PortDown(_) | AsyncEvent::PortUp(_) => {}
                    AsyncEvent::QueuePair(number, text) => {
                        if let Some(&lane) = rail.lanes.get(&number) {
                            match self.lanes.lane(lane).peer {
                                Some(peer) => events.extend(self.disconnect(peer, index, &text)),
                                None => return Err(self.nic_failed(lane, &text)),
                            }
                        }
                    }
                    AsyncEvent::Device(text) => {
                        return Err(FabricError::Nic {
                            reason: format!("{}: {text}", rail.device.name),
                        });
                    }
                }
            }
            self.rails[index].ensure_up(now, self.options.port_down_limit)?;
        }
        Ok(())
    }

    /// Ends the connection to a peer because of an event on a rail. Returns the event that reports the loss, unless the loss
    /// was reported before.
    ///
    /// Queue pairs that serve all peers stay as they are. Arrivals from the peer are dropped from now on.
    fn disconnect(&mut self, peer: u16, rail: usize, reason: &str) -> Option<Event> {
        let device = &self.rails[rail].device.name;
        let lost = &mut self.peers[usize::from(peer)].lost;
        if std::mem::replace(lost, true) {
            return None;
        }
        if !K::SERVES_ALL_PEERS {
            let lanes = self.lanes.of(peer.into());
            lanes.for_each(|lane| lane.pair.pair().fail());
            self.lanes.drop_writes(peer);
        }
        Some(Event::Lost {
            peer: PeerId(peer),
            reason: format!("{device}: {reason}"),
        })
    }
}

/// Builds the work request of a write for a rail, or `None` if the write reaches beyond a region.
///
/// A write of 0 bytes goes from scratch memory to scratch memory, because drivers differ in whether they accept a
/// request without memory.
fn work_request(
    peer: &RemoteMemory,
    (rail, index): (&Rail, usize),
    regions: &[LocalRegion],
    write: &Write,
) -> Option<WorkRequest> {
    let mut sge = rail.scratch_sge();
    let (remote, on_host) = if write.bytes == 0 {
        (*peer.scratch.get(index)?, true)
    } else {
        let region = regions.get(usize::from(write.source.region.0))?;
        let memory = &region.memory;
        sge.addr = inside(write.source, write.bytes, memory.address(), memory.bytes())?;
        sge.lkey = region.registrations[index].local_key();
        (
            remote(peer, index, write)?,
            matches!(memory.kind(), MemoryKind::Host),
        )
    };
    Some(WorkRequest {
        id: write.id,
        peer: write.peer.0,
        local_address: sge.addr,
        local_key: sge.lkey,
        bytes: write.bytes,
        remote_address: remote.address,
        remote_key: remote.key,
        immediate: write.immediate,
        on_host,
    })
}

/// Returns the remote address of a write's target.
fn remote(peer: &RemoteMemory, rail: usize, write: &Write) -> Option<RemoteAddress> {
    let region = peer.regions.get(usize::from(write.target.region.0))?;
    let address = inside(write.target, write.bytes, region.address, region.bytes)?;
    Some(RemoteAddress {
        address,
        key: *region.keys.get(rail)?,
    })
}

/// Returns the address of a position in a region if `bytes` bytes follow it.
fn inside(place: RegionOffset, bytes: u32, address: u64, region_bytes: u64) -> Option<u64> {
    let end = place.offset.checked_add(bytes.into())?;
    (end <= region_bytes).then(|| address + place.offset)
}
