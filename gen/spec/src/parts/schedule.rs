//! [`Schedule`]: the messages of a call as data, in the order in which the roles of a kernel send the messages.
//!
//! A schedule is for models of time and for comparisons with counted puts. A kind of operator writes its schedule beside its plan
//! (`schedule.rs`), from the same numbers that the kernel gets. Only the order of messages is stated a second time; the device code
//! has the order too, and a test compares the puts of both (`gen/tests/cli/simulate.rs`).
//!
//! A rank has lanes. A lane is a role of the kernel: workers that take actions in order. An action
//! waits for counters of its rank, takes time, sends messages, and raises a counter. A message raises a counter of its receiver.
//! Counters are numbered by distances between ranks, so all ranks of an even problem have the same schedule.

use crate::topology::Topology;

/// The number of a counter of a rank. Counters are 0 at the start of a call.
pub type Counter = u32;

/// A condition of an action: the least value of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    /// The counter.
    pub counter: Counter,
    /// The least value.
    pub count: u32,
}

/// The way of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Stores over NVLink to a rank of the same node.
    Link,
    /// A put on a channel to a rank of another node.
    Nic(u16),
}

/// Bytes that one rank sends to another rank at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The receiver.
    pub to: u32,
    /// Bytes. A put of 0 bytes only counts as an arrival.
    pub bytes: u64,
    /// The way.
    pub way: Way,
    /// The counter of the receiver that the message raises by 1; `None` if no action waits for the message.
    pub raises: Option<Counter>,
}

/// An action of a worker: `before_us`, then the waits, then `work_us`, then the messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Action {
    /// The time of work that waits for nothing, µs.
    pub before_us: f64,
    /// The conditions of everything that follows. Both must hold.
    pub expects: [Option<Expect>; 2],
    /// The time of work after the waits, µs. Stores over NVLink are sent meanwhile.
    pub work_us: f64,
    /// The messages, in order.
    pub messages: Vec<Message>,
    /// The counter of this rank that the action raises at its end.
    pub raises: Option<Counter>,
}

impl Action {
    /// Returns an action that waits until `counter` is at least `count`.
    pub(crate) fn after(counter: Counter, count: u32) -> Self {
        Self {
            expects: [Some(Expect { counter, count }), None],
            ..Self::default()
        }
    }

    /// Also waits until `counter` is at least `count`.
    pub(crate) fn and_after(mut self, counter: Counter, count: u32) -> Self {
        self.expects[1] = Some(Expect { counter, count });
        self
    }
}

/// A role of a kernel on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The name in reports.
    pub name: &'static str,
    /// Workers that act at the same time.
    pub workers: u32,
    /// Whether a worker takes the next action of the lane when it is free. Otherwise each worker has actions of its own.
    pub is_shared: bool,
}

impl Lane {
    /// Returns a lane whose workers have actions of their own.
    pub(crate) const fn new(name: &'static str, workers: u32) -> Self {
        Self {
            name,
            workers,
            is_shared: false,
        }
    }

    /// The number of lists of actions: one for each worker, or one for all workers.
    #[must_use]
    pub const fn lists(self) -> u32 {
        if self.is_shared { 1 } else { self.workers }
    }
}

/// The ranks that act alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symmetry {
    /// All ranks send equal messages over equal distances.
    Even,
    /// Ranks send different numbers of bytes.
    Uneven,
}

/// The probabilities with which tokens choose experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Popularity {
    /// All experts are equally likely.
    #[default]
    Uniform,
    /// The probability of the n-th expert is proportional to 1/n. Popular experts are on random ranks.
    Zipf,
}

/// The random choice of experts for tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Routing {
    /// The probabilities.
    pub popularity: Popularity,
    /// The seed of the choice.
    pub seed: u64,
}

/// Times and rates of the cost model that apply to the messages of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// The time from the launch until the first action, µs.
    pub start_us: f64,
    /// The time from a store to another rank until that rank sees its flag, µs.
    pub flag_us: f64,
    /// The part of the rate of NVLink that the stores of the kernel reach.
    pub link_share: f64,
    /// The part of a NIC's rate that puts reach.
    pub nic_share: f64,
}

/// The messages of a call on all ranks.
pub trait Schedule: Sync {
    /// The ranks.
    fn topology(&self) -> Topology;
    /// The times and rates of the cost model.
    fn pace(&self) -> Pace;
    /// The lanes, which all ranks have.
    fn lanes(&self) -> &[Lane];
    /// The number of counters of a rank.
    fn counters(&self) -> u32;
    /// The ranks that act alike.
    fn symmetry(&self) -> Symmetry;
    /// Action `turn` of list `list` of a lane on a rank; `None` after the last action. Each worker of the lane has a list, or all
    /// workers share list 0.
    fn action(&self, rank: u32, lane: usize, list: u32, turn: u32) -> Option<Action>;
}

impl dyn Schedule + '_ {
    /// The messages that a rank sends in one call, lane by lane.
    pub fn messages(&self, rank: u32) -> impl Iterator<Item = Message> {
        let lanes = self.lanes().iter().enumerate();
        let lists = lanes.flat_map(|(lane, of)| (0..of.lists()).map(move |list| (lane, list)));
        lists.flat_map(move |(lane, list)| {
            (0..)
                .map_while(move |turn| self.action(rank, lane, list, turn))
                .flat_map(|action| action.messages)
        })
    }
}

/// A rank as it sees the other ranks: by the distance of nodes and of local ranks.
#[derive(Clone, Copy)]
pub(crate) struct View {
    topology: Topology,
    node: u32,
    local: u32,
}

impl View {
    pub const fn of(topology: Topology, rank: u32) -> Self {
        Self {
            topology,
            node: topology.node_of(rank),
            local: topology.local_of(rank),
        }
    }

    /// The rank at a distance: `nodes` nodes and `locals` local ranks ahead, where the first follows the last.
    pub const fn ahead(self, nodes: u32, locals: u32) -> u32 {
        let Topology {
            nodes: all,
            local_world,
        } = self.topology;
        (self.node + nodes) % all * local_world + (self.local + locals) % local_world
    }

    /// The number of nodes from this node ahead to a peer, where peers are the other nodes in their order.
    pub const fn ahead_to_peer(self, peer: u32) -> u32 {
        let node = if peer < self.node { peer } else { peer + 1 };
        (node + self.topology.nodes - self.node) % self.topology.nodes
    }

    /// The numbers of nodes and of local ranks from this rank ahead to `rank`.
    pub const fn distance_to(self, rank: u32) -> (u32, u32) {
        let Topology { nodes, local_world } = self.topology;
        let ahead = (self.topology.node_of(rank) + nodes - self.node) % nodes;
        (
            ahead,
            (self.topology.local_of(rank) + local_world - self.local) % local_world,
        )
    }

    /// The number of nodes, or of local ranks, from the receiver ahead to the sender, for a receiver that is `distance` ahead.
    pub const fn nodes_back(self, distance: u32) -> u32 {
        (self.topology.nodes - distance) % self.topology.nodes
    }

    /// As [`Self::nodes_back`], for local ranks.
    pub const fn locals_back(self, distance: u32) -> u32 {
        (self.topology.local_world - distance) % self.topology.local_world
    }

    /// Returns a message of `bytes` bytes to the local rank that is `locals` ahead.
    pub const fn store(self, locals: u32, bytes: u64, raises: Counter) -> Message {
        Message {
            to: self.ahead(0, locals),
            bytes,
            way: Way::Link,
            raises: Some(raises),
        }
    }

    /// Returns a message of `bytes` bytes to each other rank of the node. `raises` gives the counter of the receiver by the
    /// distance from the receiver to this rank.
    pub fn to_node(self, bytes: u64, raises: impl Fn(u32) -> Counter) -> Vec<Message> {
        let message = |locals| self.store(locals, bytes, raises(self.locals_back(locals)));
        (1..self.topology.local_world).map(message).collect()
    }

    /// Returns a put to the node that is `nodes` nodes ahead. `raises` gives the counter of the receiver by the distance from the
    /// receiver to this node.
    pub fn put(
        self,
        nodes: u32,
        bytes: u64,
        channel: u16,
        raises: impl Fn(u32) -> Counter,
    ) -> Vec<Message> {
        vec![Message {
            to: self.ahead(nodes, 0),
            bytes,
            way: Way::Nic(channel),
            raises: Some(raises(self.nodes_back(nodes))),
        }]
    }

    /// Returns the put with the rows of the call, which precedes other puts to each peer if each call gives the rows. Only channel 0
    /// carries the rows.
    pub fn begin(self, nodes: u32, channel: u16) -> Action {
        let bytes = if channel == 0 { 8 } else { 0 };
        let messages = vec![Message {
            to: self.ahead(nodes, 0),
            bytes,
            way: Way::Nic(channel),
            raises: None,
        }];
        Action {
            messages,
            ..Action::default()
        }
    }
}
