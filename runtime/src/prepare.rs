//! Prepares an [`Operator`] from a configuration, on all ranks together. Each step is collective and fails on all ranks
//! if it fails on one.

use crate::deadlines::BUILD_TIMEOUT;
use crate::driver::Uncaptured;
use crate::error::{ClusterError, Error, NetworkError};
use crate::fabric::endpoint::Fabric;
use crate::fabric::node_map::NodeMap;
use crate::fabric::spec::FabricSpec;
use crate::fabric::transport::Transport;
use crate::kernel::Kernel;
use crate::operator::workspaces::Workspaces;
use crate::operator::{Loaded, Operator};
use crate::report::Page;
use crate::shared::Shared;
use crate::symmetric::OwnMemory;
use mkernel_compile::{Cubin, CudaSource, Store};
use mkernel_spec::{KernelConfig, KernelPlan, KernelSpec, Shape};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Duration;

/// Prepares an operator. All ranks must call this.
pub(crate) fn prepare(
    shared: &Arc<Shared>,
    config: &KernelConfig,
    shape: Shape,
    edit: impl FnOnce(&mut CudaSource),
) -> Result<Operator, Error> {
    // Another thread may be capturing a stream of its own, which must not be affected.
    let _uncaptured = Uncaptured::new();
    let timeout = shared.host_timeout();
    let mut ranks = shared.ranks();

    let planned = shared
        .ensure_usable()
        .and_then(|()| way_between_nodes(shared, config))
        .and_then(|way| Ok((way, plan(shared, config, shape)?)));
    let planned = planned.map(|(way, (plan, mut source))| {
        edit(&mut source);
        let mut identity = identity(config, &plan, &source);
        if let Some((_, transport)) = &way {
            identity.extend_from_slice(format!(", transport {}", transport.identity()).as_bytes());
        }
        ((way, plan, source), identity)
    });
    let ((way, plan, source), identities) = ranks.agree("planning", planned, timeout)?;
    compare(&identities)?;

    // The other ranks find the kernel in the store. Without a shared store, they compile it too.
    let store = Store::from_env();
    let first = (shared.rank == 0)
        .then(|| build(&store, &plan, &source))
        .transpose();
    let first = first.map(|cubin| (cubin, Vec::new()));
    let (first, _) = ranks.agree("compiling on rank 0", first, BUILD_TIMEOUT)?;

    let loaded = first.map_or_else(|| build(&store, &plan, &source), Ok);
    let loaded = loaded
        .and_then(|cubin| load(shared, &plan, &cubin, shared.gpu_timeout()))
        .map(|(loaded, memory)| {
            let size = memory.as_ref().map_or(0, OwnMemory::bytes);
            ((loaded, memory), size.to_string().into_bytes())
        });
    let ((loaded, memory), sizes) = ranks.agree("loading and allocating", loaded, BUILD_TIMEOUT)?;
    same_on_all(&sizes)?;
    let memory = match memory {
        Some(memory) => {
            Workspaces::OneNode(Arc::new(memory.share(&shared.ctx, &mut ranks, timeout)?))
        }
        None => {
            drop(ranks);
            memory_of_node(shared, way, &plan, &loaded.page)?
        }
    };
    let operator = Operator::new(plan, loaded, memory, shared.clone());
    if let Some(host) = &shared.simulated {
        host.name_workspace(operator.workspace(), operator.plan().workspace.clone());
    }
    Ok(operator)
}

/// Returns which ranks put to which others, and by which transport, for a kernel of several nodes. A kernel of one node
/// needs all ranks on one host.
fn way_between_nodes(
    shared: &Shared,
    config: &KernelConfig,
) -> Result<Option<(NodeMap, Transport)>, Error> {
    let nodes = &shared.cluster.hosts;
    if config.nodes <= 1 {
        return shared.cluster.ensure_one().map(|()| None);
    }
    let node_map = NodeMap::new(shared.rank, nodes, config.nodes)?;
    if !node_map.are_in_order() {
        return Err(Error::Cluster(ClusterError::RankOrder {
            hosts: nodes.all(),
        }));
    }
    let (transport, hosts) = (shared.transport()?, nodes.count());
    if hosts > 1 && matches!(transport, Transport::Emulated { .. }) {
        return Err(Error::Network(NetworkError::EmulatedHosts { hosts }));
    }
    Ok(Some((node_map, transport)))
}

/// Connects the fabric of a kernel that puts to other nodes, and returns the workspaces, which are in the fabric's
/// region.
fn memory_of_node(
    shared: &Shared,
    way: Option<(NodeMap, Transport)>,
    plan: &KernelPlan,
    page: &Arc<Page>,
) -> Result<Workspaces, Error> {
    let (Some((node_map, transport)), Some(network)) = (way, &plan.network) else {
        return Err(Error::Aborted { cause: None });
    };
    let spec = FabricSpec {
        node_map: node_map.clone(),
        transport,
        channels: network.channels,
        put_bytes: network.put_bytes,
        region_bytes: plan.workspace.bytes,
        mapped_by_node: true,
        state_bytes: 0,
    };
    let fabric = Fabric::connect(shared, &spec, page)?;
    Ok(Workspaces::ManyNodes {
        workspaces: fabric.regions_of_node(shared, &node_map),
        local_rank: node_map.local_rank(),
        fabric: Arc::new(fabric),
    })
}

fn build(store: &Store, plan: &KernelPlan, source: &CudaSource) -> Result<Cubin, Error> {
    store.get_or_build(source).map_err(|error| Error::Build {
        id: plan.id.clone(),
        source: Arc::new(error),
    })
}

fn load(
    shared: &Shared,
    plan: &KernelPlan,
    cubin: &Cubin,
    timeout: Duration,
) -> Result<(Loaded, Option<OwnMemory>), Error> {
    let kernel = Kernel::load(&shared.ctx, &cubin.bytes, plan)?;
    let page = Arc::new(Page::allocate(&shared.ctx)?);
    let bytes = plan.workspace.bytes;
    let memory = match plan.network {
        None => Some(OwnMemory::allocate(
            &shared.ctx,
            &shared.stream,
            bytes,
            timeout,
        )?),
        // The fabric allocates the workspace.
        Some(_) => None,
    };
    let gate = shared.gate(timeout)?;
    let copies = plan.copies.as_ref().map(|_| shared.copies()).transpose()?;
    Ok((
        Loaded {
            kernel,
            page,
            copies,
            gate,
        },
        memory,
    ))
}

fn plan(
    shared: &Shared,
    config: &KernelConfig,
    shape: Shape,
) -> Result<(KernelPlan, CudaSource), Error> {
    if config.world != shared.world {
        return Err(Error::Cluster(ClusterError::WrongWorld {
            declared: config.world,
            world: shared.world,
        }));
    }
    let spec = KernelSpec::validate(config.clone())
        .and_then(|spec| spec.specialise(shape))
        .map_err(Error::Config)?;
    let plan = KernelPlan::new(&spec, &shared.device).map_err(Error::Config)?;
    let source = mkernel_compile::render(&plan).map_err(|error| Error::Build {
        id: plan.id.clone(),
        source: Arc::new(error),
    })?;
    Ok((plan, source))
}

/// Returns a digest of everything that must be equal on all ranks, followed by a readable description.
fn identity(config: &KernelConfig, plan: &KernelPlan, source: &CudaSource) -> Vec<u8> {
    let mut hash = Sha256::new();
    // The plan contains information that the text of the kernel does not, such as the copies that the host makes.
    for part in [serde_json::to_vec(config), serde_json::to_vec(plan)] {
        hash.update(part.unwrap_or_default());
        hash.update([0]);
    }
    hash.update(&source.text);
    let mut identity = hash.finalize().to_vec();
    identity.extend_from_slice(format!("{} on {}", plan.id, plan.device.name).as_bytes());
    identity
}

fn compare(identities: &[Vec<u8>]) -> Result<(), Error> {
    let reference = &identities[0];
    let others: Vec<u32> = (0..)
        .zip(identities)
        .filter(|(_, id)| *id != reference)
        .map(|(rank, _)| rank)
        .collect();
    let Some(first) = others.first() else {
        return Ok(());
    };
    let describe = |id: &[u8]| match id.split_at_checked(32) {
        Some((digest, text)) => {
            let digest: String = digest[..4]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            format!("{}, digest {digest}", String::from_utf8_lossy(text))
        }
        None => "something malformed".to_owned(),
    };
    Err(Error::Mismatch {
        reference: describe(reference),
        theirs: describe(&identities[*first as usize]),
        ranks: others,
    })
}

/// Checks that all ranks allocated the same size. Each rank maps as many bytes of its peers as it allocated itself.
fn same_on_all(sizes: &[Vec<u8>]) -> Result<(), Error> {
    let text = |rank: usize| {
        format!(
            "a workspace of {} bytes",
            String::from_utf8_lossy(&sizes[rank])
        )
    };
    match sizes.iter().position(|size| *size != sizes[0]) {
        Some(rank) => Err(Error::Mismatch {
            ranks: vec![rank as u32],
            reference: text(0),
            theirs: text(rank),
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(digest: u8, text: &str) -> Vec<u8> {
        [&[digest; 32], text.as_bytes()].concat()
    }

    #[test]
    fn ranks_with_another_kernel_are_named() {
        let same = identity(1, "ag_gemm on H200");
        assert!(compare(&[same.clone(), same.clone(), same.clone()]).is_ok());
        let error = compare(&[
            same.clone(),
            identity(2, "other"),
            same,
            identity(3, "third"),
        ])
        .expect_err("two differ");
        let text = error.to_string();
        for part in [
            "ranks 1, 3 are",
            "ag_gemm on H200, digest 01010101",
            "other, digest 02020202",
        ] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
    }

    #[test]
    fn a_malformed_identity_is_a_mismatch() {
        let error = compare(&[identity(1, "a"), b"short".to_vec()]).expect_err("malformed");
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    }

    #[test]
    fn workspaces_of_different_size_are_a_mismatch() {
        assert!(same_on_all(&[b"4096".to_vec(), b"4096".to_vec()]).is_ok());
        let error = same_on_all(&[b"4096".to_vec(), b"8192".to_vec()]).expect_err("they differ");
        assert!(error.to_string().contains("rank 1 is"), "{error}");
    }
}
