//! [`Job`]: the ranks, the transport and the sizes that all checks share.

use super::args::NicCheck;
use super::load::Load;
use mkernel::error::NetworkError;
use mkernel::network::{NicProbe, NicProbeOptions, Transport};
use mkernel::{Communicator, Error};

/// What a rank needs for its checks.
pub struct Job<'a> {
    pub ranks: &'a Communicator,
    pub args: &'a NicCheck,
    pub transport: &'a Transport,
    pub nodes: u32,
}

impl<'a> Job<'a> {
    /// Each host is a node. The ranks of one host are a node each.
    pub fn new(ranks: &'a Communicator, args: &'a NicCheck, transport: &'a Transport) -> Self {
        let nodes = match ranks.hosts() {
            1 => ranks.world(),
            hosts => hosts,
        };
        Self {
            ranks,
            args,
            transport,
            nodes,
        }
    }

    /// Connects all ranks for a load. All ranks must call this.
    pub fn probe(&self, transport: &Transport, load: &Load) -> Result<NicProbe, Error> {
        self.ranks.nic_probe(&NicProbeOptions {
            nodes: self.nodes,
            bytes: load.region_bytes(self.nodes as usize - 1),
            transport: transport.clone(),
        })
    }

    /// The load of checks that compare bytes.
    pub fn load(&self) -> Load {
        Load {
            puts: self.args.puts.unwrap_or(self.by_device(2000, 40)),
            most_bytes: self
                .args
                .most_bytes
                .unwrap_or(self.by_device(16 << 20, 256 << 10)),
            seed: self.args.seed,
        }
    }

    /// A smaller number where GPUs are simulated, which is where tests run.
    pub fn by_device(&self, usual: u32, simulated: u32) -> u32 {
        match self.ranks.is_simulated() {
            true => simulated,
            false => usual,
        }
    }

    /// The error of a rank whose peers do nothing any more.
    pub fn late(&self, missing: &str) -> Error {
        let (rank, limit) = (self.ranks.rank(), self.ranks.timeout());
        Error::Network(NetworkError::FabricTest(vec![format!(
            "rank {rank} had no progress for {limit:?}: {missing}"
        )]))
    }
}
