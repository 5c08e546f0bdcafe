//! [`FabricTest`]: measures and checks puts between nodes, as kernels make them.

use super::endpoint::Fabric;
use super::fabric_test_load::{
    FabricTestLoad, FabricTestOptions, FabricTestResult, check, check_load, identity, slot_bytes,
};
use super::node_map::NodeMap;
use super::region::Region;
use super::transport::Transport;
use crate::communicator::Communicator;
use crate::deadlines::{BUILD_TIMEOUT, DRAIN_MARGIN};
use crate::driver::{self, Function, LaunchDims, LaunchMode, Pinned, UserStream};
use crate::env;
use crate::error::{Error, NetworkError, OperatorId};
use crate::operator::health::OperatorHealth;
use crate::order::{self, LaunchSource};
use crate::reaper::{self, GpuUse, Retired};
use crate::report::Page;
use crate::shared::Shared;
use crate::symmetric::OwnMemory;
use mkernel_compile::KernelTemplate;
use mkernel_spec::fabric_test::{
    CTAS, FabricTestArgs, FabricTestResults, KERNEL, PICK_UPS, THREADS,
};
use std::mem::{ManuallyDrop, offset_of};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The offset of the results in the kernel's state. The `State` that waits in the kernel use is before them.
const RESULTS_OFFSET_BYTES: u64 = 1024;
const STATE_BYTES: u64 = RESULTS_OFFSET_BYTES + size_of::<FabricTestResults>() as u64;

/// A kernel and a fabric for it to use. See [`Communicator::fabric_test`].
pub struct FabricTest(ManuallyDrop<Test>);

struct Test {
    source: LaunchSource,
    // This field must be dropped before the memory that it uses.
    fabric: Fabric,
    region: Region,
    state: OwnMemory,
    gate: Arc<OwnMemory>,
    options: FabricTestOptions,
    node_map: NodeMap,
    function: Function,
    results: Pinned,
    live: Arc<OperatorHealth>,
    before: Mutex<Before>,
    shared: Arc<Shared>,
}

/// The numbers of messages and acknowledgements of earlier loads, modulo 2^32.
#[derive(Clone, Copy, Default)]
struct Before {
    messages: u32,
    acks: u32,
}

impl Communicator {
    /// Connects every GPU to its counterparts on the other nodes, to measure and check puts between them. This is a
    /// collective call.
    ///
    /// Emulated NICs transfer puts by copies between the GPUs of this host. Other transports use the NICs named in `options`,
    /// or the nearest NICs.
    ///
    /// # Errors
    /// [`Error::Cluster`], [`Error::Network`], [`Error::Fabric`] and [`Error::Build`], or an error of an allocation.
    pub fn fabric_test(&self, options: &FabricTestOptions) -> Result<FabricTest, Error> {
        Test::new(self.shared(), options).map(|test| FabricTest(ManuallyDrop::new(test)))
    }
}

impl FabricTest {
    /// Sends the messages of `load` and waits until this rank's part has ended. All ranks must call this.
    ///
    /// # Errors
    /// [`Error::Network`] with all mistakes of the load, [`Error::Fabric`] if the network failed, and
    /// [`Error::Timeout`] if a message did not arrive in time.
    pub fn run(&self, load: &FabricTestLoad) -> Result<FabricTestResult, Error> {
        check_load(&self.0.options, load)?;
        self.0.shared.ensure_usable()?;
        self.0.call(load)
    }
}

impl Test {
    fn new(shared: &Arc<Shared>, options: &FabricTestOptions) -> Result<Self, Error> {
        let timeout = shared.host_timeout();
        let checked = check(options).and_then(|()| {
            let node_map = NodeMap::new(shared.rank, &shared.cluster.hosts, options.nodes)?;
            let hosts = shared.cluster.hosts.count();
            if hosts > 1 && matches!(options.transport, Transport::Emulated { .. }) {
                return Err(Error::Network(NetworkError::EmulatedHosts { hosts }));
            }
            Ok((node_map, identity(options).into_bytes()))
        });
        let mut ranks = shared.ranks();
        let checked = shared.ensure_usable().and(checked);
        let (node_map, all) = ranks.agree("the fabric test's options", checked, timeout)?;
        let other = (0..).zip(&all).find(|(_, theirs)| **theirs != all[0]);
        if let Some((rank, theirs)) = other {
            let text = String::from_utf8_lossy;
            return Err(Error::Network(NetworkError::FabricTest(vec![format!(
                "the options differ: rank {rank} has {}, but rank 0 has {}",
                text(theirs),
                text(&all[0])
            )])));
        }
        let loaded = load(shared).map(|loaded| (loaded, Vec::new()));
        let (loaded, _) = ranks.agree("loading of the fabric test", loaded, BUILD_TIMEOUT)?;
        let (function, results, state, gate, live) = loaded;
        // The proxy ends the waits of the kernels that are registered when it fails.
        shared.register(live.clone());
        let fabric = Fabric::connect(shared, &mut ranks, &node_map, &options.transport)?;
        let slots = u64::from(options.window) * u64::from(options.nodes);
        let region_bytes = slots * u64::from(slot_bytes(options.message_bytes));
        let region = fabric.allocate_region(shared, &mut ranks, region_bytes)?;
        let checked = fabric.check_put_bytes(options.message_bytes.into());
        let checked = checked.map(|()| ((), Vec::new()));
        ranks.agree("the length of messages", checked, timeout)?;
        Ok(Self {
            source: LaunchSource::new(),
            fabric,
            region,
            state,
            gate,
            options: options.clone(),
            node_map,
            function,
            results,
            live,
            before: Mutex::default(),
            shared: shared.clone(),
        })
    }

    fn call(&self, load: &FabricTestLoad) -> Result<FabricTestResult, Error> {
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        driver::bind(&self.shared.ctx)?;
        let mut args = self.args(load, *before);
        let (stream, results) = (
            &self.shared.stream,
            self.state.address() + RESULTS_OFFSET_BYTES,
        );
        let bytes = size_of::<FabricTestResults>();
        let dims = LaunchDims {
            ctas: CTAS,
            cluster_ctas: 1,
            threads: THREADS,
            smem_bytes: 0,
        };
        let mut order = order::lock(&self.shared.order);
        self.fabric.wake();
        // SAFETY: the results are in the kernel's state, and are copied to a page of the same length. Both
        // stay alive until the stream is done; after a timeout, until the reaper has seen that it is done. The
        // argument is the struct that the kernel declares. The stream belongs to the communicator, which lives until
        // this test is dropped and its launches are forgotten.
        unsafe {
            order.follow(&UserStream::raw(stream.raw()), self.source)?;
            stream.zero(results, bytes)?;
            self.function.launch(
                stream.raw(),
                dims,
                (&raw mut args).cast(),
                LaunchMode::Cooperative,
            )?;
            stream.copy(self.results.device_address(), results, bytes)?;
        }
        drop(order);
        self.wait()?;
        before.messages = before.messages.wrapping_add(load.messages);
        before.acks = before.acks.wrapping_add(load.messages / load.batch);
        Ok(self.measured(load))
    }

    fn args(&self, load: &FabricTestLoad, before: Before) -> FabricTestArgs {
        let (state, endpoint) = (self.state.address(), self.fabric.for_kernels(0, 0));
        FabricTestArgs {
            ring: endpoint.ring,
            workspaces: [state; _],
            host: self.live.page.device_address(),
            gate: self.gate.address(),
            deadline_ns: self.shared.timeout_ns(),
            arrivals: endpoint.arrivals,
            region: self.region.address(),
            results: state + RESULTS_OFFSET_BYTES,
            seed: load.check.unwrap_or(0),
            rank: self.node_map.local_rank(),
            node: self.node_map.node(),
            nodes: self.node_map.nodes,
            messages: load.messages,
            untimed: load.untimed,
            messages_before: before.messages,
            acks_before: before.acks,
            message_bytes: load.message_bytes,
            // The slots are as close to each other as possible, since an emulated NIC merges copies of neighbouring
            // slots.
            slot_bytes: slot_bytes(load.message_bytes),
            window: load.window,
            batch: load.batch,
            checks: load.check.is_some().into(),
            probes: load.probe.into(),
        }
    }

    fn wait(&self) -> Result<(), Error> {
        let (started, limit) = (Instant::now(), self.shared.gpu_timeout() + DRAIN_MARGIN);
        while !self.shared.stream.is_done()? {
            let waited = started.elapsed();
            if waited >= limit {
                return Err(Error::StillBusy { waited });
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        // The failure of the network is checked first, since failed waits and lost ranks are its consequences.
        if let Some(error) = self.fabric.failure() {
            self.shared.fail(error);
        }
        self.shared.check()
    }

    fn measured(&self, load: &FabricTestLoad) -> FabricTestResult {
        let read = |offset| self.results.double_word(offset).load(Ordering::Acquire);
        let wrong = |(peer, rank): (usize, u32)| {
            let count = read(offset_of!(FabricTestResults, wrong_words) + 8 * peer);
            (count > 0).then_some((rank, count))
        };
        FabricTestResult {
            pick_up: load.probe.then(|| self.pick_up(load)),
            elapsed: Duration::from_nanos(read(offset_of!(FabricTestResults, elapsed_ns))),
            messages: load.messages - load.untimed,
            wrong_words: self
                .node_map
                .peers()
                .into_iter()
                .enumerate()
                .filter_map(wrong)
                .collect(),
        }
    }

    /// Returns the median of the measured times of a load's commands.
    fn pick_up(&self, load: &FabricTestLoad) -> Duration {
        let commands =
            u64::from(load.messages - load.untimed) * (u64::from(self.node_map.nodes) - 1);
        let offset = offset_of!(FabricTestResults, pick_up_ns);
        let read = |at: usize| self.results.word(offset + 4 * at).load(Ordering::Acquire);
        let mut times_ns: Vec<u32> = (0..commands.min(PICK_UPS.into()) as usize)
            .map(read)
            .collect();
        times_ns.sort_unstable();
        Duration::from_nanos(times_ns[times_ns.len() / 2].into())
    }
}

impl Drop for FabricTest {
    fn drop(&mut self) {
        // SAFETY: the test is not used after this, since its owner is being dropped.
        let test = unsafe { ManuallyDrop::take(&mut self.0) };
        // SAFETY: the test has launched into the communicator's own stream, which is alive.
        unsafe { order::lock(&test.shared.order).forget(&test.shared.ctx, test.source) };
        let limit = test.shared.gpu_timeout() + DRAIN_MARGIN;
        reaper::retire(Box::new(test), limit);
    }
}

impl Retired for Test {
    fn name(&self) -> String {
        KERNEL.to_owned()
    }

    fn is_unused(&mut self) -> Result<GpuUse, Error> {
        driver::bind(&self.shared.ctx)?;
        Ok(match self.shared.stream.is_done()? {
            true => GpuUse::Unused,
            false => GpuUse::Running,
        })
    }
}

impl std::fmt::Debug for FabricTest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "FabricTest(rank {} of {}, {} nodes)",
            self.0.node_map.rank, self.0.node_map.world, self.0.node_map.nodes
        )
    }
}

/// The parts of a test besides its fabric: the kernel, the host's copy of the results, the kernel's state, the gate of the
/// communicator, and the state that the communicator monitors.
type Loaded = (
    Function,
    Pinned,
    OwnMemory,
    Arc<OwnMemory>,
    Arc<OperatorHealth>,
);

fn load(shared: &Shared) -> Result<Loaded, Error> {
    let built = |source| Error::Build {
        id: KERNEL.to_owned(),
        source: Arc::new(source),
    };
    let template = KernelTemplate::fabric_test(shared.device.arch, shared.device.backend);
    let cubin = env::kernel_store()?
        .get_or_render(&template)
        .map_err(built)?;
    let (ctx, timeout) = (&shared.ctx, shared.gpu_timeout());
    let health = OperatorHealth {
        operator: OperatorId::new(0, KERNEL),
        operators: shared.operators.clone(),
        calls: None,
        page: Arc::new(Page::allocate(ctx)?),
        job: None,
        fabric: None,
    };
    Ok((
        Function::load(ctx, &cubin.bytes, KERNEL)?,
        Pinned::allocate(ctx, size_of::<FabricTestResults>())?,
        OwnMemory::allocate(ctx, &shared.stream, STATE_BYTES, timeout)?,
        shared.gate(timeout)?,
        Arc::new(health),
    ))
}
