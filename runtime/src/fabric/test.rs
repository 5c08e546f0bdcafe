//! [`FabricTest`]: what the network between nodes does for kernels, measured and checked.

use super::endpoint::{Fabric, FabricSpec};
use super::rails::Rails;
use super::transport::Transport;
use crate::communicator::{Communicator, DRAIN_MARGIN};
use crate::driver::{self, Function, Pinned, UserStream};
use crate::error::Error;
use crate::operator::Live;
use crate::order::{self, Launcher};
use crate::prepare::BUILD_TIMEOUT;
use crate::reaper::{self, Retired, Wait};
use crate::report::Page;
use crate::shared::Shared;
use mkernel_compile::Store;
use mkernel_spec::fabric_test::{
    CHANNELS, CTAS, FabricTestArgs, FabricTestResults, KERNEL, MAX_NODES, PICK_UPS, THREADS,
    WORD_BYTES,
};
use std::mem::{ManuallyDrop, offset_of};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Slots start at multiples of this.
const SLOT_ALIGNMENT_BYTES: u32 = 128;

/// In the fabric's state: the [`State`] that waits need, the results.
const RESULTS_OFFSET_BYTES: u64 = 1024;
const STATE_BYTES: u64 = RESULTS_OFFSET_BYTES + size_of::<FabricTestResults>() as u64;

/// More is of no use: it is beyond what the proxy has on its way to a peer.
const MAX_WINDOW: u32 = 1024;

/// What the test's endpoints are to be; the same on all ranks.
#[derive(Clone, Debug)]
pub struct FabricTestOptions {
    /// Hosts, where ranks are on several. On one, nodes into which the ranks are put, in order: 2 to 64 of equal size.
    pub nodes: u32,
    /// The longest message of any load.
    pub message_bytes: u32,
    /// The most messages to a peer that are on their way at once.
    pub window: u32,
    /// What carries them; of one kind on all ranks.
    pub transport: Transport,
}

/// What every rank sends to its peers; the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Bytes of a message: a multiple of 4.
    pub message_bytes: u32,
    /// Messages to each peer, a multiple of `batch`.
    pub messages: u32,
    /// Those of them before the clock starts.
    pub untimed: u32,
    /// Messages to a peer on their way at once. With 1, the time per message is that of a message and its
    /// acknowledgement.
    pub window: u32,
    /// Messages that are acknowledged together; at most `window`.
    pub batch: u32,
    /// Writes the contents of each message before it is sent, from this seed, and checks every word of it where it
    /// arrives. None: times alone.
    pub check: Option<u64>,
    /// Times each command's way to the proxy. That slows messages down.
    pub probe: bool,
}

/// What came of a load on this rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// From the first timed message until all peers had acknowledged all.
    pub elapsed: Duration,
    /// From a command's post until the GPU saw that the proxy had taken it, the median: more than its way to the proxy,
    /// since the answer crosses PCIe. If it was asked for.
    pub pick_up: Option<Duration>,
    /// Timed messages to each peer.
    pub messages: u32,
    /// Ranks whose messages had wrong words, and how many.
    pub wrong_words: Vec<(u32, u64)>,
}

/// A kernel, and a fabric for it to use. See [`Communicator::fabric_test`].
pub struct FabricTest(ManuallyDrop<Test>);

struct Test {
    launcher: Launcher,
    // Before what it uses.
    fabric: Fabric,
    options: FabricTestOptions,
    rails: Rails,
    function: Function,
    results: Pinned,
    live: Arc<Live>,
    before: Mutex<Before>,
    shared: Arc<Shared>,
}

/// Messages and acknowledgements of earlier loads, modulo 2^32.
#[derive(Clone, Copy, Default)]
struct Before {
    messages: u32,
    acks: u32,
}

impl Communicator {
    /// Connects every GPU to its counterparts on the other nodes, to measure and check puts between them. Collective.
    ///
    /// Emulated NICs move puts by copies between GPUs of this host; the others by whatever NICs are named or near.
    ///
    /// # Errors
    /// [`Error::Nodes`], [`Error::NoTransport`], [`Error::Nics`], [`Error::Fabric`], [`Error::Build`] and what goes wrong with memory.
    pub fn fabric_test(&self, options: &FabricTestOptions) -> Result<FabricTest, Error> {
        Test::new(self.shared(), options).map(|test| FabricTest(ManuallyDrop::new(test)))
    }
}

impl FabricTest {
    /// Puts `load` on the network and waits for the end of this rank's part. All ranks must call it.
    ///
    /// # Errors
    /// [`Error::Load`] with all mistakes; [`Error::Fabric`] if the network failed; [`Error::Timeout`] if nothing came in
    /// time.
    pub fn run(&self, load: &Load) -> Result<Measured, Error> {
        self.0.check_load(load)?;
        self.0.shared.ensure_usable()?;
        self.0.call(load)
    }
}

impl Test {
    fn new(shared: &Arc<Shared>, options: &FabricTestOptions) -> Result<Self, Error> {
        let timeout = shared.host_timeout();
        let checked = check(options).and_then(|()| {
            let rails = Rails::new(shared.rank, &shared.hosts.nodes, options.nodes)?;
            let hosts = shared.hosts.nodes.count();
            if hosts > 1 && matches!(options.transport, Transport::Emulated { .. }) {
                return Err(Error::EmulatedHosts { hosts });
            }
            Ok((rails, identity(options).into_bytes()))
        });
        let mut ranks = shared.ranks();
        let checked = shared.ensure_usable().and(checked);
        let (rails, all) = ranks.agree("the fabric test's options", checked, timeout)?;
        drop(ranks);
        let other = (0..).zip(&all).find(|(_, theirs)| **theirs != all[0]);
        if let Some((rank, theirs)) = other {
            let text = String::from_utf8_lossy;
            return Err(Error::Load(vec![format!(
                "rank {rank} was given {}, rank 0 {}",
                text(theirs),
                text(&all[0])
            )]));
        }
        let slots = u64::from(options.window) * u64::from(options.nodes);
        let spec = FabricSpec {
            rails: rails.clone(),
            transport: options.transport.clone(),
            channels: CHANNELS,
            put_bytes: options.message_bytes.into(),
            region_bytes: slots * u64::from(slot_bytes(options.message_bytes)),
            mapped_by_node: false,
            state_bytes: STATE_BYTES,
        };
        let loaded = load(shared).map(|loaded| (loaded, Vec::new()));
        let ((function, results, page), _) =
            shared
                .ranks()
                .agree("loading of the fabric test", loaded, BUILD_TIMEOUT)?;
        let fabric = Fabric::connect(shared, &spec, &page)?;
        let live = Arc::new(Live {
            page,
            job: None,
            fabric: None,
        });
        shared.register(&live);
        Ok(Self {
            launcher: Launcher::new(),
            fabric,
            options: options.clone(),
            rails,
            function,
            results,
            live,
            before: Mutex::default(),
            shared: shared.clone(),
        })
    }

    fn call(&self, load: &Load) -> Result<Measured, Error> {
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        driver::bind(&self.shared.ctx)?;
        let mut args = self.args(load, *before);
        let (stream, results) = (
            &self.shared.stream,
            self.fabric.state() + RESULTS_OFFSET_BYTES,
        );
        let bytes = size_of::<FabricTestResults>();
        let mut order = order::lock(&self.shared.order);
        self.fabric.wake();
        // SAFETY: the results lie in the fabric's state, and in a page that is as long; both stay until the stream is done,
        // or, after a time-out, until the reaper has seen that it is. The argument is the struct that the kernel declares.
        // The stream is the communicator's, which lives until this is dropped and forgotten.
        unsafe {
            order.follow(&UserStream::raw(stream.raw()), self.launcher)?;
            stream.zero(results, bytes)?;
            self.function
                .launch(stream.raw(), (CTAS, THREADS, 0), (&raw mut args).cast())?;
            stream.copy(self.results.device_address(), results, bytes)?;
        }
        drop(order);
        self.wait()?;
        before.messages = before.messages.wrapping_add(load.messages);
        before.acks = before.acks.wrapping_add(load.messages / load.batch);
        Ok(self.measured(load))
    }

    fn args(&self, load: &Load, before: Before) -> FabricTestArgs {
        let state = self.fabric.state();
        FabricTestArgs {
            ring: self.fabric.ring(),
            workspaces: [state; _],
            host: self.live.page.device_address(),
            deadline_ns: self.shared.timeout_ns(),
            arrivals: self.fabric.arrivals(),
            region: self.fabric.region(),
            results: state + RESULTS_OFFSET_BYTES,
            seed: load.check.unwrap_or(0),
            rank: self.rails.local_rank(),
            node: self.rails.node(),
            nodes: self.rails.nodes,
            messages: load.messages,
            untimed: load.untimed,
            messages_before: before.messages,
            acks_before: before.acks,
            message_bytes: load.message_bytes,
            // As near to each other as they go: an emulated NIC moves neighbours together.
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
        // The cause comes before its consequence: without a network waits fail, and ranks are lost.
        if let Some(error) = self.fabric.failure() {
            self.shared.poison(error);
        }
        self.shared.check()
    }

    fn measured(&self, load: &Load) -> Measured {
        let read = |offset| self.results.double_word(offset).load(Ordering::Acquire);
        let wrong = |(peer, rank): (usize, u32)| {
            let count = read(offset_of!(FabricTestResults, wrong_words) + 8 * peer);
            (count > 0).then_some((rank, count))
        };
        Measured {
            pick_up: load.probe.then(|| self.pick_up(load)),
            elapsed: Duration::from_nanos(read(offset_of!(FabricTestResults, elapsed_ns))),
            messages: load.messages - load.untimed,
            wrong_words: self
                .rails
                .peers()
                .into_iter()
                .enumerate()
                .filter_map(wrong)
                .collect(),
        }
    }

    /// The median of what a load's commands took.
    fn pick_up(&self, load: &Load) -> Duration {
        let commands = u64::from(load.messages - load.untimed) * (u64::from(self.rails.nodes) - 1);
        let offset = offset_of!(FabricTestResults, pick_up_ns);
        let read = |at: usize| self.results.word(offset + 4 * at).load(Ordering::Acquire);
        let mut times_ns: Vec<u32> = (0..commands.min(PICK_UPS.into()) as usize)
            .map(read)
            .collect();
        times_ns.sort_unstable();
        Duration::from_nanos(times_ns[times_ns.len() / 2].into())
    }

    fn check_load(&self, load: &Load) -> Result<(), Error> {
        let Load {
            message_bytes,
            messages,
            untimed,
            window,
            batch,
            ..
        } = *load;
        let options = &self.options;
        let mut mistakes = Vec::new();
        let mut require = |holds: bool, mistake: String| {
            if !holds {
                mistakes.push(mistake);
            }
        };
        require(
            message_bytes.is_multiple_of(WORD_BYTES),
            format!("messages of {message_bytes} bytes: a multiple of {WORD_BYTES} is possible"),
        );
        require(
            message_bytes <= options.message_bytes,
            format!(
                "messages of {message_bytes} bytes: at most {} are possible",
                options.message_bytes
            ),
        );
        require(
            (1..=options.window).contains(&window),
            format!(
                "a window of {window} messages: 1 to {} are possible",
                options.window
            ),
        );
        require(
            (1..=window).contains(&batch),
            format!(
                "acknowledgements of {batch} messages: 1 to the window's {window} are possible"
            ),
        );
        require(
            messages > 0 && batch > 0 && messages.is_multiple_of(batch.max(1)),
            format!("{messages} messages, which are no whole batches of {batch}"),
        );
        require(
            untimed < messages,
            format!("{untimed} of {messages} messages untimed, which leaves none"),
        );
        if mistakes.is_empty() {
            Ok(())
        } else {
            Err(Error::Load(mistakes))
        }
    }
}

impl Drop for FabricTest {
    fn drop(&mut self) {
        // SAFETY: the test is not used after this, the end of what it is in.
        let test = unsafe { ManuallyDrop::take(&mut self.0) };
        order::lock(&test.shared.order).forget(test.launcher);
        let limit = test.shared.gpu_timeout() + DRAIN_MARGIN;
        reaper::retire(Box::new(test), limit);
    }
}

impl Retired for Test {
    fn name(&self) -> String {
        KERNEL.to_owned()
    }

    fn is_unused(&mut self) -> Result<Wait, Error> {
        driver::bind(&self.shared.ctx)?;
        Ok(match self.shared.stream.is_done()? {
            true => Wait::Over,
            false => Wait::Here,
        })
    }
}

impl std::fmt::Debug for FabricTest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "FabricTest(rank {} of {}, {} nodes)",
            self.0.rails.rank, self.0.rails.world, self.0.rails.nodes
        )
    }
}

/// From one slot to the next.
fn slot_bytes(message_bytes: u32) -> u32 {
    message_bytes.max(1).next_multiple_of(SLOT_ALIGNMENT_BYTES)
}

/// What all ranks must have in common, in words.
fn identity(options: &FabricTestOptions) -> String {
    let FabricTestOptions {
        nodes,
        message_bytes,
        window,
        transport,
    } = options;
    format!(
        "{nodes} nodes, messages of {message_bytes} bytes in windows of {window}, {}",
        transport.identity()
    )
}

fn check(options: &FabricTestOptions) -> Result<(), Error> {
    let FabricTestOptions {
        nodes,
        message_bytes,
        window,
        ..
    } = *options;
    let mut mistakes = Vec::new();
    if nodes > MAX_NODES {
        mistakes.push(format!("{nodes} nodes: at most {MAX_NODES} are possible"));
    }
    let write_bytes = options.transport.write_bytes();
    if message_bytes > write_bytes {
        mistakes.push(format!(
            "messages of {message_bytes} bytes, but a write of this NIC has at most {write_bytes}"
        ));
    }
    if !(1..=MAX_WINDOW).contains(&window) {
        mistakes.push(format!(
            "a window of {window} messages: 1 to {MAX_WINDOW} are possible"
        ));
    }
    if mistakes.is_empty() {
        Ok(())
    } else {
        Err(Error::Load(mistakes))
    }
}

fn load(shared: &Shared) -> Result<(Function, Pinned, Arc<Page>), Error> {
    let built = |source| Error::Build {
        id: KERNEL.to_owned(),
        source: Arc::new(source),
    };
    let source = mkernel_compile::render_fabric_test(shared.device.target).map_err(built)?;
    let cubin = Store::from_env().get_or_build(&source).map_err(built)?;
    Ok((
        Function::load(&shared.ctx, &cubin.bytes, KERNEL)?,
        Pinned::allocate(&shared.ctx, size_of::<FabricTestResults>())?,
        Arc::new(Page::allocate(&shared.ctx)?),
    ))
}
