//! Command-line options that several benchmarks have, and the values of these options.

use clap::Args;
use mkernel::network::{Faults, NicModel, Transport};
use mkernel::spec::{BLayout, Epilogue, GemmOp, GemmShape, Tuning};
use serde::de::DeserializeOwned;
use std::str::FromStr;
use std::time::Duration;

/// Nodes into which the GPUs of a host are divided.
#[derive(Clone, Debug, Args)]
pub struct Nodes {
    /// Number of nodes into which the GPUs are divided, with emulated NICs between them
    #[arg(long, default_value_t = 1)]
    pub nodes: u32,
    /// Rate of an emulated NIC in 10^9 bytes per second
    #[arg(long, default_value_t = 50.0)]
    pub nic_gb_s: f64,
    /// Latency of an emulated NIC in one direction, in µs
    #[arg(long, default_value_t = 5)]
    pub nic_latency_us: u64,
}

impl Nodes {
    /// Returns the emulated NICs.
    #[must_use]
    pub fn transport(&self) -> Transport {
        Transport::Emulated {
            nic: NicModel {
                gb_per_s: self.nic_gb_s,
                latency: Duration::from_micros(self.nic_latency_us),
                ..NicModel::default()
            },
            faults: Faults::default(),
        }
    }

    /// Returns the time in µs in which a NIC sends `bytes`.
    #[must_use]
    pub fn nic_us(&self, bytes: u64) -> f64 {
        bytes as f64 / self.nic_gb_s / 1e3
    }
}

/// A tuning, and its text on the command line.
#[derive(Clone, Debug, Default)]
pub struct Tune {
    /// The text.
    pub text: String,
    /// The tuning that the text describes.
    pub tuning: Tuning,
}

impl FromStr for Tune {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self {
            text: text.to_owned(),
            tuning: parse_pairs(text)?,
        })
    }
}

/// Parses an epilogue, such as `bias=true,activation=gelu`.
///
/// # Errors
/// The text has an unknown key or value.
pub fn parse_epilogue(text: &str) -> Result<Epilogue, String> {
    parse_pairs(text)
}

/// Converts `key=value,key=value` to a TOML table.
fn parse_pairs<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let mut toml = String::new();
    for pair in text
        .split(',')
        .filter(|pair| !pair.is_empty() && *pair != "auto")
    {
        let (key, value) = pair
            .split_once('=')
            .ok_or(format!("{pair:?} is not KEY=VALUE"))?;
        let is_plain = value.parse::<f32>().is_ok() || value.parse::<bool>().is_ok();
        let value = match is_plain {
            true => value.to_owned(),
            false => format!("{value:?}"),
        };
        toml.push_str(&format!("{} = {value}\n", key.replace('-', "_")));
    }
    toml::from_str(&toml).map_err(|error| error.message().to_owned())
}

/// Parses M, N and K, such as `8192x1024x8192`.
///
/// # Errors
/// The text is not three numbers.
pub fn parse_shape(text: &str) -> Result<GemmShape, String> {
    let sizes: Result<Vec<u64>, _> = text.split('x').map(str::parse).collect();
    match sizes.as_deref() {
        Ok([m, n, k]) => Ok(GemmShape {
            m: *m,
            n: *n,
            k: *k,
        }),
        _ => Err("a shape has three sizes, such as 8192x1024x8192".into()),
    }
}

/// Parses the name of a GEMM operator.
///
/// # Errors
/// The text is not the name of a GEMM operator.
pub fn parse_op(text: &str) -> Result<GemmOp, String> {
    let op = GemmOp::ALL.into_iter().find(|op| op.op().name() == text);
    op.ok_or_else(|| {
        let names = GemmOp::ALL.map(|op| op.op().name()).join(", ");
        format!("not one of {names}")
    })
}

/// Parses the name of a layout of B.
///
/// # Errors
/// The text is not the name of a layout.
pub fn parse_layout(text: &str) -> Result<BLayout, String> {
    let layouts = [BLayout::Kn, BLayout::Nk];
    let found = layouts.into_iter().find(|layout| layout.name() == text);
    found.ok_or_else(|| "a layout is kn or nk".into())
}
