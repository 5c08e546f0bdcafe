//! What a connected endpoint does: writes find a lane, completions become events, trouble becomes the loss of peers.

use super::endpoint::{Endpoint, PeerLanes};
use super::lane::{Kind, Work};
use super::offer::Target;
use super::os::words;
use super::rail::LaneAt;
use super::watch::{self, Trouble};
use crate::error::FabricError;
use crate::transport::{Event, MemoryKind, PeerId, Place, Write};
use ibverbs_sys::{ibv_wc, ibv_wc_opcode, ibv_wc_status};
use std::time::{Duration, Instant};

/// How often devices are asked what happened beside completions: it costs a system call.
const WATCH_INTERVAL: Duration = Duration::from_millis(10);

/// Batches of completions that one `poll` takes from a rail.
const POLL_BATCHES: usize = 4;

impl<K: Kind> Endpoint<K> {
    /// Puts a write into the batch of the next lane that has room; false if none has.
    pub(super) fn accept(&mut self, write: &Write) -> Result<bool, FabricError> {
        let nic = |what| FabricError::Nic {
            reason: format!("write {}: {what}", write.id),
        };
        let number = usize::from(write.peer.0);
        let peer = self
            .peers
            .get(number)
            .ok_or_else(|| nic("there is no such peer"))?;
        if peer.lost {
            return Ok(true);
        }
        let (lanes, rails) = (peer.lanes.len(), self.rails.len());
        for lane in (peer.next..lanes).chain(0..peer.next) {
            let work = self
                .work(number, lane % rails, write)
                .ok_or_else(|| nic("its bytes are not in a region"))?;
            let peer = &mut self.peers[number];
            if peer.lanes[lane].accept(write.id, work) {
                peer.next = (lane + 1) % lanes;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A write as a rail's NIC gets it; none if it reaches beyond a region. One of 0 bytes goes from scratch memory to
    /// scratch memory, because drivers differ in what they accept without any.
    fn work(&self, peer: usize, rail: usize, write: &Write) -> Option<Work> {
        let peer = &self.peers[peer];
        let (remote, piece, on_host) = if write.bytes == 0 {
            (
                *peer.scratch.get(rail)?,
                self.rails[rail].scratch_piece(),
                true,
            )
        } else {
            let region = self.regions.get(usize::from(write.source.region.0))?;
            let mut piece = self.rails[rail].scratch_piece();
            piece.addr = inside(
                write.source,
                write.bytes,
                region.memory.address(),
                region.memory.bytes(),
            )?;
            piece.lkey = region.registrations[rail].local_key();
            (
                remote(peer, rail, write)?,
                piece,
                matches!(region.memory.kind(), MemoryKind::Host),
            )
        };
        Some(Work {
            id: write.id,
            local_address: piece.addr,
            local_key: piece.lkey,
            bytes: write.bytes,
            remote_address: remote.address,
            remote_key: remote.key,
            immediate: write.immediate,
            on_host,
        })
    }

    /// Posts all batches.
    pub(super) fn flush(&mut self) {
        for peer in 0..self.peers.len() {
            for lane in 0..self.peers[peer].lanes.len() {
                if let Err(error) = self.peers[peer].lanes[lane].flush() {
                    let lost = self.lose(
                        (peer as u16, lane as u16),
                        &format!("takes no writes: {error}"),
                    );
                    self.lost.extend(lost);
                }
            }
        }
    }

    /// Takes completions from a rail.
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
                        "{} gives no completions: {error}",
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
        let Some(&at) = self.rails[rail].lanes.get(&completion.qp_num) else {
            return Ok(());
        };
        if let Some((status, vendor)) = completion.error() {
            if status == ibv_wc_status::IBV_WC_WR_FLUSH_ERR {
                // The queue pair failed before; only the device's event says why.
                self.watch(events)?;
            }
            // SAFETY: the library's texts are constants.
            let text = unsafe { words((self.rails[rail].device.verbs.wc_status_str)(status)) };
            events.extend(self.lose(
                at,
                &format!("{text} (status {status}, vendor's code {vendor:#x})"),
            ));
            return Ok(());
        }
        let peer = &mut self.peers[usize::from(at.0)];
        if peer.lost {
            return Ok(());
        }
        let lane = &mut peer.lanes[usize::from(at.1)];
        match (completion.opcode(), completion.imm_data()) {
            (ibv_wc_opcode::IBV_WC_RDMA_WRITE, _) => {
                lane.complete(completion.wr_id(), |id| events.push(Event::Sent { id }));
            }
            (ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, Some(immediate)) => {
                lane.used_receives += 1;
                events.push(Event::Arrived {
                    peer: PeerId(at.0),
                    immediate: u32::from_be(immediate),
                });
            }
            (opcode, _) => {
                events
                    .extend(self.lose(at, &format!("it sent what is no write (opcode {opcode})")));
            }
        }
        Ok(())
    }

    /// Posts receives again where arrivals have used some.
    pub(super) fn repost(&mut self, events: &mut Vec<Event>) {
        for peer in 0..self.peers.len() {
            for lane in 0..self.peers[peer].lanes.len() {
                let rail = &self.rails[lane % self.rails.len()];
                if let Err(error) = self.peers[peer].lanes[lane].repost(rail) {
                    events.extend(self.lose(
                        (peer as u16, lane as u16),
                        &format!("takes no receives: {error}"),
                    ));
                }
            }
        }
    }

    /// Asks devices what happened beside completions.
    pub(super) fn watch(&mut self, events: &mut Vec<Event>) -> Result<(), FabricError> {
        let now = Instant::now();
        self.next_watch = now + WATCH_INTERVAL;
        for index in 0..self.rails.len() {
            while let Some(trouble) = watch::next(&self.rails[index].device) {
                let rail = &mut self.rails[index];
                match trouble {
                    Trouble::PortDown(port) if port == rail.port.number => {
                        rail.down_since = Some(now)
                    }
                    Trouble::PortUp(port) if port == rail.port.number => rail.down_since = None,
                    Trouble::PortDown(_) | Trouble::PortUp(_) => {}
                    Trouble::QueuePair(number, text) => {
                        let at = rail.lanes.get(&number).copied();
                        events.extend(at.and_then(|at| self.lose(at, &text)));
                    }
                    Trouble::Device(text) => {
                        return Err(FabricError::Nic {
                            reason: format!("{}: {text}", rail.device.name),
                        });
                    }
                }
            }
            self.lose_behind_dead_port(index, now, events);
        }
        Ok(())
    }

    /// All peers, if the rail's port has been down for too long: each has lanes there.
    fn lose_behind_dead_port(&mut self, index: usize, now: Instant, events: &mut Vec<Event>) {
        let rail = &self.rails[index];
        let Some(since) = rail.down_since.filter(|since| now - *since >= rail.silence) else {
            return;
        };
        let reason = format!(
            "port {} has been down for {} ms",
            rail.port.number,
            (now - since).as_millis()
        );
        for peer in 0..self.peers.len() {
            events.extend(self.lose((peer as u16, index as u16), &reason));
        }
    }

    /// Ends everything with the peer of a lane; the event that says so, the first time.
    fn lose(&mut self, (peer, lane): LaneAt, reason: &str) -> Option<Event> {
        let device = &self.rails[usize::from(lane) % self.rails.len()].device.name;
        let lanes = &mut self.peers[usize::from(peer)];
        if std::mem::replace(&mut lanes.lost, true) {
            return None;
        }
        lanes.lanes.iter().for_each(|lane| lane.pair.pair().fail());
        Some(Event::Lost {
            peer: PeerId(peer),
            reason: format!("{device}: {reason}"),
        })
    }
}

/// Where a write goes.
fn remote<K>(peer: &PeerLanes<K>, rail: usize, write: &Write) -> Option<Target> {
    let region = peer.regions.get(usize::from(write.target.region.0))?;
    let address = inside(write.target, write.bytes, region.address, region.bytes)?;
    Some(Target {
        address,
        key: *region.keys.get(rail)?,
    })
}

/// The address of a place, if as many bytes follow it in its region.
fn inside(place: Place, bytes: u32, address: u64, region_bytes: u64) -> Option<u64> {
    let end = place.offset.checked_add(bytes.into())?;
    (end <= region_bytes).then(|| address + place.offset)
}
