//! `mkernel-gen fabric-test`: what the network between nodes does for kernels, before a kernel is blamed for it.

use super::machine::{self, Choice, Machine, Simulated};
use super::output::{bytes, print, print_json, say, table};
use super::{Failure, count};
use mkernel::{
    Communicator, Error, FabricTest as Test, FabricTestOptions, Faults, Load, Measured, Nic,
    Simulation,
};
use serde::Serialize;
use std::thread;
use std::time::Duration;

/// What to send, over what, and how often.
#[derive(Debug, clap::Args)]
pub struct FabricTest {
    /// What sends
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    device: Choice,
    /// GPUs over all nodes: 1, 2, 4 or 8
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    ranks: u32,
    /// Nodes into which they are put; the network between them is emulated
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    nodes: u32,
    /// Sizes of messages, multiples of 4 [default: 4,4096,65536,262144,1048576; on simulated GPUs 4,256,4096]
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    bytes: Vec<u32>,
    /// Messages of each size to each peer [default: 2000; on simulated GPUs 16]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    messages: Option<u32>,
    /// Messages to a peer on their way at once, where bandwidth is measured
    #[arg(long, value_name = "COUNT", default_value_t = 32)]
    window: u32,
    /// What contents, and faults, depend on
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    network: Network,
}

/// Of an emulated NIC.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Emulated network")]
struct Network {
    /// What a NIC sends in a second, 10^9 bytes
    #[arg(long, value_name = "NUMBER", default_value_t = 50.0)]
    gb_per_s: f64,
    /// What a message takes besides its bytes, one way
    #[arg(long, value_name = "NUMBER", default_value_t = 2.0, value_parser = parse_us)]
    latency_us: f64,
    /// Messages are late by up to this, and overtake each other
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0, value_parser = parse_us)]
    jitter_us: f64,
    /// The part of messages that are lost and sent again, 0 to 1
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0, value_parser = parse_probability)]
    loss: f64,
}

/// One size, on all ranks: the worst of them.
#[derive(Serialize)]
struct Row {
    bytes: u32,
    ranks: u32,
    nodes: u32,
    simulated: bool,
    /// Words that arrived other than they were sent.
    wrong_words: u64,
    /// From a command until its GPU knew that the proxy had taken it, the median.
    pick_up_us: f64,
    /// Of a message and its acknowledgement, alone on the wire.
    round_trip_us: f64,
    gb_per_s: f64,
    messages_per_s: f64,
}

impl FabricTest {
    /// Sends messages of every size: checked ones, one by one, and as many as go.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        let machine = self.machine();
        let rows = self.on_all_ranks(machine)?;
        let wrong = rows.iter().filter(|row| row.wrong_words > 0).count();
        if json {
            rows.iter().try_for_each(print_json)?;
        } else {
            print(&self.text(&rows, machine))?;
        }
        match wrong {
            0 => Ok(()),
            failed => Err(Failure::Runs {
                failed,
                ran: rows.len(),
                code: 1,
            }),
        }
    }

    fn machine(&self) -> Machine {
        let gpus = machine::gpus();
        if self.device == Choice::Gpu || self.device == Choice::Auto && gpus >= self.ranks {
            return Machine::Gpus;
        }
        if self.device == Choice::Auto {
            let gpus = count(gpus as usize, "GPU");
            say(&format!(
                "this host has {gpus}: simulating (--device gpu insists on GPUs)"
            ));
        }
        let usual = Simulation::default();
        Machine::Simulated(Simulated {
            sms: usual.sms,
            skew: usual.skew,
            timeline: false,
        })
    }

    fn sizes(&self, machine: Machine) -> Vec<u32> {
        match (self.bytes.as_slice(), machine) {
            ([], Machine::Gpus) => vec![4, 4096, 65_536, 262_144, 1_048_576],
            ([], Machine::Simulated(_)) => vec![4, 256, 4096],
            (given, _) => given.to_vec(),
        }
    }

    fn messages(&self, machine: Machine) -> u32 {
        self.messages.unwrap_or(match machine {
            Machine::Gpus => 2000,
            Machine::Simulated(_) => 16,
        })
    }

    fn options(&self, sizes: &[u32]) -> FabricTestOptions {
        let us = |us: f64| Duration::from_nanos((us * 1e3) as u64);
        FabricTestOptions {
            nodes: self.nodes,
            message_bytes: sizes.iter().copied().max().unwrap_or(4),
            window: self.window,
            nic: Nic {
                gb_per_s: self.network.gb_per_s,
                latency: us(self.network.latency_us),
                ..Nic::default()
            },
            faults: Faults {
                seed: self.seed,
                jitter: us(self.network.jitter_us),
                loss: self.network.loss,
                retransmission: us(4.0 * self.network.latency_us),
                ..Faults::default()
            },
        }
    }

    fn on_all_ranks(&self, machine: Machine) -> Result<Vec<Row>, Failure> {
        let ranks = machine
            .ranks(self.ranks, self.seed)
            .map_err(Failure::Fabric)?;
        let results: Vec<Result<Vec<Row>, Error>> = thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .into_iter()
                .map(|ranks| scope.spawn(move || self.on_rank(&ranks, machine)))
                .collect();
            let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
            joined
                .map(|result| result.unwrap_or(Err(Error::Aborted { cause: None })))
                .collect()
        });
        let mut worst: Option<Vec<Row>> = None;
        let mut failure = None;
        for (rank, result) in results.into_iter().enumerate() {
            match result {
                Ok(rows) => match &mut worst {
                    None => worst = Some(rows),
                    Some(worst) => worst.iter_mut().zip(&rows).for_each(|(a, b)| a.add(b)),
                },
                Err(error) => {
                    say(&format!("rank {rank}: {error}"));
                    failure.get_or_insert(error);
                }
            }
        }
        match (failure, worst) {
            (Some(error), _) => Err(Failure::Fabric(error)),
            (None, rows) => Ok(rows.unwrap_or_default()),
        }
    }

    fn on_rank(&self, ranks: &Communicator, machine: Machine) -> Result<Vec<Row>, Error> {
        let sizes = self.sizes(machine);
        let test = ranks.fabric_test(&self.options(&sizes))?;
        sizes
            .iter()
            .map(|bytes| self.row(&test, *bytes, machine))
            .collect()
    }

    fn row(&self, test: &Test, message_bytes: u32, machine: Machine) -> Result<Row, Error> {
        let messages = self.messages(machine);
        let load = |window: u32, check| {
            let batch = window.div_ceil(4);
            Load {
                message_bytes,
                messages: messages.next_multiple_of(batch),
                untimed: messages / 10,
                window,
                batch,
                check,
                probe: false,
            }
        };
        let checked = test.run(&load(self.window, Some(self.seed)))?;
        let alone = test.run(&load(1, None))?;
        let probed = test.run(&Load {
            probe: true,
            ..load(1, None)
        })?;
        let many = test.run(&load(self.window, None))?;
        let peers = f64::from(self.nodes - 1);
        let seconds = |measured: &Measured| measured.elapsed.as_secs_f64().max(1e-9);
        let messages_per_s = f64::from(many.messages) * peers / seconds(&many);
        Ok(Row {
            bytes: message_bytes,
            ranks: self.ranks,
            nodes: self.nodes,
            simulated: machine != Machine::Gpus,
            wrong_words: checked.wrong_words.iter().map(|(_, words)| words).sum(),
            pick_up_us: probed.pick_up.unwrap_or_default().as_secs_f64() * 1e6,
            round_trip_us: seconds(&alone) * 1e6 / f64::from(alone.messages),
            gb_per_s: messages_per_s * f64::from(message_bytes) / 1e9,
            messages_per_s,
        })
    }

    fn text(&self, rows: &[Row], machine: Machine) -> String {
        let kind = match machine {
            Machine::Gpus => "GPU",
            Machine::Simulated(_) => "simulated GPU",
        };
        let per_node = count((self.ranks / self.nodes.max(1)) as usize, kind);
        let network = &self.network;
        let mut text = format!(
            "{} of {per_node}, emulated NICs of {} GB/s and {} µs\n",
            count(self.nodes as usize, "node"),
            network.gb_per_s,
            network.latency_us,
        );
        let is_timed = machine == Machine::Gpus;
        let mut cells = vec![vec!["message".to_owned(), "contents".to_owned()]];
        if is_timed {
            cells[0].extend(
                ["pick-up µs", "round trip µs", "GB/s per GPU", "messages/s"].map(str::to_owned),
            );
        }
        for row in rows {
            let contents = match row.wrong_words {
                0 => "right".to_owned(),
                wrong => format!("{} WRONG", count(wrong as usize, "word")),
            };
            let mut line = vec![bytes(row.bytes.into()), contents];
            if is_timed {
                line.push(format!("{:.1}", row.pick_up_us));
                line.push(format!("{:.1}", row.round_trip_us));
                line.push(format!("{:.2}", row.gb_per_s));
                line.push(format!("{:.0}", row.messages_per_s));
            }
            cells.push(line);
        }
        text += &table(&cells, &[0, 2, 3, 4, 5]);
        if !is_timed {
            text += "times on simulated GPUs say nothing, so none are shown\n";
        }
        text
    }
}

impl Row {
    /// Takes in another rank's.
    fn add(&mut self, other: &Self) {
        self.wrong_words += other.wrong_words;
        self.pick_up_us = self.pick_up_us.max(other.pick_up_us);
        self.round_trip_us = self.round_trip_us.max(other.round_trip_us);
        self.gb_per_s = self.gb_per_s.min(other.gb_per_s);
        self.messages_per_s = self.messages_per_s.min(other.messages_per_s);
    }
}

/// Up to a second: longer than any network's, and far from where sums of times overflow.
fn parse_us(text: &str) -> Result<f64, &'static str> {
    parse_within(text, 1e6).ok_or("a number of microseconds from 0 to 1000000 is possible")
}

fn parse_probability(text: &str) -> Result<f64, &'static str> {
    parse_within(text, 1.0).ok_or("a number from 0 to 1 is possible")
}

fn parse_within(text: &str, most: f64) -> Option<f64> {
    text.parse()
        .ok()
        .filter(|value| (0.0..=most).contains(value))
}
