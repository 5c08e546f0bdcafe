//! [`NicCheck`]: the arguments of `mkernel-gen nic-check`.

use crate::cli::fabric_test::Network;
use crate::cli::machine::DeviceChoice;

/// Arguments of `mkernel-gen nic-check`.
#[derive(Debug, clap::Args)]
pub struct NicCheck {
    /// GPUs of the ranks [default: MKERNEL_DEVICE, else auto]
    #[arg(long, value_enum)]
    pub device: Option<DeviceChoice>,
    /// Number of ranks, each a node of its own: 2 to 8
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=8))]
    pub ranks: u32,
    /// Be one rank of a job that torchrun, srun or mpirun has started on several hosts
    #[arg(long, conflicts_with_all = ["device", "ranks"])]
    pub from_env: bool,
    /// The checks to run [default: all]
    #[arg(long, value_enum, value_name = "NAMES", value_delimiter = ',')]
    pub checks: Vec<CheckName>,
    /// Puts of each rank to each peer in checks of bytes [default: 2000; on simulated GPUs 40]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(8..))]
    pub puts: Option<u32>,
    /// Length of the longest put, a multiple of 8 from 8 to 16777216 [default: 16777216; on simulated GPUs 262144]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub most_bytes: Option<u32>,
    /// Puts of a measurement of rates [default: 20000; on simulated GPUs 200]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(10..))]
    pub messages: Option<u32>,
    /// Longest time in microseconds of a put and its answer after idle time
    #[arg(long, value_name = "NUMBER", default_value_t = 5000)]
    pub idle_limit_us: u32,
    /// Longest time in seconds until a killed rank is named
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub killed_limit_s: u32,
    /// Seed of sizes and contents
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub seed: u64,
    /// The part of a child process of this command
    #[arg(long, hide = true, value_enum)]
    pub part: Option<Part>,
    #[command(flatten)]
    pub network: Network,
}

fn parse_bytes(text: &str) -> Result<u32, &'static str> {
    let bytes = text.parse().ok();
    bytes
        .filter(|bytes: &u32| (8..=16 << 20).contains(bytes) && bytes.is_multiple_of(8))
        .ok_or("write a multiple of 8 from 8 to 16777216")
}

/// The checks, in the order in which they run. A check that ends processes comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CheckName {
    /// Bytes on 1, 2 and 4 NICs
    Rails,
    /// Bytes with and without flushes and relaxed ordering
    Poison,
    /// Messages of kernels into GPU memory
    GpuMemory,
    /// Messages per second and CPU time
    Rates,
    /// Latency after idle time
    Idle,
    /// Bytes while processes are created
    Forks,
    /// Little lockable memory
    Memlock,
    /// Few open files
    Nofile,
    /// A rank that is killed
    KilledRank,
}

impl CheckName {
    /// The name of the check on the command line.
    pub fn text(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self);
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The part of a child process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Connect two ranks with little lockable memory
    Memlock,
    /// Connect two ranks with few open files
    Nofile,
    /// Be a rank that puts until a rank is killed
    Killed,
}

#[cfg(test)]
impl NicCheck {
    /// The arguments of a command line, for tests.
    pub fn parse(words: &[&str]) -> Self {
        use clap::{Args, FromArgMatches};
        let command = Self::augment_args(clap::Command::new("nic-check"));
        let matches = command.get_matches_from([&["nic-check"], words].concat());
        Self::from_arg_matches(&matches).expect("valid arguments")
    }
}
