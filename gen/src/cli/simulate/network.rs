//! The rates of the network, which flags give.

use crate::cli::failure::Failure;
use mkernel_declare::SpannedDiagnostic;
use mkernel_spec::Device;

/// Flags of NICs, switches and proxies.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Network")]
pub struct NetworkFlags {
    /// Rate of one NIC, one direction, Gbit/s [default: the device's NICs together, by --rails: 400]
    #[arg(long, value_name = "GBIT/S", conflicts_with = "nic_gb_s")]
    nic_gbit: Option<f64>,
    /// Time from the departure of the last byte of a put to its arrival, switches included
    #[arg(long, value_name = "US", default_value_t = 2.0)]
    nic_us: f64,
    /// NICs of each GPU
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    rails: u32,
    /// Time from a kernel's command until the proxy has read it (2.3 to 2.6 µs were measured)
    #[arg(long, value_name = "US", default_value_t = 2.4)]
    pickup_us: f64,
    /// Time of the proxy of a GPU for each put (0.1 µs without a NIC, on a virtual machine)
    #[arg(long, value_name = "US", default_value_t = 0.2)]
    proxy_put_us: f64,
    /// Time of the proxy of a GPU for each arrival
    #[arg(long, value_name = "US", default_value_t = 0.2)]
    proxy_arrival_us: f64,
    /// Rate of the NICs of a leaf switch over the rate of its links to other leaf switches; 1 = every NIC has its full rate
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    oversubscription: f64,
    /// Nodes whose NICs share a leaf switch, one switch per NIC of a node
    #[arg(long, value_name = "COUNT", default_value_t = 32)]
    leaf_nodes: u32,
}

/// The network of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// The rate of a GPU's NVLink, one direction, GB/s.
    pub link_gb_s: f64,
    /// The rate of a NIC, one direction, GB/s.
    pub nic_gb_s: f64,
    pub nic_us: f64,
    pub rails: u32,
    pub pickup_us: f64,
    pub proxy_put_us: f64,
    pub proxy_arrival_us: f64,
    pub oversubscription: f64,
    pub leaf_nodes: u32,
}

impl NetworkFlags {
    /// The device with the rate of all NICs of a GPU.
    pub fn device(&self, device: Device) -> Device {
        match self.nic_gbit {
            Some(gbit) => Device {
                nic_gb_s: gbit / 8.0 * f64::from(self.rails),
                ..device
            },
            None => device,
        }
    }

    /// The network, with the links and the NICs of `device`.
    pub fn network(&self, device: &Device) -> Result<Network, Failure> {
        let network = Network {
            link_gb_s: device.link_gb_s,
            nic_gb_s: device.nic_gb_s / f64::from(self.rails),
            nic_us: self.nic_us,
            rails: self.rails,
            pickup_us: self.pickup_us,
            proxy_put_us: self.proxy_put_us,
            proxy_arrival_us: self.proxy_arrival_us,
            oversubscription: self.oversubscription,
            leaf_nodes: self.leaf_nodes,
        };
        let wrong = self.mistakes();
        match wrong.is_empty() {
            true => Ok(network),
            false => Err(Failure::Diagnostics(wrong)),
        }
    }

    /// The flags with values that no network has.
    fn mistakes(&self) -> Vec<SpannedDiagnostic<String>> {
        let mut wrong = Vec::new();
        let mut check = |flag: &str, value: f64, fits: bool, help: &str| {
            if !fits || !value.is_finite() {
                wrong.push(SpannedDiagnostic {
                    span: flag.to_owned(),
                    reason: format!("{value} is not possible"),
                    help: help.to_owned(),
                });
            }
        };
        for (flag, us) in [
            ("--nic-us", self.nic_us),
            ("--pickup-us", self.pickup_us),
            ("--proxy-put-us", self.proxy_put_us),
            ("--proxy-arrival-us", self.proxy_arrival_us),
        ] {
            check(flag, us, us >= 0.0, "use 0 or more");
        }
        let (gbit, factor) = (self.nic_gbit.unwrap_or(1.0), self.oversubscription);
        check("--nic-gbit", gbit, gbit > 0.0, "use a rate above 0");
        check("--oversubscription", factor, factor >= 1.0, "use 1 or more");
        let (rails, nodes) = (self.rails, self.leaf_nodes);
        check(
            "--rails",
            rails.into(),
            (1..=8).contains(&rails),
            "use 1 to 8",
        );
        check("--leaf-nodes", nodes.into(), nodes > 0, "use 1 or more");
        wrong
    }
}
