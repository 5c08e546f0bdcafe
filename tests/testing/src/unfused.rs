//! [`Nics`]: what the same steps take one after the other, of which the NIC's are measured here.
//!
//! Each node's steps are those of one node with its GPUs and the same M, N and K of a rank: ag_gemm, once the NICs have brought
//! the other nodes' shards, gathers over NVLink and multiplies; gemm_rs multiplies and scatters sums over NVLink, before the
//! NICs exchange them; gemm_ar does the same, and gathers at the end what the NICs have brought once more. What it takes to
//! add up the nodes' sums is left out.

use mkernel::{
    Communicator, Error, FabricTest, FabricTestLoad, FabricTestOptions, GemmOp, KernelPlan,
    Transport,
};
use std::time::Duration;

/// Messages as long as those that suffice for a NIC's rate, at most.
const MESSAGE_BYTES: u64 = 1 << 20;
/// Messages to each peer on their way at once.
const WINDOW: u32 = 16;
/// The least of so many runs counts, in favour of the steps.
const RUNS: u32 = 5;

/// The steps over the NICs of one call of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// One after the other, each with as many bytes.
    pub count: u32,
    /// What a step puts to each peer.
    pub load: FabricTestLoad,
}

impl Steps {
    /// None for a plan of one node.
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

/// The ranks' NICs, at the same puts as [`Steps`] and with nothing else to do.
pub struct Nics<'a> {
    ranks: &'a Communicator,
    test: FabricTest,
    steps: Steps,
}

impl<'a> Nics<'a> {
    /// Collective.
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

    /// All steps: the least over runs of the slowest rank's. Collective.
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
