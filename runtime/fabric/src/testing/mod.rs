//! What tests of transports and of the proxy stand on, and the [`conformance`] tests themselves.
//!
//! Everything here panics where the fabric is wrong, as tests do.

pub mod conformance;
mod late;
mod traffic;

pub use late::{LateMover, Sources};
pub use traffic::{Job, Node, Traffic};

use crate::emulated::{Clock, Emulated, Faults, HostMover, Mover, Nic, VirtualClock, Wire, pipe};
use crate::peer_id::PeerId;
use crate::peer_id::PeerIdentity;
use crate::transport::{MemoryKind, MemoryRange, PeerConnectInfo, Transport};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// A transport under test.
pub trait Subject {
    /// So many endpoints that are not connected, each with all others as its peers, in order.
    fn make(&mut self, endpoints: usize) -> Vec<Box<dyn Transport>>;

    /// What time it is for endpoints.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Nothing moves: lets time pass.
    fn idle(&self) {
        std::thread::yield_now();
    }

    /// By when a peer that is gone must have been reported, and all other waits be over.
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }
}

/// Emulated NICs under a virtual clock.
pub struct EmulatedSubject {
    /// Figures of each.
    pub nic: Nic,
    /// Faults of each, by endpoint; the last is for all others.
    pub faults: Vec<Faults>,
    /// The seed of how long copies take, if they take any time.
    pub late: Option<u64>,
    start: Instant,
    clock: Arc<VirtualClock>,
}

impl EmulatedSubject {
    /// With these figures and faults.
    #[must_use]
    pub fn new(nic: Nic, faults: Vec<Faults>) -> Self {
        Self {
            nic,
            faults,
            late: None,
            start: Instant::now(),
            clock: Arc::default(),
        }
    }

    /// The time of its NICs.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }
}

/// A wire for each pair: by endpoint, to all others in order.
#[must_use]
pub fn pipes(endpoints: usize) -> Vec<Vec<Box<dyn Wire>>> {
    let mut wires: Vec<Vec<Box<dyn Wire>>> = (0..endpoints).map(|_| Vec::new()).collect();
    for low in 0..endpoints {
        for high in low + 1..endpoints {
            let (a, b) = pipe();
            wires[low].push(Box::new(a));
            wires[high].push(Box::new(b));
        }
    }
    wires
}

impl Subject for EmulatedSubject {
    fn make(&mut self, endpoints: usize) -> Vec<Box<dyn Transport>> {
        let sources = Sources::default();
        let make = |(at, wires): (usize, Vec<Box<dyn Wire>>)| -> Box<dyn Transport> {
            let faults = self.faults.get(at).or(self.faults.last());
            let mut faults = faults.cloned().unwrap_or_default();
            faults.seed = faults.seed.wrapping_mul(31).wrapping_add(at as u64);
            let clock = Clock::Virtual(Arc::clone(&self.clock));
            let mover: Box<dyn Mover> = match self.late {
                None => Box::new(HostMover),
                Some(seed) => {
                    let seed = seed.wrapping_mul(31).wrapping_add(at as u64);
                    Box::new(LateMover::new(sources.clone(), seed, u64::MAX))
                }
            };
            let made = Emulated::new(self.nic.clone(), faults, clock, mover, wires);
            Box::new(made.expect("sound figures"))
        };
        pipes(endpoints).into_iter().enumerate().map(make).collect()
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.clock.now_ns())
    }

    fn idle(&self) {
        self.clock.advance(100_000);
    }
}

/// Host memory for a region. It is never freed: a region has to outlive all transports.
#[derive(Clone, Copy, Debug)]
pub struct Buffer(&'static [AtomicU8]);

impl Buffer {
    /// Zeros.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let memory: *mut [u8] = vec![0; bytes].leak();
        // SAFETY: leaked and from here on reached through atomics only, which have the layout of what they hold.
        Self(unsafe { &*(memory as *mut [AtomicU8]) })
    }

    /// For [`Transport::register`].
    #[must_use]
    pub fn memory(&self) -> MemoryRange {
        let address = self.0.as_ptr() as u64;
        // SAFETY: leaked, so it stays mapped; only reached through atomics.
        unsafe { MemoryRange::new(address, self.0.len() as u64, MemoryKind::Host) }
    }

    /// Stores bytes.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        for (to, from) in self.0[offset..offset + bytes.len()].iter().zip(bytes) {
            to.store(*from, Ordering::Relaxed);
        }
    }

    /// Loads bytes.
    #[must_use]
    pub fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let range = &self.0[offset..offset + bytes];
        range
            .iter()
            .map(|byte| byte.load(Ordering::Relaxed))
            .collect()
    }
}

/// The number of endpoint `peer` in the table of endpoint `of`.
#[must_use]
pub fn peer_id(of: usize, peer: usize) -> PeerId {
    PeerId((peer - usize::from(peer > of)) as u16)
}

/// All peers of endpoint `of`, with what `offer(peer, for)` says of each.
pub fn peer_connect_infos(
    endpoints: usize,
    of: usize,
    mut info: impl FnMut(usize, PeerId) -> Vec<u8>,
) -> Vec<PeerConnectInfo> {
    let peers = (0..endpoints).filter(|peer| *peer != of);
    peers
        .map(|peer| PeerConnectInfo {
            peer: PeerIdentity {
                id: peer_id(of, peer),
                name: format!("endpoint {peer}").into(),
            },
            connect_info: info(peer, peer_id(peer, of)),
        })
        .collect()
}

/// Bytes of which no two ranges are alike by accident.
#[must_use]
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        (word >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}
