//! [`Raw`]: a transport without an endpoint, for the conformance tests.

use super::buffer::Buffer;
use super::peers::{peer_connect_infos, share_region};
use super::subject::Subject;
use crate::peer_id::PeerId;
use crate::transport::{Event, MAX_CONNECT_INFO_BYTES, PeerConnectInfo, RegionId, Transport};
use std::collections::BTreeSet;
use std::time::Instant;

/// The size of each region in tests of the transport alone.
pub(super) const REGION_BYTES: usize = 4 << 20;

/// A transport, its region, and the events that it has reported.
pub(super) struct Raw {
    pub transport: Box<dyn Transport>,
    pub memory: Buffer,
    pub sent: BTreeSet<u64>,
    pub arrived: BTreeSet<(PeerId, u32)>,
    pub lost: BTreeSet<PeerId>,
}

impl Raw {
    /// Polls, and calls `on_arrival` for each arrival when it is reported.
    pub fn poll(&mut self, mut on_arrival: impl FnMut(&Buffer, PeerId, u32)) {
        let mut events = Vec::new();
        self.transport.poll(&mut events).expect("polls");
        for event in events {
            match event {
                Event::Sent { id } => drop(self.sent.insert(id)),
                Event::Arrived { peer, immediate } => {
                    on_arrival(&self.memory, peer, immediate);
                    self.arrived.insert((peer, immediate));
                }
                Event::Lost { peer, reason } => {
                    assert!(!reason.is_empty());
                    self.lost.insert(peer);
                }
                Event::Dropped { reason } => panic!("all senders are peers: {reason}"),
            }
        }
    }
}

pub(super) fn connect_infos_of(raws: &mut [Raw], of: usize) -> Vec<PeerConnectInfo> {
    peer_connect_infos(raws.len(), of, |peer, of| {
        let info = raws[peer]
            .transport
            .connect_info(of)
            .expect("connection info");
        assert!(info.len() <= MAX_CONNECT_INFO_BYTES);
        info
    })
}

pub(super) fn unconnected(subject: &mut dyn Subject, endpoints: usize) -> Vec<Raw> {
    let raw = |transport| Raw {
        transport,
        memory: Buffer::new(REGION_BYTES),
        sent: BTreeSet::new(),
        arrived: BTreeSet::new(),
        lost: BTreeSet::new(),
    };
    subject.make(endpoints).into_iter().map(raw).collect()
}

/// Adds a region of each transport.
pub(super) fn share(raws: &mut [Raw], regions: &[Buffer]) -> RegionId {
    let memory = regions.iter().map(Buffer::memory);
    share_region(raws.iter_mut().map(|raw| &mut raw.transport), memory)
}

pub(super) fn connected(subject: &mut dyn Subject, endpoints: usize) -> Vec<Raw> {
    let mut raws = unconnected(subject, endpoints);
    let tables: Vec<_> = (0..endpoints)
        .map(|of| connect_infos_of(&mut raws, of))
        .collect();
    let deadline = Instant::now() + subject.time_limit();
    std::thread::scope(|scope| {
        for (raw, table) in raws.iter_mut().zip(&tables) {
            scope.spawn(move || raw.transport.connect(table, deadline).expect("connects"));
        }
    });
    let memory: Vec<Buffer> = raws.iter().map(|raw| raw.memory).collect();
    assert_eq!(share(&mut raws, &memory), RegionId(0));
    raws
}
