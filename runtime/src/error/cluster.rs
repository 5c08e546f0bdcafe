//! [`ClusterError`]: the reason why the number or the hosts of a job's ranks do not suit a kernel.

use super::display::{Hosts, OnHosts, Ranks};

/// The reason why the ranks of a job cannot run a kernel, as far as it lies in their number or their hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The ranks are on several hosts, but the kernel is declared for one node.
    #[error(
        "the ranks are on {} hosts ({}), but the kernel is declared for one node. Declare nodes = {0}, or use the GPUs of \
         one host",
        hosts.len(), Hosts(hosts)
    )]
    SeveralHosts {
        /// The ranks of each host.
        hosts: Vec<Vec<u32>>,
    },
    /// The ranks are not numbered host by host.
    #[error(
        "the ranks are not numbered host by host ({}), which kernels of several nodes require. Let the launcher place \
         consecutive ranks on each host (block distribution)",
        Hosts(hosts)
    )]
    RankOrder {
        /// The ranks of each host.
        hosts: Vec<Vec<u32>>,
    },
    /// The hosts have different numbers of ranks.
    #[error(
        "the hosts have different numbers of ranks ({}). Start the same number of ranks on each host",
        Hosts(hosts)
    )]
    UnequalHosts {
        /// The ranks of each host.
        hosts: Vec<Vec<u32>>,
    },
    /// Kernels do not support this number of ranks on one host.
    #[error("{0} ranks were requested on one host, but 1 to 8 are supported")]
    World(usize),
    /// The ranks cannot be divided into the requested number of nodes.
    #[error(
        "{world} ranks {}cannot be divided into {nodes} nodes. Use {}",
        OnHosts(*.hosts),
        if *.hosts > 1 { "as many nodes as hosts" } else { "2 or more nodes with equal numbers of ranks" }
    )]
    Nodes {
        /// The number of nodes that was requested.
        nodes: u32,
        /// The number of ranks of the job.
        world: u32,
        /// The number of hosts of the ranks.
        hosts: u32,
    },
    /// A group of [`Communicator::split`](crate::Communicator::split) on one host has a number of ranks that kernels do not
    /// support.
    #[error(
        "the group of colour {color} has {} ranks on one host ({}), but 1, 2, 4 and 8 are supported. Choose other colours, or \
         pass None on ranks that need no group",
        ranks.len(), Ranks(ranks)
    )]
    GroupSize {
        /// The colour of the group.
        color: u32,
        /// The ranks in the order of the group, as numbered in the communicator that was split.
        ranks: Vec<u32>,
    },
    /// A group of [`Communicator::split`](crate::Communicator::split) on several hosts has different numbers of ranks on the hosts,
    /// or is not numbered host by host.
    #[error(
        "the group of colour {color} has different numbers of ranks on its hosts, or is not numbered host by host ({}). Choose \
         colours with as many ranks on each host, and keys in the order of hosts",
        Hosts(hosts)
    )]
    GroupHosts {
        /// The colour of the group.
        color: u32,
        /// The ranks of each host in the order of the group, as numbered in the communicator that was split.
        hosts: Vec<Vec<u32>>,
    },
    /// [`Communicator::rebuild`](crate::Communicator::rebuild) requires more ranks than there are.
    #[error(
        "at least {at_least} ranks were required, but the communicator has {world}. Require {world} or fewer"
    )]
    AtLeast {
        /// The number of ranks that was required.
        at_least: u32,
        /// The number of ranks of the communicator.
        world: u32,
    },
    /// The kernel is declared for another number of ranks.
    #[error(
        "the kernel is declared for {declared} ranks, but the communicator has {world}. {} {declared} ranks",
        declare_world(*world)
    )]
    WrongWorld {
        /// The number of ranks in the configuration.
        declared: u32,
        /// The number of ranks of the communicator.
        world: u32,
    },
}

/// Returns the start of a sentence about the ranks to declare or to start. A kernel of one node has 1, 2, 4 or 8 ranks.
fn declare_world(world: u32) -> String {
    match world {
        1 | 2 | 4 | 8 => {
            format!("Declare world = {world}, which an attribute may leave out, or start")
        }
        _ => "Start".to_owned(),
    }
}
