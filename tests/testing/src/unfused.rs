//! [`Nics`]: the time of the NICs for the steps of an operator, if the steps run one after the other.
//!
//! The steps inside a node are those of one node with its GPUs and the same M, N and K of a rank. In `ag_gemm`, the
//! NICs first transfer the shards of other nodes, and then the node gathers over NVLink and multiplies. In `gemm_rs`,
//! the node multiplies and scatters sums over NVLink, and then the NICs exchange them. `gemm_ar` does the same, and
//! then transfers and gathers the results. The time to add up the sums of nodes is not included.

use mkernel::{
    Communicator, Error, FabricTest, FabricTestLoad, FabricTestOptions, GemmOp, KernelPlan,
    Transport,
};
use std::time::Duration;

/// The largest size of a message, which suffices for the full rate of a NIC.
const MESSAGE_BYTES: u64 = 1 << 20;
/// The number of messages to each peer that are in flight.
const WINDOW: u32 = 16;
/// The number of runs, of which the fastest one counts, in favour of the steps.
const RUNS: u32 = 5;

/// The steps over the NICs of one call of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// The number of steps, which run one after the other with the same number of bytes.
    pub count: u32,
    /// The puts of a step to each peer.
    pub load: FabricTestLoad,
}

impl Steps {
    /// Returns the steps of a plan, or none for a plan of one node.
    pub fn of(plan: &KernelPlan, nodes: u32) -> Option<Self> {
        let (network, gemm) = (plan.network.as_ref()?, plan.gemm()?);
        let count = match gemm.config.op {
            GemmOp::GemmAr => 2,
            GemmOp::AgGemm | GemmOp::GemmRs => 1,
        };
        let peers = u64::from(nodes.saturating_sub(1)).max(1);
        let bytes = plan.traffic.nic_bytes / peers / u64::from(count);
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

/// The NICs of the ranks, which perform the puts of [`Steps`] and nothing else.
pub struct Nics<'a> {
    ranks: &'a Communicator,
    test: FabricTest,
    steps: Steps,
}

impl<'a> Nics<'a> {
    /// Prepares the puts. Collective: all ranks must call this function.
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

    /// Returns the time of all steps: the minimum over runs of the time of the slowest rank. Collective.
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
