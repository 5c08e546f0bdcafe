//! `mkernel-gen fabric-test`: tests and measures the network between nodes, without any operator.

mod network;

use super::failure::Failure;
use super::format::{bytes, count, table};
use super::machine::{self, DeviceChoice, Machine, Simulated};
use super::output::{Line, print, print_json, print_note, print_stderr};
use mkernel::{
    Communicator, Error, Simulation,
    error::NetworkError,
    network::{FabricTest as Test, FabricTestLoad, FabricTestOptions, FabricTestResult, Transport},
};
pub use network::Network;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::thread;

/// Arguments of `mkernel-gen fabric-test`.
#[derive(Debug, clap::Args)]
pub struct FabricTest {
    /// GPUs that send [default: MKERNEL_DEVICE, else auto]
    #[arg(long, value_enum)]
    device: Option<DeviceChoice>,
    /// GPUs over all nodes: 1, 2, 4 or 8
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    ranks: u32,
    /// Be one rank of a job that torchrun, srun or mpirun has started on one or several hosts. With MKERNEL_DEVICE=sim,
    /// each host has one simulated GPU
    #[arg(long, conflicts_with_all = ["device", "ranks"])]
    from_env: bool,
    /// Number of nodes into which ranks are divided [default: the number of hosts if there are several, else 2]
    #[arg(long, value_name = "COUNT")]
    nodes: Option<u32>,
    /// Sizes of messages, multiples of 4 [default: 4,4096,65536,262144,1048576; on simulated GPUs 4,256,4096]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_bytes)]
    bytes: Vec<u32>,
    /// Messages of each size to each peer [default: 2000; on simulated GPUs 16]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    messages: Option<u32>,
    /// Messages in flight to a peer while bandwidth is measured
    #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    window: u32,
    /// Seed of the messages' contents and of emulated faults
    #[arg(
        long,
        value_name = "NUMBER",
        allow_negative_numbers = true,
        default_value_t = 0
    )]
    seed: u64,
    #[command(flatten)]
    network: Network,
}

/// Parses the size of a message.
fn parse_bytes(text: &str) -> Result<u32, &'static str> {
    let bytes = text
        .parse()
        .ok()
        .filter(|bytes: &u32| *bytes > 0 && bytes.is_multiple_of(4));
    bytes.ok_or("write a multiple of 4 bytes above 0, since messages consist of 32-bit words")
}

/// The results for one size of messages: the worst of all ranks.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    bytes: u32,
    ranks: u32,
    nodes: u32,
    simulated: bool,
    transport: String,
    /// The number of words that arrived with a wrong value.
    wrong_words: u64,
    /// The median time from a command until the GPU sees that the proxy has taken it.
    pick_up_us: f64,
    /// The time of one message and its acknowledgement without other traffic.
    round_trip_us: f64,
    gb_per_s: f64,
    messages_per_s: f64,
}

impl Line for Row {
    const KIND: &'static str = "fabric-test";
}

impl FabricTest {
    /// Sends messages of every size, first to check their contents and then to measure latency and bandwidth.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        let transport = self.network.transport(self.seed)?;
        let rows = match self.from_env {
            true => self.as_rank(&transport)?,
            false => self.on_all_ranks(&transport)?,
        };
        let Some(rows) = rows else {
            return Ok(());
        };
        let wrong = rows.iter().filter(|row| row.wrong_words > 0).count();
        if json {
            rows.iter().try_for_each(print_json)?;
        } else {
            print(&text(&rows, &transport))?;
        }
        match wrong {
            0 => Ok(()),
            failed => Err(Failure::Runs {
                failed: failed as u64,
                ran: rows.len() as u64,
                code: 1,
            }),
        }
    }

    fn sizes(&self, is_simulated: bool) -> Vec<u32> {
        match (self.bytes.as_slice(), is_simulated) {
            ([], false) => vec![4, 4096, 65_536, 262_144, 1_048_576],
            ([], true) => vec![4, 256, 4096],
            (given, _) => given.to_vec(),
        }
    }

    /// Runs one rank of a job of several processes. Rank 0 returns the results of all ranks.
    fn as_rank(&self, transport: &Transport) -> Result<Option<Vec<Row>>, Failure> {
        let ranks = Communicator::from_env().map_err(Failure::Fabric)?;
        let rows = self.on_rank(&ranks, transport).map_err(Failure::Fabric)?;
        let own = serde_json::to_vec(&rows).map_err(|error| Failure::Output(error.into()))?;
        let all = ranks.all_gather(&own).map_err(Failure::Fabric)?;
        let mut worst = rows;
        for (rank, theirs) in all.iter().enumerate() {
            let rows: Option<Vec<Row>> = serde_json::from_slice(theirs).ok();
            let Some(rows) = rows.filter(|rows| rows.len() == worst.len()) else {
                let reason =
                    format!("rank {rank} has measured other sizes; give all ranks the same flags");
                return Err(Failure::Fabric(Error::Network(NetworkError::FabricTest(
                    vec![reason],
                ))));
            };
            if rank != ranks.rank() as usize {
                worst.iter_mut().zip(&rows).for_each(|(a, b)| a.merge(b));
            }
        }
        Ok((ranks.rank() == 0).then_some(worst))
    }

    /// Runs all ranks as threads of this process.
    fn on_all_ranks(&self, transport: &Transport) -> Result<Option<Vec<Row>>, Failure> {
        let ranks = machine(self.device, self.ranks)?
            .ranks(self.ranks, self.seed)
            .map_err(Failure::Fabric)?;
        let results: Vec<Result<Vec<Row>, Error>> = thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .into_iter()
                .map(|ranks| scope.spawn(move || self.on_rank(&ranks, transport)))
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
                    Some(worst) => worst.iter_mut().zip(&rows).for_each(|(a, b)| a.merge(b)),
                },
                Err(error) => {
                    print_stderr(&format!("rank {rank}: {error}"));
                    failure.get_or_insert(error);
                }
            }
        }
        match failure {
            Some(error) => Err(Failure::Fabric(error)),
            None => Ok(worst),
        }
    }

    fn on_rank(&self, ranks: &Communicator, transport: &Transport) -> Result<Vec<Row>, Error> {
        let sizes = self.sizes(ranks.is_simulated());
        let hosts = ranks.hosts();
        let nodes = self.nodes.unwrap_or(if hosts > 1 { hosts } else { 2 });
        let test = ranks.fabric_test(&FabricTestOptions {
            nodes,
            message_bytes: sizes.iter().copied().max().unwrap_or(4),
            window: self.window,
            transport: transport.clone(),
        })?;
        tracing::info!(rank = ranks.rank(), nodes, "the fabric is connected");
        let blank = Row {
            ranks: ranks.world(),
            nodes,
            simulated: ranks.is_simulated(),
            transport: transport.name().to_owned(),
            ..Row::default()
        };
        sizes
            .iter()
            .map(|bytes| self.row(&test, *bytes, blank.clone()))
            .collect()
    }

    /// Measures one size. The fields of `blank` describe the ranks and the network.
    fn row(&self, test: &Test, message_bytes: u32, blank: Row) -> Result<Row, Error> {
        let usual = if blank.simulated { 16 } else { 2000 };
        let messages = self.messages.unwrap_or(usual);
        let load = |window: u32, check| {
            let batch = window.div_ceil(4);
            FabricTestLoad {
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
        let probed = test.run(&FabricTestLoad {
            probe: true,
            ..load(1, None)
        })?;
        let many = test.run(&load(self.window, None))?;
        let peers = f64::from(blank.nodes - 1);
        let seconds = |measured: &FabricTestResult| measured.elapsed.as_secs_f64().max(1e-9);
        let messages_per_s = f64::from(many.messages) * peers / seconds(&many);
        Ok(Row {
            bytes: message_bytes,
            wrong_words: checked.wrong_words.iter().map(|(_, words)| words).sum(),
            pick_up_us: probed.pick_up.unwrap_or_default().as_secs_f64() * 1e6,
            round_trip_us: seconds(&alone) * 1e6 / f64::from(alone.messages),
            gb_per_s: messages_per_s * f64::from(message_bytes) / 1e9,
            messages_per_s,
            ..blank
        })
    }
}

/// The GPUs for the given number of ranks. A note says if they are simulated because this host has too few.
pub fn machine(device: Option<DeviceChoice>, ranks: u32) -> Result<Machine, Failure> {
    let gpus = machine::gpus();
    let device = DeviceChoice::or_environment(device)?;
    if device == DeviceChoice::Gpu || device == DeviceChoice::Auto && gpus >= ranks {
        return Ok(Machine::Gpus);
    }
    if device == DeviceChoice::Auto {
        let gpus = count(gpus as usize, "GPU");
        print_note(&format!(
            "this host has {gpus}, so GPUs are simulated (--device gpu requires real ones)"
        ));
    }
    let usual = Simulation::default();
    Ok(Machine::Simulated(Simulated {
        sms: usual.sms,
        skew: usual.skew,
        timeline: false,
    }))
}

fn text(rows: &[Row], transport: &Transport) -> String {
    let Some(first) = rows.first() else {
        return String::new();
    };
    let kind = match first.simulated {
        true => "simulated GPU",
        false => "GPU",
    };
    let per_node = count((first.ranks / first.nodes.max(1)) as usize, kind);
    let network = match transport {
        Transport::Emulated { nic, .. } => format!(
            "emulated NICs of {} GB/s and {} µs",
            nic.gb_per_s,
            nic.latency.as_nanos() as f64 / 1e3
        ),
        Transport::Rc(_) | Transport::Efa(_) => format!("transport {}", transport.name()),
    };
    let nodes = count(first.nodes as usize, "node");
    let mut text = format!("{nodes} of {per_node}, {network}\n");
    let is_timed = !first.simulated;
    let mut cells = vec![vec!["message".to_owned(), "contents".to_owned()]];
    if is_timed {
        cells[0].extend(
            ["pick-up µs", "round trip µs", "GB/s per GPU", "messages/s"].map(str::to_owned),
        );
    }
    for row in rows {
        let contents = match row.wrong_words {
            0 => "correct".to_owned(),
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
        text += "no times are shown, since times on simulated GPUs have no meaning\n";
    }
    text
}

impl Row {
    /// Combines the row with the row of another rank.
    fn merge(&mut self, other: &Self) {
        self.wrong_words += other.wrong_words;
        self.pick_up_us = self.pick_up_us.max(other.pick_up_us);
        self.round_trip_us = self.round_trip_us.max(other.round_trip_us);
        self.gb_per_s = self.gb_per_s.min(other.gb_per_s);
        self.messages_per_s = self.messages_per_s.min(other.messages_per_s);
    }
}
