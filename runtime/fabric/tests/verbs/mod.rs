//! Endpoints of one process that write to each other, and checks that hold for every transport over libibverbs.
//! One thread drives all of them, so a check sees the state of everybody at once.

use mkernel_fabric::{
    Event, FabricError, Memory, MemoryKind, Peer, PeerId, PeerOffer, Place, RegionId, Transport,
    Write,
};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bytes of each node's region.
pub const REGION_BYTES: usize = 2 << 20;

/// An endpoint with a region, and what it was told.
pub struct Node {
    pub transport: Box<dyn Transport>,
    memory: Box<[AtomicU8]>,
    pub sent: Vec<u64>,
    pub arrived: Vec<(PeerId, u32)>,
    pub lost: Vec<(PeerId, String)>,
}

impl Node {
    pub fn new(transport: Box<dyn Transport>) -> Self {
        // SAFETY: zeros are values of atomics.
        let memory = unsafe { Box::<[AtomicU8]>::new_zeroed_slice(REGION_BYTES).assume_init() };
        let (sent, arrived, lost) = Default::default();
        let mut node = Self {
            transport,
            memory,
            sent,
            arrived,
            lost,
        };
        let address = node.memory.as_ptr() as u64;
        // SAFETY: the box stays until the node's transport, its first field, has been dropped; it holds only atomics.
        let memory = unsafe { Memory::new(address, REGION_BYTES as u64, MemoryKind::Host) };
        assert_eq!(node.transport.register(memory), Ok(RegionId(0)));
        node
    }

    pub fn store(&self, at: usize, bytes: &[u8]) {
        self.memory[at..at + bytes.len()]
            .iter()
            .zip(bytes)
            .for_each(|(to, byte)| to.store(*byte, Relaxed));
    }

    pub fn load(&self, at: usize, bytes: usize) -> Vec<u8> {
        self.memory[at..at + bytes]
            .iter()
            .map(|byte| byte.load(Relaxed))
            .collect()
    }

    /// Polls once; returns the arrivals.
    pub fn poll(&mut self) -> Vec<(PeerId, u32)> {
        let mut events = Vec::new();
        self.transport.poll(&mut events).unwrap();
        let before = self.arrived.len();
        for event in events {
            match event {
                Event::Sent { id } => self.sent.push(id),
                Event::Arrived { peer, immediate } => self.arrived.push((peer, immediate)),
                Event::Lost { peer, reason } => self.lost.push((peer, reason)),
            }
        }
        self.arrived[before..].to_vec()
    }
}

/// The number that node `of` has for node `node`.
pub fn peer(of: usize, node: usize) -> PeerId {
    assert_ne!(of, node);
    PeerId((if node > of { node - 1 } else { node }) as u16)
}

pub fn named(id: PeerId, name: &str) -> Peer {
    Peer {
        id,
        name: name.into(),
    }
}

/// What everybody offers to everybody: `[from][to]`, empty to itself.
pub fn offers(nodes: &mut [Node]) -> Vec<Vec<Vec<u8>>> {
    let count = nodes.len();
    let offer = |from: usize, node: &mut Node, to| match from == to {
        true => Vec::new(),
        false => node.transport.offer(peer(from, to)).unwrap(),
    };
    nodes
        .iter_mut()
        .enumerate()
        .map(|(from, node)| (0..count).map(|to| offer(from, node, to)).collect())
        .collect()
}

/// Connects everybody with everybody.
pub fn connect(nodes: &mut [Node], offers: &[Vec<Vec<u8>>]) -> Result<(), FabricError> {
    let count = nodes.len();
    for (node, at) in nodes.iter_mut().enumerate().map(|(at, node)| (node, at)) {
        let others = (0..count).filter(|other| *other != at);
        let peers: Vec<_> = others
            .map(|other| PeerOffer {
                peer: named(peer(at, other), &format!("node {other}")),
                offer: offers[other][at].clone(),
            })
            .collect();
        node.transport
            .connect(&peers, Instant::now() + Duration::from_secs(10))?;
    }
    Ok(())
}

/// Nodes that are connected.
pub fn meet(transports: Vec<Box<dyn Transport>>) -> Vec<Node> {
    let mut nodes: Vec<_> = transports.into_iter().map(Node::new).collect();
    let offers = offers(&mut nodes);
    connect(&mut nodes, &offers).unwrap();
    nodes
}

/// Polls everybody until `done`; fails after `limit`.
pub fn until(nodes: &mut [Node], limit: Duration, what: &str, done: impl Fn(&[Node]) -> bool) {
    let end = Instant::now() + limit;
    while !done(nodes) {
        assert!(
            Instant::now() < end,
            "no {what} in {limit:?}; lost: {:?}",
            nodes.iter().map(|node| &node.lost).collect::<Vec<_>>()
        );
        nodes.iter_mut().for_each(|node| drop(node.poll()));
    }
}

/// A write from region 0 to region 0.
pub fn write(
    to: PeerId,
    source: usize,
    target: usize,
    bytes: usize,
    immediate: u32,
    id: u64,
) -> Write {
    let place = |offset: usize| Place {
        region: RegionId(0),
        offset: offset as u64,
    };
    Write {
        peer: to,
        source: place(source),
        target: place(target),
        bytes: bytes as u32,
        immediate,
        id,
    }
}

/// Bytes that no other seed gives.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let word = |index: u64| {
        (seed << 32 | index)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
            .to_le_bytes()
    };
    (0..bytes.div_ceil(8) as u64)
        .flat_map(word)
        .take(bytes)
        .collect()
}

/// Writes of many sizes, at odd places, arrive whole and touch nothing else.
pub fn sizes_arrive(nodes: &mut [Node]) {
    let sizes = [0, 1, 63, 64, 65, 4095, 4096, 4097, 300_000];
    for (index, bytes) in sizes.into_iter().enumerate() {
        let (source, target) = (index * 3 + 1, REGION_BYTES / 2 + index * 5 + 1);
        nodes[0].store(source, &pattern(index as u64, bytes));
        nodes[1].store(target - 1, &vec![0xee; bytes + 2]);
        let immediate = 0xfedc_ba98 ^ index as u32;
        let posted = write(peer(0, 1), source, target, bytes, immediate, index as u64);
        assert_eq!(nodes[0].transport.post(&[posted]), Ok(1));
        until(nodes, Duration::from_secs(20), "arrival", |nodes| {
            nodes[1].arrived.len() > index && nodes[0].sent.len() > index
        });
        assert_eq!(nodes[1].arrived[index], (peer(1, 0), immediate));
        assert_eq!(nodes[0].sent[index], index as u64);
        let mut wanted = vec![0xee; bytes + 2];
        wanted[1..=bytes].copy_from_slice(&pattern(index as u64, bytes));
        assert!(
            nodes[1].load(target - 1, bytes + 2) == wanted,
            "{bytes} bytes differ"
        );
    }
}

/// A one-way stream of writes.
struct Stream {
    from: usize,
    to: usize,
    posted: u32,
    sent: u32,
    arrived: Vec<bool>,
    last: Option<u32>,
}

/// Everybody writes `count` times `bytes` to everybody else at once, with as many on the way as is allowed; each arrival's
/// bytes are compared when it is told. Returns how often an arrival came after one that was posted later.
pub fn streams_arrive(nodes: &mut [Node], count: u32, bytes: usize, limit: Duration) -> usize {
    let pairs = (0..nodes.len()).flat_map(|from| (0..nodes.len()).map(move |to| (from, to)));
    let stream = |(from, to)| Stream {
        from,
        to,
        posted: 0,
        sent: 0,
        arrived: vec![false; count as usize],
        last: None,
    };
    let mut streams: Vec<_> = pairs.filter(|(from, to)| from != to).map(stream).collect();
    let slots = REGION_BYTES / 2 / streams.len() / bytes;
    let place = |stream: usize, sequence: u32| (stream * slots + sequence as usize % slots) * bytes;
    let figures = nodes[0].transport.limits();
    let window = figures.writes.min(figures.receives).min(slots as u32);
    let (end, mut inversions) = (Instant::now() + limit, 0);
    while streams
        .iter()
        .any(|stream| stream.sent < count || stream.arrived.contains(&false))
    {
        assert!(
            Instant::now() < end,
            "not done in {limit:?}: {:?}",
            nodes.iter().map(|node| &node.lost).collect::<Vec<_>>()
        );
        for (index, stream) in streams.iter_mut().enumerate() {
            let arrived = stream
                .arrived
                .iter()
                .take_while(|arrived| **arrived)
                .count() as u32;
            let to = (stream.posted + 8)
                .min(count)
                .min(arrived.min(stream.sent) + window);
            let writes: Vec<_> = (stream.posted..to)
                .map(|sequence| {
                    let (at, number) = (place(index, sequence), (index as u32) << 20 | sequence);
                    nodes[stream.from].store(at, &pattern(number.into(), bytes));
                    write(
                        peer(stream.from, stream.to),
                        at,
                        REGION_BYTES / 2 + at,
                        bytes,
                        number,
                        number.into(),
                    )
                })
                .collect();
            stream.posted += nodes[stream.from].transport.post(&writes).unwrap() as u32;
        }
        for (at, node) in nodes.iter_mut().enumerate() {
            for (from, number) in node.poll() {
                let (index, sequence) = ((number >> 20) as usize, number & 0xf_ffff);
                let stream = &mut streams[index];
                assert_eq!((peer(at, stream.from), stream.to), (from, at));
                assert!(
                    !std::mem::replace(&mut stream.arrived[sequence as usize], true),
                    "{sequence} twice"
                );
                let target = REGION_BYTES / 2 + place(index, sequence);
                assert!(
                    node.load(target, bytes) == pattern(number.into(), bytes),
                    "write {sequence}: bytes after arrival"
                );
                inversions += usize::from(stream.last.is_some_and(|last| last > sequence));
                stream.last = Some(sequence);
            }
            node.sent
                .drain(..)
                .for_each(|id| streams[(id >> 20) as usize].sent += 1);
        }
    }
    assert!(streams.iter().all(|stream| stream.sent == count));
    inversions
}

/// More writes than fit are accepted in part; the rest goes later. None is dropped.
pub fn full_queues_say_so(nodes: &mut [Node]) {
    let writes = nodes[0].transport.limits().writes;
    let many: Vec<_> = (0..writes + 10)
        .map(|index| write(peer(0, 1), 0, 0, 8, index, index.into()))
        .collect();
    let accepted = nodes[0].transport.post(&many).unwrap();
    assert!(
        (1..=writes as usize).contains(&accepted),
        "{accepted} of {writes}"
    );
    until(nodes, Duration::from_secs(20), "room", |nodes| {
        nodes[0].sent.len() == accepted
    });
    assert_eq!(
        nodes[0].transport.post(&many[accepted..]),
        Ok(many.len() - accepted)
    );
    until(nodes, Duration::from_secs(20), "rest", |nodes| {
        nodes[1].arrived.len() == many.len()
    });
    let mut immediates: Vec<_> = nodes[1]
        .arrived
        .iter()
        .map(|(_, immediate)| *immediate)
        .collect();
    immediates.sort_unstable();
    assert!(immediates.into_iter().eq(0..writes + 10));
}

/// Loses node 1 at node 0 by a key that it did not offer; node 2 goes on. Nodes are not connected yet.
pub fn a_wrong_key_loses_its_peer_only(mut nodes: Vec<Node>, words: &[&str]) {
    let mut offers = offers(&mut nodes);
    // The last four bytes of an offer are the last region's key on the last rail.
    offers[1][0].last_mut().unwrap().clone_from(&0x5a);
    connect(&mut nodes, &offers).unwrap();
    assert_eq!(
        nodes[0]
            .transport
            .post(&[write(peer(0, 1), 0, 0, 4096, 1, 1)]),
        Ok(1)
    );
    until(&mut nodes, Duration::from_secs(20), "loss", |nodes| {
        !nodes[0].lost.is_empty()
    });
    let (lost, reason) = nodes[0].lost[0].clone();
    assert_eq!(lost, peer(0, 1));
    for word in words {
        assert!(reason.contains(word), "{word} in {reason}");
    }
    assert!(
        nodes[1].arrived.is_empty(),
        "a write with a wrong key arrived"
    );
    assert_eq!(
        nodes[0].transport.post(&[write(peer(0, 1), 0, 0, 8, 2, 2)]),
        Ok(1),
        "dropped, not refused"
    );
    nodes[2].arrived.clear();
    assert_eq!(
        nodes[0]
            .transport
            .post(&[write(peer(0, 2), 0, 0, 4096, 3, 3)]),
        Ok(1)
    );
    until(
        &mut nodes,
        Duration::from_secs(20),
        "arrival at the other",
        |nodes| nodes[2].arrived == [(peer(2, 0), 3)],
    );
    assert_eq!(nodes[0].lost.len(), 1, "told once");
}

/// A peer that is gone is lost within `limit`.
pub fn a_peer_that_ends_is_lost(mut nodes: Vec<Node>, limit: Duration) {
    nodes.truncate(1);
    assert_eq!(
        nodes[0]
            .transport
            .post(&[write(peer(0, 1), 0, 0, 4096, 1, 1)]),
        Ok(1)
    );
    until(&mut nodes, limit, "loss", |nodes| nodes[0].lost.len() == 1);
    assert_eq!(nodes[0].lost[0].0, peer(0, 1));
}

/// Offers that are damaged or of another kind are refused, by name.
pub fn bad_offers_are_refused(mut nodes: Vec<Node>) {
    let good = offers(&mut nodes);
    let damages: [(&str, fn(&mut Vec<u8>)); 5] = [
        ("too early", |offer| offer.truncate(30)),
        ("not of a verbs transport", |offer| offer[0] = 0),
        ("version", |offer| offer[4] = 77),
        ("service", |offer| offer[5] ^= 3),
        ("MTU", |offer| offer[10] = 6),
    ];
    for (word, damage) in damages {
        let mut bad = good.clone();
        damage(&mut bad[1][0]);
        let Err(FabricError::Offer { peer, reason }) = connect(&mut nodes, &bad) else {
            panic!("{word}: accepted")
        };
        assert!(
            reason.contains(word) && &*peer.name == "node 1",
            "{word}: {peer}: {reason}"
        );
    }
}
