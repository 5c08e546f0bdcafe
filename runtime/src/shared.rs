//! [`Shared`]: the state that a communicator and its operators share.

use crate::bootstrap::Collective;
use crate::cluster::Cluster;
use crate::copy_engine::CopyThread;
use crate::driver::{Stream, WordReader};
use crate::env::{self, Timeouts};
use crate::error::{Error, Finding, OperatorId};
use crate::fabric::nic_settings::NicOptions;
use crate::fabric::transport::Transport;
use crate::gpu::Gpu;
use crate::health::{Ancestors, Health, Monitored};
use crate::operator_names::OperatorNames;
use crate::order::Order;
use crate::simulation::SimulatedJob;
use crate::symmetric::OwnMemory;
use crate::tensors::Tensors;
use crate::watchdog::Watchdog;
use cudarc::driver::{CudaContext, CudaStream};
use mkernel_spec::abi::Gate;
use mkernel_spec::{Device, Tuned};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The state that a communicator and its operators share.
pub(crate) struct Shared {
    pub rank: u32,
    pub world: u32,
    pub cluster: Cluster,
    pub ctx: Arc<CudaContext>,
    pub device: Device,
    /// Whether other ranks share the GPU.
    pub shares_gpu: bool,
    /// See [`Communicator::default_stream`](crate::Communicator::default_stream).
    pub default_stream: Arc<CudaStream>,
    /// The simulated job, if the GPU is simulated.
    pub simulated: Option<Arc<SimulatedJob>>,
    /// The number of findings of the simulator that belong to communicators before this one.
    earlier_findings: usize,
    timeout_ns: AtomicU64,
    host_timeout_ns: AtomicU64,
    // This field must be dropped before `health`, which the watchdog polls.
    _watchdog: Option<Watchdog>,
    pub health: Arc<Health>,
    /// The stream for the runtime's own work.
    pub stream: Stream,
    /// The order of the launches on this rank's part of the GPU.
    pub order: Arc<Mutex<Order>>,
    copies: Mutex<Option<Arc<CopyThread>>>,
    /// The tensors in the symmetric memory.
    pub tensors: Arc<Tensors>,
    /// The [`Gate`] that all kernels of this communicator on this GPU share.
    gate: Mutex<Option<Arc<OwnMemory>>>,
    /// The names of the operators.
    pub operators: Arc<OperatorNames>,
    reader: Mutex<Option<Arc<WordReader>>>,
    /// The transport for puts between nodes, if the program has chosen one.
    transport: Mutex<Option<Transport>>,
    /// The measured choices. The first operator reads the environment, if the program has not chosen any.
    tuned: Mutex<Option<Arc<Tuned>>>,
    /// The most events of the first thread of a warp of kernels that are traced; 0 stands for the default.
    trace_events: AtomicU32,
    /// The number of splits so far, which is the same on all ranks.
    splits: AtomicU32,
}

/// The shortest timeout for work on simulated GPUs.
const SIMULATED_TIMEOUT: Duration = Duration::from_secs(3600);

fn ns(timeout: Duration) -> u64 {
    // The clocks of the GPU count nanoseconds in 64 bits, and kernels multiply deadlines by 8. The limit of 2^57 ns is
    // about 4 years.
    let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    ns.min(1 << 57)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every statement leaves the guarded value consistent, so a poisoned lock can still be used.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(
        gpu: Gpu,
        ranks: Collective,
        cluster: Cluster,
        timeouts: &Timeouts,
        simulated: Option<Arc<SimulatedJob>>,
    ) -> Self {
        Self::with_ancestors(
            gpu,
            ranks,
            cluster,
            timeouts,
            (simulated, Ancestors::default()),
        )
    }

    /// Returns the state of a group to which this rank belongs. `gpu` is a result of [`gpu`](Self::gpu).
    pub fn group(&self, gpu: Gpu, ranks: Collective, cluster: Cluster) -> Self {
        self.successor(gpu, ranks, cluster, self.health.for_groups())
    }

    /// Returns the state of a communicator of the ranks that are left of this one. `gpu` is a result of [`gpu`](Self::gpu).
    pub fn rebuilt(&self, gpu: Gpu, ranks: Collective, cluster: Cluster) -> Self {
        let simulated = self.simulated.as_ref();
        Self {
            earlier_findings: simulated.map_or(0, |host| host.findings().len()),
            ..self.successor(gpu, ranks, cluster, Ancestors::default())
        }
    }

    fn successor(
        &self,
        gpu: Gpu,
        ranks: Collective,
        cluster: Cluster,
        ancestors: Ancestors,
    ) -> Self {
        let timeouts = Timeouts {
            device: self.timeout(),
            host: Some(self.host_timeout()),
        };
        let simulated = self.simulated.clone();
        let group = Self::with_ancestors(gpu, ranks, cluster, &timeouts, (simulated, ancestors));
        *lock(&group.transport) = lock(&self.transport).clone();
        *lock(&group.tuned) = lock(&self.tuned).clone();
        group
    }

    /// Returns this rank's GPU for another communicator, which gets a stream of its own for the runtime's work.
    pub fn gpu(&self) -> Result<Gpu, Error> {
        Ok(Gpu {
            stream: Stream::new(&self.ctx)?,
            ctx: self.ctx.clone(),
            device: self.device.clone(),
            is_shared: self.shares_gpu,
            default_stream: self.default_stream.clone(),
            order: self.order.clone(),
        })
    }

    /// Returns the number of the next split, counted from 0.
    pub fn next_split(&self) -> u32 {
        self.splits.fetch_add(1, Ordering::Relaxed)
    }

    fn with_ancestors(
        gpu: Gpu,
        mut ranks: Collective,
        cluster: Cluster,
        timeouts: &Timeouts,
        (simulated, ancestors): (Option<Arc<SimulatedJob>>, Ancestors),
    ) -> Self {
        let (rank, world) = (ranks.rank(), ranks.world());
        if let Some(host) = &simulated {
            let host = host.clone();
            // A rank may be late only because its simulated kernels, which are slow, have not ended.
            ranks.pause_while(Arc::new(move || host.is_awaited()));
        }
        let heartbeats = ranks.heartbeats();
        let health = Arc::new(Health::new(ranks, &cluster.job_ranks, ancestors));
        let host_timeout = timeouts.host(simulated.is_some());
        Self {
            rank,
            world,
            cluster,
            ctx: gpu.ctx,
            device: gpu.device,
            shares_gpu: gpu.is_shared,
            default_stream: gpu.default_stream,
            simulated,
            earlier_findings: 0,
            timeout_ns: ns(timeouts.device).into(),
            host_timeout_ns: ns(host_timeout).into(),
            _watchdog: (world > 1).then(|| Watchdog::start(&health, heartbeats)),
            health,
            stream: gpu.stream,
            order: gpu.order,
            copies: Mutex::default(),
            tensors: Arc::default(),
            gate: Mutex::default(),
            operators: Arc::default(),
            reader: Mutex::default(),
            transport: Mutex::default(),
            tuned: Mutex::default(),
            trace_events: AtomicU32::new(0),
            splits: AtomicU32::new(0),
        }
    }

    pub fn ranks(&self) -> MutexGuard<'_, Collective> {
        self.health.ranks()
    }

    pub fn timeout_ns(&self) -> u64 {
        self.timeout_ns.load(Ordering::Relaxed)
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout_ns())
    }

    /// Returns the timeout of steps in which ranks wait for each other on the host.
    pub fn host_timeout(&self) -> Duration {
        Duration::from_nanos(self.host_timeout_ns.load(Ordering::Relaxed))
    }

    /// Returns the time for which the host waits for this rank's GPU. Simulated GPUs are slow and detect deadlocks by
    /// themselves. The deadline of their kernels is in simulated time.
    pub fn gpu_timeout(&self) -> Duration {
        match self.simulated {
            Some(_) => self.timeout().max(SIMULATED_TIMEOUT),
            None => self.timeout(),
        }
    }

    /// Sets the deadline of kernels. On real GPUs this also sets the deadline of collective steps on the host.
    pub fn set_timeout(&self, timeout: Duration) {
        self.timeout_ns.store(ns(timeout), Ordering::Relaxed);
        if self.simulated.is_none() {
            self.set_host_timeout(timeout);
        }
    }

    pub fn set_host_timeout(&self, timeout: Duration) {
        self.host_timeout_ns.store(ns(timeout), Ordering::Relaxed);
    }

    pub fn set_trace_events(&self, events: u32) {
        self.trace_events.store(events, Ordering::Relaxed);
    }

    /// Returns the most events of the first thread of a warp, if the program has chosen a number.
    pub fn trace_events(&self) -> Option<u32> {
        match self.trace_events.load(Ordering::Relaxed) {
            0 => None,
            events => Some(events),
        }
    }

    pub fn set_transport(&self, transport: Transport) {
        *lock(&self.transport) = Some(transport);
    }

    pub fn set_tuned(&self, tuned: Tuned) {
        *lock(&self.tuned) = Some(Arc::new(tuned));
    }

    /// Returns the measured choices: those of the program, or else those of the environment.
    pub fn tuned(&self) -> Result<Arc<Tuned>, Error> {
        let mut tuned = lock(&self.tuned);
        if let Some(tuned) = tuned.as_ref() {
            return Ok(tuned.clone());
        }
        let read = Arc::new(env::tuned()?);
        *tuned = Some(read.clone());
        Ok(read)
    }

    /// Returns the transport for puts between nodes. The program's choice comes first, then `MKERNEL_TRANSPORT`. The
    /// default is emulated NICs if all ranks are on one host, and RC otherwise.
    pub fn transport(&self) -> Result<Transport, Error> {
        if let Some(transport) = lock(&self.transport).clone() {
            return Ok(transport);
        }
        match (env::transport()?, self.cluster.hosts.count()) {
            (Some(transport), _) => Ok(transport),
            (None, 0 | 1) => Ok(Transport::default()),
            (None, _) => Ok(Transport::Rc(NicOptions::from_env()?)),
        }
    }

    /// Returns the copy thread. The first call starts it.
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

    /// Returns the gate that all calls of all operators pass. The first call allocates the gate.
    pub fn gate(&self, timeout: Duration) -> Result<Arc<OwnMemory>, Error> {
        let mut gate = lock(&self.gate);
        if let Some(gate) = gate.as_ref() {
            return Ok(gate.clone());
        }
        let bytes = size_of::<Gate>() as u64;
        let memory = OwnMemory::allocate(&self.ctx, &self.stream, bytes, timeout)?;
        Ok(gate.insert(Arc::new(memory)).clone())
    }

    /// Returns the reader of the numbers of calls that ranks have begun. The first call creates the reader.
    pub fn reader(&self) -> Result<Arc<WordReader>, Error> {
        let mut reader = lock(&self.reader);
        if let Some(reader) = reader.as_ref() {
            return Ok(reader.clone());
        }
        Ok(reader.insert(Arc::new(WordReader::new(&self.ctx)?)).clone())
    }

    /// See [`OperatorNames::add`].
    pub fn name_operator(&self, name: &str) -> OperatorId {
        self.operators.add(name)
    }

    /// See [`Health::register`].
    pub fn register(&self, operator: Arc<dyn Monitored>) {
        self.health.register(operator);
    }

    /// See [`Health::ensure_usable`].
    pub fn ensure_usable(&self) -> Result<(), Error> {
        self.health.ensure_usable()
    }

    /// See [`Health::fail`].
    pub fn fail(&self, error: Error) {
        self.health.fail(error);
    }

    /// Marks the communicator as failed with the cause of a failed wait.
    pub fn fail_because_of(&self, error: Error) {
        // Only the first failure is recorded, and explaining a failure takes time.
        if !self.health.has_failed() {
            self.fail(self.health.explain(error));
        }
    }

    /// Waits until the simulated GPU of this rank has ended its kernels, whose waits were aborted, so that their findings are not
    /// taken for findings of later kernels.
    pub fn end_simulated(&self) {
        if self.simulated.is_some() {
            // If this fails, the findings of later kernels may be incomplete or have those of earlier kernels.
            let _ = self
                .ctx
                .bind_to_thread()
                .and_then(|()| self.ctx.synchronize());
        }
    }

    /// Returns the findings of the simulator so far.
    pub fn findings(&self) -> Vec<Finding> {
        let Some(host) = &self.simulated else {
            return Vec::new();
        };
        host.findings().split_off(self.earlier_findings)
    }

    pub fn check(&self) -> Result<(), Error> {
        let live = self.health.live();
        if let Some(error) = live.iter().find_map(|operator| operator.network_failure()) {
            self.fail_because_of(error);
        }
        // Overlapping calls cause findings of the simulator, so the overlap is checked before the findings.
        if let Some(error) = live.iter().find_map(|operator| operator.overlap()) {
            self.fail(error);
        }
        // A deadlock also makes waits time out, and the finding is more specific than the timeout.
        let findings = self.findings();
        if !findings.is_empty() {
            self.fail(Error::Simulation { findings });
        }
        if let Some(error) = self.health.failure() {
            self.fail_because_of(error);
        }
        self.health.check()?;
        // Invalid values affect only their own call.
        let fault = live.iter().find_map(|operator| operator.take_fault());
        fault.map_or(Ok(()), Err)
    }
}
