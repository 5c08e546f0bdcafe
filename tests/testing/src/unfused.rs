//! The unfused baseline of operators on several nodes: the steps of the operator, one after the other.
//!
//! [`Nics`] measures the transfers over the network. The steps within a node are the steps of an operator on one node,
//! with a node's GPUs and the M, N and K of a rank:
//!
//! - `ag_gemm`: the NICs exchange the shards of the nodes. Then each node gathers over NVLink and multiplies.
//! - `gemm_rs`: each node multiplies and scatters its sums over NVLink. Then the NICs exchange the sums.
//! - `gemm_ar`: the steps of `gemm_rs`. Then the NICs exchange the results, and each node gathers them over NVLink.
//!
//! The addition of the sums of several nodes is left out, in favour of the baseline.

use crate::options::Nodes;
use mkernel::{
    Communicator, Error, KernelPlan,
    network::{FabricTest, FabricTestLoad, FabricTestOptions, Transport},
    spec::GemmOp,
};
use std::time::Duration;

/// The longest message. Messages of this length suffice for the full rate of a NIC.
const MESSAGE_BYTES: u64 = 1 << 20;
/// The number of messages in flight to each peer.
const WINDOW: u32 = 16;
/// The number of runs. The fastest run counts, in favour of the baseline.
const RUNS: u32 = 5;

/// The network transfers of one call of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// The number of transfers, which follow each other and move equal numbers of bytes.
    pub count: u32,
    /// The messages of one transfer to each peer.
    pub load: FabricTestLoad,
}

impl Steps {
    /// Returns the transfers of a plan, or `None` if the plan is for one node or is no GEMM.
    pub fn of(plan: &KernelPlan, nodes: u32) -> Option<Self> {
        let (network, gemm) = (plan.body().network.as_ref()?, plan.gemm()?);
        let count = match gemm.config.op {
            GemmOp::GemmAr => 2,
            GemmOp::AgGemm | GemmOp::GemmRs => 1,
            GemmOp::Gemm => return None,
        };
        let peers = u64::from(nodes.saturating_sub(1)).max(1);
        let bytes = plan.body().traffic.nic_bytes / peers / u64::from(count);
        let messages = bytes
            .div_ceil(network.put_bytes.clamp(4, MESSAGE_BYTES))
            .max(1);
        let message_bytes = bytes.div_ceil(messages).next_multiple_of(4);
        let load = FabricTestLoad {
            message_bytes: message_bytes as u32,
            messages: messages as u32,
            untimed: 0,
            window: WINDOW,
            batch: 1,
            check: None,
            probe: false,
        };
        Some(Self { count, load })
    }
}

/// Returns the time in µs of the NICs alone for the transfers of one call of a plan, or `None` where [`Steps::of`] does.
/// All ranks must call this together.
///
/// # Errors
/// The fabric cannot be set up, a transfer fails, or a rank does not take part.
pub fn nics_us(
    ranks: &Communicator,
    plan: &KernelPlan,
    network: &Nodes,
) -> Result<Option<f64>, Error> {
    let Some(steps) = Steps::of(plan, network.nodes) else {
        return Ok(None);
    };
    let nics = Nics::new(ranks, network.nodes, network.transport(), steps)?;
    let took = nics.time()?;
    // Memory may be freed only while no rank puts.
    ranks.barrier()?;
    Ok(Some(took.as_secs_f64() * 1e6))
}

/// A measurement of the NICs of all ranks while they carry out [`Steps`] and nothing else.
pub struct Nics<'a> {
    ranks: &'a Communicator,
    test: FabricTest,
    steps: Steps,
}

impl<'a> Nics<'a> {
    /// Prepares the measurement. All ranks must call this together.
    ///
    /// # Errors
    /// The fabric cannot be set up.
    pub fn new(
        ranks: &'a Communicator,
        nodes: u32,
        transport: Transport,
        steps: Steps,
    ) -> Result<Self, Error> {
        let options = FabricTestOptions {
            nodes,
            message_bytes: steps.load.message_bytes,
            window: steps.load.window,
            transport,
        };
        let test = ranks.fabric_test(&options)?;
        Ok(Self { ranks, test, steps })
    }

    /// Returns the time of all transfers: in each run the time of the slowest rank counts, and of all runs the fastest.
    /// All ranks must call this together.
    ///
    /// # Errors
    /// A transfer fails, or a rank does not take part.
    pub fn time(&self) -> Result<Duration, Error> {
        let mut least = Duration::MAX;
        for _ in 0..RUNS {
            self.ranks.barrier()?;
            let own = self.test.run(&self.steps.load)?.elapsed;
            let all = self
                .ranks
                .all_gather(&(own.as_nanos() as u64).to_le_bytes())?;
            let ns = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes);
            let slowest = all.iter().map(ns).max().unwrap_or(0);
            least = least.min(Duration::from_nanos(slowest));
        }
        Ok(least * self.steps.count)
    }
}
