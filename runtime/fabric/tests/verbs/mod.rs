//! Tests of transports over libibverbs in addition to the conformance tests, with all endpoints in one process.
//!
//! One thread drives all endpoints, so a check sees the state of all endpoints at one time.

pub mod flushes;

use mkernel_fabric::testing::conformance::run_all;
use mkernel_fabric::testing::{
    Buffer, Subject, pattern, peer_connect_infos, peer_id, share_region,
};
use mkernel_fabric::verbs::Options;
use mkernel_fabric::{
    Event, FabricError, PeerConnectInfo, PeerId, RegionId, RegionOffset, Transport, Write,
};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The size of each node's region.
pub const REGION_BYTES: usize = 2 << 20;

/// A test subject whose function creates endpoints. The peers of each are all other endpoints.
pub struct Made<F>(pub F);

impl<F: FnMut(usize) -> Vec<Box<dyn Transport>>> Subject for Made<F> {
    fn make(&mut self, endpoints: usize) -> Vec<Box<dyn Transport>> {
        (self.0)(endpoints)
    }
}

/// Runs the conformance tests on the NICs of this host that the environment variable NICS lists, with one endpoint per NIC.
pub fn conformance_of_nics(open: fn(Options) -> Box<dyn Transport>) {
    let nics = std::env::var("NICS").expect("NICS=first,second,third");
    let nics: Vec<_> = nics.split(',').map(str::to_owned).collect();
    assert!(nics.len() >= 3, "three NICs, or one thrice: {nics:?}");
    run_all(&mut Made(|count: usize| {
        let options = |nic: &String| Options {
            devices: vec![nic.clone()],
            ..Options::new(count as u16 - 1)
        };
        nics[..count].iter().map(options).map(open).collect()
    }));
}

/// An endpoint with a region, and the events that it has reported.
pub struct Node {
    pub transport: Box<dyn Transport>,
    pub memory: Buffer,
    pub sent: Vec<u64>,
    pub arrived: Vec<(PeerId, u32)>,
    pub lost: Vec<(PeerId, String)>,
    pub dropped: Vec<String>,
}

impl Node {
    pub fn new(transport: Box<dyn Transport>) -> Self {
        Self {
            transport,
            memory: Buffer::new(REGION_BYTES),
            sent: Vec::new(),
            arrived: Vec::new(),
            lost: Vec::new(),
            dropped: Vec::new(),
        }
    }

    /// Polls once and returns the arrivals.
    pub fn poll(&mut self) -> Vec<(PeerId, u32)> {
        let mut events = Vec::new();
        self.transport.poll(&mut events).unwrap();
        let before = self.arrived.len();
        for event in events {
            match event {
                Event::Sent { id } => self.sent.push(id),
                Event::Arrived { peer, immediate } => self.arrived.push((peer, immediate)),
                Event::Lost { peer, reason } => self.lost.push((peer, reason)),
                Event::Dropped { reason } => self.dropped.push(reason),
            }
        }
        self.arrived[before..].to_vec()
    }
}

/// Returns the table of peers of each node.
pub fn tables(nodes: &mut [Node]) -> Vec<Vec<PeerConnectInfo>> {
    let count = nodes.len();
    let mut table = |of| {
        peer_connect_infos(count, of, |from, to| {
            nodes[from].transport.connect_info(to).unwrap()
        })
    };
    (0..count).map(&mut table).collect()
}

/// Connects all nodes with each other.
pub fn connect(nodes: &mut [Node], tables: &[Vec<PeerConnectInfo>]) -> Result<(), FabricError> {
    let deadline = Instant::now() + Duration::from_secs(10);
    nodes
        .iter_mut()
        .zip(tables)
        .try_for_each(|(node, table)| node.transport.connect(table, deadline))
}

/// Creates connected nodes.
pub fn meet(transports: Vec<Box<dyn Transport>>) -> Vec<Node> {
    let mut nodes: Vec<_> = transports.into_iter().map(Node::new).collect();
    let tables = tables(&mut nodes);
    connect(&mut nodes, &tables).unwrap();
    share(&mut nodes);
    nodes
}

/// Makes the memory of all nodes their region 0.
pub fn share(nodes: &mut [Node]) {
    let memory: Vec<_> = nodes.iter().map(|node| node.memory.memory()).collect();
    let transports = nodes.iter_mut().map(|node| &mut node.transport);
    assert_eq!(share_region(transports, memory.into_iter()), RegionId(0));
}

/// Returns the losses that the nodes have reported.
pub fn losses(nodes: &[Node]) -> Vec<&(PeerId, String)> {
    nodes.iter().flat_map(|node| &node.lost).collect()
}

/// Polls all nodes until `done` returns true. Fails after `limit`.
pub fn until(nodes: &mut [Node], limit: Duration, what: &str, done: impl Fn(&[Node]) -> bool) {
    let end = Instant::now() + limit;
    while !done(nodes) {
        assert!(
            Instant::now() < end,
            "no {what} in {limit:?}; lost: {:?}",
            losses(nodes)
        );
        nodes.iter_mut().for_each(|node| drop(node.poll()));
    }
}

/// Returns a write from region 0 to region 0 with its id as immediate data.
pub fn write(to: PeerId, source: usize, target: usize, bytes: usize, number: u32) -> Write {
    let place = |offset: usize| RegionOffset {
        region: RegionId(0),
        offset: offset as u64,
    };
    let (source, target) = (place(source), place(target));
    Write {
        peer: to,
        source,
        target,
        bytes: bytes as u32,
        immediate: number,
        id: number.into(),
    }
}

/// A one-way stream of writes.
struct Stream {
    from: usize,
    to: usize,
    posted: u32,
    sent: Seen,
    arrived: Seen,
}

impl Stream {
    /// The number of writes, counted from the first, that have arrived and are known to be sent.
    fn done(&self) -> u32 {
        self.arrived.all_before.min(self.sent.all_before)
    }
}

/// The writes of a stream for which an event was reported.
#[derive(Default)]
struct Seen {
    /// All writes before this number were reported.
    all_before: u32,
    later: BTreeSet<u32>,
    /// The number of times that a write was reported after a later write.
    inversions: usize,
}

impl Seen {
    fn see(&mut self, sequence: u32) {
        assert!(
            sequence >= self.all_before && self.later.insert(sequence),
            "{sequence} twice"
        );
        self.inversions += usize::from(self.later.last() != Some(&sequence));
        while self.later.remove(&self.all_before) {
            self.all_before += 1;
        }
    }
}

/// The streams between all pairs of nodes.
struct Streams {
    all: Vec<Stream>,
    /// The number of writes of a stream that have room in a region at one time.
    slots: usize,
    bytes: usize,
}

impl Streams {
    fn new(nodes: usize, bytes: usize) -> Self {
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        let stream = |(from, to)| Stream {
            from,
            to,
            posted: 0,
            sent: Seen::default(),
            arrived: Seen::default(),
        };
        let all: Vec<_> = pairs.filter(|(from, to)| from != to).map(stream).collect();
        Self {
            slots: REGION_BYTES / 2 / all.len() / bytes,
            all,
            bytes,
        }
    }

    fn offset(&self, stream: usize, sequence: u32) -> usize {
        (stream * self.slots + sequence as usize % self.slots) * self.bytes
    }

    /// Posts up to 8 writes of a stream, with at most `window` writes in flight.
    fn post(&mut self, nodes: &mut [Node], index: usize, count: u32, window: u32) {
        let stream = &self.all[index];
        let node = &mut nodes[stream.from];
        let to = (stream.posted + 8).min(count).min(stream.done() + window);
        let write_of = |sequence: u32| {
            let (at, number) = (
                self.offset(index, sequence),
                (index as u32) << 20 | sequence,
            );
            node.memory.write(at, &pattern(number.into(), self.bytes));
            let peer = peer_id(stream.from, stream.to);
            write(peer, at, REGION_BYTES / 2 + at, self.bytes, number)
        };
        let writes: Vec<_> = (stream.posted..to).map(write_of).collect();
        self.all[index].posted += node.transport.post(&writes).unwrap() as u32;
    }

    /// Returns whether the bytes of a write are in its target.
    fn is_there(&self, nodes: &[Node], number: u32) -> bool {
        let index = (number >> 20) as usize;
        let target = REGION_BYTES / 2 + self.offset(index, number & 0xf_ffff);
        let memory = &nodes[self.all[index].to].memory;
        memory.read(target, self.bytes) == pattern(number.into(), self.bytes)
    }

    /// Checks the writes that have arrived at a node, and the writes that the node has sent.
    fn check(&mut self, nodes: &mut [Node], at: usize) {
        for (from, number) in nodes[at].poll() {
            assert!(
                self.is_there(nodes, number),
                "{number:#x} arrived without its bytes"
            );
            let stream = &mut self.all[(number >> 20) as usize];
            assert_eq!((peer_id(at, stream.from), stream.to), (from, at));
            stream.arrived.see(number & 0xf_ffff);
        }
        for id in std::mem::take(&mut nodes[at].sent) {
            let number = id as u32;
            assert!(
                self.is_there(nodes, number),
                "{number:#x} was sent, but is not there"
            );
            self.all[(number >> 20) as usize]
                .sent
                .see(number & 0xf_ffff);
        }
    }
}

/// Each node makes `count` writes of `bytes` bytes to each other node at once, with the most writes in flight that the limits
/// allow.
///
/// When a write is reported as arrived or as sent, its bytes must be in the target, because all these NICs acknowledge a write
/// only after its bytes are in the target. Returns the number of times that a write arrived after a write that was posted
/// later.
pub fn streams_arrive(nodes: &mut [Node], count: u32, bytes: usize, limit: Duration) -> usize {
    let mut streams = Streams::new(nodes.len(), bytes);
    let limits = nodes[0].transport.limits();
    let window = limits.writes.min(limits.receives).min(streams.slots as u32);
    let end = Instant::now() + limit;
    while streams.all.iter().any(|stream| stream.done() < count) {
        assert!(
            Instant::now() < end,
            "not done in {limit:?}; lost: {:?}",
            losses(nodes)
        );
        for index in 0..streams.all.len() {
            streams.post(nodes, index, count, window);
        }
        for at in 0..nodes.len() {
            streams.check(nodes, at);
        }
    }
    let inversions = streams.all.iter().map(|stream| stream.arrived.inversions);
    inversions.sum()
}

/// Node 0 writes to node 1 with a key that node 1 did not send, and loses node 1. Node 0's connection to node 2 stays intact.
pub fn a_wrong_key_loses_its_peer_only(transports: Vec<Box<dyn Transport>>, words: &[&str]) {
    let mut nodes: Vec<_> = transports.into_iter().map(Node::new).collect();
    let tables = tables(&mut nodes);
    connect(&mut nodes, &tables).unwrap();
    let (wrong, right, limit) = (peer_id(0, 1), peer_id(0, 2), Duration::from_secs(20));
    for node in &mut nodes {
        assert_eq!(
            node.transport.register(node.memory.memory()),
            Ok(RegionId(0))
        );
    }
    for (peer, id) in [(1, wrong), (2, right)] {
        let mut info = nodes[peer].transport.region_info(RegionId(0));
        if id == wrong {
            // The last byte belongs to the key on the last rail.
            *info.last_mut().unwrap() = 0x5a;
        }
        nodes[0].transport.add_peer_region(id, &info).unwrap();
    }
    assert_eq!(
        nodes[0].transport.post(&[write(wrong, 0, 0, 4096, 1)]),
        Ok(1)
    );
    until(&mut nodes, limit, "loss", |nodes| !nodes[0].lost.is_empty());
    let (lost, reason) = nodes[0].lost[0].clone();
    assert_eq!(lost, wrong);
    for word in words {
        assert!(reason.contains(word), "{word} in {reason}");
    }
    assert_eq!(nodes[1].arrived, [], "a write with a wrong key arrived");
    assert_eq!(
        nodes[0].transport.post(&[write(wrong, 0, 0, 8, 2)]),
        Ok(1),
        "dropped, not refused"
    );
    assert_eq!(
        nodes[0].transport.post(&[write(right, 0, 0, 4096, 3)]),
        Ok(1)
    );
    until(&mut nodes, limit, "arrival", |nodes| {
        nodes[2].arrived == [(peer_id(2, 0), 3)]
    });
    assert_eq!(nodes[0].lost.len(), 1, "the loss is reported once");
}

/// Connection info that is damaged or of another type is refused, and the error names the peer.
pub fn damaged_connect_info_is_refused(transports: Vec<Box<dyn Transport>>) {
    let mut nodes: Vec<_> = transports.into_iter().map(Node::new).collect();
    let good = tables(&mut nodes);
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 6] = [
        ("truncated", |info| info.truncate(30)),
        ("not the info of a verbs transport", |info| info[0] = 0),
        ("version", |info| info[4] = 77),
        ("service", |info| info[5] ^= 3),
        ("MTU", |info| info[9] = 6),
        ("24 bits", |info| info[43] = 1),
    ];
    for (word, damage) in damages {
        let mut bad = good.clone();
        damage(&mut bad[0][0].connect_info);
        let Err(FabricError::ConnectInfo { peer, reason }) = connect(&mut nodes, &bad) else {
            panic!("{word}: accepted")
        };
        assert!(
            reason.contains(word) && &*peer.name == "endpoint 1",
            "{word}: {peer}: {reason}"
        );
    }
}

/// Info of a region that is damaged or of another type is refused. The number of the peer's next region is then unchanged.
pub fn damaged_region_info_is_refused(transports: Vec<Box<dyn Transport>>) {
    let mut nodes = meet(transports);
    let good = nodes[1].transport.region_info(RegionId(0));
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 4] = [
        ("truncated", |info| info.truncate(20)),
        ("not the info of a verbs transport", |info| info[0] = 0),
        ("version", |info| info[4] = 77),
        ("address space", |info| info[6..14].fill(0xff)),
    ];
    for (word, damage) in damages {
        let mut bad = good.clone();
        damage(&mut bad);
        let refused = nodes[0].transport.add_peer_region(peer_id(0, 1), &bad);
        let reason = refused.expect_err(word);
        assert!(reason.contains(word), "{word}: {reason}");
    }
    let added = nodes[0].transport.add_peer_region(peer_id(0, 1), &good);
    assert_eq!(added, Ok(REGION_BYTES as u64));
}
