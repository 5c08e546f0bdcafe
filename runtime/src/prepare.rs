//! Prepares an [`Operator`] from a configuration, on all ranks together. Each step is collective and fails on all ranks
//! if it fails on one.

mod identity;
mod record;

use crate::bootstrap::files::{is_exhausted, os};
use crate::deadlines::BUILD_TIMEOUT;
use crate::driver::Uncaptured;
use crate::env;
use crate::error::{ClusterError, Error, NetworkError};
use crate::fabric::endpoint::Fabric;
use crate::fabric::node_map::NodeMap;
use crate::fabric::transport::Transport;
use crate::heap::{BlockKind, Heap, Request, ensure_same_places};
use crate::kernel::Kernel;
use crate::operator::{KnownOperators, Loaded, Operator, TraceMemory};
use crate::range::Range;
use crate::report::Page;
use crate::shared::Shared;
use crate::workspace::Workspace;
use identity::identity;
#[cfg(feature = "testing")]
use mkernel_compile::CudaSource;
use mkernel_compile::{Cubin, GenError, KernelTemplate, Store};
use mkernel_spec::{KernelConfig, KernelPlan, Op, SizedSpec, Sizes};
#[cfg(feature = "testing")]
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// The number that stands for the absence of an operator. Operators are counted from 1.
const NO_OPERATOR: u32 = 0;

/// The source of machine code.
pub(crate) enum Code {
    Template(KernelTemplate),
    /// A text that differs from the output of its template.
    #[cfg(feature = "testing")]
    Text(CudaSource),
}

impl Code {
    /// A digest that distinguishes this code from the code of other kernels.
    fn digest(&self) -> [u8; 32] {
        match self {
            Self::Template(template) => template.digest(),
            #[cfg(feature = "testing")]
            Self::Text(source) => Sha256::digest(&source.text).into(),
        }
    }

    fn machine_code(&self, store: &Store) -> Result<Cubin, GenError> {
        match self {
            Self::Template(template) => store.get_or_render(template),
            #[cfg(feature = "testing")]
            Self::Text(source) => store.get_or_build(source),
        }
    }
}

/// Prepares an operator, or shares the core of an equal operator that exists on all ranks. `code` maps the kernel's template to
/// the code to compile. `name` is the operator's name in errors if the configuration has no name. All ranks must call this.
pub(crate) fn prepare(
    shared: &Arc<Shared>,
    (heap, known): (&mut Heap, &mut KnownOperators),
    (config, name): (&KernelConfig, Option<&str>),
    sizes: Sizes,
    code: impl FnOnce(KernelTemplate) -> Result<Code, GenError>,
) -> Result<Operator, Error> {
    // Another thread may be capturing a stream of its own, which must not be affected.
    let _uncaptured = Uncaptured::new();
    let timeout = shared.host_timeout();
    let mut ranks = shared.ranks();

    let name = config.name.as_deref().or(name);
    let _range = Range::begin(|| name_of_range(config.op(), name, shared.rank));
    let planned = plan_on_this_rank(shared, (config, name), sizes, code);
    let planned = planned.map(|(store, (nodes, transport), plan, code)| {
        let identity = identity(&plan, code.digest(), transport.as_ref());
        let equal = known.find(&identity);
        Request {
            number: equal.as_ref().map_or(NO_OPERATOR, |core| core.number()),
            bytes: identity.clone(),
            value: (store, (nodes, transport), plan, code, identity, equal),
        }
    });
    let ((store, (nodes, transport), plan, code, identity, equal), numbers) = heap.agree(
        &mut ranks,
        "planning",
        planned,
        &identity::DESCRIPTION,
        timeout,
    )?;
    // Some ranks may have dropped the equal operator already. This rank then keeps its own until no rank waits for this rank
    // any more, since dropping an operator can wait for the GPU.
    let _unshared = match equal {
        Some(core) if numbers.iter().all(|number| *number == core.number()) => {
            return Ok(Operator::with_core(core));
        }
        unshared => unshared,
    };

    // The other ranks find the kernel in the store. Without a shared store, they compile the kernel too.
    let is_first = shared.rank == 0;
    let first = is_first.then(|| build(&store, &plan, &code)).transpose();
    let first = first.map(|cubin| (cubin, Vec::new()));
    let (first, _) = ranks.agree("compiling on rank 0", first, BUILD_TIMEOUT)?;

    let fabric = nodes
        .as_ref()
        .zip(transport)
        .map(|(nodes, transport)| heap.fabric(shared, &mut ranks, nodes, &transport));
    let fabric = fabric.transpose()?;
    let bytes = plan.workspace_bytes();
    let block = heap.place(shared, &mut ranks, BlockKind::Workspace, bytes)?;
    let loaded = first.map_or_else(|| build(&store, &plan, &code), Ok);
    let loaded = loaded.and_then(|cubin| {
        check_puts(&plan, fabric.as_deref())?;
        block.zero(shared)?;
        if let Some(host) = &shared.simulated {
            host.name_workspace(block.own(shared), plan.clone());
        }
        let place = block.describe().into_bytes();
        Ok((load(shared, &plan, &cubin)?, place))
    });
    // This step is also a barrier: after it, the workspaces of all ranks are zero.
    let (loaded, places) = ranks.agree("loading", loaded, BUILD_TIMEOUT)?;
    ensure_same_places(&places)?;
    let workspace = Arc::new(Workspace::new(shared, block, nodes.as_ref(), fabric));
    let name = operator_name(&plan, name, shared.cluster.group_name());
    let operator = Operator::new((plan, &name), loaded, workspace, shared.clone());
    known.add(identity, operator.core());
    Ok(operator)
}

/// The store of kernels, the nodes if there are several, the transport if the kernel sends data between them, the plan, and the
/// source of its machine code.
type Planned = (
    Store,
    (Option<NodeMap>, Option<Transport>),
    KernelPlan,
    Code,
);

/// Plans the kernel of this rank. Rank 0 also records the kernel, if the user wants that.
fn plan_on_this_rank(
    shared: &Shared,
    (config, name): (&KernelConfig, Option<&str>),
    sizes: Sizes,
    code: impl FnOnce(KernelTemplate) -> Result<Code, GenError>,
) -> Result<Planned, Error> {
    let _range = Range::step("plan");
    shared.ensure_usable()?;
    let store = env::kernel_store()?;
    let nodes = nodes(shared, config)?;
    let plan = plan(shared, config, sizes)?;
    let sends = plan.bodies.iter().any(|body| body.network.is_some());
    let transport = sends.then(|| transport(shared)).transpose()?;
    if shared.rank == 0 {
        record::record(plan.spec.config(), name)?;
    }
    let code = code(KernelTemplate::of(&plan)).map_err(|error| built(&plan.id, error))?;
    Ok((store, (nodes, transport), plan, code))
}

/// Returns the name that profilers show.
fn name_of_range(op: Op, name: Option<&str>, rank: u32) -> String {
    let name = name.map_or(String::new(), |name| format!(" {name}"));
    format!("mkernel prepare {op}{name}, rank {rank}")
}

/// Returns the name of an operator in errors: the kind of the operator and its name, or else the id of its kernel.
fn operator_name(plan: &KernelPlan, name: Option<&str>, group: Option<String>) -> String {
    let name = name.map_or_else(
        || plan.id.clone(),
        |name| format!("{} {name}", plan.spec.op()),
    );
    match group {
        Some(group) => format!("{name} in {group}"),
        None => name,
    }
}

/// Checks that the NICs of a kernel of several nodes can make its puts.
fn check_puts(plan: &KernelPlan, fabric: Option<&Fabric>) -> Result<(), Error> {
    plan.bodies
        .iter()
        .try_for_each(|body| match (&body.network, fabric) {
            (Some(network), Some(fabric)) => fabric.check_put_bytes(network.put_bytes),
            (None, _) => Ok(()),
            (Some(_), None) => Err(Error::Aborted { cause: None }),
        })
}

/// Returns the nodes of a kernel of several nodes, or `None` for a kernel of one node, which needs all ranks on one host.
fn nodes(shared: &Shared, config: &KernelConfig) -> Result<Option<NodeMap>, Error> {
    let hosts = &shared.cluster.hosts;
    if config.nodes <= 1 {
        return shared.cluster.ensure_one().map(|()| None);
    }
    let node_map = NodeMap::new(shared.rank, hosts, config.nodes)?;
    if !node_map.are_in_order() {
        return Err(Error::Cluster(ClusterError::RankOrder {
            hosts: hosts.all(),
        }));
    }
    Ok(Some(node_map))
}

/// Returns the transport of a kernel that sends data between nodes.
fn transport(shared: &Shared) -> Result<Transport, Error> {
    let (transport, hosts) = (shared.transport()?, shared.cluster.hosts.count());
    if hosts > 1 && matches!(transport, Transport::Emulated { .. }) {
        return Err(Error::Network(NetworkError::EmulatedHosts { hosts }));
    }
    Ok(transport)
}

fn build(store: &Store, plan: &KernelPlan, code: &Code) -> Result<Cubin, Error> {
    let _range = Range::step("compile");
    code.machine_code(store)
        .map_err(|error| built(&plan.id, error))
}

/// Returns the error of rendering or compiling the kernel `id`. A lack of open files is reported as such, since it is not a
/// fault of the kernel.
fn built(id: &str, error: GenError) -> Error {
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
    let mut of_system = causes.filter_map(|error| error.downcast_ref::<std::io::Error>());
    if let Some(exhausted) = of_system.find(|error| is_exhausted(error)) {
        let code = exhausted.raw_os_error().unwrap_or_default();
        return os("building a kernel")(std::io::Error::from_raw_os_error(code));
    }
    Error::Build {
        id: id.to_owned(),
        source: Arc::new(error),
    }
}

fn load(shared: &Shared, plan: &KernelPlan, cubin: &Cubin) -> Result<Loaded, Error> {
    let _range = Range::step("load");
    Ok(Loaded {
        kernel: Kernel::load(shared, &cubin.bytes, plan)?,
        page: Arc::new(Page::allocate(&shared.ctx)?),
        copies: plan
            .body()
            .copies
            .as_ref()
            .map(|_| shared.copies())
            .transpose()?,
        gate: shared.gate(shared.gpu_timeout())?,
        reader: shared.reader()?,
        trace: TraceMemory::of_plan(shared, plan)?,
    })
}

fn plan(shared: &Shared, config: &KernelConfig, sizes: Sizes) -> Result<KernelPlan, Error> {
    if config.world != shared.world {
        return Err(Error::Cluster(ClusterError::WrongWorld {
            declared: config.world,
            world: shared.world,
        }));
    }
    // The name is for messages only: operators that differ in nothing else are equal.
    let spec = SizedSpec::for_sizes(config.clone(), sizes).map(SizedSpec::without_name);
    let tuned = shared.tuned()?;
    let plan = spec.and_then(|spec| KernelPlan::with_tuned(&spec, &shared.device, &tuned));
    plan.map_err(Error::Config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn too_many_open_files_are_no_error_of_the_kernel() {
        let error = |code| {
            built(
                "ag_gemm",
                GenError::CxxCall {
                    compiler: "g++".into(),
                    id: "ag_gemm".to_owned(),
                    source: std::io::Error::from_raw_os_error(code),
                },
            )
        };
        let text = error(libc::EMFILE).to_string();
        assert!(text.contains("failed: Too many open files"), "{text}");
        assert_eq!(error(libc::EMFILE).kind(), ErrorKind::System);
        assert_eq!(error(libc::ENOENT).kind(), ErrorKind::Build);
    }
}
