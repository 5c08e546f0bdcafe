//! [`simulate`]: the times at which the messages of a schedule leave and arrive, event by event.

use super::events::Events;
use super::network::Network;
use super::ranks::{Fold, Ranks};
use super::usage::{Server, Usage};
use super::window::Windows;
use mkernel_spec::schedule::{Action, Message, Pace, Schedule, Symmetry, Way};
use std::collections::HashMap;

/// The flag of a counter for which a worker waits.
const AWAITED: u32 = 1 << 31;

/// A worker of a lane of a simulated rank.
#[derive(Clone, Copy, Debug)]
struct Worker {
    rank: u32,
    lane: u32,
    worker: u32,
    turn: u32,
}

/// A message under way.
#[derive(Clone, Copy, Debug)]
struct Sent {
    from: u32,
    message: Message,
    rail: usize,
    /// The time at which the last byte has left the previous resource.
    last_us: f64,
}

enum What {
    /// A worker begins its next action.
    Begin(Worker),
    /// A worker has done the work before its waits.
    Await(Worker, Action),
    /// A worker has done the work of its action, and all stores have left.
    End(Worker, Action),
    /// The first byte of a message is at the receiver's link.
    LinkIn(Sent),
    /// The proxy has read the command of a put.
    Put(Sent),
    /// The proxy posts a put.
    Post(Sent),
    /// The first byte of a put is at the links from the sender's leaf switch.
    Up(Sent),
    /// The first byte of a put is at the links to the receiver's leaf switch.
    Down(Sent),
    /// The first byte of a put is at the receiver's NIC.
    NicIn(Sent),
    /// The receiver's proxy learns that a put has arrived.
    Arrival(Sent),
    /// A counter of a rank is raised.
    Raise(u32, u32),
    /// A rank receives credits from a peer.
    Credit(u32, u32, u32),
}

/// The result of a simulation.
pub struct Outcome {
    /// The time of the call on the slowest rank, µs.
    pub us: f64,
    /// The simulated ranks.
    pub usage: Vec<Usage>,
    /// The busiest links between leaf switches: the time for which they were busy.
    pub switch_busy_us: f64,
    pub events: u64,
}

/// The ranks to simulate. One rank stands for ranks that act alike if `may_fold` is true.
pub fn ranks(schedule: &dyn Schedule, network: &Network, may_fold: bool) -> Ranks {
    let fold = match schedule.symmetry() {
        Symmetry::Even if may_fold && network.oversubscription > 1.0 => Fold::Nodes,
        Symmetry::Even if may_fold => Fold::All,
        _ => Fold::None,
    };
    let topology = schedule.topology();
    Ranks { topology, fold }
}

/// The bytes of the counters of these ranks.
pub fn counter_bytes(schedule: &dyn Schedule, ranks: Ranks) -> u64 {
    u64::from(ranks.count()) * u64::from(schedule.counters()) * size_of::<u32>() as u64
}

/// Simulates a call.
pub fn simulate(schedule: &dyn Schedule, network: &Network, ranks: Ranks, credits: u32) -> Outcome {
    let mut engine = Engine::new(schedule, *network, ranks, credits);
    engine.start();
    while let Some((now, what)) = engine.events.next() {
        engine.handle(now, what);
    }
    let switches = engine.up.iter().chain(&engine.down);
    Outcome {
        us: engine.end_us,
        switch_busy_us: switches.map(|server| server.busy_us).fold(0.0, f64::max),
        usage: engine.usage,
        events: engine.events.posted(),
    }
}

struct Engine<'a> {
    schedule: &'a dyn Schedule,
    network: Network,
    pace: Pace,
    ranks: Ranks,
    events: Events<What>,
    usage: Vec<Usage>,
    /// The counters of each simulated rank.
    counters: Vec<u32>,
    /// The workers that wait for a counter.
    waiting: HashMap<usize, Vec<(Worker, Action)>>,
    /// The next action of each lane whose workers share a list, by simulated rank and lane.
    shared: Vec<u32>,
    windows: Windows<Sent>,
    /// The links of leaf switches, by leaf and local rank.
    up: Vec<Server>,
    down: Vec<Server>,
    end_us: f64,
}

impl<'a> Engine<'a> {
    fn new(schedule: &'a dyn Schedule, network: Network, ranks: Ranks, credits: u32) -> Self {
        let (topology, count) = (ranks.topology, ranks.count() as usize);
        let leaves = topology.nodes.div_ceil(network.leaf_nodes) * topology.local_world;
        Self {
            schedule,
            network,
            pace: schedule.pace(),
            ranks,
            events: Events::new(),
            usage: vec![Usage::new(network.rails, schedule.lanes().len()); count],
            counters: vec![0; count * schedule.counters() as usize],
            waiting: HashMap::new(),
            shared: vec![0; count * schedule.lanes().len()],
            windows: Windows::new(count * topology.peers() as usize, credits),
            up: vec![Server::default(); leaves as usize],
            down: vec![Server::default(); leaves as usize],
            end_us: 0.0,
        }
    }

    fn start(&mut self) {
        for rank in 0..self.ranks.count() {
            for (lane, of) in (0..).zip(self.schedule.lanes()) {
                for worker in 0..of.workers {
                    let first = Worker {
                        rank,
                        lane,
                        worker,
                        turn: 0,
                    };
                    self.events.post(self.pace.start_us, What::Begin(first));
                }
            }
        }
    }

    fn handle(&mut self, now: f64, what: What) {
        match what {
            What::Begin(worker) => self.begin(now, worker),
            What::Await(worker, action) => self.wait(now, worker, action),
            What::End(worker, action) => self.end(now, worker, &action),
            What::LinkIn(sent) => self.link_in(now, sent),
            What::Put(sent) => {
                let proxy = &mut self.usage[sent.from as usize].proxy;
                let (_, end) = proxy.take(now, self.network.proxy_put_us);
                self.events.post(end, What::Post(sent));
            }
            What::Post(sent) => {
                let pair = self.pair(sent);
                match self.windows.take(pair, sent) {
                    true => self.post(now, sent),
                    false => self.usage[sent.from as usize].credit_waits += 1,
                }
            }
            What::Up(sent) => self.cross(now, sent, true),
            What::Down(sent) => self.cross(now, sent, false),
            What::NicIn(sent) => self.nic_in(now, sent),
            What::Arrival(sent) => self.arrive(now, sent),
            What::Raise(rank, counter) => self.raise(now, rank, counter),
            What::Credit(rank, peer, count) => {
                let pair = (rank * self.ranks.topology.peers() + peer) as usize;
                for sent in self.windows.release(pair, count) {
                    self.post(now, sent);
                }
            }
        }
    }

    fn begin(&mut self, now: f64, worker: Worker) {
        let (rank, lane) = (self.ranks.rank(worker.rank), worker.lane as usize);
        let (list, turn) = match self.schedule.lanes()[lane].is_shared {
            true => {
                let lanes = self.schedule.lanes().len();
                let next = &mut self.shared[worker.rank as usize * lanes + lane];
                *next += 1;
                (0, *next - 1)
            }
            false => (worker.worker, worker.turn),
        };
        let Some(action) = self.schedule.action(rank, lane, list, turn) else {
            return;
        };
        match action.before_us > 0.0 {
            true => self
                .events
                .post(now + action.before_us, What::Await(worker, action)),
            false => self.wait(now, worker, action),
        }
    }

    /// Does the rest of an action now, or as soon as all of its conditions hold.
    fn wait(&mut self, now: f64, worker: Worker, action: Action) {
        let of_rank = worker.rank as usize * self.schedule.counters() as usize;
        let missing = action.expects.iter().flatten().find(|expect| {
            self.counters[of_rank + expect.counter as usize] & !AWAITED < expect.count
        });
        if let Some(expect) = missing {
            let at = of_rank + expect.counter as usize;
            self.counters[at] |= AWAITED;
            self.waiting.entry(at).or_default().push((worker, action));
            return;
        }
        let mut end = now + action.work_us;
        for message in action
            .messages
            .iter()
            .filter(|message| message.way == Way::Link)
        {
            end = end.max(self.store(now, worker.rank, *message));
        }
        match end > now {
            true => self.events.post(end, What::End(worker, action)),
            false => self.end(now, worker, &action),
        }
    }

    fn end(&mut self, now: f64, worker: Worker, action: &Action) {
        let usage = &mut self.usage[worker.rank as usize];
        usage.work_us[worker.lane as usize] += action.before_us + action.work_us;
        self.end_us = self.end_us.max(now);
        for message in action
            .messages
            .iter()
            .filter(|message| message.way != Way::Link)
        {
            let sent = Sent {
                from: worker.rank,
                message: *message,
                rail: 0,
                last_us: now,
            };
            self.events
                .post(now + self.network.pickup_us, What::Put(sent));
        }
        if let Some(counter) = action.raises {
            self.raise(now, worker.rank, counter);
        }
        let next = Worker {
            turn: worker.turn + 1,
            ..worker
        };
        self.events.post(now, What::Begin(next));
    }

    /// Stores a message over NVLink, and returns the time at which its last byte has left.
    fn store(&mut self, now: f64, from: u32, message: Message) -> f64 {
        let us = message.bytes as f64 / self.link_gb_s() / 1e3;
        let usage = &mut self.usage[from as usize];
        usage.link_out_bytes += message.bytes;
        let (start, last_us) = usage.link_out.take(now, us);
        let sent = Sent {
            from,
            message,
            rail: 0,
            last_us,
        };
        self.events.post(start, What::LinkIn(sent));
        last_us
    }

    fn link_gb_s(&self) -> f64 {
        self.network.link_gb_s * self.pace.link_share
    }

    fn link_in(&mut self, now: f64, sent: Sent) {
        let to = self.ranks.number_of(sent.message.to);
        let us = sent.message.bytes as f64 / self.link_gb_s() / 1e3;
        let usage = &mut self.usage[to as usize];
        usage.link_in_bytes += sent.message.bytes;
        let (_, end) = usage.link_in.take(now, us);
        self.will_raise(end.max(sent.last_us), to, sent.message);
    }

    fn will_raise(&mut self, at: f64, to: u32, message: Message) {
        if let Some(counter) = message.raises {
            self.events
                .post(at + self.pace.flag_us, What::Raise(to, counter));
        }
    }

    /// The pair of the sender and the receiver of a put.
    fn pair(&self, sent: Sent) -> usize {
        let peer = self.ranks.peer(sent.from, sent.message.to);
        (sent.from * self.ranks.topology.peers() + peer) as usize
    }

    fn nic_us(&self, bytes: u64) -> f64 {
        bytes as f64 / self.network.nic_gb_s / self.pace.nic_share / 1e3
    }

    /// Posts a put to the NIC that is free first.
    fn post(&mut self, now: f64, mut sent: Sent) {
        let us = self.nic_us(sent.message.bytes);
        let usage = &mut self.usage[sent.from as usize];
        usage.puts += 1;
        usage.nic_out_bytes += sent.message.bytes;
        sent.rail = usage.free_nic();
        let (start, end) = usage.nics_out[sent.rail].take(now, us);
        sent.last_us = end;
        let leaf = |rank| self.ranks.topology.node_of(rank) / self.network.leaf_nodes;
        let crosses = leaf(self.ranks.rank(sent.from)) != leaf(sent.message.to);
        match crosses && self.network.oversubscription > 1.0 {
            true => self.events.post(start, What::Up(sent)),
            false => self
                .events
                .post(start + self.network.nic_us, What::NicIn(sent)),
        }
    }

    /// Passes a put through the links of the sender's leaf switch, or of the receiver's.
    fn cross(&mut self, now: f64, mut sent: Sent, is_up: bool) {
        let (topology, network) = (self.ranks.topology, self.network);
        let rate = f64::from(network.leaf_nodes * network.rails) / network.oversubscription;
        let us = self.nic_us(sent.message.bytes) / rate;
        let end = if is_up {
            self.ranks.rank(sent.from)
        } else {
            sent.message.to
        };
        let leaf = topology.node_of(end) / network.leaf_nodes;
        let local = match self.ranks.fold {
            Fold::None => topology.local_of(sent.message.to),
            Fold::Nodes | Fold::All => 0,
        };
        let links = if is_up { &mut self.up } else { &mut self.down };
        let (start, left) = links[(leaf * topology.local_world + local) as usize].take(now, us);
        sent.last_us = sent.last_us.max(left);
        match is_up {
            true => self.events.post(start, What::Down(sent)),
            false => self.events.post(start + network.nic_us, What::NicIn(sent)),
        }
    }

    fn nic_in(&mut self, now: f64, sent: Sent) {
        let us = self.nic_us(sent.message.bytes);
        let usage = &mut self.usage[self.ranks.number_of(sent.message.to) as usize];
        usage.nic_in_bytes += sent.message.bytes;
        let (_, end) = usage.nics_in[sent.rail].take(now, us);
        let arrived = end.max(sent.last_us + self.network.nic_us);
        self.events.post(arrived, What::Arrival(sent));
    }

    fn arrive(&mut self, now: f64, sent: Sent) {
        let to = self.ranks.number_of(sent.message.to);
        let usage = &mut self.usage[to as usize];
        usage.arrivals += 1;
        let (_, end) = usage.proxy.take(now, self.network.proxy_arrival_us);
        self.end_us = self.end_us.max(end);
        self.will_raise(end, to, sent.message);
        let pair = self.pair(sent);
        if let Some(count) = self.windows.deliver(pair) {
            let peer = self.ranks.peer(sent.from, sent.message.to);
            let at = end + self.network.nic_us;
            self.events.post(at, What::Credit(sent.from, peer, count));
        }
    }

    fn raise(&mut self, now: f64, rank: u32, counter: u32) {
        let at = rank as usize * self.schedule.counters() as usize + counter as usize;
        let was = self.counters[at];
        self.counters[at] = (was & !AWAITED) + 1;
        if was & AWAITED != 0 {
            for (worker, action) in self.waiting.remove(&at).unwrap_or_default() {
                self.wait(now, worker, action);
            }
        }
    }
}
