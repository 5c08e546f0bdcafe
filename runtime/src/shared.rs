//! [`Shared`]: what a communicator and its operators have in common.

use crate::bootstrap::Collective;
use crate::copies::CopyThread;
use crate::driver::{self, Event, Kind, Stream};
use crate::env;
use crate::error::Error;
use crate::fabric::{NicOptions, Transport};
use crate::neighbours::Hosts;
use crate::operator::Live;
use crate::simulation::{Finding, Host};
use crate::standing::{Standing, Vigil};
use crate::symmetric::OwnMemory;
use cudarc::driver::{CudaContext, CudaStream, sys};
use mkernel_spec::Device;
use mkernel_spec::abi::Gate;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A GPU, and what the runtime itself needs on it.
pub(crate) struct Gpu {
    pub ctx: Arc<CudaContext>,
    device: Device,
    stream: Stream,
    event: Event,
}

impl Gpu {
    pub fn open(ordinal: usize, kind: Kind) -> Result<Self, Error> {
        let (ctx, device) = driver::open(ordinal, kind)?;
        Ok(Self {
            stream: Stream::new(&ctx)?,
            event: Event::new(&ctx)?,
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
    // Before what it looks at.
    _vigil: Option<Vigil>,
    pub standing: Arc<Standing>,
    /// For the runtime's own work.
    pub stream: Stream,
    /// The stream of the last launch.
    pub order: Mutex<Order>,
    copies: Mutex<Option<Arc<CopyThread>>>,
    /// The [`Gate`] of kernels on this GPU.
    gate: Mutex<Option<Arc<OwnMemory>>>,
    /// Operators so far.
    operators: AtomicU32,
    /// What carries puts of operators, if it was chosen.
    transport: Mutex<Option<Transport>>,
}

/// The least that steps of the host may take beside simulated GPUs.
const SIMULATED_TIMEOUT: Duration = Duration::from_secs(3600);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these mutexes guard is whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(
        gpu: Gpu,
        ranks: Collective,
        hosts: Hosts,
        timeout: Duration,
        simulated: Option<Arc<Host>>,
    ) -> Self {
        let (rank, world) = (ranks.rank(), ranks.world());
        let standing = Arc::new(Standing::new(ranks));
        let shared = Self {
            rank,
            world,
            hosts,
            ctx: gpu.ctx,
            device: gpu.device,
            simulated,
            timeout_ns: AtomicU64::new(0),
            _vigil: (world > 1).then(|| Vigil::start(&standing)),
            standing,
            stream: gpu.stream,
            order: Mutex::new(Order {
                event: gpu.event,
                last: None,
            }),
            copies: Mutex::default(),
            gate: Mutex::default(),
            operators: AtomicU32::new(0),
            transport: Mutex::default(),
        };
        shared.set_timeout(timeout);
        shared
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

    /// The deadline of steps that the host takes. Simulated GPUs are slow, and notice by themselves when nothing can
    /// go on; their kernels' deadline is one of simulated time.
    pub fn host_timeout(&self) -> Duration {
        match self.simulated {
            Some(_) => self.timeout().max(SIMULATED_TIMEOUT),
            None => self.timeout(),
        }
    }

    pub fn set_timeout(&self, timeout: Duration) {
        // Clocks of the device count ns in 64 bits, and kernels multiply deadlines by 64; 2^57 ns are 4 years.
        let ns = u64::try_from(timeout.as_nanos())
            .unwrap_or(u64::MAX)
            .min(1 << 57);
        self.timeout_ns.store(ns, Ordering::Relaxed);
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
        let transport = env::transport()?;
        Ok(transport.unwrap_or_else(|| match self.hosts.nodes.count() {
            0 | 1 => Transport::default(),
            _ => Transport::Rc(NicOptions::default()),
        }))
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
        if let Some(cause) = self.standing.cause() {
            return Err((*cause).clone());
        }
        // Wrong values concern their call alone.
        let fault = live.iter().find_map(|operator| operator.page.take_fault());
        fault.map_or(Ok(()), Err)
    }
}

/// Keeps the launches of all operators in one order: two kernels that each wait for peers and share the GPU's SMs
/// could keep each other from starting, in different ways on different ranks.
pub(crate) struct Order {
    event: Event,
    last: Option<(LastStream, Option<Arc<CudaStream>>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct LastStream(sys::CUstream);

// SAFETY: the driver's streams may be used from any thread.
unsafe impl Send for LastStream {}

impl Order {
    /// Lets `stream` wait for the stream of the last launch, if it is another; `owner` keeps `stream` alive.
    ///
    /// # Safety
    /// `stream` must be alive and not being captured. Without an owner, it must stay alive until the next launch on
    /// another stream.
    pub unsafe fn follow(
        &mut self,
        stream: sys::CUstream,
        owner: Option<&Arc<CudaStream>>,
    ) -> Result<(), Error> {
        match &self.last {
            Some((LastStream(last), _)) if *last == stream => return Ok(()),
            // SAFETY: by the caller of the last launch.
            Some((LastStream(last), _)) if !unsafe { driver::is_capturing(*last)? } => {
                // SAFETY: both are alive, by the callers of this launch and of the last.
                unsafe { self.event.order(*last, stream)? };
            }
            // Nothing can be recorded in a stream that is being captured, so this order is the caller's.
            _ => {}
        }
        self.last = Some((LastStream(stream), owner.cloned()));
        Ok(())
    }
}
