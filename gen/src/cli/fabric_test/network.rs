//! [`Network`]: flags that choose a transport and its properties.

mod nic_flags;

use crate::cli::environment;
use crate::cli::failure::Failure;
use mkernel::network::{Faults, NicModel, NicOptions, Transport};
use nic_flags::NicFlags;
use std::time::Duration;

/// The values of `--transport`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Emulated NICs between nodes on one host
    Emulated,
    /// InfiniBand or RoCE (needs a build with feature verbs)
    Rc,
    /// Amazon EFA (needs a build with feature efa)
    Efa,
}

/// Flags of the transport.
#[derive(Debug, clap::Args)]
pub struct Network {
    /// Transport between nodes [default: MKERNEL_TRANSPORT, else emulated]
    #[arg(long, value_enum)]
    transport: Option<Kind>,
    #[command(flatten)]
    nics: Nics,
    #[command(flatten)]
    emulated: Emulated,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Transports rc and efa")]
struct Nics {
    /// NICs to use, as in mlx5_0,mlx5_3, or for each GPU, as in 0=mlx5_0;1=mlx5_3 [default: MKERNEL_NICS, else the
    /// nearest]
    #[arg(long, alias = "nic", value_name = "NICS")]
    nics: Option<String>,
    #[command(flatten)]
    settings: NicFlags,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Transport emulated")]
struct Emulated {
    /// Bandwidth of a NIC in 10^9 bytes per second [default: 50]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = parse_rate)]
    gb_per_s: Option<f64>,
    /// One-way latency of a message in microseconds [default: 2]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = parse_us)]
    latency_us: Option<f64>,
    /// Largest random delay of a message in microseconds, which can reorder messages [default: 0]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = parse_us)]
    jitter_us: Option<f64>,
    /// Fraction of messages that are lost and sent again, 0 to 1 [default: 0]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = parse_probability)]
    loss: Option<f64>,
}

impl Network {
    /// Whether any of these flags was given.
    pub fn is_given(&self) -> bool {
        self.transport.is_some() || self.nics.any() || self.emulated.any()
    }

    /// The NICs that were given.
    pub fn nics(&self) -> Option<&str> {
        self.nics.nics.as_deref()
    }

    /// The settings of NICs that were given, as environment variables of a child.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        self.nics.settings.variables()
    }

    /// The transport. The faults of emulated NICs depend on `seed`.
    pub fn transport(&self, seed: u64) -> Result<Transport, Failure> {
        let kind = match self.transport {
            Some(kind) => kind,
            None => environment::choice("MKERNEL_TRANSPORT")?.unwrap_or(Kind::Emulated),
        };
        let emulated = kind == Kind::Emulated;
        if emulated && self.nics.any() {
            return Err(Failure::Usage(
                "--nics and the settings of NICs are for --transport rc or efa",
            ));
        }
        if !emulated && self.emulated.any() {
            return Err(Failure::Usage(
                "--gb-per-s, --latency-us, --jitter-us and --loss are for --transport emulated",
            ));
        }
        if kind == Kind::Efa && self.nics.settings.has_rc_only() {
            return Err(Failure::Usage(
                "--traffic-class, --partition-key and --nic-timeout-ms are for --transport rc",
            ));
        }
        Ok(match kind {
            Kind::Emulated => self.emulated.transport(seed),
            Kind::Rc => Transport::Rc(self.nics.options()?),
            Kind::Efa => Transport::Efa(self.nics.options()?),
        })
    }
}

impl Nics {
    fn any(&self) -> bool {
        self.nics.is_some() || self.settings.any()
    }

    fn options(&self) -> Result<NicOptions, Failure> {
        let nics = self.nics.clone();
        let options = self.settings.options()?;
        Ok(NicOptions { nics, ..options })
    }
}

impl Emulated {
    fn any(&self) -> bool {
        let numbers = [self.gb_per_s, self.latency_us, self.jitter_us, self.loss];
        numbers.iter().any(Option::is_some)
    }

    fn transport(&self, seed: u64) -> Transport {
        let us = |us: f64| Duration::from_nanos((us * 1e3) as u64);
        let latency_us = self.latency_us.unwrap_or(2.0);
        Transport::Emulated {
            nic: NicModel {
                gb_per_s: self.gb_per_s.unwrap_or(50.0),
                latency: us(latency_us),
                ..NicModel::default()
            },
            faults: Faults {
                seed,
                jitter: us(self.jitter_us.unwrap_or(0.0)),
                loss: self.loss.unwrap_or(0.0),
                retransmission: us(4.0 * latency_us),
                ..Faults::default()
            },
        }
    }
}

fn parse_rate(text: &str) -> Result<f64, &'static str> {
    parse_within(text, 1e6)
        .filter(|rate| *rate > 0.0)
        .ok_or("write a number above 0 and at most 1000000")
}

/// Parses a time of at most one second. This is longer than any network needs, and sums of such times do not overflow.
fn parse_us(text: &str) -> Result<f64, &'static str> {
    parse_within(text, 1e6).ok_or("write a number of microseconds from 0 to 1000000")
}

fn parse_probability(text: &str) -> Result<f64, &'static str> {
    parse_within(text, 1.0).ok_or("write a number from 0 to 1")
}

fn parse_within(text: &str, most: f64) -> Option<f64> {
    text.parse()
        .ok()
        .filter(|value| (0.0..=most).contains(value))
}
