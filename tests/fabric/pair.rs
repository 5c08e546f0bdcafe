//! Two endpoints with proxies, connected by a wire, for the tests of this folder.

use mkernel_fabric::emulated::{
    Clock, CopyEngine, EmulatedTransport, Faults, HostCopyEngine, NicModel, Wire, pipe,
};
use mkernel_fabric::testing::{Buffer, DelayedCopyEngine, SourceTable};
use mkernel_fabric::{
    CommandProducer, Endpoint, EndpointBuilder, EndpointConfig, FabricError, HostArrivals,
    HostRing, PeerConnectInfo, PeerId, PeerIdentity, Proxy, ProxyOptions,
};
use mkernel_spec::fabric::{COMMAND_PUT, Command};
use std::time::{Duration, Instant};

/// The size of each region. Region 0 is the source, region 1 the target.
pub const REGION_BYTES: usize = 1 << 20;

/// The time that waits may take beyond the fabric's own deadline on a busy machine.
pub const MARGIN: Duration = Duration::from_secs(10);

/// The options of an endpoint.
#[derive(Clone)]
pub struct Options {
    pub faults: Faults,
    pub deadline: Duration,
    pub ring_log2: u32,
    pub name: &'static str,
    /// The sources of slow copies, and the number of copies after which one fails. With `None`, copies complete at once.
    pub late: Option<(SourceTable, u64)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            faults: Faults::default(),
            deadline: Duration::from_secs(20),
            ring_log2: 6,
            name: "rank 1 on node b",
            late: None,
        }
    }
}

/// An endpoint before it is connected.
pub struct UnconnectedEndpoint {
    pub builder: EndpointBuilder,
    pub source: Buffer,
    pub target: Buffer,
    options: Options,
}

/// A connected endpoint without a proxy.
pub struct ConnectedEndpoint {
    pub endpoint: Endpoint,
    pub producer: CommandProducer,
    pub arrivals: HostArrivals,
    pub source: Buffer,
    pub target: Buffer,
}

/// An endpoint that a proxy drives.
pub struct RunningEndpoint {
    pub proxy: Proxy,
    pub producer: CommandProducer,
    pub arrivals: HostArrivals,
    pub source: Buffer,
    pub target: Buffer,
}

pub fn unconnected(wire: Box<dyn Wire>, options: Options) -> UnconnectedEndpoint {
    let (source, target) = (Buffer::new(REGION_BYTES), Buffer::new(REGION_BYTES));
    let (nic, faults) = (NicModel::default(), options.faults.clone());
    let copy_engine: Box<dyn CopyEngine> = match options.late.clone() {
        None => Box::new(HostCopyEngine),
        Some((sources, successes)) => Box::new(DelayedCopyEngine::new(sources, 7, successes)),
    };
    let nic = EmulatedTransport::new(nic, faults, Clock::Real, copy_engine, vec![wire]);
    let config = EndpointConfig {
        channels: 4,
        byte_window: u64::MAX,
        deadline: options.deadline,
        first_count: 0,
    };
    let builder = EndpointBuilder::new(Box::new(nic.expect("a valid model")), config);
    UnconnectedEndpoint {
        builder: builder.expect("valid"),
        source,
        target,
        options,
    }
}

impl UnconnectedEndpoint {
    pub fn connect_info(&mut self) -> Vec<u8> {
        self.builder
            .connect_info(PeerId(0))
            .expect("connection info")
    }

    pub fn connect(self, connect_info: Vec<u8>) -> Result<ConnectedEndpoint, FabricError> {
        let peer = PeerIdentity {
            id: PeerId(0),
            name: self.options.name.into(),
        };
        let ring = HostRing::allocate(self.options.ring_log2, 0)?;
        let producer = CommandProducer::new(ring.clone());
        let arrivals = HostArrivals::new(1, 4, 0);
        let receiver = Box::new(arrivals.clone());
        let infos = [PeerConnectInfo { peer, connect_info }];
        let mut endpoint = self
            .builder
            .connect(&infos, ring, receiver, Instant::now() + MARGIN)?;
        for region in [&self.source, &self.target] {
            // Emulated NICs exchange only the sizes of regions, which are equal at both ends.
            let info = endpoint.register(region.memory())?;
            endpoint.add_peer_regions(&[info])?;
        }
        Ok(ConnectedEndpoint {
            endpoint,
            producer,
            arrivals,
            source: self.source,
            target: self.target,
        })
    }
}

impl ConnectedEndpoint {
    pub fn start(self) -> RunningEndpoint {
        RunningEndpoint {
            proxy: Proxy::start(self.endpoint, &ProxyOptions::default()).expect("starts"),
            producer: self.producer,
            arrivals: self.arrivals,
            source: self.source,
            target: self.target,
        }
    }
}

/// Creates two connected endpoints in this process.
pub fn connected_pair(options: [Options; 2]) -> [ConnectedEndpoint; 2] {
    let (a, b) = pipe();
    let [first, second] = options;
    let (mut a, mut b) = (
        unconnected(Box::new(a), first),
        unconnected(Box::new(b), second),
    );
    let infos = [b.connect_info(), a.connect_info()];
    let [to_a, to_b] = infos;
    [
        a.connect(to_a).expect("connects"),
        b.connect(to_b).expect("connects"),
    ]
}

/// Creates two connected endpoints with proxies.
pub fn pair(options: [Options; 2]) -> [RunningEndpoint; 2] {
    connected_pair(options).map(ConnectedEndpoint::start)
}

/// Returns a valid command.
pub fn put(channel: u16, bytes: u32, source_offset: u64, target_offset: u64) -> Command {
    Command {
        channel,
        target_region: 1,
        kind: COMMAND_PUT,
        bytes,
        source_offset,
        target_offset,
        ..Command::default()
    }
}

/// Waits at most `limit` until `is_true` returns true.
pub fn until(what: &str, limit: Duration, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < limit, "waited too long for {what}");
        std::thread::yield_now();
    }
}

/// Posts a command like a kernel, and returns its index, or `None` if the fabric failed before a slot was free.
pub fn post(end: &RunningEndpoint, command: &Command) -> Option<u32> {
    let index = end.producer.claim();
    until("a slot", MARGIN * 2, || {
        end.producer.has_slot(index) || end.arrivals.is_aborted()
    });
    if !end.producer.has_slot(index) {
        return None;
    }
    end.producer.publish(index, command);
    Some(index)
}

/// Waits until the fabric fails and returns its error.
pub fn error_of(end: &RunningEndpoint, limit: Duration) -> FabricError {
    until("an error", limit, || end.arrivals.is_aborted());
    end.proxy
        .error()
        .expect("the error, which is set before kernels are aborted")
}
