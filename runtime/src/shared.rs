//! [`Shared`]: what a communicator and its operators have in common.

use crate::bootstrap::Collective;
use crate::copies::CopyThread;
use crate::driver::{self, Kind, Stream};
use crate::env::{self, Timeouts};
use crate::error::Error;
use crate::fabric::Transport;
use crate::neighbours::Hosts;
use crate::operator::Live;
use crate::order::{self, Order};
use crate::simulation::{Finding, Host};
use crate::standing::{Standing, Vigil};
use crate::symmetric::OwnMemory;
use cudarc::driver::CudaContext;
use mkernel_spec::Device;
use mkernel_spec::abi::Gate;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A GPU, and what the runtime itself needs on it.
pub(crate) struct Gpu {
    pub ctx: Arc<CudaContext>,
    pub device: Device,
    stream: Stream,
    order: Arc<Mutex<Order>>,
}

impl Gpu {
    pub fn open(ordinal: usize, kind: Kind) -> Result<Self, Error> {
        let (ctx, device) = driver::open(ordinal, kind)?;
        Ok(Self {
            stream: Stream::new(&ctx)?,
            order: order::of(&ctx)?,
            ctx,
            device,
        })
    }
}

/// What operators keep of their communicator.
pub(crate) struct Shared {
    pub rank: u32,
    pub world: u32,
    pub hosts: Hosts,
    pub ctx: Arc<CudaContext>,
    pub device: Device,
    /// Where the GPU is a simulated one.
    pub simulated: Option<Arc<Host>>,
    timeout_ns: AtomicU64,
    host_timeout_ns: AtomicU64,
    // Before what it looks at.
    _vigil: Option<Vigil>,
    pub standing: Arc<Standing>,
    /// For the runtime's own work.
    pub stream: Stream,
    /// Of the launches on this GPU.
    pub order: Arc<Mutex<Order>>,
    copies: Mutex<Option<Arc<CopyThread>>>,
    /// The [`Gate`] of kernels on this GPU.
    gate: Mutex<Option<Arc<OwnMemory>>>,
    /// Operators so far.
    operators: AtomicU32,
    /// What carries puts of operators, if it was chosen.
    transport: Mutex<Option<Transport>>,
}

/// The least that work of simulated GPUs may take.
const SIMULATED_TIMEOUT: Duration = Duration::from_secs(3600);

fn ns(timeout: Duration) -> u64 {
    // Clocks of the device count ns in 64 bits, and kernels multiply deadlines by 8; 2^57 ns are 4 years.
    let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    ns.min(1 << 57)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these mutexes guard is whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(
        gpu: Gpu,
        mut ranks: Collective,
        hosts: Hosts,
        timeouts: &Timeouts,
        simulated: Option<Arc<Host>>,
    ) -> Self {
        let (rank, world) = (ranks.rank(), ranks.world());
        if let Some(host) = &simulated {
            let host = host.clone();
            // A rank may be late because its kernels, which are slow here, are not over.
            ranks.pause_while(Arc::new(move || host.is_awaited()));
        }
        let standing = Arc::new(Standing::new(ranks));
        let host_timeout = timeouts.host(simulated.is_some());
        Self {
            rank,
            world,
            hosts,
            ctx: gpu.ctx,
            device: gpu.device,
            simulated,
            timeout_ns: ns(timeouts.device).into(),
            host_timeout_ns: ns(host_timeout).into(),
            _vigil: (world > 1).then(|| Vigil::start(&standing)),
            standing,
            stream: gpu.stream,
            order: gpu.order,
            copies: Mutex::default(),
            gate: Mutex::default(),
            operators: AtomicU32::new(0),
            transport: Mutex::default(),
        }
    }

    pub fn ranks(&self) -> MutexGuard<'_, Collective> {
        self.standing.ranks()
    }

    pub fn timeout_ns(&self) -> u64 {
        self.timeout_ns.load(Ordering::Relaxed)
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout_ns())
    }

    /// The deadline of steps in which ranks wait for each other on the host.
    pub fn host_timeout(&self) -> Duration {
        Duration::from_nanos(self.host_timeout_ns.load(Ordering::Relaxed))
    }

    /// How long the host waits for this rank's GPU. Simulated ones are slow, and notice by themselves when nothing can
    /// go on; their kernels' deadline is one of simulated time.
    pub fn gpu_timeout(&self) -> Duration {
        match self.simulated {
            Some(_) => self.timeout().max(SIMULATED_TIMEOUT),
            None => self.timeout(),
        }
    }

    /// Of kernels, and, where both are of real time, of the host.
    pub fn set_timeout(&self, timeout: Duration) {
        self.timeout_ns.store(ns(timeout), Ordering::Relaxed);
        if self.simulated.is_none() {
            self.set_host_timeout(timeout);
        }
    }

    pub fn set_host_timeout(&self, timeout: Duration) {
        self.host_timeout_ns.store(ns(timeout), Ordering::Relaxed);
    }

    pub fn set_transport(&self, transport: Transport) {
        *lock(&self.transport) = Some(transport);
    }

    /// What carries puts of operators: what was chosen, else what `MKERNEL_TRANSPORT` says, else emulated NICs on one host
    /// and RC between several.
    pub fn transport(&self) -> Result<Transport, Error> {
        if let Some(transport) = lock(&self.transport).clone() {
            return Ok(transport);
        }
        match (env::transport()?, self.hosts.nodes.count()) {
            (Some(transport), _) => Ok(transport),
            (None, 0 | 1) => Ok(Transport::default()),
            (None, _) => Ok(Transport::Rc(env::nic_options()?)),
        }
    }

    /// The copy thread, started when first needed.
    pub fn copies(&self) -> Result<Arc<CopyThread>, Error> {
        let mut copies = lock(&self.copies);
        if let Some(thread) = copies.as_ref() {
            return Ok(thread.clone());
        }
        let thread = Arc::new(CopyThread::start(
            &self.ctx,
            (self.rank, self.world),
            self.simulated.is_some(),
        )?);
        *copies = Some(thread.clone());
        Ok(thread)
    }

    /// The gate through which calls of all operators go, allocated when first needed.
    pub fn gate(&self, timeout: Duration) -> Result<Arc<OwnMemory>, Error> {
        let mut gate = lock(&self.gate);
        if let Some(gate) = gate.as_ref() {
            return Ok(gate.clone());
        }
        let bytes = size_of::<Gate>() as u64;
        let memory = OwnMemory::allocate(&self.ctx, &self.stream, bytes, timeout)?;
        Ok(gate.insert(Arc::new(memory)).clone())
    }

    /// The number of a new operator, from 1 on. Ranks make them in the same order.
    pub fn next_number(&self) -> u32 {
        1 + self.operators.fetch_add(1, Ordering::Relaxed)
    }

    /// See [`Standing::register`].
    pub fn register(&self, operator: &Arc<Live>) {
        self.standing.register(operator);
    }

    /// See [`Standing::ensure_usable`].
    pub fn ensure_usable(&self) -> Result<(), Error> {
        self.standing.ensure_usable()
    }

    /// See [`Standing::poison`].
    pub fn poison(&self, error: Error) {
        self.standing.poison(error);
    }

    /// What the simulator found so far.
    pub fn findings(&self) -> Vec<Finding> {
        self.simulated
            .as_ref()
            .map_or_else(Vec::new, |host| host.findings())
    }

    pub fn check(&self) -> Result<(), Error> {
        let live = self.standing.live();
        if let Some(error) = live.iter().find_map(|operator| operator.network_failure()) {
            self.poison(error);
        }
        // Calls that overlap do what simulated kernels must not do.
        if let Some(error) = live.iter().find_map(|operator| operator.page.overlap()) {
            self.poison(error);
        }
        // A deadlock makes waits fail as well, and says more.
        let findings = self.findings();
        if !findings.is_empty() {
            self.poison(Error::Simulation { findings });
        }
        if let Some(error) = live.iter().find_map(|operator| operator.failure()) {
            self.poison(error);
        }
        self.standing.check()?;
        // Wrong values concern their call alone.
        let fault = live.iter().find_map(|operator| operator.page.take_fault());
        fault.map_or(Ok(()), Err)
    }
}
